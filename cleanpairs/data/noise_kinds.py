"""Noise that is not uniform: the four ways in which corpora go wrong, each as the caption that every pair shows then.

``within``
    Captions are swapped among the pairs of one category: hard mismatches, of which most words still fit.
``shift``
    In contiguous runs every image shows the captions of the image ``amount`` further on: a crawler or a join that is
    off by one for a while. The last images of a run show the captions of its first, so that no caption is lost.
``collapse``
    Pairs show one and the same caption, or one of ``amount``, of the corpus: "image not available".
``partial``
    A share ``amount`` of a caption's words is replaced by words of another caption: half of it is wrong.

The functions here choose; :mod:`cleanpairs.data.noise` makes the noise of it, and its truth.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import ConfigError
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import iter_tables
from cleanpairs.data.text import normalise_text

KINDS = {"uniform": None, "within": None, "shift": 1.0, "collapse": 1.0, "partial": 0.5}  # name -> usual amount
RUN = 100  # images in a run of shifted ones, about
TRIES = 20  # captions looked at for one that has words enough to give


@dataclass(frozen=True)
class NoiseKind:
    """How pairs are mismatched; see the module.

    - ``name`` {"uniform", "within", "shift", "collapse", "partial"}
    - ``column``: of the input, for ``within``: pairs of the same value trade captions
    - ``amount``: images that ``shift`` is off by (1), captions that ``collapse`` leaves (1), share of the words that
      ``partial`` replaces (0.5)
    """

    name: str = "uniform"
    column: str | None = None
    amount: float | None = None

    def __post_init__(self) -> None:
        """The usual amount where none is given.

        Raises ConfigError: there is no such kind, or what goes with it is missing, too much, or out of range.
        """
        name, amount = self.name, self.amount
        if name not in KINDS:
            raise ConfigError(f"the kind of noise is one of {', '.join(KINDS)}, found {name!r}")
        if name == "within" and not self.column:
            raise ConfigError("noise of the kind 'within' needs a column, as in within:COLUMN")
        if name != "within" and self.column is not None:
            raise ConfigError(f"noise of the kind {name!r} has no column, found {self.column!r}")
        if amount is None:
            object.__setattr__(self, "amount", KINDS[name])
            return
        if KINDS[name] is None:
            raise ConfigError(f"noise of the kind {name!r} has no amount, found {amount!r}")
        usable = isinstance(amount, Real) and not isinstance(amount, bool)
        if name == "partial" and not (usable and 0 < amount <= 1):
            raise ConfigError(f"the share of words that are replaced is above 0 and at most 1, found {amount!r}")
        if name != "partial" and not (usable and amount >= 1 and float(amount).is_integer()):
            what = "images to shift by" if name == "shift" else "captions to collapse to"
            raise ConfigError(f"the number of {what} is whole and at least 1, found {amount!r}")

    @classmethod
    def parse(cls, text: str) -> "NoiseKind":
        """``uniform``, ``within:COLUMN``, ``shift[:K]``, ``collapse[:N]`` or ``partial[:SHARE]``.

        Raises ConfigError, as the constructor does, and for an amount that is no number.
        """
        name, _, more = text.strip().partition(":")
        if not more or name == "within":
            return cls(name, more or None)
        try:
            amount = float(more)
        except ValueError as error:
            raise ConfigError(f"{text!r} is no kind of noise: {more!r} is not a number") from error
        return cls(name, amount=amount)

    def __str__(self) -> str:
        """What :meth:`parse` takes, the amount written out: ``shift:1``."""
        more = self.column if self.amount is None else f"{self.amount:g}"
        return self.name if more is None else f"{self.name}:{more}"


def category_codes(pairs: Pairs, column: str) -> np.ndarray:
    """(N,) int64: equal = the same value in the input's ``column``; -1 where it has none.

    Raises ConfigError: the input has no such column, or it does not hold one value a row; DataError: the pairs were
    only ever in memory, so there are no columns.
    """
    schema = next(iter(iter_tables(pairs.source, 1))).schema
    if column not in schema.names:
        raise ConfigError(f"noise within {column!r}: the input has no such column (it has: {', '.join(schema.names)})")
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(kind):
        raise ConfigError(f"noise within {column!r}: it holds {kind}, and a category is one value a row")
    codes: dict[object, int] = {None: -1}
    rows = [
        codes.setdefault(value, len(codes) - 1)
        for batch in iter_tables(pairs.source, columns=[column])
        for value in batch.column(0).to_pylist()
    ]
    return np.array(rows, dtype=np.int64)[pairs.row]


def choose_within(owner: np.ndarray, group: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """A permutation (N,) int64 of the captions, in which those of one group trade places.

    ``owner``, ``group`` (N,) int64: image and category of each pair; of a negative category, or one without a second
    image, pairs stay. A share ``rate`` of all N is to trade: who does shows the caption of another image, unless most
    of those chosen in its category are its own image's.
    """
    n = len(owner)
    source = np.arange(n)
    kinds = np.unique(np.stack([group, owner], axis=1), axis=0)[:, 0] if n else group  # once for each image in it
    values, images = np.unique(kinds[kinds >= 0], return_counts=True)
    order = rng.permutation(np.flatnonzero(np.isin(group, values[images > 1])))
    count = min(round(rate * n), len(order))
    chosen = _without_singles(order[:count], order[count:], owner, group)
    place = rng.permutation(int(owner.max(initial=-1)) + 1)  # images in random order, the captions of each together
    chosen = chosen[np.lexsort((place[owner[chosen]], group[chosen]))]
    for members in np.split(chosen, np.flatnonzero(np.diff(group[chosen])) + 1):
        if len(members):
            most = np.unique(owner[members], return_counts=True)[1].max()
            source[members] = np.roll(members, -most)  # beyond the captions of any one image
    return source


def _without_singles(chosen: np.ndarray, rest: np.ndarray, owner: np.ndarray, group: np.ndarray) -> np.ndarray:
    """``chosen`` with nobody alone in its group: of two that are, one gets a partner and one is let go."""
    values, at, counts = np.unique(group[chosen], return_inverse=True, return_counts=True)
    alone = chosen[counts[at] == 1] if len(values) else chosen
    waiting: dict[int, list[int]] = {int(group[i]): [] for i in alone[: len(alone) // 2]}
    for i in rest.tolist():
        if (members := waiting.get(int(group[i]))) is not None:
            members.append(i)
    partners = [
        next((j for j in waiting[int(group[i])] if owner[j] != owner[i]), i) for i in alone[: len(alone) // 2].tolist()
    ]
    staying = chosen[~np.isin(chosen, alone[len(alone) // 2 :])]
    return np.unique(np.concatenate([staying, np.array(partners, dtype=np.int64)]))


def choose_shifted(owner: np.ndarray, rate: float, by: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) int64: the pair whose caption each pair shows, where runs of images are off ``by`` some.

    A share ``rate`` of the images, in the order in which they come first, is in runs of about :data:`RUN`, which images
    that stay part. An image shows the captions of one other image: those at the same places, and over again where it
    has more than that one; so this is a permutation where all images have as many captions.
    """
    source = np.arange(len(owner))
    _, first, image = np.unique(owner, return_index=True, return_inverse=True)
    image = np.argsort(np.argsort(first))[image]  # numbered in the order of the input
    order = np.argsort(image, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(image))[:-1]) if len(owner) else []
    chosen = round(rate * len(members))
    staying = len(members) - chosen
    runs = min(max(round(chosen / RUN), 1), staying + 1, chosen // (by + 1))
    if not runs:  # too few for one run
        return source
    lengths = np.diff(np.linspace(0, chosen, runs + 1).round().astype(int))
    before = np.sort(rng.choice(staying + 1, runs, replace=False))  # images that stay before each run
    starts = before + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        for k in range(length):
            shown = members[start + (k + by) % length]
            source[members[start + k]] = np.resize(shown, len(members[start + k]))
    return source


def choose_collapsed(pairs: Pairs, rate: float, captions: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) int64: the pair whose caption each pair shows, where a share ``rate`` shows one of a few ``captions``.

    These are of different texts, as many as there are at most. The images that they belong to, by key or by the same
    text, stay as they are.
    """
    source = np.arange(len(pairs))
    usable = np.array([i for i in range(len(pairs)) if i not in pairs.reasons], dtype=np.int64)
    shuffled = rng.permutation(usable)
    _, first = np.unique(pairs.text_group[shuffled], return_index=True)
    shown = shuffled[np.sort(first)][:captions]
    holding = pairs.pair_image_group[np.isin(pairs.text_group, pairs.text_group[shown])]
    others = np.flatnonzero(~np.isin(pairs.pair_image_group, holding))
    chosen = rng.permutation(others)[: round(rate * len(pairs))]
    if len(chosen):
        source[chosen] = rng.choice(shown, len(chosen))
    return source


def mix_words(pairs: Pairs, rate: float, share: float, rng: np.random.Generator) -> dict[int, str]:
    """New captions of a share ``rate`` of the pairs, by pair id: a ``share`` of their words are those of another one.

    Words are what white space parts. Only words come in that no caption of the image has, so that each is wrong; fewer
    where no caption of those tried has as many. A caption of one word stays as it is, unless ``share`` is 1, and so do
    captions that find no such word.
    """
    words = [c.split() if i not in pairs.reasons else [] for i, c in enumerate(pairs.captions)]
    normal = {word: normalise_text(word) for word in set().union(*words)}
    _, image = np.unique(pairs.pair_image_group, return_inverse=True)
    own: list[set[str]] = [set() for _ in range(int(image.max(initial=-1)) + 1)]
    for i, m in enumerate(image.tolist()):
        own[m].update(normal[word] for word in words[i])
    least = 1 if share == 1 else 2
    mixed: dict[int, str] = {}
    wanted = round(rate * len(pairs))
    for i in rng.permutation([k for k, found in enumerate(words) if len(found) >= least]).tolist():
        if len(mixed) == wanted:
            break
        most = len(words[i]) if share == 1 else len(words[i]) - 1
        count = min(max(round(share * len(words[i])), 1), most)
        foreign = _foreign_words(words, normal, own[image[i]], count, rng)
        if foreign:
            mixed[i] = _replaced(pairs.captions[i], foreign, rng)
    return mixed


def _foreign_words(
    words: Sequence[list[str]], normal: Mapping[str, str], own: set[str], count: int, rng: np.random.Generator
) -> list[str]:
    """Up to ``count`` words of one random caption that are not ``own``, in its order."""
    best: list[str] = []
    for giver in rng.integers(len(words), size=TRIES).tolist():
        found = [word for word in dict.fromkeys(words[giver]) if normal[word] not in own]
        best = max(best, found, key=len)
        if len(best) >= count:
            return [best[k] for k in np.sort(rng.choice(len(best), count, replace=False)).tolist()]
    return best


def _replaced(caption: str, fresh: Sequence[str], rng: np.random.Generator) -> str:
    """``caption`` with the words ``fresh`` at random places; the white space between its words stays."""
    parts = re.split(r"(\S+)", caption)  # words at 1, 3, 5, ...
    for at, word in zip(np.sort(rng.choice(len(parts) // 2, len(fresh), replace=False)), fresh, strict=True):
        parts[2 * int(at) + 1] = word
    return "".join(parts)
