"""Groups of flagged pairs: those that were made are found, named by their words and by their look, and counted."""

from __future__ import annotations

import numpy as np

from cleanpairs.data.pairs import Pairs
from cleanpairs.report.gallery import Cards, clusters
from cleanpairs.report.outcome import Outcome, outcome_of

TOPICS = {
    "sea": "sand waves surf shell sun boat swim tide",
    "kitchen": "stove pan cook plate oven bowl spoon pot",
    "road": "cars lights bus crossing bike lane truck stop",
}
LOOKS = {"sea": "dog, paws", "kitchen": "shirt, sleeves", "road": "snow, skis"}
FLAGGED, N = 90, 200


def _quoted(caption: str) -> str:
    return ", ".join(f"“{word}”" for word in caption.split()[3:])


def made() -> tuple[Pairs, list[str | None]]:
    """200 pairs, of which the first 90 are flagged: 40, 30 and 20 of three topics with three looks; sentences."""
    rng = np.random.default_rng(0)
    topic = ["sea"] * 40 + ["kitchen"] * 30 + ["road"] * 20 + list(rng.choice(list(TOPICS), N - FLAGGED))
    captions = [f"the photograph of {' '.join(rng.choice(TOPICS[t].split(), 3, replace=False))}" for t in topic]
    why: list[str | None] = [None] * N
    for i, t in enumerate(topic[:FLAGGED]):
        first, second = LOOKS[t].split(", ")
        why[i] = f"captions of similar images say “{first}”, “{second}”; hardly any of them says {_quoted(captions[i])}"
    return Pairs.from_arrays(captions, image_vectors=rng.normal(size=(N, 4))), why


def test_no_group_is_named_by_a_word_that_no_sentence_names() -> None:
    pairs, why = made()
    captions = [f"{c} at" if 40 <= i < 70 else c for i, c in enumerate(pairs.captions)]
    found = clusters(Cards(pairs.with_captions(captions), outcome(FLAGGED)), why)
    assert len(found) == 3 and not [g["title"] for g in found if " at" in g["title"]]


def test_chinese_groups_are_named_by_two_characters() -> None:
    pairs, _ = made()
    places = ["沙滩大海", "炉灶煎锅", "街道汽车"]
    topic = [0] * 40 + [1] * 30 + [2] * 20 + [0] * (N - FLAGGED)
    captions = [f"照片里有{places[t]}，第{i % 7}张很好看" for i, t in enumerate(topic)]
    found = clusters(Cards(pairs.with_captions(captions), outcome(FLAGGED)), [None] * N)
    said = [set(g["title"].split("captions say ")[1].split(", ")) for g in found]
    assert all(any(word in places[k] for word in words) for k, words in enumerate(said))
    assert {len(word) for words in said for word in words} == {2}


def outcome(flagged: int) -> Outcome:
    y = np.where(np.arange(N) < flagged, 0.1, 0.9)
    return outcome_of(type("Scores", (), {"correspondence": y})(), 0.5, None, None)


def test_groups_are_found_named_and_counted() -> None:
    pairs, why = made()
    found = clusters(Cards(pairs, outcome(FLAGGED)), why)
    assert [g["total"] for g in found] == [40, 30, 20]
    for group, topic, first in zip(found, TOPICS, (0, 40, 70), strict=True):
        said, look = group["title"].split("pairs: ")[1].split("; ")
        assert set(said.removeprefix("captions say ").split(", ")) <= set(TOPICS[topic].split())
        assert look.startswith("images like those of ")
        assert set(look[21:].split(", ")) == set(LOOKS[topic].split(", "))
        assert len(group["cards"]) == 3 and all(
            first <= card["pair_id"] < first + group["total"] for card in group["cards"]
        )
    again = clusters(Cards(pairs, outcome(FLAGGED)), why)
    assert [g["title"] for g in again] == [g["title"] for g in found]
    without = clusters(Cards(pairs, outcome(FLAGGED)), [None] * N)
    assert sum(g["total"] for g in without) == FLAGGED and "images" not in "".join(g["title"] for g in without)


def test_few_flagged_pairs_and_pairs_without_words_have_none() -> None:
    pairs, why = made()
    assert clusters(Cards(pairs, outcome(29)), why) == []
    mute = Pairs.from_arrays([f"x{i}" for i in range(N)], image_vectors=np.eye(N, dtype=np.float32))
    assert clusters(Cards(mute, outcome(FLAGGED)), [None] * N) == []
