"""The report's sections by themselves: slices, groups, precomputed scores, the first sentence."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr

from cleanpairs import Pairs, RepairPlan, load_pairs
from cleanpairs.core import ConfigError, DataError, percent
from cleanpairs.correspondence.calibration import Calibration, calibrate, positions
from cleanpairs.report.gallery import Cards, compare_scores, duplicates, precomputed_scores
from cleanpairs.report.outcome import Outcome, outcome_of, slice_tables
from cleanpairs.report.page import verdict
from tests.helpers import assert_raises, corpus, write_table

from .conftest import plan_of, png


def outcome(y: Any, threshold: float = 0.5, truth: Any = None) -> Outcome:
    return outcome_of(np.asarray(y, float), threshold, None, truth)


def test_slices_against_pandas(tmp_path: Path) -> None:
    import pandas as pd

    rng, n = np.random.default_rng(0), 300
    frame = pd.DataFrame({
        "features": [rng.normal(size=3).astype(np.float32) for _ in range(n)],
        "captions": [["one two", "three"][: 1 + i % 2] for i in range(n)],
        "category": [None if i % 7 == 0 else f"c{i % 5}" for i in range(n)],
        "width": rng.integers(0, 1000, n) * 2**52 + 1, "few": rng.integers(0, 3, n), "on": rng.random(n) < 0.5,
    })  # fmt: skip
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.set_column(2, "category", table["category"].dictionary_encode())
    pairs = load_pairs(write_table(tmp_path / "d.parquet", table))
    y, truth = rng.random(len(pairs)), np.ma.array(rng.random(len(pairs)) < 0.3)
    y[::11], truth[::11] = np.nan, np.ma.masked
    long = frame.iloc[pairs.row].assign(y=y, truth=truth.astype(float).filled(np.nan))
    tables = {t["column"]: t for t in slice_tables(pairs, outcome(y, truth=truth), ["category", "width", "few", "on"])}
    for name in ("category", "few", "on"):
        found = {r["value"]: r for r in tables[name]["rows"]}
        keys = long[name].map(lambda v: "(none)" if v is None or v != v else str(v))
        assert set(found) == set(keys)
        for value, part in long.groupby(keys.to_numpy()):
            row, known = found[str(value)], part["y"].dropna()
            told = [row[k] for k in ("pairs", "flagged", "mean", "wrong")]
            assert told == pytest.approx([len(part), (known < 0.5).mean(), known.mean(), part["truth"].mean()])
    sizes = [r["pairs"] for r in tables["width"]["rows"]]  # of ranges
    assert len(sizes) == 6 and sum(sizes) == len(pairs) and max(sizes) < 1.3 * min(sizes)


def test_many_values_are_summed_up(tmp_path: Path) -> None:
    columns = {"features": [[0.1, 0.2 + i] for i in range(60)], "caption": ["a b"] * 60, "nested": [[1]] * 60}
    columns |= {"shop": [f"s{i % 30}" for i in range(60)], "day": range(20240101, 20240161)}
    pairs, flat = load_pairs(write_table(tmp_path / "d.parquet", columns)), outcome(np.ones(60))
    (found,) = slice_tables(pairs, flat, "shop")
    assert [r["value"] for r in found["rows"]][-1] == "all others" and len(found["rows"]) == 21
    assert sum(r["pairs"] for r in found["rows"]) == 60 and found["note"] == "the 20 most frequent of 30 values"
    assert slice_tables(pairs, flat, "day")[0]["rows"][0]["value"] == "20240101 to 20240110"
    assert_raises(ConfigError, r"no such column; did you mean 'shop'\?", slice_tables, pairs, flat, ["shops"])
    assert_raises(ConfigError, "one value a row", slice_tables, pairs, flat, ["nested"])
    assert_raises(DataError, "memory only", slice_tables, pairs.select([1]), outcome([1.0]), ["shop"])
    assert slice_tables(pairs.select([1]), outcome([1.0]), []) == []


def test_groups_of_the_same_image_and_the_same_text() -> None:
    images: list[bytes | None] = [png(0), png(0), png(1), png(2), png(0), None, None]
    pairs = Pairs.from_arrays(["A dog", "a  DOG", "a cat", "a dog", "", "", ""], images=images)
    shown = Cards(pairs, outcome([0.1, 0.3, 0.5, 0.7, np.nan, np.nan, np.nan]))
    (first, found), (second, texts) = duplicates(shown, 5)
    assert (first, second) == ("The same image", "The same text")
    assert (found["total"], found["pairs"]) == (1, 3)  # rows without an image are no duplicates
    (group,) = found["largest"]
    assert (group["pairs"], group["images"]) == (3, 3) and group["mean"] == pytest.approx(0.2)
    assert group["captions"] == ["A dog", "a DOG", "(no caption)"]
    assert len(group["pictures"]) == 1 and (group["pictures"][0] or "").startswith("data:image/jpeg")
    assert (texts["total"], texts["pairs"]) == (1, 3)  # nor are empty captions
    assert texts["largest"][0]["captions"] == ["A dog"] and len(texts["largest"][0]["pictures"]) == 3
    assert duplicates(Cards(pairs.select([2, 3]), outcome([0.1, 0.2])), 5) == []
    assert duplicates(Cards(Pairs.from_arrays([], images=[]), outcome([])), 5) == []


def test_given_scores_are_compared() -> None:
    rng, n = np.random.default_rng(0), 200
    y = rng.random(n)
    given = y + 0.1 * rng.normal(size=n)
    given[:3], y[:2], y[3] = [9.0, -9.0, np.nan], [0.0, 1.0], np.nan
    pairs = Pairs.from_arrays([f"c{i}" for i in range(n)], images=[png(i) for i in range(n)])
    shown = Cards(pairs, outcome(y, truth=y < 0.3))
    scores = pa.table({"correspondence": y, "similarity": given, "is_mismatch": [False] * n})
    found = precomputed_scores(replace(pairs, precomputed_scores={"clip": given[::-1]}), scores)
    assert list(found) == ["clip", "similarity"]
    moved = scores.append_column("displaced_confidence", pa.array(given, pa.float32()))
    assert list(precomputed_scores(pairs, moved)) == ["similarity"]
    assert precomputed_scores(pairs, SimpleNamespace(correspondence=y)) == {}
    (c,) = compare_scores(shown, {"similarity": given}, 4)
    both = np.isfinite(y) & np.isfinite(given)
    assert c["pairs"] == n - 2
    assert c["rank_correlation"] == pytest.approx(spearmanr(given[both], y[both]).statistic)
    assert c["auroc_ours"] > c["auroc"] > 0.8
    assert [g["cards"][0]["pair_id"] for g in c["galleries"]] == [0, 1]
    assert c["galleries"][0]["cards"][0]["note"] == "similarity 9"
    assert compare_scores(Cards(pairs.select([0]), outcome([0.1])), {"s": np.array([0.5])}, 4) == []
    (flat,) = compare_scores(Cards(pairs.select([0, 1]), outcome([0.1, 0.2])), {"s": np.array([0.5, 0.5])}, 4)
    assert np.isnan(flat["rank_correlation"])
    assert_raises(DataError, "precomputed score 's'", compare_scores, shown, {"s": np.zeros(3)}, 4)


# -- The first sentence: estimates that hold, the truth where it is known, undetermined where nothing is -------------


N = 2000


def scored(noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Calibration]:
    """Correspondence (N,), true mismatches (N,), and the calibration."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(N) < noise
    score = rng.normal(size=N) + 2.5 * ~wrong
    found = calibrate(score, rng.normal(size=4000))
    return 1 - found.mismatched(positions(score, score)), wrong, found


def plan(pairs: Pairs, y: np.ndarray, repaired: int, confidence: float | None) -> RepairPlan:
    """Below 1/2 the first ones get a caption of the next flagged pair, the others are dropped."""
    flagged = np.flatnonzero(y < 0.5).tolist()
    donors = dict(pairwise(flagged[: repaired + 1]))
    action = ["keep" if v >= 0.5 else "rematch_text" if i in donors else "drop" for i, v in enumerate(y)]
    return plan_of(pairs, y, action, donors, confidence)


def told(y: np.ndarray, made: RepairPlan, pairs: Pairs, result: Any, found: Any, truth: Any = None) -> dict[str, Any]:
    words = verdict(outcome_of(y, 0.5, made, truth), made, pairs, result, found)
    assert words is not None
    return {**words, **dict(words["shares"])}


def test_estimates_hold_the_truth() -> None:
    y, wrong, found = scored()
    pairs = corpus(N)
    rate = found.noise_rate(N)
    result = {"noise_rate": rate.value, "noise_rate_interval": [rate.low, rate.high]}
    words = told(y, plan(pairs, y, 0, None), pairs, result, found)
    assert "truth" not in words["sentence"] and len(words["shares"]) == 2
    kept = found.shares(y, [int((y >= 0.5).sum())])[0]
    assert kept.low <= wrong[y >= 0.5].mean() <= kept.high
    assert words["kept"] == f"{percent(kept.value)} ({percent(kept.low)} to {percent(kept.high)})"


def test_repairs_count_with_their_probability() -> None:
    y, _, found = scored()
    pairs = corpus(N)
    made = plan(pairs, y, 100, 0.75)
    words = told(y, made, pairs, {"noise_rate": 0.3, "noise_rate_interval": [0.2, 0.4]}, found)
    kept = int((y >= 0.5).sum())
    share = (found.shares(y, [kept])[0].value * kept + 25) / (kept + 100)
    assert words["kept and repaired"] == percent(share) and words["of"] == "no better than random"
    assert f"{kept:,} of 2,000 pairs are kept." in words["sentence"]
    assert "100 pairs are repaired. About" in words["sentence"]
    made = plan(pairs, y, 100, None)  # nobody knows the probability of these
    assert told(y, made, pairs, {}, found)["kept and repaired"] == "undetermined"
    words = told(y, made, pairs, {"noise_rate": None}, None)
    assert words["sentence"].startswith("The scores do not show how many pairs are mismatched")
    assert {share for _, share in words["shares"]} == {"undetermined"} and len(words["shares"]) == 3


def test_the_truth_of_repairs_is_that_of_their_donors() -> None:
    y, wrong, found = scored()
    pairs = corpus(N)
    keys = [f"other {k}" if w else k for k, w in zip(pairs.keys, wrong, strict=True)]
    pairs = replace(pairs, true_mismatch=wrong, true_key=keys)
    made = plan(pairs, y, 100, 0.75)
    words = told(y, made, pairs, {}, found, wrong)
    assert "The truth of this corpus is known" in words["sentence"]
    kept = y >= 0.5
    expected = (wrong[kept].sum() + 100) / (kept.sum() + 100)  # none of the donors' captions is the image's own
    assert words["kept and repaired"] == percent(expected) and words["of"] == "mismatched"

    given = np.arange(N) % 2 == 0  # another truth is not mixed with that of the data
    words = told(y, made, pairs, {}, found, given)
    assert words["scored"] == percent(given.mean()) and words["kept"] == percent(given[y >= 0.5].mean())
    assert words["kept and repaired"] == "undetermined"


def test_where_the_truth_of_some_pairs_is_unknown_the_report_has_none() -> None:
    truth = np.ma.array([True, False, True], mask=[False, False, True])
    assert outcome([0.1, 0.9, 0.8], truth=truth).truth is None
    assert [row["wrong"] for row in outcome([0.1, 0.9, np.nan], truth=truth).rows()] == [0, 1, None]
