"""A plan that is made in a stream is the plan that is made in memory, and what it leaves beside it."""

import json
import shutil
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as pq_csv

from cleanpairs.commands import rematch
from cleanpairs.commands.rematch import WrittenPlan, rematch_run
from cleanpairs.commands.run import ANSWERS, PLAN, Run
from cleanpairs.core.errors import ConfigError
from cleanpairs.correspondence import pair_probability
from cleanpairs.correspondence.pair_probability import PairNumbers
from cleanpairs.data import load_pairs
from cleanpairs.estimators import scorer
from cleanpairs.export import export_pairs
from cleanpairs.repair.actions import REMATCHED
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.planning import judged_pairs
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.review.log import DecisionLog
from tests.helpers import InParts, fit_beside

NUMBERS = ("repair_score", "margin", "confidence", "correspondence")


def write(path: Path, n: int, wrong: float, seed: int = 0, dim: int = 16) -> Path:
    """Pairs of like vectors, some permuted, some twice, some with no caption or no vector."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n, dim))
    image, text = (centre + 0.3 * rng.normal(size=(n, dim)) for _ in range(2))
    captions = [f"a text of number {i}" for i in range(n)]
    chosen = rng.choice(n, round(wrong * n), replace=False)
    order = np.arange(n)
    order[chosen] = rng.permutation(chosen)
    text, captions = text[order], [captions[i] for i in order]
    for _ in range(n // 20):  # duplicates of images, of texts
        a, b = rng.integers(0, n, 2)
        image[a] = image[b]
        a, b = rng.integers(0, n, 2)
        text[a], captions[a] = text[b], captions[b]
    if n > 10:
        captions[3], image[5, 0] = "", np.nan
    sides = [pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float16).ravel()), dim) for x in (image, text)]
    columns = {"key": pa.array([f"k{i}" for i in range(n)], pa.string()), "caption": pa.array(captions, pa.string())}
    table = pa.table({**columns, "image_features": sides[0], "text_features": sides[1]})
    pq.write_table(table, path, row_group_size=max(1, n // 3))
    return path


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


def plan_stream(run: Run, data: Path | None, out: Path, *, overwrite: bool = False, **settings: Any) -> WrittenPlan:
    """A plan of which all rows are streamed."""
    return rematch_run(run, out, RepairSettings(**settings), data, streamed_from=0, overwrite=overwrite)


def in_memory(run: Run, data: Path | None, out: Path, **settings: Any) -> RepairPlan:
    assert not rematch_run(run, out, RepairSettings(**settings), data).streamed
    plan = RepairPlan.load(out)
    out.unlink()
    return plan


def same(a: pa.Table, b: pa.Table) -> None:
    assert a.schema.names == b.schema.names and len(a) == len(b)
    for name in a.schema.names:
        if name not in NUMBERS:
            assert a[name].to_pylist() == b[name].to_pylist(), name
        else:
            x, y = (t[name].to_numpy(zero_copy_only=False) for t in (a, b))
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "nearest", "take_from": "mismatched"},
        {"max_reuse": 3, "candidates": 5},
        {"targets": "image", "take_from": "trusted"},
    ],
)
def test_streamed_plan_is_the_plan_of_memory(run: Run, tmp_path: Path, settings: dict[str, Any]) -> None:
    data = write(tmp_path / "data.parquet", 700, 0.4, seed=1)
    expected = in_memory(run, data, tmp_path / "expected.parquet", threshold=0.75, repairs="plausible", **settings)
    out = tmp_path / "plan.parquet"
    found = plan_stream(run, data, out, threshold=0.75, repairs="plausible", **settings)
    assert found.streamed
    loaded = RepairPlan.load(out)
    same(loaded.table, expected.table)
    assert loaded.fingerprint == expected.fingerprint and loaded.threshold == expected.threshold
    assert json.loads(json.dumps(dict(expected.settings))) == dict(loaded.settings)
    wanted, got = expected.summary(), found.summary
    assert str(got) == str(wanted) and got.repaired > 10 and got.quarantined == 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["data.parquet", "plan.parquet"]


@pytest.mark.parametrize(
    ("n", "wrong", "threshold"),
    [(0, 1.0, 0.9), (1, 1.0, 0.9), (2, 1.0, 0.9), (7, 1.0, 0.9), (90, 0.5, 0), (90, 0.5, 1)],
)
def test_few_rows_and_all_or_none_to_repair(run: Run, tmp_path: Path, n: int, wrong: float, threshold: float) -> None:
    data = write(tmp_path / "data.parquet", n, wrong)
    expected = in_memory(run, data, tmp_path / "expected.parquet", threshold=threshold, repairs="plausible")
    found = plan_stream(run, data, tmp_path / "plan.parquet", threshold=threshold, repairs="plausible")
    assert found.streamed and found.summary.pairs == n
    same(RepairPlan.load(tmp_path / "plan.parquet").table, expected.table)


def test_searches_in_parts_go_on_after_a_kill(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write(tmp_path / "data.parquet", 400, 0.4), tmp_path / "plan.parquet"
    settings, engine = RepairSettings(threshold=0.75, repairs="plausible"), InParts()
    plan_stream(run, data, tmp_path / "whole.parquet", threshold=0.75, repairs="plausible")

    def stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rematch, "write_plan", stop)
        with pytest.raises(KeyboardInterrupt):
            rematch_run(run, out, settings, data, streamed_from=0, engine=engine)
    left = {p.name for p in (tmp_path / "plan.parquet.parts").iterdir()}
    assert not out.exists() and {"search-0", "search-1"} <= left
    engine.run = stop  # type: ignore[method-assign]
    rematch_run(run, out, settings, data, streamed_from=0, engine=engine)
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not (tmp_path / "plan.parquet.parts").exists()


def test_what_does_not_stream_is_left_to_memory(run: Run, tmp_path: Path) -> None:
    data, known = write(tmp_path / "data.parquet", 60, 0.4), tmp_path / "known.parquet"
    pq.write_table(pq.read_table(data).append_column("true_mismatch", pa.array([False] * 60)), known)
    for given, out, strategy in (
        (data, "plan.csv", "ot"),
        (data, "plan.parquet", "half-replace"),
        (known, "truth.parquet", "ot"),
    ):
        found = rematch_run(run, tmp_path / out, RepairSettings(strategy=strategy), given, streamed_from=0)
        assert not found.streamed and found.summary.pairs == 60


@pytest.mark.parametrize("other", [False, True], ids=["data of fit", "other data"])
@pytest.mark.parametrize(("most", "exact"), [(10_000, 8192), (200, 8192), (200, 100)])
def test_streamed_plans_have_the_probabilities_of_memory(
    large_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, exact: int, other: bool
) -> None:
    """Also where they are learned from some of the trusted pairs only, and where many pairs are to be repaired."""
    given = write(tmp_path / "other.parquet", 900, 0.4, seed=1) if other else None
    monkeypatch.setattr(scorer, "judged_pairs", partial(judged_pairs, most=most, most_trusted=400))
    monkeypatch.setattr(pair_probability, "NUMBERS", PairNumbers(most_exact=exact, most_held=80))
    expected = in_memory(large_run, given, tmp_path / "expected.parquet", displaced=False)
    found = plan_stream(large_run, given, tmp_path / "plan.parquet", displaced=False)
    assert found.summary.repaired > 50 and "undetermined" not in str(found.summary)
    table = RepairPlan.load(tmp_path / "plan.parquet").table
    same(table, expected.table)
    made = table.filter(pc.is_in(table["action"], pa.array(REMATCHED))).to_pylist()
    captions = np.array([int(row["caption"].split()[-1]) for row in made])
    shown = np.array([row["donor_pair_id" if row["action"] == "rematch_image" else "pair_id"] for row in made])
    right, sure = (captions == shown).mean(), np.mean([row["confidence"] for row in made])
    assert right > 0.8 and abs(right - sure) < 0.1, (right, sure)


def test_vectors_of_one_space_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    data = write(tmp_path / "data.parquet", 900, 0.3)
    fitted = fit(data, method="auto")
    for other in (None, write(tmp_path / "other.parquet", 700, 0.3, seed=1)):
        expected = in_memory(fitted, other, tmp_path / "expected.parquet")
        found = plan_stream(fitted, other, tmp_path / "plan.parquet", overwrite=True)
        assert found.streamed and found.summary.repaired > 50
        table = RepairPlan.load(tmp_path / "plan.parquet").table
        for name in table.column_names:
            assert table[name].to_pylist() == expected.table[name].to_pylist(), name


def test_the_best_of_near_duplicates_is_kept(run: Run, tmp_path: Path) -> None:
    """In memory and in a stream, and all rows are accounted for. Repairs show no image again."""
    rng, n = np.random.default_rng(0), 240
    vectors = rng.normal(size=(n, 64))
    vectors[:40] = vectors[200:] + 0.1 * rng.normal(size=(40, 64))  # 40 images twice
    texts = vectors + 0.5 * rng.normal(size=(n, 64))
    texts[:80:2] = rng.permutation(texts[:80:2])
    sides = [pa.array(list(side.astype(np.float32))) for side in (vectors, texts)]
    captions = [f"a text of number {i}" for i in range(n)]
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"caption": captions, "image_features": sides[0], "text_features": sides[1]}), data)
    fitted = fit(data)
    issues = pq_csv.read_csv(fitted.path / "issues.csv").to_pylist()
    listed = [row["pair_id"] for row in issues if row["issue"] == "near-duplicate images, different captions"]
    assert len(listed) == 40 and {i % 200 for i in listed} == set(range(40))
    expected = in_memory(fitted, None, tmp_path / "expected.parquet", threshold=0.0, dedup=True)
    found = plan_stream(fitted, None, tmp_path / "plan.parquet", threshold=0.0, dedup=True)
    assert found.summary.kept == 200 and found.summary.dropped == 40
    table = RepairPlan.load(tmp_path / "plan.parquet").table
    same(table, expected.table)
    y, dropped = table["correspondence"].to_numpy(), np.flatnonzero(pc.equal(table["action"], "drop"))
    assert all(y[i] <= y[(i + 200) % 400 if i < 40 else i - 200] for i in dropped.tolist())
    plausible = {"threshold": 0.5, "repairs": "plausible", "dedup": True}
    found = plan_stream(fitted, None, tmp_path / "plan.parquet", overwrite=True, **plausible)
    table = RepairPlan.load(tmp_path / "plan.parquet").table
    same(table, in_memory(fitted, None, tmp_path / "expected.parquet", **plausible).table)
    written = table.filter(pc.is_in(table["action"], pa.array(["keep", "rematch_text", "rematch_image"])))
    shown = pc.if_else(pc.equal(written["action"], "rematch_image"), written["donor_pair_id"], written["pair_id"])
    images = [i % 200 for i in shown.to_pylist()]
    assert found.summary.repaired > 5 and len(set(images)) == len(images)


def test_a_trained_model_on_vectors(tmp_path: Path) -> None:
    """Its towers see the rows in other batches, so that numbers are equal up to rounding."""
    data = write(tmp_path / "data.parquet", 300, 0.3)
    run = fit(data, "dim=16", "dim_word=8", method="infonce", epochs=2, seed=0)
    for given in (None, write(tmp_path / "other.parquet", 200, 0.3, seed=4)):
        settings = {"threshold": 0.5, "min_repair_score": 0.05, "repairs": "plausible"}
        expected = in_memory(run, given, tmp_path / "expected.parquet", **settings)
        assert plan_stream(run, given, tmp_path / "plan.parquet", overwrite=True, **settings).summary.repaired > 0
        table = RepairPlan.load(tmp_path / "plan.parquet").table
        assert np.mean([a == b for a, b in zip(table["action"], expected.table["action"], strict=True)]) > 0.98
        assert table["key"].equals(expected.table["key"])
        kept = table.filter(pc.is_in(table["action"], pa.array(["keep", "rematch_text", "rematch_image"])))
        assert kept["caption"].null_count == 0 and kept["original_caption"].null_count == 0


def test_the_plan_of_a_run_is_its_own_until_the_answers_change(tmp_path: Path) -> None:
    """Also where rows are displaced, whose pairs a plan gives 0, where an answer is taken back, or the data moved."""
    data = write(tmp_path / "data.parquet", 600, 0.1)
    table = pq.read_table(data)
    order = np.arange(600)
    order[200:400] = np.roll(order[200:400], 1)
    columns = {"key": table["key"], "image_features": table["image_features"]}
    columns |= {name: table[name].take(order) for name in ("caption", "text_features")}
    pq.write_table(pa.table(columns), data)
    run = fit(data)
    y = run.fitted_scores().correspondence
    asked = np.flatnonzero(np.isfinite(y))[::25][:20].tolist()
    about = str(run.info["input"]["fingerprint"]), len(y)
    with closing(DecisionLog(run.path / ANSWERS, *about)) as log:
        log.label({i: bool(y[i] > 0.5) for i in asked})
        rematch_run(run, run.path / PLAN, overwrite=True)
        assert RepairPlan.load(run.path / PLAN).summary().displaced > 100 and run.current_plan() is not None
        rematch_run(run, tmp_path / "moved.plan", data=shutil.copy(data, tmp_path / "moved.parquet"))
        assert RepairPlan.load(tmp_path / "moved.plan").table.equals(RepairPlan.load(run.path / PLAN).table)
        log.undo(log.about(asked[-1])[-1].name)
        assert run.answered() is None and run.current_plan() is None
        log.label({asked[-1]: bool(y[asked[-1]] > 0.5), 201: True})
        assert y[201] == 0 and run.current_plan() is None


def test_images_of_rows_with_lists_of_captions_are_not_replaced(tmp_path: Path) -> None:
    data = write(tmp_path / "data.parquet", 60, 0.3)
    table = pq.read_table(data).select(["key", "image_features", "caption"])
    lists = pa.array([[caption] for caption in table["caption"].to_pylist()])
    pq.write_table(table.set_column(2, "caption", lists), data)
    run = fit(data, "image_encoder=features", "epochs=1", "batch_size=16", method="infonce", backbone="mlp")
    with pytest.raises(ConfigError, match="--captions split"):
        rematch_run(run, tmp_path / "plan.parquet", RepairSettings(targets="image"))


def test_a_fit_of_an_export_says_what_is_missing(tmp_path: Path) -> None:
    """The wrong pairs that the rate is read from are gone: it would be believed."""
    data, clean = write(tmp_path / "data.parquet", 200, 0.4), tmp_path / "out" / "clean.parquet"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = fit(data)
    export_pairs(load_pairs(data), in_memory(first, None, tmp_path / "plan.parquet"), clean)
    with pytest.warns(UserWarning, match="the noise rate comes out too low"):
        fit(clean)
