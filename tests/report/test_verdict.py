"""The first sentence of the report: estimates that hold, the truth where it is known, undetermined where nothing is."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cleanpairs import Pairs, RepairPlan
from cleanpairs.core.plain import percent
from cleanpairs.correspondence.calibration import Calibration, calibrate, positions
from cleanpairs.report.outcome import outcome_of
from cleanpairs.report.page import verdict

from .conftest import plan_of

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


def corpus(wrong: np.ndarray | None = None) -> Pairs:
    features = np.random.default_rng(1).normal(size=(N, 1, 4)).astype(np.float32)
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(N)], features=features)
    if wrong is None:
        return pairs
    keys = [f"other {k}" if w else k for k, w in zip(pairs.keys, wrong, strict=True)]
    return replace(pairs, true_mismatch=wrong, true_key=keys)


def told(y: np.ndarray, made: RepairPlan, pairs: Pairs, result: Any, found: Any, truth: Any = None) -> dict[str, Any]:
    said = verdict(outcome_of(y, 0.5, made, truth), made, pairs, result, found)
    assert said is not None
    return {**said, **dict(said["shares"])}


def test_estimates_hold_the_truth() -> None:
    y, wrong, found = scored()
    pairs = corpus()
    rate = found.noise_rate(N)
    result = {"noise_rate": rate.value, "noise_rate_interval": [rate.low, rate.high]}
    made = plan(pairs, y, 0, None)
    said = told(y, made, pairs, result, found)
    assert "truth" not in said["sentence"] and len(said["shares"]) == 2
    kept = found.shares(y, [int((y >= 0.5).sum())])[0]
    assert kept.low <= wrong[y >= 0.5].mean() <= kept.high
    assert said["kept"] == f"{percent(kept.value)} ({percent(kept.low)} to {percent(kept.high)})"


def test_repairs_count_with_their_probability() -> None:
    y, _, found = scored()
    pairs = corpus()
    made = plan(pairs, y, 100, 0.75)
    said = told(y, made, pairs, {"noise_rate": 0.3, "noise_rate_interval": [0.2, 0.4]}, found)
    kept = int((y >= 0.5).sum())
    share = (found.shares(y, [kept])[0].value * kept + 25) / (kept + 100)
    assert said["kept and repaired"] == percent(share) and said["of"] == "no better than random"
    assert f"{kept:,} of 2,000 pairs are kept." in said["sentence"]
    assert "100 pairs are repaired. About" in said["sentence"]
    assert said["sentence"].count(found.counted) == 2
    made = plan(pairs, y, 100, None)  # nobody knows the probability of these
    assert told(y, made, pairs, {}, found)["kept and repaired"] == "undetermined"
    said = told(y, made, pairs, {"noise_rate": None}, None)
    assert said["sentence"].startswith("The scores do not show how many pairs are mismatched")
    assert {share for _, share in said["shares"]} == {"undetermined"} and len(said["shares"]) == 3


def test_the_truth_of_repairs_is_that_of_their_donors() -> None:
    y, wrong, found = scored()
    pairs = corpus(wrong)
    made = plan(pairs, y, 100, 0.75)
    said = told(y, made, pairs, {}, found, wrong)
    assert "The truth of this corpus is known" in said["sentence"]
    kept = y >= 0.5
    expected = (wrong[kept].sum() + 100) / (kept.sum() + 100)  # none of the donors' captions is the image's own
    assert said["kept and repaired"] == percent(expected) and said["of"] == "mismatched"

    given = np.arange(N) % 2 == 0  # another truth is not mixed with that of the data
    said = told(y, made, pairs, {}, found, given)
    assert said["scored"] == percent(given.mean()) and said["kept"] == percent(given[y >= 0.5].mean())
    assert said["kept and repaired"] == "undetermined"
