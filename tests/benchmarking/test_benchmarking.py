"""The benchmark: settings, log, cells, tables, and that a second call goes on where the first stopped."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import Pairs, RepairPlan, detection, load_pairs
from cleanpairs.benchmarking import Bench, BenchResult, run_bench, summarise, to_markdown, to_text
from cleanpairs.benchmarking import bench as bench_module
from cleanpairs.benchmarking.bench import repair_quality, run_cell
from cleanpairs.benchmarking.settings import choose_methods, load_splits, method_settings
from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError, RefusedError
from cleanpairs.data.noise import Noise, apply_noise, inject_noise, noise_of
from tests.helpers import assert_raises, csv_rows, plan_of, write_corpus

SMALL = "epochs=2 dim=8 dim_word=8 batch_size=8 eval_group_size=8 device=cpu lr=0.01 tau=0.1".split()
CRCL = [*SMALL, "crcl.refine_epochs=[1]", "crcl.freeze=1"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """``x_train.parquet`` with its siblings."""
    write_corpus(tmp_path / "x_val.parquet", 16, seed=1)
    write_corpus(tmp_path / "x_test.parquet", 16, seed=2)
    return write_corpus(tmp_path / "x_train.parquet", 32)


def bench(data: Path, **changes: Any) -> Bench:
    overrides = SMALL if changes.get("methods") == "infonce" else CRCL
    settings: dict[str, Any] = {"methods": "crcl,infonce", "noise": (0.4,), "seeds": 1, "overrides": overrides}
    return Bench(str(data), **{**settings, "out": str(data.parent / "out"), **changes})


def lines(result: BenchResult) -> list[str]:
    return (Path(result.out) / "bench.jsonl").read_text().splitlines()


# -- settings -------------------------------------------------------------------------------------------------------


def test_a_setting_goes_to_the_methods_that_have_it_and_the_digest_is_of_all_that_counts() -> None:
    settings, notes = method_settings(["crcl", "infonce"], overrides=["epochs=3", "beta=0.5", "crcl.dim=4"])
    assert [s.params for s in settings] == [{"epochs": 3, "beta": 0.5, "dim": 4}, {"epochs": 3}]
    assert notes == ["--set beta=0.5 concerns crcl only"]

    def digest(*overrides: str) -> str:
        return method_settings(["crcl"], overrides=overrides)[0][0].digest

    assert digest() == digest("epochs=8") == digest("device=cpu")  # the default, and what changes no figure
    assert digest("refine_epochs=[5, 5]") == digest() != digest("epochs=9")


def test_methods_are_chosen_by_name_and_what_none_has_is_refused() -> None:
    assert choose_methods("infonce, crcl,infonce") == ["infonce", "crcl"]
    assert {"crcl", "infonce"} <= set(choose_methods("all"))
    assert_raises(ConfigError, "did you mean 'crcl'", choose_methods, "crc")
    assert_raises(ConfigError, "no method", choose_methods, " ,")
    for methods, override, words in (
        (["crcl", "infonce"], "epoch=3", "did you mean 'epochs'"),
        (["infonce"], "crcl.epochs=3", "crcl does not take part"),
        (["infonce"], "seed=3", "--seeds"),
        (["infonce"], "epochs", "key=value"),
        (["infonce"], "limit=3", "limit"),  # of the data: no method's
    ):
        assert_raises(ConfigError, words, method_settings, methods, overrides=[override])


def test_a_recipe_is_of_its_method_or_of_each(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("method: {name: crcl}\ntrain: {epochs: 7}\n")
    settings, notes = method_settings(["infonce", "crcl"], recipe=str(file), overrides=["crcl.epochs=9"])
    assert [s.params for s in settings] == [{}, {"epochs": 9}]
    assert notes == [f"--recipe {file} has no settings of infonce: their defaults are used"]
    shipped = method_settings(["crcl"], recipe="clipart")[0][0]
    assert shipped.recipe == "crcl-clipart" and shipped.params["refine_epochs"]
    assert_raises(ConfigError, r"'clippart'.*did you mean 'clipart'", method_settings, ["crcl"], recipe="clippart")
    assert_raises(ConfigError, "does not take part", method_settings, ["infonce"], recipe=str(file))


# -- splits ---------------------------------------------------------------------------------------------------------


def test_siblings_are_found_named_ones_preferred_and_mismatched_data_is_refused(data: Path) -> None:
    found = load_splits(data)
    assert (len(found.train), len(found.val), len(found.test)) == (32, 16, 16)
    assert ["x_val.parquet" in note for note in found.notes] == [True, False]
    own = load_splits(data, val=write_corpus(data.parent / "v.parquet", 9), limit=20)
    assert (len(own.train), len(own.val)) == (20, 9)
    alone = load_splits(write_corpus(data.parent / "alone.parquet", 5))
    assert alone.val is None and alone.test is None and alone.digest.endswith("none-none")
    assert alone.notes == ("no val pairs", "no test pairs")
    assert_raises(DataError, "true_mismatch", load_splits, write_corpus(data.parent / "w.parquet", 4, 2, truth=True))


# -- the log --------------------------------------------------------------------------------------------------------


ROW = {
    "cell": "c", "method": "crcl", "noise": "0.4", "rate": 0.4, "per": "caption", "data": "d", "limit": None,
    "settings_digest": "s", "status": "ok",
}  # fmt: skip


def test_a_line_that_is_no_row_is_named_before_anything_is_fitted_and_tables_of_somebody_else_stay(data: Path) -> None:
    log = data.parent / "out" / "bench.jsonl"
    log.parent.mkdir()
    (log.parent / "table.md").write_text("mine")
    assert_raises(OutputExistsError, r"holds table\.md, and no bench\.jsonl", run_bench, bench(data))
    assert [p.name for p in log.parent.iterdir()] == ["table.md"]
    bad = [ROW | {"cell": ["c"]}, ROW | {"rate": "high"}, ROW | {"status": "failed"}]  # and no error
    bad += [{k: v for k, v in ROW.items() if k != key} for key in ROW]
    for line in ("nonsense", "[" * 10_000, "[1]", '{"a": 1}', *map(json.dumps, bad)):
        log.write_text(f"{json.dumps(ROW)}\n{line}\n")
        assert_raises(DataError, "line 2", run_bench, bench(data))
        assert log.read_text() == f"{json.dumps(ROW)}\n{line}\n"


# -- cells ----------------------------------------------------------------------------------------------------------


def test_a_cell_is_judged_by_the_truth(data: Path) -> None:
    splits = load_splits(data)
    noise = inject_noise(splits.train, 0.5, seed=3)
    settings = method_settings(["crcl"], overrides=CRCL)[0][0]
    row = run_cell(settings, splits, noise, 3)
    model = settings.estimator(random_state=3).fit(apply_noise(splits.train, noise), val=splits.val)
    kept = model.correspondence_ >= model.threshold_
    wanted = {
        **model.evaluate(splits.test).to_dict(),
        **detection(model.correspondence_, noise.mismatched, model.threshold_).to_dict(),
        "epochs": 3, "flagged": float((~kept).mean()), "mismatched": noise.mismatched.mean(),
        "wrong_kept": noise.mismatched[kept].mean() if kept.any() else None,
    }  # fmt: skip
    assert {key: row[key] for key in wanted} == pytest.approx(wanted, nan_ok=True)
    assert 0 <= row["wrong_out"] <= 1


def fixed(correspondence: list[float], donors: dict[int, int]) -> Any:
    """A fitted model that plans what it is told."""

    def rematch(pairs: Pairs, **asked: str) -> RepairPlan:
        assert asked == {"targets": "text", "strategy": "method", "repairs": "plausible"}
        given = [donors.get(i) for i in range(len(pairs))]
        return plan_of(pairs, ["keep" if donor is None else "rematch_text" for donor in given], given)

    return SimpleNamespace(threshold_=0.5, correspondence_=np.array(correspondence), rematch=rematch)


def test_repairs_are_counted_by_hand() -> None:
    """Two captions an image; pairs 0 and 2 traded captions, and so did 4 and 6."""
    features = np.eye(4, dtype=np.float32)
    clean = Pairs.from_arrays([f"caption {i}" for i in range(8)], features=features, image_index=np.arange(8) // 2)
    noise = noise_of(clean, np.array([2, 1, 0, 3, 6, 5, 4, 7]))
    assert noise.mismatched.tolist() == [True, False] * 4
    flagged = [0.1, 0.9] * 4
    # 0 gets its own back (pair 2 shows it); 2 gets one of image 3; 4 gets its sibling's, which is as right.
    found = repair_quality(fixed(flagged, {0: 2, 2: 6, 4: 5}), clean, apply_noise(clean, noise), noise)
    assert found == {"repaired": 3, "repair_precision": pytest.approx(2 / 3), "corrupted_restored": 2 / 4}
    none = repair_quality(fixed(flagged, {}), clean, apply_noise(clean, noise), noise)
    assert none == {"repaired": 0, "repair_precision": None, "corrupted_restored": 0.0}
    # Words of another image are in the captions of 0, 1 and 4. 0 gets its sibling's, as bad as its own; 4 gets a whole.
    mismatched = np.isin(np.arange(8), [0, 1, 4])
    noise = Noise(np.arange(8), mismatched, {i: f"caption of {i}" for i in (0, 1, 4)})
    model = fixed(np.where(mismatched, 0.1, 0.9).tolist(), {0: 1, 4: 5})
    found = repair_quality(model, clean, apply_noise(clean, noise), noise)
    assert found == {"repaired": 2, "repair_precision": 1 / 2, "corrupted_restored": 1 / 3}


# -- the whole ------------------------------------------------------------------------------------------------------


def test_the_second_call_runs_only_what_is_missing(data: Path) -> None:
    first = run_bench(bench(data))
    before = lines(first)
    found = [(row["method"], row["noise"], row["seed"]) for row in first.rows]
    assert found == [("crcl", "0.4", 0), ("infonce", "0.4", 0)]
    assert all(row["status"] == "ok" and row["rsum"] is not None for row in first.rows)
    assert {p.name for p in Path(first.out).iterdir()} == {"bench.jsonl", "table.md", "table.csv", "plot.png"}
    assert lines(run_bench(bench(data))) == before
    (Path(first.out) / "bench.jsonl").write_text(before[0] + "\n")  # killed in the second cell
    again = run_bench(bench(data))
    assert lines(again)[0] == before[0] and len(lines(again)) == 2
    assert again.rows[1]["rsum"] == first.rows[1]["rsum"]  # and the same again
    before = lines(again)
    more = run_bench(bench(data, methods="infonce", seeds=2))
    assert len(lines(more)) == 3 and lines(more)[:2] == before
    assert summarise(more.rows)["seeds"].tolist() == [1, 2]  # the table has all that is there
    other = run_bench(bench(data, methods="infonce", overrides=(*SMALL, "epochs=1")))
    assert len(lines(other)) == 4 and other.rows[-1]["epochs"] == 1  # another cell


def test_a_failed_cell_is_told_retried_and_stops_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench_module.run_cell

    def fails(settings: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if settings.method == "crcl":
            raise RefusedError("the loss is | not finite")
        return real(settings, *args, **options)

    monkeypatch.setattr(bench_module, "run_cell", fails)
    result = run_bench(bench(data))
    assert [row["status"] for row in result.rows] == ["failed", "ok"]
    assert "crcl at 0.4: RefusedError: the loss is | not finite" in to_text(result.rows)
    assert "is \\| not" in (Path(result.out) / "table.md").read_text()
    assert_raises(RefusedError, "not finite", run_bench, bench(data, methods="crcl", out=str(data.parent / "other")))
    monkeypatch.setattr(bench_module, "run_cell", real)
    assert [row["status"] for row in run_bench(bench(data)).rows] == ["ok", "ok"]


def test_what_a_method_needs_and_has_not_got(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "choose_methods", lambda text: ["mscn", "infonce"])
    result = run_bench(bench(data, methods="all", overrides=SMALL))
    assert [row["method"] for row in result.rows] == ["infonce"]
    assert any(note.startswith("mscn needs a small clean set of pairs") for note in result.notes)
    for method, needed in (("mscn", "a small clean set"), ("lemon", "a CLIP or SigLIP model")):
        monkeypatch.setattr(bench_module, "choose_methods", lambda text: [text])
        asked = bench(data, methods=method, overrides=SMALL if method == "mscn" else [])
        assert_raises(ConfigError, f"{method} needs {needed}", run_bench, asked)


def test_noise_files_take_the_place_of_rates_and_the_csv_holds_no_formula(data: Path) -> None:
    file = data.parent / "=cmd.npy"
    np.save(file, permutation := np.concatenate([np.roll(np.arange(8), 1), np.arange(8, 32)]))
    result = run_bench(bench(data, methods="infonce", noise_files=(str(file),)))
    row = result.rows[0]
    share = noise_of(load_pairs(data), permutation).mismatched.mean()
    assert (row["noise"], row["rate"], row["per"], row["mismatched"]) == ("=cmd", share, "file", share)
    (read,) = csv_rows(Path(result.out) / "table.csv")
    assert read["noise"] == "'=cmd" and float(read["rsum"]) == row["rsum"]
    (data.parent / "other").mkdir()
    np.save(other := data.parent / "other" / file.name, 31 - permutation[::-1])
    both = run_bench(bench(data, methods="infonce", noise_files=(str(file), str(other)), out=str(data.parent / "two")))
    assert [line["noise"] for line in csv_rows(Path(both.out) / "table.csv")] == [str(file), str(other)]
    np.save(file, permutation[:-1])
    assert_raises(DataError, "32 whole numbers", run_bench, bench(data, noise_files=(str(file),)))


def test_kinds_of_noise_are_lines_of_their_own_and_data_without_noise_is_one(data: Path) -> None:
    table = pq.read_table(data)
    pq.write_table(table.append_column("kind", pa.array([f"c{i % 3}" for i in range(len(table))])), data)
    before = lines(run_bench(bench(data, methods="infonce")))
    kinds, names = "within:kind,partial", ["within:kind", "partial:0.5"]
    result = run_bench(bench(data, methods="infonce", kind=kinds))
    assert lines(result)[:1] == before and len(lines(result)) == 3
    assert [row["noise"] for row in result.rows] == ["0.4", *(f"0.4 {name}" for name in names)]
    assert [row["per"] for row in result.rows] == ["caption", *names]
    assert all(row["status"] == "ok" and row["auroc"] is not None for row in result.rows)
    assert summarise(result.rows)["noise"].tolist() == ["0.4", *(f"0.4 {name}" for name in sorted(names))]
    splits = load_splits(data)
    for row, kind in zip(result.rows[1:], names, strict=True):
        assert row["mismatched"] == inject_noise(splits.train, 0.4, kind=kind, seed=0).mismatched.mean() > 0.3
        assert row["cell"] == f"infonce/{row['settings_digest']}/{kind}-0.4/0/{splits.digest}/all"
    again = run_bench(bench(data, methods="infonce", kind=f"uniform,{kinds}"))
    assert lines(again) == lines(result) and again.rows == result.rows
    clean = bench(data, methods="infonce", kind="shift,partial", noise=(0.0, 0.4), out=str(data.parent / "clean"))
    assert [row["noise"] for row in run_bench(clean).rows] == ["0 shift:1", "0.4 shift:1", "0.4 partial:0.5"]


def test_what_cannot_be_is_refused_before_anything_is_written(data: Path) -> None:
    np.save(data.parent / "n.npy", np.arange(32))
    for changes, words in (
        ({"kind": "swap"}, "uniform, within"),
        ({"kind": " ,"}, "a kind of noise"),
        ({"kind": "within:nowhere"}, "no such column"),
        ({"kind": "shift", "noise_files": (str(data.parent / "n.npy"),)}, "their own noise"),
        ({"noise": ()}, "noise rates"),
        ({"noise": (1.5,)}, "1.5"),
        ({"seeds": 0}, "seeds of a benchmark must be a whole number >= 1"),
    ):
        assert_raises(ConfigError, words, run_bench, bench(data, **changes))
    table = pq.read_table(data)
    pq.write_table(table.append_column("text_features", table["image_features"]), data)
    message = "'partial' makes captions of other words"
    assert_raises(ConfigError, message, run_bench, bench(data, methods="infonce", kind="partial"))
    assert not (data.parent / "out").exists()


# -- tables ---------------------------------------------------------------------------------------------------------


def cell(method: str, noise: str, seed: int, rsum: float, **more: Any) -> dict[str, Any]:
    told = {"status": "ok", "method": method, "noise": noise, "rate": float(noise), "per": "caption", "seed": seed}
    return {**told, "rsum": rsum, **more}


FAILED = {"status": "failed", "method": "auto", "noise": "0.6", "rate": 0.6, "per": "caption", "error": "no | luck"}


def test_mean_and_spread_by_hand() -> None:
    drawn = [("crcl", "0.4", 0, 100.0, 0.9), ("crcl", "0.4", 1, 104.0, None), ("auto", "0.4", 0, 103.0, None)]
    rows = [cell(*told, auroc=auroc) for *told, auroc in [*drawn, ("auto", "0.2", 0, 90.0, None)]]
    found = summarise(rows)
    counted = [["0.2", "auto", 1], ["0.4", "auto", 1], ["0.4", "crcl", 2]]
    assert found[["noise", "method", "seeds"]].to_numpy().tolist() == counted
    assert found["rsum"].tolist() == [90, 103, 102]
    np.testing.assert_allclose(found["rsum_std"], [np.nan, np.nan, 8**0.5])  # sample deviation
    assert to_text([*rows, FAILED]).splitlines()[3].split() == ["0.4", "crcl", "2", "102.0", "±", "2.8", "0.900"]
    text = to_markdown([*rows, FAILED], "title", ["a < b"])
    assert "| 0.4 | auto | 1 | 103.0 | - |" in text and "- auto at 0.6: no \\| luck\n- a &lt; b" in text
    assert to_text([]) == "" and to_text([FAILED]) == "auto at 0.6: no | luck"  # nothing measured


# -- The corpora behind the tables ------------------------------------------------------------------------------------


def test_the_keys_that_ship_are_of_disjoint_splits() -> None:
    sizes_of = {
        "photos": (1600, 200, 200), "fashion": (20000, 1000, 2000), "stamps": (629, 78, 78), "emoji": (1529, 191, 191)
    }  # fmt: skip
    folder = Path(__file__).parents[2] / "benchmarks" / "keys"
    for name, sizes in sizes_of.items():
        files = [folder / f"{name}_{split}.txt" for split in ("train", "val", "test")]
        keys = [file.read_text().split()[1:] for file in files]
        assert tuple(map(len, keys)) == sizes and len(set().union(*keys)) == sum(sizes)
