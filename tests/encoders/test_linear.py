"""Ridge regressions between frozen spaces, as a dual encoder."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.linear import PENALTY, Linear
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable, pack
from cleanpairs.scoring import embed_images, embed_texts

WORDS = [f"w{k}" for k in range(12)]
N = 300


def corpus(seed: int = 0, n: int = N, sentences: bool = True) -> tuple[np.ndarray, TokenTable]:
    """Images (n, 2, 20) and captions that name what they show; with vectors (n, 10) of the captions."""
    rng = np.random.default_rng(seed)
    shown = rng.integers(0, 12, (n, 3))
    basis = np.random.default_rng(9).normal(size=(12, 20))
    images = (basis[shown].mean(axis=1)[:, None] + 0.2 * rng.normal(size=(n, 2, 20))).astype(np.float32)
    words = Tokenizer(WORDS).encode([" ".join(WORDS[k] for k in row) for row in shown])
    if not sentences:
        return images, words
    vectors = basis[shown].mean(axis=1)[:, :10] + 0.1 * rng.normal(size=(n, 10))
    return images, TokenTable(words.ids, words.offsets, None, vectors.astype(np.float32), np.arange(n))


def similarity(model: Linear | Ensemble, images: np.ndarray, tokens: TokenTable) -> np.ndarray:
    return embed_images(model, images).vectors @ embed_texts(model, tokens).vectors.T


@pytest.mark.parametrize("kind", ["words", "words and vectors", "vectors"])
def test_it_retrieves_what_it_has_not_seen(kind: str) -> None:
    given = []
    for seed, n in ((0, N), (1, 40)):
        images, tokens = corpus(seed, n, kind != "words")
        if kind == "vectors":
            tokens = TokenTable(np.arange(n), np.arange(n + 1), tokens.sentences)
        given.append((images, tokens))
    vocabulary = {} if kind == "vectors" else {"vocabulary": 13}
    model = Linear.fit(*given[0], np.arange(N), np.ones(N), **vocabulary)
    S = similarity(model, *given[1])
    assert (S.argmax(axis=1) == np.arange(len(S))).mean() > 0.3  # by chance .025
    assert (model.words is None) == (kind == "vectors")


def test_the_cosines_are_those_of_the_textbook_regression() -> None:
    """Words alone, all directions kept: predictions of scikit-learn's Ridge on the same inputs."""
    images, tokens = corpus(sentences=False)
    weight = np.random.default_rng(2).random(N)
    model = Linear.fit(images, tokens, np.arange(N), weight, vocabulary=13)
    mean = images.mean(axis=1)
    x = normalize((mean - mean.mean(axis=0)) / mean.std(axis=0)).astype(np.float64)
    x = normalize(x @ model.image.directions.weight.numpy().T)
    counts = np.zeros((N, 13))
    np.add.at(counts, (np.repeat(np.arange(N), np.diff(tokens.offsets)), tokens.ids), 1)
    idf = TfidfTransformer().fit(counts).idf_
    directions = model.words.weight.numpy() / idf[:, None]
    np.testing.assert_allclose(directions.T @ directions, np.eye(directions.shape[1]), atol=1e-5)
    t = normalize((counts * idf) @ directions)

    def predicted(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centre_a, centre_b = (np.average(side, axis=0, weights=weight) for side in (a, b))
        variance = np.average((a - centre_a) ** 2, axis=0, weights=weight).mean()
        found = Ridge(PENALTY * variance * weight.sum()).fit(a, b, sample_weight=weight)
        return normalize(found.predict(a) - centre_b), normalize(b - centre_b)

    of_text, text = predicted(x, t)
    of_image, image = predicted(t, x)
    expected = (of_text @ text.T + image @ of_image.T) / 2
    np.testing.assert_allclose(similarity(model, images, tokens), expected, atol=2e-3)


def test_unknown_words_and_images_that_are_all_alike() -> None:
    images, tokens = corpus(sentences=False)
    model = Linear.fit(np.ones_like(images), tokens, np.arange(N), np.ones(N), vocabulary=13)
    unknown, _ = pack(Tokenizer(WORDS).encode(["nothing known"]), np.arange(1))
    state = model.encode_texts(unknown)
    assert torch.isfinite(state).all() and torch.isfinite(model.encode_images(torch.ones(2, 2, 20))).all()


@pytest.mark.parametrize(("m", "d"), [(1, 20), (2, 20), (2, 1), (3, 2)])
def test_the_smallest_inputs_pass(m: int, d: int) -> None:
    images, tokens = corpus(n=3)
    model = Linear.fit(images[:m, :, :d], tokens, np.array([0, 0, m - 1]), np.ones(3), vocabulary=13)
    assert np.isfinite(similarity(model, images[:m, :, :d], tokens)).all()


def test_a_weighted_ensemble_is_the_weighted_mean() -> None:
    one = Linear.fit(*corpus(), np.arange(N), np.ones(N), vocabulary=13)
    other = Linear.fit(*corpus(3), np.arange(N), np.ones(N), vocabulary=13)
    model = Ensemble([one, other], [0.3, 0.7])
    test = corpus(1, 20)
    expected = 0.3 * similarity(one, *test) + 0.7 * similarity(other, *test)
    np.testing.assert_allclose(similarity(model, *test), expected, atol=1e-6)
    assert model.config["weights"] == [0.3, 0.7]
