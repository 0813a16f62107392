"""Words that neighbours do not support; issues that are ranked; neighbours that are not the pair itself."""

from dataclasses import replace

import numpy as np
import pytest

from cleanpairs import ClipScore, InfoNCE, Pairs
from cleanpairs.core.errors import ConfigError
from cleanpairs.explain import ISSUES, Explainer
from tests.helpers import assert_raises, unit

TOPICS = "sand waves sea surf shell,stove pan cook plate oven,trees moss path deer leaves,cars lights bus street shops"
WORDS = [words.split() for words in TOPICS.split(",")]
N = 400


def corpus(seed: int = 0) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """N pairs, a fifth of whose captions are of another topic; the topic of each image; which are mismatched."""
    rng = np.random.default_rng(seed)
    topic, wrong = rng.integers(0, 4, N), rng.random(N) < 0.2
    shown = np.where(wrong, (topic + rng.integers(1, 4, N)) % 4, topic)
    words = [rng.choice(WORDS[t], 3, replace=False) for t in shown]
    images = rng.normal(size=(4, 16))[topic] + 0.3 * rng.normal(size=(N, 16))
    captions = [" ".join(["the photograph shows", *some]) for some in words]
    return Pairs.from_arrays(captions, features=images.astype(np.float32)), topic, wrong


def explainer(pairs: Pairs, wrong: np.ndarray) -> Explainer:
    images = unit(np.asarray(pairs.images.array())[:, 0])
    texts = unit(np.random.default_rng(1).normal(size=(N, 8)))
    return Explainer(pairs, lambda rows: (images[pairs.image_index[rows]], texts[rows]), np.where(wrong, 0.1, 0.9), 0.5)


def test_foreign_words_are_named_and_own_words_are_not() -> None:
    pairs, topic, wrong = corpus()
    found = explainer(pairs, wrong).explain(range(N))
    named = [(w, t, i) for e, t, i in zip(found, topic, wrong, strict=True) for w in e.unsupported]
    foreign = np.array([w not in WORDS[t] for w, t, i in named if i])
    assert len(foreign) > 2 * wrong.sum() and foreign.mean() >= 0.95
    assert not {"the", "photograph", "shows"} & {w for w, _, _ in named}
    assert sum(not i for *_, i in named) <= 0.1 * sum(len(pairs.captions[i].split()) for i in np.flatnonzero(~wrong))
    lacking = [set(e.expected) <= set(WORDS[topic[e.pair_id]]) for e in found if wrong[e.pair_id] and e.expected]
    assert len(lacking) > 0.9 * wrong.sum() and np.mean(lacking) >= 0.95
    often = np.random.default_rng(3).random(N) < np.where(topic == 0, 0.7, 0.4)  # goes with a topic, as any word may
    captions = [f"{c} of" if o else c for c, o in zip(pairs.captions, often, strict=True)]
    found = explainer(replace(pairs, captions=captions), wrong).explain(range(N))
    assert "of" not in {word for e in found for word in (*e.unsupported, *e.expected)}


def test_what_similar_images_say_in_the_place_of_a_wrong_word() -> None:
    rng = np.random.default_rng(0)
    colours, things = np.array("red blue green white black".split()), np.array("shirt shoes watch bag".split())
    colour, thing, wrong = rng.integers(0, 5, N), rng.integers(0, 4, N), rng.random(N) < 0.1
    shown = np.where(wrong, (colour + rng.integers(1, 5, N)) % 5, colour)
    captions = [f"Brand {colours[c]} {things[t]} for you" for c, t in zip(shown, thing, strict=True)]
    images = np.concatenate([np.eye(5)[colour], np.eye(4)[thing]], axis=1) + 0.1 * rng.normal(size=(N, 9))
    pairs = Pairs.from_arrays(captions, features=images[:, None].astype(np.float32))
    found = explainer(pairs, np.zeros(N, bool)).explain(np.flatnonzero(wrong))
    first = [e.unsupported[:1] == (colours[shown[e.pair_id]],) for e in found]
    assert np.mean(first) > 0.9 and np.mean([e.instead == colours[colour[e.pair_id]] for e in found]) > 0.9
    assert all(f"say “{e.instead}” in place of “{e.unsupported[0]}”" in e.why for e in found if e.instead)


def test_scripts_without_spaces_have_words_of_two_characters() -> None:
    signs = "沙滩", "浪花", "大海", "冲浪", "贝壳", "炉灶", "煎锅", "烹饪", "盘子", "烤箱"
    chinese = dict(zip(WORDS[0] + WORDS[1], signs, strict=True))
    pairs, _, wrong = corpus()
    captions = ["".join(chinese.get(w, "") for w in caption.split()) or "路" for caption in pairs.captions]
    found = explainer(replace(pairs, captions=captions), wrong).explain(range(N))
    named = [word for e in found for word in (*e.unsupported, *e.expected)]
    assert len(named) > 20 and {len(word) for word in named} == {2}
    assert np.mean([word in chinese.values() for word in named]) > 0.8  # others stand across two words


def test_neighbours_are_trusted_others_of_the_same_kind() -> None:
    pairs, topic, wrong = corpus()
    model = explainer(pairs, wrong)
    for e in model.explain(np.flatnonzero(wrong)[:20]):
        near = [n.pair_id for n in e.similar_images]
        assert len(near) == 3 and e.pair_id not in near and not wrong[near].any()
        assert (topic[near] == topic[e.pair_id]).all() and e.flagged
        assert all(word in e.why for word in (*e.unsupported, *e.expected))
        assert all(pairs.text_group[n.pair_id] != pairs.text_group[e.pair_id] for n in e.similar_captions)
    assert model.why([3, 5]) == [e.why for e in model.explain([3, 5])]
    assert model.explain(wrong) == model.explain(np.flatnonzero(wrong)) and model.why(3) == model.why([3])
    of_two = r"no pair True; a mask has the shape \(400,\), found \(2,\)"
    for asked, message in (([N], "no pair 400"), ([True, False], of_two), (["k3"], "no pair 'k3'")):
        assert_raises(ConfigError, message, model.explain, asked)


@pytest.mark.parametrize("part", [1000, 70])
def test_neighbours_of_a_caption_that_many_pairs_have(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explainer, "part", part)
    n, rng = 300, np.random.default_rng(0)
    captions = ["image"] * 200 + [f"a cat of {i}" for i in range(100)]
    images, texts = (unit(rng.normal(size=(n, 8))) for _ in range(2))
    images[:200], texts[:200] = images[0], texts[0]
    pairs = Pairs.from_arrays(captions, features=images.astype(np.float32))
    asked = Explainer(pairs, lambda rows: (images[rows], texts[rows]), np.full(n, 0.9), 0.5)
    near = asked.neighbours([0], 10)[0]
    for found, z in ((near.similar_images, images), (near.similar_captions, texts)):
        assert [one.pair_id for one in found] == (200 + np.argsort(-z[200:] @ z[0])[:10]).tolist()
        np.testing.assert_allclose([one.similarity for one in found], np.sort(z[200:] @ z[0])[::-1][:10], atol=1e-6)


def test_a_sample_of_the_trusted_pairs_tells_as_much() -> None:
    pairs, topic, wrong = corpus()
    whole = explainer(pairs, wrong)
    some = Explainer(pairs, whole.vectors, whole.correspondence, 0.5, most_trusted=100)
    found = some.explain(np.flatnonzero(wrong)[:30])
    assert {n.pair_id for e in found for n in (*e.similar_images, *e.similar_captions)} <= set(some.trusted.tolist())
    named = [w not in WORDS[topic[e.pair_id]] for e in found for w in e.unsupported]
    assert len(named) > 30 and np.mean(named) > 0.9


def test_nothing_is_said_without_words_vectors_or_trusted_pairs() -> None:
    pairs, _, wrong = corpus()
    assert not Explainer(pairs, explainer(pairs, wrong).vectors, np.zeros(N), 0.5).explain([0])[0].unsupported
    bare, mute = (explainer(replace(pairs, captions=[caption] * N), wrong).explain([0])[0] for caption in ("", "?"))
    assert bare.unsupported == mute.unsupported == ()
    blank = Explainer(pairs, lambda rows: (np.zeros((len(rows), 1), "f4"),) * 2, np.where(wrong, 0.1, 0.9), 0.5)
    assert blank.explain([0])[0].similar_images == blank.explain([0])[0].similar_captions == ()


def test_issues_are_ranked_however_few_are_flagged() -> None:
    captions = [f"a red chair number {i}" for i in range(60)]
    captions[7] = captions[8] = captions[9] = "photo"
    captions[12], captions[20] = "", "красный стул"
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 1, 8)).astype(np.float32)
    features[31], features[12], features[[50, 51]] = features[30], features[13], 0
    features[41] = features[40]
    features[43:48] = features[43]
    reasons = {5: "filter blank: the image shows one colour", 12: "the caption is empty", 9: "the image is broken"}
    reasons |= {50: "there is no vector", 51: "there is no vector"}
    keys = [f"{i}.jpg" for i in range(40)] + [f"40.jpg#{i}" for i in range(2)] + [f"{i}.jpg" for i in range(42, 60)]
    pairs = replace(Pairs.from_arrays(captions, features=features, keys=keys), reasons=reasons)
    texts = unit(rng.normal(size=(60, 8)))
    texts[31], texts[12] = -texts[30], 0
    y = np.linspace(0.6, 0.99, 60)
    y[42] = 0.55
    y[list(reasons)] = np.nan
    asked = Explainer(pairs, lambda rows: (unit(features[rows, 0]), texts[rows]), y, 0.5)
    rows = asked.issues(3).to_pylist()
    found = {issue: [r for r in rows if r["issue"] == issue] for issue in ISSUES}
    assert [(r["pair_id"], r["rank"]) for r in found["doubtful"]] == [(42, 1), (0, 2), (1, 3)]
    assert [r["why"] for r in found["doubtful"]] == asked.why([42, 0, 1])
    for issue, pair in (("one caption, many images", 7), ("uninformative", 5), ("another script", 20)):
        assert [r["pair_id"] for r in found[issue]] == [pair]
    shared = replace(pairs, image_index=np.where(np.arange(60) == 31, 30, np.arange(60)))
    assert "pair 31" not in str(Explainer(shared, asked.vectors, y, 0.5).issues(3)["why"].to_pylist())
    near = found["near-duplicate images, different captions"]
    assert near[0]["pair_id"] == 30 and near[0]["score"] < 1e-6 and near[1]["pair_id"] in range(43, 48)


def test_some_pairs_are_embedded_as_among_all() -> None:
    pairs, _, _ = corpus()
    both = replace(pairs, text_vectors=unit(np.random.default_rng(2).normal(size=(N, 16))))
    trained = InfoNCE(dim=8, dim_word=4, epochs=1, batch_size=50, device="cpu", require_dependence=False).fit(pairs)
    given = ClipScore(text_encoder="features", require_dependence=False, normalise="none").fit(both)
    few = pairs.select(np.arange(60))
    small = {"backbone": "mlp", "dim": 8, "dim_word": 4, "epochs": 1, "batch_size": 30, "require_dependence": False}
    read = InfoNCE(text_encoder="auto", device="cpu", **small).fit(few)  # by words and sentences
    rows = np.array([3, 50, 51, 59])
    for model, data in ((trained, pairs), (given, both), (read, few)):
        whole, some = model._embed(data).take(rows), model._embed(data, rows)
        np.testing.assert_allclose(some.texts.vectors, whole.texts.vectors, atol=1e-5)
        index = some.pairs.image_index, whole.pairs.image_index
        np.testing.assert_allclose(some.images.vectors[index[0]], whole.images.vectors[index[1]], atol=1e-5)
        assert some.pairs.keys == whole.pairs.keys and len(some.images.vectors) == 4
    known = trained.explainer(pairs).why(rows)
    assert known == trained.explainer(pairs, correspondence=trained.correspondence_).why(rows)
