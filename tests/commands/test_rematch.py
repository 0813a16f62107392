"""A plan that is made in a stream is the plan that is made in memory, and what it leaves beside it."""

import json
import shutil
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cleanpairs.commands import rematch
from cleanpairs.commands.rematch import rematch_run
from cleanpairs.commands.run import PLAN, Run
from cleanpairs.core.errors import ConfigError
from cleanpairs.correspondence import pair_probability
from cleanpairs.correspondence.pair_probability import PairNumbers
from cleanpairs.data import load_pairs
from cleanpairs.estimators import scorer
from cleanpairs.export import export_pairs
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.actions import REMATCHED
from cleanpairs.repair.plan import PlanSummary, RepairPlan
from cleanpairs.repair.planning import judged_pairs
from cleanpairs.repair.settings import RepairSettings
from tests.helpers import InParts, assert_raises, csv_rows, fit_beside, vector_column, write_table

NUMBERS = ("repair_score", "margin", "confidence", "correspondence")


def write(path: Path, n: int, wrong: float, seed: int = 0, dim: int = 16) -> Path:
    """Pairs of like vectors, some permuted, some twice, some with no caption or no vector."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n, dim))
    image, text = (centre + 0.3 * rng.normal(size=(n, dim)) for _ in range(2))
    chosen = rng.choice(n, round(wrong * n), replace=False)
    order = np.arange(n)
    order[chosen] = rng.permutation(chosen)
    text, captions = text[order], [f"a text of number {i}" for i in order]
    for _ in range(n // 20):  # duplicates of images, of texts
        a, b = rng.integers(0, n, 2)
        image[a] = image[b]
        a, b = rng.integers(0, n, 2)
        text[a], captions[a] = text[b], captions[b]
    if n > 10:
        captions[3], image[5, 0] = "", np.nan
    columns = {"key": pa.array([f"k{i}" for i in range(n)], pa.string()), "caption": pa.array(captions, pa.string())}
    columns |= {f"{k}_features": vector_column(x.astype(np.float16)) for k, x in (("image", image), ("text", text))}
    return write_table(path, columns, row_group_size=max(1, n // 3))


def fit(data: Path, *overrides: str, **options: Any) -> Run:
    """A run beside the data, by default of clip-score on vectors of both sides."""
    given = {"method": "clip-score", "device": "cpu", **options}
    fit_beside(data, "require_dependence=false", *(overrides or ["text_encoder=features"]), **given)
    return Run(data.parent / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(write(tmp_path_factory.mktemp("stream") / "few.parquet", 300, 0.2))


@pytest.fixture(scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(write(tmp_path_factory.mktemp("large") / "data.parquet", 900, 0.3))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rematch.Planning, "batch_rows", 64)


def both(run: Run, data: Path | None, folder: Path, **settings: Any) -> tuple[PlanSummary, RepairPlan, RepairPlan]:
    """The counts of a plan of which all rows are streamed, that plan, and the plan of memory."""
    out, expected = folder / "plan.parquet", folder / "expected.parquet"
    whole, counts = rematch_run(run, expected, RepairSettings(**settings), data, overwrite=True)
    head, found = rematch_run(run, out, RepairSettings(**settings), data, streamed_from=0, overwrite=True)
    assert not len(head) and len(whole) == counts.pairs
    return found, RepairPlan.load(out), RepairPlan.load(expected)


def same(a: pa.Table, b: pa.Table) -> None:
    assert a.schema.names == b.schema.names and len(a) == len(b)
    for name in a.schema.names:
        if name not in NUMBERS:
            assert a[name].to_pylist() == b[name].to_pylist(), name
        else:
            x, y = (t[name].to_numpy(zero_copy_only=False).astype(np.float64) for t in (a, b))
            np.testing.assert_allclose(x, y, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("settings", [
    {},
    {"strategy": "nearest", "take_from": "mismatched"},
    {"targets": "image", "take_from": "trusted", "max_reuse": 3, "candidates": 5},
])  # fmt: skip
def test_streamed_plan_is_the_plan_of_memory(run: Run, tmp_path: Path, settings: dict[str, Any]) -> None:
    data = write(tmp_path / "data.parquet", 700, 0.4, seed=1)
    found, loaded, expected = both(run, data, tmp_path, threshold=0.75, repairs="plausible", **settings)
    same(loaded.table, expected.table)
    assert loaded.fingerprint == expected.fingerprint and loaded.threshold == expected.threshold
    assert json.loads(json.dumps(dict(expected.settings))) == dict(loaded.settings)
    assert str(found) == str(expected.summary())
    assert found.repaired > 10 and found.quarantined == 2
    assert {p.name for p in tmp_path.iterdir()} - {"cache"} == {"data.parquet", "expected.parquet", "plan.parquet"}


@pytest.mark.parametrize(("n", "wrong", "cut"), [(0, 1, 0.9), (1, 1, 0.9), (2, 1, 0.9), (90, 0.5, 0), (90, 0.5, 1)])
def test_few_rows_and_all_or_none_to_repair(run: Run, tmp_path: Path, n: int, wrong: float, cut: float) -> None:
    data = write(tmp_path / "data.parquet", n, wrong)
    found, plan, expected = both(run, data, tmp_path, threshold=cut, repairs="plausible")
    assert found.pairs == n
    same(plan.table, expected.table)


def test_searches_in_parts_go_on_after_a_kill(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "data.parquet", 400, 0.4)
    out, whole = tmp_path / "plan.parquet", tmp_path / "whole.parquet"
    settings, engine = RepairSettings(threshold=0.75, repairs="plausible"), InParts()
    stop = Mock(side_effect=KeyboardInterrupt)
    rematch_run(run, whole, settings, data, streamed_from=0)
    with monkeypatch.context() as patch:
        patch.setattr(rematch, "write_plan", stop)
        assert_raises(KeyboardInterrupt, "^$", rematch_run, run, out, settings, data, streamed_from=0, engine=engine)
    assert not out.exists() and {"search-0", "search-1"} <= {p.name for p in Path(f"{out}.parts").iterdir()}
    engine.run = stop  # type: ignore[method-assign]
    rematch_run(run, out, settings, data, streamed_from=0, engine=engine)
    assert out.read_bytes() == whole.read_bytes() and not Path(f"{out}.parts").exists()


def test_what_does_not_stream_is_left_to_memory(run: Run, tmp_path: Path) -> None:
    data, known = write(tmp_path / "data.parquet", 60, 0.4), tmp_path / "known.parquet"
    pq.write_table(pq.read_table(data).append_column("true_mismatch", pa.array([False] * 60)), known)
    for given, out, strategy in (
        (data, "plan.csv", "ot"), (data, "plan.parquet", "half-replace"), (known, "truth.parquet", "ot"),
    ):  # fmt: skip
        plan, _ = rematch_run(run, tmp_path / out, RepairSettings(strategy=strategy), given, streamed_from=0)
        assert len(plan) == 60


@pytest.mark.parametrize("other", [False, True], ids=["data of fit", "other data"])
@pytest.mark.parametrize(("most", "exact"), [(10_000, 8192), (200, 8192), (200, 100)])
def test_streamed_plans_are_as_sure_as_those_of_memory(
    large_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, exact: int, other: bool
) -> None:
    """Also where they are learned from some of the trusted pairs only, and where many pairs are to be repaired."""
    given = write(tmp_path / "other.parquet", 900, 0.4, seed=1) if other else None
    monkeypatch.setattr(scorer, "judged_pairs", partial(judged_pairs, most=most, most_trusted=400))
    assert judged_pairs(np.array([0.1, np.nan, 0.9], np.float32), 0.5, 0).tolist() == [0, 2]  # no quarantined one
    monkeypatch.setattr(pair_probability, "NUMBERS", PairNumbers(most_exact=exact, most_held=80))
    found, plan, expected = both(large_run, given, tmp_path, displaced=False)
    assert found.repaired > 50 and "undetermined" not in str(found)
    same(plan.table, expected.table)
    made = plan.table.filter(pc.is_in(plan.table["action"], pa.array(REMATCHED))).to_pylist()
    captions = np.array([int(row["caption"].split()[-1]) for row in made])
    shown = np.array([row["donor_pair_id" if row["action"] == "rematch_image" else "pair_id"] for row in made])
    right, sure = (captions == shown).mean(), np.mean([row["confidence"] for row in made])
    assert right > 0.8 and abs(right - sure) < 0.1, (right, sure)


def test_vectors_of_one_space_have_the_same_plan(tmp_path: Path) -> None:
    """Its numbers but for rounding: products of other sizes round otherwise on some processors."""
    fitted = fit(write(tmp_path / "data.parquet", 900, 0.3), method="auto")
    new = write(tmp_path / "other.parquet", 700, 0.3, seed=1)
    for other, threshold in ((None, None), (new, None), (new, 0.4)):
        found, plan, expected = both(fitted, other, tmp_path, threshold=threshold)
        assert found.repaired > 50
        for name, column in zip(plan.table.column_names, plan.table.columns, strict=True):
            if pa.types.is_floating(column.type):
                np.testing.assert_allclose(column.to_numpy(), expected.table[name].to_numpy(), rtol=1e-5, err_msg=name)
            else:
                assert column.to_pylist() == expected.table[name].to_pylist(), name


def test_the_best_of_near_duplicates_is_kept(tmp_path: Path) -> None:
    """In memory and in a stream, and all rows are accounted for. Repairs show no image again."""
    rng, n = np.random.default_rng(0), 240
    vectors = rng.normal(size=(n, 64))
    vectors[:40] = vectors[200:] + 0.1 * rng.normal(size=(40, 64))  # 40 images twice
    texts = vectors + 0.5 * rng.normal(size=(n, 64))
    texts[:80:2] = rng.permutation(texts[:80:2])
    columns = {"caption": [f"a text of number {i}" for i in range(n)]}
    columns |= {f"{k}_features": vector_column(x.astype("f4")) for k, x in (("image", vectors), ("text", texts))}
    fitted = fit(write_table(tmp_path / "data.parquet", columns))
    issues = csv_rows(fitted.path / "issues.csv")
    listed = [int(row["pair_id"]) for row in issues if row["issue"] == "near-duplicate images, different captions"]
    assert len(listed) == 40 and {i % 200 for i in listed} == set(range(40))
    for bits in (8, 28):  # the first limit divides the copies: what the first batch alone has must not move them
        found, plan, expected = both(fitted, None, tmp_path, threshold=0.0, dedup=True, duplicate_bits=bits)
        same(plan.table, expected.table)
    assert found.kept == 200 and found.dropped == 40
    y, dropped = plan.table["correspondence"].to_numpy(), np.flatnonzero(pc.equal(plan.table["action"], "drop"))
    assert all(y[i] <= y[(i + 200) % 400 if i < 40 else i - 200] for i in dropped.tolist())
    found, plan, expected = both(fitted, None, tmp_path, threshold=0.5, repairs="plausible", dedup=True)
    same(plan.table, expected.table)
    written = [row for row in plan.table.to_pylist() if row["action"] in ("keep", "rematch_text", "rematch_image")]
    shown = [row["donor_pair_id" if row["action"] == "rematch_image" else "pair_id"] for row in written]
    assert found.repaired > 5 and len({i % 200 for i in shown}) == len(shown)


def test_a_trained_model_on_vectors(tmp_path: Path) -> None:
    """Its towers see the rows in other batches, so that numbers are equal up to rounding. A filter's reason stays."""
    table = pq.read_table(data := write(tmp_path / "data.parquet", 300, 0.3))
    write_table(data, with_columns(table, {"caption": pa.array(["12 34", *table["caption"].to_pylist()[1:]])}))
    run = fit(data, "dim=16", "dim_word=8", method="infonce", epochs=2, seed=0)
    for given in (None, write(tmp_path / "other.parquet", 200, 0.3, seed=4)):
        found, plan, expected = both(run, given, tmp_path, threshold=0.5, min_repair_score=0.05, repairs="plausible")
        table = plan.table
        assert found.repaired > 0 and (given is not None or table["reason"][0].as_py() == run.scores().reasons[0])
        assert np.mean([a == b for a, b in zip(table["action"], expected.table["action"], strict=True)]) > 0.98
        assert table["key"].equals(expected.table["key"])
        kept = table.filter(pc.is_in(table["action"], pa.array(["keep", "rematch_text", "rematch_image"])))
        assert kept["caption"].null_count == 0 and kept["original_caption"].null_count == 0


def test_the_plan_of_a_run_is_its_own_until_the_answers_change(tmp_path: Path) -> None:
    """Also where rows are displaced, whose pairs a plan gives 0, where an answer is taken back, or the data moved."""
    data = write(tmp_path / "data.parquet", 600, 0.1)
    table = pq.read_table(data)
    order = np.r_[0:200, 399, 200:399, 400:600]
    run = fit(write_table(data, with_columns(table, {k: table[k].take(order) for k in ("caption", "text_features")})))
    y = run.fitted_scores().correspondence
    asked = np.flatnonzero(np.isfinite(y))[::25][:20].tolist()
    with closing(run.decision_log(len(y))) as log:
        log.label({i: bool(y[i] > 0.5) for i in asked})
        rematch_run(run, run.path / PLAN, overwrite=True)
        same(both(run, None, tmp_path)[1].table, RepairPlan.load(run.path / PLAN).table)
        assert RepairPlan.load(run.path / PLAN).summary().displaced > 100 and run.current_plan() is not None
        rematch_run(run, tmp_path / "moved.plan", data=shutil.copy(data, tmp_path / "moved.parquet"))
        assert RepairPlan.load(tmp_path / "moved.plan").table.equals(RepairPlan.load(run.path / PLAN).table)
        log.undo(log.about(asked[-1])[-1].name)
        assert run.answered() is None and run.current_plan() is None
        log.label({asked[-1]: bool(y[asked[-1]] > 0.5), 201: True})
        assert y[201] == 0 and run.current_plan() is None


def test_images_of_rows_with_lists_of_captions_are_not_replaced(tmp_path: Path, command: Any) -> None:
    """The report shows what an export does, and the command that makes the rest of it."""
    data = write(tmp_path / "data.parquet", 60, 0.3)
    table = pq.read_table(data).select(["key", "image_features"])
    write_table(data, table.append_column("caption", [[[f"caption {i}"] for i in range(60)]]))
    run = fit(data, "image_encoder=features", "epochs=1", "batch_size=16", method="infonce", backbone="mlp")
    assert_raises(ConfigError, "--captions split", rematch_run, run, tmp_path / "plan", RepairSettings(targets="image"))
    for how, shown in ((), "; targets text;"), (("--captions", "split"), "out.parquet --captions split</code>"):
        assert command("export", run.path, "--out", "o.parquet", "--overwrite", *how).code == 0
        assert command("report", run.path, "--overwrite").code == 0 and shown in Path("report.html").read_text()
        assert (" --captions split" in command("review", run.path, "--write").out) == bool(how)


def test_a_fit_of_an_export_says_what_is_missing(tmp_path: Path) -> None:
    """The wrong pairs that the rate is read from are gone: it would be believed."""
    data, clean = write(tmp_path / "data.parquet", 200, 0.4), tmp_path / "out" / "clean.parquet"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = fit(data)
    rematch_run(first, tmp_path / "plan.parquet")
    export_pairs(load_pairs(data), plan := RepairPlan.load(tmp_path / "plan.parquet"), clean)
    assert plan.settings["about"]["method"] == "clip-score" and " % of the pairs " in plan.settings["about"]["noise"]
    with pytest.warns(UserWarning, match="the noise rate comes out too low"):
        fit(clean)
