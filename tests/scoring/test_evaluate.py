"""Recall against a brute-force count, detection against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from cleanpairs import InfoNCE, Pairs
from cleanpairs.core.errors import DataError
from cleanpairs.scoring.evaluate import Recall, detection, recall, recall_of_similarity
from tests.helpers import assert_raises, unit


def by_counting(S: np.ndarray, owner: np.ndarray) -> list[float]:
    """Ties and what is no number count against us, one query after the other."""

    def rank(right: float, others: np.ndarray) -> float:
        return sum(not other < right - np.float32(1e-6) for other in others) if np.isfinite(right) else np.inf

    of_images = [rank(S[i, owner == i].max(), S[i, owner != i]) for i in np.unique(owner)]
    of_texts = [rank(S[i, t], np.delete(S[:, t], i)) for t, i in enumerate(owner)]
    return [100 * float(np.mean(np.array(ranks) < k)) for ranks in (of_images, of_texts) for k in (1, 5, 10)]


def figures(found: Recall) -> list[float]:
    return [found.i2t_r1, found.i2t_r5, found.i2t_r10, found.t2i_r1, found.t2i_r5, found.t2i_r10]


@pytest.mark.parametrize(
    ("m", "per_image", "block"), [(1, 1, 1), (2, 1, 7), (2, 5, 1), (11, 1, 7), (60, 5, 7), (60, 5, 1), (290, 2, 300)]
)
def test_every_way_to_recall_is_the_same(m: int, per_image: int, block: int) -> None:
    rng = np.random.default_rng(m)
    z_image, owner = unit(rng.normal(size=(m, 8))), rng.permutation(np.repeat(np.arange(m), per_image))
    z_text = unit(z_image[owner] + rng.normal(scale=0.5, size=(len(owner), 8)))
    S = z_image @ z_text.T
    want = by_counting(S, owner)
    assert m < 60 or 5 < want[0] < 95  # the corpus tells something
    got = recall(z_image, z_text, owner, block=block)
    assert figures(got) == figures(recall_of_similarity(S, owner, block=block)) == pytest.approx(want)
    assert got.rsum == pytest.approx(sum(want)) == got.to_dict()["rsum"]


@pytest.mark.parametrize("block", [4, 64])
@pytest.mark.parametrize("what", ["ties", "nan", "inf", "-inf"])
def test_odd_similarities_count_against_us_in_blocks_too(what: str, block: int) -> None:
    rng = np.random.default_rng(4)
    owner = rng.permutation(np.repeat(np.arange(30), 3))
    S = rng.random((30, 90)).astype(np.float32).round(1)
    S[owner, np.arange(90)] += np.float32(0.3)
    if what != "ties":
        S[rng.random(S.shape) < 0.01] = float(what)
    assert figures(recall_of_similarity(S, owner, block=block)) == pytest.approx(by_counting(S, owner))


@pytest.mark.parametrize("backbone", ["mlp", "sgr"])  # by vectors, and by words with regions
def test_a_models_recall_in_folds_is_the_mean_over_its_parts(backbone: str) -> None:
    rng = np.random.default_rng(0)
    owner = rng.permutation(np.repeat(np.arange(40), 2))
    captions = [f"w{i % 20} v{i % 7} u{i} x{k}" for k, i in enumerate(owner)]
    place = np.argsort(np.argsort(np.unique(owner, return_index=True)[1]))[owner]  # images in the order of their rows
    pairs = Pairs.from_arrays(captions, features=rng.normal(size=(40, 3, 8)).astype(np.float32), image_index=owner)
    sizes = {"dim": 8, "dim_word": 8, "dim_sim": 4, "epochs": 3, "batch_size": 16, "lr": 5e-3}
    model = InfoNCE(backbone=backbone, device="cpu", **sizes).fit(pairs)
    parts = [figures(model.evaluate(pairs.select(np.flatnonzero(place // 10 == k)))) for k in range(4)]
    assert figures(model.evaluate(pairs, folds=4)) == pytest.approx(np.mean(parts, axis=0).tolist())
    assert model.evaluate(pairs, folds=4).rsum > model.evaluate(pairs, folds=1).rsum + 10
    assert model.evaluate(pairs, folds=1) == model.evaluate(pairs)
    assert_raises(DataError, "1 to 40 folds", model.evaluate, pairs, folds=41)


@pytest.mark.parametrize("dim", [7, 64, 512, 1024])
def test_ties_count_against_us_and_an_image_without_a_caption_is_no_query(dim: int) -> None:
    """A collapsed model gives every pair one similarity, whatever rounding says: it finds nothing."""
    rng = np.random.default_rng(2)
    same = np.repeat(unit(rng.normal(size=(1, dim))), 30, axis=0)
    assert recall(same, same, np.arange(30)).rsum == 0.0
    z_image, z_text = (unit(rng.normal(size=(n, dim))) for n in (6, 4))
    owner = np.array([0, 2, 2, 5])
    assert figures(recall(z_image, z_text, owner)) == pytest.approx(by_counting(z_image @ z_text.T, owner))


def test_detection_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(500) < 0.3
    y = np.clip(rng.normal(np.where(truth, 0.3, 0.6), 0.2), 0, 1).astype(np.float32).round(2)  # with ties
    found = detection(y, truth, 0.45)
    precision, share, f1, _ = precision_recall_fscore_support(truth, y < 0.45, average="binary")
    assert found.auroc == pytest.approx(roc_auc_score(truth, -y))
    assert found.ap == pytest.approx(average_precision_score(truth, -y))
    assert (found.precision, found.recall, found.f1) == pytest.approx((precision, share, f1))


def test_quarantined_pairs_and_those_of_unknown_truth_are_left_out_and_one_class_has_no_auroc() -> None:
    y, truth = np.array([0.1, 0.9, np.nan, 0.2, np.nan]), np.array([True, False, True, True, False])
    assert detection(y, truth, 0.5) == detection(y[[0, 1, 3]], truth[[0, 1, 3]], 0.5)
    nullable = pd.Series([True, False, True, None, False], dtype="boolean", index=range(5, 10))
    for masked in (np.ma.array(truth, mask=[0, 0, 0, 1, 0]), nullable, nullable.astype("bool[pyarrow]")):
        assert detection(y, masked, 0.15) == detection(y[:2], truth[:2], 0.15)
    assert detection(y, truth, 0.5).recall == 1.0
    nothing = detection(y, truth, 0.05)
    assert np.isnan(nothing.precision) and nothing.recall == nothing.f1 == 0.0
    for mismatched in ([True, True], [False, False], []):
        found = detection(np.array([0.2, 0.8])[: len(mismatched)], np.array(mismatched, bool), 0.5)
        assert np.isnan(found.auroc) and np.isnan(found.ap)
        assert np.isfinite([found.precision, found.recall, found.f1]).all() == any(mismatched)
