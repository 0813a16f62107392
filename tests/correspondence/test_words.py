"""Words that do not fit their image: against a loop, and in the evidence."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score

from cleanpairs.correspondence.agreement import neighbour_agreement
from cleanpairs.correspondence.words import NUMBERS, WordNumbers, WordRatios, lowest_ratio
from cleanpairs.methods.auto_training import ranks_by_length, reordered
from cleanpairs.ops.normalised_similarity import VectorPairs
from tests.helpers import distinct, unit


@pytest.mark.parametrize("references", [50, 200])
def test_ratios_are_those_of_a_loop(references: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, n = np.random.default_rng(1), 70
    x, trust, has = unit(rng.normal(size=(n, 4))), rng.random(n), rng.random((n, 6)) < [0.5, 0.3, 0.2, 0.2, 0.1, 0.01]
    judged = np.stack([rng.integers(0, n, 30), rng.integers(0, n, 30)])
    monkeypatch.setattr("cleanpairs.correspondence.words.NUMBERS", WordNumbers(references=references, block=16))
    found = WordRatios(x, csr_array(3 * has), trust)(judged)
    some = np.sort(np.random.default_rng(0).permutation(n)[:references])
    share = (trust[some] @ has[some]) / trust[some].sum()

    def s(i: int, j: int) -> np.ndarray:
        rows = [r for r in some if r not in (i, j)]
        K = np.exp((x[rows] @ x[i] - 1) / NUMBERS.tau) * trust[rows]
        return np.log(K @ has[rows] / K.sum() + NUMBERS.prior * share)

    every = np.array([s(i, i) for i in some])
    own = (np.array([s(i, i) for i in range(n)]) - every.mean(0)) / every.std(0)
    expected = np.zeros((30, 6))
    for k, (i, j) in enumerate(judged.T):
        for w in np.flatnonzero(has[j] & (has[some].sum(0) >= NUMBERS.least)):
            holders = [r for r in range(n) if has[r, w] and r != j]
            h = max(trust[holders] @ own[holders, w], 0) / (trust[holders].sum() + NUMBERS.shrink)
            expected[k, w] = h * (s(i, j)[w] - every[:, w].mean()) / every[:, w].std() - h**2 / 2
    np.testing.assert_allclose(found.toarray(), expected, rtol=2e-4, atol=2e-4)
    assert not found.toarray()[:, 5].any()


def test_the_evidence_finds_one_wrong_word() -> None:
    rng, n = np.random.default_rng(0), 600
    kind, colour, edited = rng.integers(0, 6, n), rng.integers(0, 6, n), rng.random(n) < 0.2
    shown = np.where(edited, (colour + rng.integers(1, 6, n)) % 6, colour)
    words = np.concatenate([np.eye(6)[kind], np.eye(6)[shown], np.ones((n, 1))], axis=1)
    pictures = np.concatenate([3 * np.eye(6)[kind], np.eye(6)[colour]], axis=1)
    x = unit(pictures + 0.15 * rng.normal(size=(n, 12)))
    pairs = distinct(x, unit(words * [*[3] * 6, *[1] * 6, 0]))
    own = np.tile(np.arange(n), (2, 1))
    lowest = np.asarray(WordRatios(x, csr_array(words), np.ones(n))(own).toarray()).argmin(axis=1)
    assert (lowest[edited] == 6 + shown[edited]).mean() > 0.95
    assert roc_auc_score(edited, -lowest_ratio(x, csr_array(words), np.ones(n), own)) > 0.95
    without, with_words = neighbour_agreement(pairs), neighbour_agreement(pairs, words=csr_array(words))
    first, second = (roc_auc_score(edited, -found.observed) for found in (without, with_words))
    assert second > first + 0.02 and np.isclose(with_words.null.std(), 1)


def test_other_captions_of_an_image_do_not_make_its_words_unlikely() -> None:
    rng, images, captions = np.random.default_rng(0), 150, 5
    shown = np.argsort(rng.random((images, 300)), axis=1)[:, :12]  # of which a caption names three
    group = np.repeat(np.arange(images), captions)
    source, wrong = group.copy(), rng.random(len(group)) < 0.4
    source[wrong] = rng.permutation(source[wrong])
    wrong = source != group
    words = np.zeros((len(group), 300))
    np.put_along_axis(words, rng.permuted(shown[source], axis=1)[:, :3], 1, axis=1)
    x = unit(np.eye(300)[shown].sum(axis=1) + 0.3 * rng.normal(size=(images, 300)))[group]
    pairs = VectorPairs(x, unit(words + 0.1 * rng.normal(size=words.shape)), group, np.arange(len(group)))
    without, with_words = neighbour_agreement(pairs), neighbour_agreement(pairs, words=csr_array(words))
    first, second = (roc_auc_score(wrong, -found.observed) for found in (without, with_words))
    assert second > first - 0.002


def test_words_order_matched_pairs_alone_and_no_caption_is_above_a_longer_one_for_having_few() -> None:
    order, words = np.array([0.1, 0.2, 1.0, 2.0, 2.1]), np.array([0.9, 0.1, 0.9, 0.1, 0.9])
    found = reordered(order, words, 0.75)
    assert (found[:2] == order[:2]).all() and (np.argsort(found) == [0, 1, 3, 2, 4]).all()
    rng, length = np.random.default_rng(0), np.repeat([2, 12], 500)
    lowest = np.array([rng.normal(size=k).min() for k in length])
    found = ranks_by_length(lowest, length)
    assert np.isclose(found[:500].mean(), 0.5) and np.isclose(found[500:].mean(), 0.5)
    assert (np.argsort(found[500:]) == np.argsort(lowest[500:])).all()
