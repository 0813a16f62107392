"""Backbones against their definition: SAF, SGR, SGRAF, ensembles, pooling, and the mean word of MLP."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize as unit_rows
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize

from cleanpairs.encoders import sgraf
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.linear import PENALTY, Linear
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SAF, SGR
from cleanpairs.encoders.tokenizer import PackedTokens, Tokenizer, TokenTable, pack
from cleanpairs.encoders.towers import GPO, BiGRU
from cleanpairs.scoring import embed_images, embed_texts

WORDS = [f"w{k}" for k in range(12)]


# -- SAF, SGR, SGRAF: all pairs at once are what one caption at a time gives ------------------------------------------


def model_of(kind: type, **changes: Any) -> Any:
    torch.manual_seed(0)
    return kind(len(WORDS) + 1, 6, **{"dim": 8, "dim_word": 5, "dim_sim": 4, **changes}).double().eval()


def states(model: Any, n_image: int = 4, lengths: tuple[int, ...] = (5, 3, 3, 1), keep: bool = True) -> Any:
    g = torch.Generator().manual_seed(1)
    images = torch.randn(n_image, 3, 6, generator=g, dtype=torch.float64)
    kept = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.bool)[:n_image] if keep else None
    table = Tokenizer(WORDS).encode([" ".join(WORDS[k : k + length]) for k, length in enumerate(lengths)])
    tokens, _ = pack(table, np.arange(len(lengths)))
    regions, words = model.encode_images(images, kept), model.encode_texts(tokens)
    return Local(regions.parts.double(), regions.lengths), Local(words.parts.double(), words.lengths)


def self_attend(module: Any, parts: Tensor) -> Tensor:
    """One set (L, D), no padding: (D,)."""
    common = module.local(parts) * module.whole(parts.mean(dim=0)[None])[0]
    weight = module.weigh(common).squeeze(-1).softmax(dim=0)
    return normalize(weight @ parts, dim=0)


def one_pair(model: Any, regions: Tensor, words: Tensor) -> Tensor:
    """The definition, for one image (R, D) and one caption (L, D) without padding."""
    compare = model.compare
    s = leaky_relu(words @ regions.T, 0.1)  # (L, R)
    a = (9 * s / s.norm(dim=0, keepdim=True).clamp_min(1e-8)).softmax(dim=1)
    context = normalize(a @ regions, dim=1)
    local = normalize(compare.local((context - words) ** 2), dim=1)
    v, t = self_attend(compare.image_attention, regions), self_attend(compare.text_attention, words)
    x = torch.cat([normalize(compare.whole((v - t) ** 2), dim=0)[None], local])  # (L + 1, S)
    r = compare.reasoning
    if isinstance(model, SGR):
        for query, key, graph in zip(r.query, r.key, r.graph, strict=True):
            x = graph((query(x) @ key(x).T).softmax(dim=1) @ x).relu()
        return torch.sigmoid(r.score(x[0])).squeeze()
    weight = torch.sigmoid(r.attention(x)).squeeze(-1)
    kept = normalize((weight / weight.sum()) @ x, dim=0)
    return torch.sigmoid(r.score(kept)).squeeze()


def caption_by_caption(model: Any, images: Local, texts: Local) -> Tensor:
    regions, words = ([x[: int(n)] for x, n in zip(of.parts, of.lengths, strict=True)] for of in (images, texts))
    return torch.stack([torch.stack([one_pair(model, r, w) for w in words]) for r in regions])


@pytest.mark.parametrize("block", [1, 1 << 24], ids=["a-caption-a-block", "one-block"])
@pytest.mark.parametrize("keep_bytes", [0, 1 << 30], ids=["recomputed", "kept"])
@pytest.mark.parametrize("kind", [SAF, SGR])
def test_all_pairs_are_the_pairs_one_by_one(kind: Any, keep_bytes: int, block: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(sgraf.LocalSimilarity, "block_bytes", block)
    monkeypatch.setattr(sgraf.LocalSimilarity, "keep_bytes", keep_bytes)
    model = model_of(kind)
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = []
    for compute in (kind.similarity, caption_by_caption):
        model.zero_grad()
        S = compute(model, *states(model))
        (S * weight).sum().backward()
        found.append((S.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}))
    (value, gradients), (by_one, of_one) = found
    torch.testing.assert_close(value, by_one)
    assert bool((value > 0).all()) and bool((value < 1).all()) and len(of_one) > 10
    torch.testing.assert_close({name: gradients[name] for name in of_one}, of_one)


@pytest.mark.parametrize("kind", [SAF, SGR])
def test_the_mean_region_has_a_batch_norm_and_the_mean_word_none(kind: type) -> None:
    """As published: linear, batch norm over the images, tanh; statistics of training serve in evaluation."""
    model = model_of(kind)
    images, _ = states(model, keep=False)
    linear, norm, _, dropout = model.compare.image_attention.whole
    dropout.p = 0.0
    assert len(model.compare.text_attention.whole) == 3
    mean = linear(images.parts.mean(dim=1)).detach()
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.uniform_(-1, 1)
    for training in (True, False):
        got = model.train(training).compare.image_attention.whole(images.parts.mean(dim=1))
        own = mean.mean(dim=0), mean.var(dim=0, unbiased=False)
        centre, spread = own if training else (norm.running_mean, norm.running_var)
        z = (mean - centre) / (spread + norm.eps).sqrt()
        torch.testing.assert_close(got, torch.tanh(z * norm.weight + norm.bias))
        torch.testing.assert_close(norm.running_mean, 0.1 * own[0])


# -- an ensemble is one dual encoder whose similarity is its members' mean --------------------------------------------


@pytest.mark.parametrize("local", [False, True], ids=["vectors", "local"])
@pytest.mark.parametrize("n", [1, 5])
def test_the_similarity_of_an_ensemble_is_the_mean(n: int, local: bool) -> None:
    torch.manual_seed(0)
    kinds, more = ((SAF, SGR), {"dim_sim": 4}) if local else ((MLP, MLP), {})
    members = [kind(13, 6, dim=dim, dim_word=5, **more).eval() for kind, dim in zip(kinds, (8, 4), strict=True)]
    model = Ensemble(members)
    tokens, _ = pack(Tokenizer(WORDS).encode([" ".join(WORDS[: 1 + k % 3]) for k in range(n)]), np.arange(n))
    images = torch.randn(n, 3, 6, generator=torch.Generator().manual_seed(0))
    keep = torch.ones(n, 3, dtype=torch.bool)
    keep[0, 1] = False
    states = model(images, keep, tokens)
    each = [(m, *m(images, keep, tokens)) for m in members]
    mean = sum(m.similarity(image, text) for m, image, text in each) / 2
    torch.testing.assert_close(model.similarity(*states), mean)
    torch.testing.assert_close(model.paired_similarity(*states), mean.diagonal())
    vectors = [model.vector(s) for s in states]
    assert all(v.shape == (n, 12) for v in vectors) and model.dim == 12 and model.local is local
    torch.testing.assert_close(vectors[0].norm(dim=1), torch.ones(n))
    cosine = sum(m.vector(image) @ m.vector(text).T for m, image, text in each)
    torch.testing.assert_close(vectors[0] @ vectors[1].T, cosine / 2)  # of the vectors: the mean cosine
    assert isinstance(states[0], Local) is local


# -- GPO and BiGRU ----------------------------------------------------------------------------------------------------


def defined(pool: GPO, x: Tensor) -> Tensor:
    """Section 4 of the paper for one set (L, E): explicit loops."""
    L, E = x.shape
    angles = [[k / 10000 ** (i / pool.d_pe) for i in range(0, pool.d_pe, 2)] for k in range(L)]
    pe = [[turn(angle) for angle in row for turn in (math.sin, math.cos)] for row in angles]
    out, _ = pool.gru(torch.tensor([pe], dtype=x.dtype))
    half = out.shape[-1] // 2
    scores = pool.linear((out[0, :, :half] + out[0, :, half:]) / 2)[:, 0] / 0.1
    theta = [torch.exp(s) / torch.exp(scores).sum() for s in scores]
    columns = (sorted(x[:, e], key=lambda v: -float(v.detach())) for e in range(E))
    return torch.stack([sum(t * v for t, v in zip(theta, values, strict=True)) for values in columns])


def test_pooling_is_its_definition_in_value_and_gradient_with_lengths_in_any_order() -> None:
    torch.manual_seed(3)
    pool, lengths = GPO(d_pe=8, d_hidden=6).double(), torch.tensor([2, 7, 1, 7, 4])
    x = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64)
    inputs = [x, *pool.parameters()]
    value = pool(x, lengths)
    got = torch.autograd.grad((value * weight).sum(), inputs)
    want_value = torch.stack([defined(pool, s[: int(n)]) for s, n in zip(x, lengths, strict=True)])
    torch.testing.assert_close(value, want_value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(got, torch.autograd.grad((want_value * weight).sum(), inputs), rtol=1e-5, atol=1e-7)
    assert bool((got[0][0, 2:] == 0).all())
    whole = torch.stack([defined(pool, s) for s in x])
    torch.testing.assert_close(pool(x), whole, rtol=1e-6, atol=1e-7)  # the encoding itself is float32


def test_bigru_is_a_padded_gru_of_each_sequence() -> None:
    torch.manual_seed(0)
    gru = BiGRU(5, 4)
    sequences = [torch.randn(n, 5) for n in (6, 3, 3, 1)]
    packed = nn.utils.rnn.pack_sequence(sequences)
    out = gru(packed.data, packed.batch_sizes)
    unpacked = nn.utils.rnn.unpack_sequence(nn.utils.rnn.PackedSequence(out, packed.batch_sizes))
    for found, sequence in zip(unpacked, sequences, strict=True):
        alone, _ = gru.rnn(sequence[:, None])  # (L, 1, 2 H), no packing
        torch.testing.assert_close(found, (alone[:, 0, :4] + alone[:, 0, 4:]) / 2)


# -- MLP --------------------------------------------------------------------------------------------------------------


def tokens_of(*captions: str) -> PackedTokens:
    return pack(Tokenizer(WORDS).encode(captions), np.arange(len(captions)))[0]


def test_a_caption_is_its_mean_word_whatever_is_beside_it() -> None:
    torch.manual_seed(0)
    model = MLP(13, 6, dim=8, dim_word=5).eval()
    captions = ("w1 w2 w3 w1", "w4 w5", "w6")
    for row, caption in zip(model.encode_texts(tokens_of(*captions)), captions, strict=True):
        tokens = tokens_of(caption)
        torch.testing.assert_close(row, model.encode_texts(tokens)[0])
        torch.testing.assert_close(row, model.text(model.embedding(tokens.ids).mean(dim=0, keepdim=True))[0])
    torch.testing.assert_close(model.encode_texts(tokens_of("w1 w2")), model.encode_texts(tokens_of("w2 w1")))


# -- ridge regressions between frozen spaces --------------------------------------------------------------------------


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
def test_a_regression_retrieves_what_it_has_not_seen(kind: str) -> None:
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


def test_the_cosines_of_a_regression_are_those_of_the_textbook_regression() -> None:
    """Words alone, all directions kept: predictions of scikit-learn's Ridge on the same inputs."""
    images, tokens = corpus(sentences=False)
    weight = np.random.default_rng(2).random(N)
    model = Linear.fit(images, tokens, np.arange(N), weight, vocabulary=13)
    mean = images.mean(axis=1)
    x = unit_rows((mean - mean.mean(axis=0)) / mean.std(axis=0)).astype(np.float64)
    x = unit_rows(x @ model.image.directions.weight.numpy().T)
    counts = np.zeros((N, 13))
    np.add.at(counts, (np.repeat(np.arange(N), np.diff(tokens.offsets)), tokens.ids), 1)
    idf = TfidfTransformer().fit(counts).idf_
    directions = model.words.weight.numpy() / idf[:, None]
    np.testing.assert_allclose(directions.T @ directions, np.eye(directions.shape[1]), atol=1e-5)
    t = unit_rows((counts * idf) @ directions)

    def predicted(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centre_a, centre_b = (np.average(side, axis=0, weights=weight) for side in (a, b))
        variance = np.average((a - centre_a) ** 2, axis=0, weights=weight).mean()
        found = Ridge(PENALTY * variance * weight.sum()).fit(a, b, sample_weight=weight)
        return unit_rows(found.predict(a) - centre_b), unit_rows(b - centre_b)

    of_text, text = predicted(x, t)
    of_image, image = predicted(t, x)
    expected = (of_text @ text.T + image @ of_image.T) / 2
    np.testing.assert_allclose(similarity(model, images, tokens), expected, atol=2e-3)


def test_a_weighted_ensemble_is_the_weighted_mean() -> None:
    members = [Linear.fit(*corpus(seed), np.arange(N), np.ones(N), vocabulary=13) for seed in (0, 3)]
    model, test = Ensemble(members, [0.3, 0.7]), corpus(1, 20)
    one, other = (similarity(member, *test) for member in members)
    np.testing.assert_allclose(similarity(model, *test), 0.3 * one + 0.7 * other, atol=1e-6)
    assert model.config["weights"] == [0.3, 0.7]
