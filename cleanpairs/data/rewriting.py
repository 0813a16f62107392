"""Corrupted captions: copied from another pair, with one word edited, cut, or boilerplate."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from cleanpairs.data.pairs import Pairs
from cleanpairs.data.text import normalise_text


def content_words(caption: str) -> list[str]:
    """The words of three letters and more, in lower case, without English function words. Numbers are among them."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    numbers = "one two three four five six eight nine ten eleven twelve".split()
    words = re.findall(r"\w+", normalise_text(caption))
    return [w for w in words if len(w) > 2 and (w not in ENGLISH_STOP_WORDS or w in numbers)]


def of_images(pairs: Pairs, values: Iterable[Iterable[Any]]) -> dict[int, set[Any]]:
    """Image group -> the ``values`` of all its pairs. ``values``: those of each pair."""
    by_image: dict[int, set[Any]] = defaultdict(set)
    for group, of_pair in zip(pairs.pair_image_group.tolist(), values, strict=True):
        by_image[group].update(of_pair)
    return by_image


def shared_words(pairs: Pairs) -> list[list[int]]:
    """For each word that several captions share, but at most a tenth of them: the pairs (k,) that have it."""
    pairs_of: dict[str, list[int]] = defaultdict(list)
    for i, caption in enumerate(pairs.captions):
        for word in set(content_words(caption)) if i not in pairs.reasons else ():
            pairs_of[word].append(i)
    return [rows for _, rows in sorted(pairs_of.items()) if 2 <= len(rows) <= max(2, 0.1 * len(pairs))]


def _in_context(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Each word between the one before it and the one behind it, "" at the ends."""
    return zip(["", *words], words, [*words[1:], ""], strict=False)


def edited(pairs: Pairs, rate: float, rng: np.random.Generator, least: float = 0.005) -> dict[int, str]:
    """New captions by pair id, in which one word is another of its kind, which no caption of the image has.

    Words are of one kind where they stand behind the same word and before the same word, such as the colours of cars.
    Both are in at least a share ``least`` of the captions, and in three. The new one is drawn by how often it stands
    there.
    """
    enough = max(3, least * len(pairs))
    parts = [re.split(r"(\w+)", c) if i not in pairs.reasons else [] for i, c in enumerate(pairs.captions)]
    words = [[w.lower() for w in p[1::2]] for p in parts]
    behind, before = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    content = [set(content_words(" ".join(caption_words))) for caption_words in words]
    count = Counter(word for kinds in content for word in kinds)
    content = [{word for word in kinds if count[word] >= enough} for kinds in content]
    for caption_words, kinds in zip(words, content, strict=True):
        for left, word, right in _in_context(caption_words):
            if word in kinds:
                behind[left][word] += 1
                before[right][word] += 1
    own, groups = of_images(pairs, words), pairs.pair_image_group.tolist()
    out: dict[int, str] = {}
    for i in rng.permutation(len(pairs)).tolist():
        if len(out) == round(rate * len(pairs)):
            break
        places = []
        for at, (left, word, right) in enumerate(_in_context(words[i])):
            if word in content[i]:
                both = behind[left] & before[right]  # the smaller one of both counts
                others = {w: n for w, n in both.items() if w not in own[groups[i]]}
                places += [(at, others)] if others else []
        if places:
            at, others = places[rng.integers(len(places))]
            weight = np.array(list(others.values()), np.float64)
            word, old = str(rng.choice(list(others), p=weight / weight.sum())), parts[i][2 * at + 1]
            word = word.upper() if old.isupper() and len(old) > 1 else word.capitalize() if old[0].isupper() else word
            out[i] = "".join([*parts[i][: 2 * at + 1], word, *parts[i][2 * at + 2 :]])
    return out


def truncated(pairs: Pairs, rate: float, most: int, rng: np.random.Generator) -> dict[int, str]:
    """New captions by pair id: the first words, one to ``most``. Captions of one word stay."""
    cut = {i: c.split() for i, c in enumerate(pairs.captions) if i not in pairs.reasons and len(c.split()) > 1}
    sizes = {i: int(rng.integers(1, min(most, len(words) - 1) + 1)) for i, words in cut.items()}
    return _chosen(pairs, rate, {i: " ".join(words[: sizes[i]]) for i, words in cut.items()}, rng)


def boilerplate(pairs: Pairs, rate: float, rng: np.random.Generator) -> dict[int, str]:
    """New captions by pair id, which say nothing about an image."""
    texts = (
        "Image not available", "Click to enlarge", "Untitled", "Photo of the day", "Stock photo, royalty free",
        "All rights reserved", "Buy now, free shipping", "See more pictures in our gallery",
    )  # fmt: skip
    usable = [i for i in range(len(pairs)) if i not in pairs.reasons]
    return _chosen(pairs, rate, dict(zip(usable, rng.choice(texts, len(usable)).tolist(), strict=True)), rng)


def _chosen(pairs: Pairs, rate: float, texts: dict[int, str], rng: np.random.Generator) -> dict[int, str]:
    """A share ``rate`` of all pairs with their new ``texts``, where these are no caption of the image."""
    own = of_images(pairs, ([normalise_text(caption or "")] for caption in pairs.captions))
    groups = pairs.pair_image_group
    new = [i for i, text in texts.items() if normalise_text(text) not in own[int(groups[i])]]
    return {i: texts[i] for i in rng.permutation(new)[: round(rate * len(pairs))].tolist()}


def copied(pairs: Pairs, rate: float, groups: Sequence[Any], rng: np.random.Generator) -> np.ndarray:
    """(N,) int64: the pair whose caption each shows, a share ``rate`` one of another image in a group that it is in.

    ``groups``: pairs (k,) each. A pair may be in several. One that finds no other caption in 20 draws stays.
    """
    source, groups_of = pairs.pair_id.copy(), defaultdict[int, list[int]](list)
    for number, rows in enumerate(groups):
        for i in rows:
            groups_of[int(i)].append(number)
    own, of_pair = of_images(pairs, ([text] for text in pairs.text_group.tolist())), pairs.pair_image_group.tolist()
    left = round(rate * len(pairs))
    for i in rng.permutation(sorted(groups_of)).tolist():
        for _ in range(20 if left else 0):
            rows = groups[groups_of[i][rng.integers(len(groups_of[i]))]]
            j = int(rows[rng.integers(len(rows))])
            if int(pairs.text_group[j]) not in own[of_pair[i]] and j not in pairs.reasons:
                source[i], left = j, left - 1
                break
    return source
