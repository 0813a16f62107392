"""Noise injection: pairs are mismatched by protocols of the literature, and the truth is written with them.

At the noise rate eta, round(eta n) units are chosen at random, and their captions permuted. With ``per="caption"`` each
pair is a unit (NCR, BiCro, CRCL). With ``per="image"`` an image is a unit and all its captions move together (DECL,
RCL, L2RM). A unit may land on itself or on another caption of its own image: such a pair is not mismatched. That is
noise of the kind ``uniform``. Corpora go wrong in other ways, too:

- ``within``: captions are swapped among the pairs of one category, so that most words still fit
- ``shift``: in contiguous runs every image shows the captions of the image ``amount`` further on, as by a join that is
  off by one for a while. The last images of a run show those of its first
- ``collapse``: pairs show one and the same caption, or one of ``amount``, of the corpus: "image not available"
- ``partial``: a share ``amount`` of a caption's words is replaced by words of another caption
- ``copied``: pairs show a copy of another pair's caption, of the same value in a column, or with a word in common
  (``copied:noun``). They lose their own captions (LEMoN, ICML 2025)
- ``edited``: one word is another of its kind (TRACED, ICLR 2026)
- ``truncated``: captions are cut to their first words, ``amount`` at most. ``boilerplate``: they say nothing
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core import ConfigError, DataError, check_choice, check_number, plural, reading
from cleanpairs.core.parameters import check_seed
from cleanpairs.data.arrays import as_array, read_npy
from cleanpairs.data.atomic import staged_directory, staged_file
from cleanpairs.data.columns import TRUTH, check_truth, score_columns
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.parquet_io import read_table
from cleanpairs.data.readers import iter_noted, load_pairs, plain_columns
from cleanpairs.data.rewriting import boilerplate, copied, edited, of_images, shared_words, truncated
from cleanpairs.data.text import concerns_caption, normalise_text, unusable_captions
from cleanpairs.data.writing import write_tables
from cleanpairs.ops.columns import one_array, replace_values


@dataclass(frozen=True)
class NoiseKind:
    """How pairs are mismatched. See the module. ``column``: of the input, for ``within`` and ``copied``."""

    name: str = "uniform"
    column: str | None = None
    amount: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "NoiseKind":
        """The kind of a text such as ``within:COLUMN``, ``shift:2`` or ``copied:noun``, else ConfigError."""
        name, _, more = text.strip().partition(":")
        amounts = {  # usual amount, what it is
            "shift": (1.0, "the number of images to shift by is whole and at least 1"),
            "collapse": (1.0, "the number of captions to collapse to is whole and at least 1"),
            "partial": (0.5, "the share of words that are replaced is above 0 and at most 1"),
            "truncated": (3.0, "the number of words to cut captions to is whole and at least 1"),
        }
        plain = ("uniform", "edited", "boilerplate")  # without a column or an amount
        if name not in (kinds := ("uniform", "within", *amounts, "copied", *plain[1:])):
            raise ConfigError(f"the kind of noise is one of {', '.join(kinds)}, found {name!r}")
        if name == "within" and not more:
            raise ConfigError("noise of the kind 'within' needs a column, as in within:COLUMN")
        if name in plain and more:
            raise ConfigError(f"noise of the kind {name!r} has no amount, found {more!r}")
        if name not in amounts:
            return cls(name, more or None)
        usual, wanted = amounts[name]
        try:
            amount = float(more) if more else usual
        except ValueError as error:
            raise ConfigError(f"{text!r} is no kind of noise: {more!r} is not a number") from error
        if not (0 < amount <= 1 if name == "partial" else amount >= 1 and amount.is_integer()):
            raise ConfigError(f"{wanted}, found {amount:g}")
        return cls(name, amount=amount)

    @property
    def by_column(self) -> bool:
        """Whether it needs the categories of a column."""
        return self.column is not None and str(self) != "copied:noun"

    @property
    def rewrites(self) -> bool:
        """Whether it makes new texts."""
        return self.name in ("partial", "edited", "truncated", "boilerplate")

    def __str__(self) -> str:
        """The text for :meth:`parse`, with the amount: ``shift:1``."""
        return ":".join(filter(None, (self.name, self.column, f"{self.amount:g}" if self.amount else None)))


@dataclass(frozen=True)
class Noise:
    """The new caption of every pair, and which pairs are ``mismatched`` (N,) bool by it.

    Pair i now shows the caption of pair ``permutation[i]``, (N,) int64. Pairs in ``rewritten`` have a new text. All of
    them are mismatched.
    """

    permutation: np.ndarray
    mismatched: np.ndarray
    rewritten: Mapping[int, str] = field(default_factory=dict)

    @property
    def moved(self) -> np.ndarray:
        """(N,) bool: which pairs show another caption than they came with."""
        moved = np.asarray(self.permutation != np.arange(len(self.permutation)))
        moved[list(self.rewritten)] = True
        return moved


def noise_of(pairs: Pairs, permutation: np.ndarray) -> Noise:
    """The noise that a permutation (N,) over the captions makes. See :meth:`Pairs.mismatched_by`."""
    return Noise(permutation.astype(np.int64), pairs.mismatched_by(permutation))


def inject_noise(
    pairs: Any, rate: float, *, per: str = "caption", seed: int = 0, kind: NoiseKind | str = "uniform",
    groups: Sequence[int] | np.ndarray | None = None,
) -> Noise:  # fmt: skip
    """Choose pairs, and permute or rewrite their captions. ``pairs`` are not changed.

    Parameters
    ----------
    pairs : Pairs or data
        N pairs, as :func:`cleanpairs.load_pairs` takes them.
    rate : float in [0, 1]
        Share of the units that are chosen. Mostly fewer are ``mismatched``.
    per : {"caption", "image"}
        Unit of uniform noise. That of other kinds is a caption, of ``shift`` an image.
    seed : int
        Seed of the draw.
    kind : NoiseKind or str
        How they are mismatched. A text as :meth:`NoiseKind.parse` takes it.
    groups : (N,) int, optional
        Category of each pair, in place of the input's column. Negative: none.

    Returns
    -------
    Noise
        The new caption of every pair, and which pairs are mismatched by it.

    Raises
    ------
    ConfigError
        A rate, unit or kind that does not exist, or a kind without groups has some. The input has no such column.
    """
    pairs = load_pairs(pairs)
    check_number("noise", "rate", rate, least=0, most=1)
    check_choice("noise", "per", per, ("caption", "image"))
    check_seed("noise", seed)
    kind, rng = kind if isinstance(kind, NoiseKind) else NoiseKind.parse(str(kind)), np.random.default_rng(seed)
    if groups is not None and not kind.by_column:
        raise ConfigError(f"noise of the kind '{kind}' has no groups: leave them out, or take within:COLUMN")
    if per == "image" and kind.name != "uniform":
        raise ConfigError(f"noise per 'image' is uniform; {kind.name!r} has its own units, leave per out")
    _, owner = np.unique(pairs.pair_image_group, return_inverse=True)
    codes = np.zeros(len(pairs), np.int64)
    if kind.by_column:
        codes = category_codes(pairs, str(kind.column)) if groups is None else as_array("groups", groups, int)
    if codes.shape != (len(pairs),):
        raise ConfigError(f"{len(pairs)} pairs need {len(pairs)} groups, found {codes.shape}")
    nouns, amount = str(kind) == "copied:noun", int(kind.amount)
    makers: dict[str, Callable[[], Any]] = {
        "uniform": lambda: _choose_uniform(owner, rate, per, rng),
        "within": lambda: _choose_within(owner, codes, rate, rng),
        "shift": lambda: _choose_shifted(owner, rate, amount, rng),
        "collapse": lambda: _choose_collapsed(pairs, rate, amount, rng),
        "copied": lambda: copied(pairs, rate, shared_words(pairs) if nouns else _members(codes), rng),
        "partial": lambda: _mix_words(pairs, rate, kind.amount, rng),
        "edited": lambda: edited(pairs, rate, rng),
        "truncated": lambda: truncated(pairs, rate, amount, rng),
        "boilerplate": lambda: boilerplate(pairs, rate, rng),
    }
    made = makers[kind.name]()
    return Noise(pairs.pair_id, np.isin(pairs.pair_id, list(made)), made) if kind.rewrites else noise_of(pairs, made)


def _members(codes: np.ndarray) -> list[np.ndarray]:
    """The pairs of each category or image, by the codes (N,). Negative codes are none."""
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _choose_uniform(owner: np.ndarray, rate: float, per: str, rng: np.random.Generator) -> np.ndarray:
    n, permutation = len(owner), np.arange(len(owner))
    if per == "caption":
        chosen = rng.choice(n, round(rate * n), replace=False)
        permutation[chosen] = rng.permutation(chosen)
        return permutation
    members = _members(owner)
    chosen = rng.choice(len(members), round(rate * len(members)), replace=False)
    sizes = np.array([len(members[u]) for u in chosen], dtype=int)
    for size in np.unique(sizes):  # images trade captions with images that have as many
        alike = chosen[sizes == size]
        for image, donor in zip(alike, rng.permutation(alike), strict=True):
            permutation[members[image]] = members[donor]
    return permutation


def category_codes(pairs: Pairs, column: str) -> np.ndarray:
    """(N,) int64: equal = the same value in the input's ``column``, -1 = none. Raises ConfigError: no such column."""
    codes = one_array(plain_columns(pairs.source, [column], "noise")[column])
    codes = codes.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, np.int64)[pairs.row]


def _choose_within(owner: np.ndarray, group: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    """A permutation (N,) of the captions, in which those of one ``group`` (N,) trade places between images, by
    ``owner`` (N,). In a negative group, or one without a second image, pairs stay.
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
            source[members] = np.roll(members, -most)  # more than any image has captions
    return source


def _without_singles(chosen: np.ndarray, rest: np.ndarray, owner: np.ndarray, group: np.ndarray) -> np.ndarray:
    """``chosen`` without pairs alone in their group: of two such pairs, one gets a partner and one is left out."""
    values, at, counts = np.unique(group[chosen], return_inverse=True, return_counts=True)
    alone = chosen[counts[at] == 1] if len(values) else chosen
    partnered, dropped = np.split(alone, [len(alone) // 2])
    waiting: dict[int, list[int]] = {int(group[i]): [] for i in partnered}
    for i in rest.tolist():
        if (members := waiting.get(int(group[i]))) is not None:
            members.append(i)
    partners = [next((j for j in waiting[int(group[i])] if owner[j] != owner[i]), i) for i in partnered.tolist()]
    staying = chosen[~np.isin(chosen, dropped)]
    return np.unique(np.concatenate([staying, np.array(partners, dtype=np.int64)]))


def _choose_shifted(owner: np.ndarray, rate: float, by: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) int64: the pair whose caption each pair shows. Runs of about 100 images, with images that stay between
    them, are displaced ``by`` images. A pair shows the caption at its own place among the other image's captions. Where
    that image has fewer, they repeat.
    """
    source = np.arange(len(owner))
    _, first, image = np.unique(owner, return_index=True, return_inverse=True)
    members = _members(np.argsort(np.argsort(first))[image])  # of the images in the order of the input
    chosen = round(rate * len(members))
    staying = len(members) - chosen
    runs = min(max(round(chosen / 100), 1), staying + 1, chosen // (by + 1))
    if not runs:  # too few for one run
        return source
    lengths = np.diff(np.linspace(0, chosen, runs + 1).round().astype(int))
    before = np.sort(rng.choice(staying + 1, runs, replace=False))  # images that stay before each run
    starts = before + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        for k in range(length):
            donors = members[start + (k + by) % length]
            source[members[start + k]] = np.resize(donors, len(members[start + k]))
    return source


def _choose_collapsed(pairs: Pairs, rate: float, captions: int, rng: np.random.Generator) -> np.ndarray:
    """(N,) int64: the pair whose caption each shows, a share ``rate`` one of a few ``captions``, whose images stay."""
    source = pairs.pair_id
    shuffled = rng.permutation(np.array([i for i in range(len(pairs)) if i not in pairs.reasons], dtype=np.int64))
    _, first = np.unique(pairs.text_group[shuffled], return_index=True)
    donors = shuffled[np.sort(first)][:captions]
    holding = pairs.pair_image_group[np.isin(pairs.text_group, pairs.text_group[donors])]
    others = np.flatnonzero(~np.isin(pairs.pair_image_group, holding))
    chosen = rng.permutation(others)[: round(rate * len(pairs))]
    if len(donors):  # else no caption can be used
        source[chosen] = rng.choice(donors, len(chosen))
    return source


def _mix_words(pairs: Pairs, rate: float, share: float, rng: np.random.Generator) -> dict[int, str]:
    """New captions by pair id, a ``share`` of whose words no caption of the image has, or fewer where none of those
    tried has as many. Captions of one word stay, unless ``share`` is 1.
    """
    words = [c.split() if i not in pairs.reasons else [] for i, c in enumerate(pairs.captions)]
    normal = {word: normalise_text(word) for word in set().union(*words)}
    image = pairs.pair_image_group.tolist()
    own = of_images(pairs, ([normal[word] for word in own_words] for own_words in words))
    least = 1 if share == 1 else 2
    mixed: dict[int, str] = {}
    wanted = round(rate * len(pairs))
    for i in rng.permutation([k for k, caption_words in enumerate(words) if len(caption_words) >= least]).tolist():
        if len(mixed) == wanted:
            break
        most = len(words[i]) if share == 1 else len(words[i]) - 1
        count = min(max(round(share * len(words[i])), 1), most)
        foreign = _foreign_words(words, normal, own[image[i]], count, rng)
        if foreign:
            parts = re.split(r"(\S+)", pairs.captions[i])  # words at 1, 3, 5, ...: the white space between them stays
            places = np.sort(rng.choice(len(parts) // 2, len(foreign), replace=False))
            for at, word in zip(places.tolist(), foreign, strict=True):
                parts[2 * at + 1] = word
            mixed[i] = "".join(parts)
    return mixed


def _foreign_words(
    words: Sequence[list[str]], normal: Mapping[str, str], own: set[str], count: int, rng: np.random.Generator
) -> list[str]:
    """Up to ``count`` words of one random caption, the best of 20, that are not ``own``, in its order."""
    best: list[str] = []
    for donor in rng.integers(len(words), size=20).tolist():
        foreign = [word for word in dict.fromkeys(words[donor]) if normal[word] not in own]
        best = max(best, foreign, key=len)
        if len(best) >= count:
            return [best[k] for k in np.sort(rng.choice(len(best), count, replace=False)).tolist()]
    return best


def load_noise_file(path: str | Path, n: int, owner: np.ndarray | None = None) -> np.ndarray:
    """A research noise file, ``.npy`` of n whole numbers, as a permutation (n,): pair i shows the caption of pair
    permutation[i]. It holds that, or (NCR's) the image of each caption, which goes by ``owner`` (n,)
    int64, the image of each caption, or (RCL's) the image for all captions of an image. Raises DataError: it is none.
    """
    values = read_npy(path)
    if owner is not None and values.shape == (owner.max(initial=-1) + 1,) < (n,):
        values = values[owner]
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) != n:
        raise DataError(f"{path} must hold {n} whole numbers, one a caption; found {values.dtype} {values.shape}")
    ordered = np.sort(values)
    if np.array_equal(ordered, np.arange(n)):
        return np.asarray(values, dtype=np.int64)
    if owner is None or not np.array_equal(ordered, np.sort(owner)):
        raise DataError(f"{path} is no permutation of {n} captions, nor names each image as often as captions")
    permutation = np.empty(n, dtype=np.int64)
    permutation[np.argsort(owner, kind="stable")] = np.argsort(values, kind="stable")
    return permutation


def load_truth(path: str | Path, pairs: Pairs) -> np.ndarray:
    """(N,) bool: which pairs are truly mismatched, by a file: ``.npy`` with N booleans, a noise file, or Parquet with a
    column ``true_mismatch``, one row a pair, masked where it is null. Raises DataError: it does not fit.
    """
    if Path(path).suffix == ".npy":
        mask = read_npy(path)
        if mask.dtype != bool:
            return pairs.mismatched_by(load_noise_file(path, len(pairs), pairs.image_index))
    else:
        with reading(path, "read", KeyError):
            column = one_array((table := read_table(path, ["true_mismatch"]))["true_mismatch"])
        check_truth(table.schema, str(path))
        column = column.flatten() if pa.types.is_list(column.type) else column
        values = column.fill_null(False).to_numpy(zero_copy_only=False)
        mask = np.ma.array(values, bool, mask=column.is_null().to_numpy(zero_copy_only=False))
    if mask.shape != (len(pairs),):
        raise DataError(f"{path} speaks of {mask.shape} pairs, the data has {len(pairs)}")
    return mask


def apply_noise(pairs: Any, noise: Noise) -> Pairs:
    """Return the pairs with their new captions, in memory. A rewritten caption keeps the key of the original one.

    Parameters
    ----------
    pairs : Pairs or data
        As :func:`cleanpairs.load_pairs` takes them.
    noise : Noise
        That of :func:`inject_noise` for these pairs.

    Returns
    -------
    Pairs
        With the truth in ``true_mismatch`` and ``true_key``.

    Raises
    ------
    DataError
        The noise is of another number of pairs, or some are mismatched already, so that the truth would be lost.
    """
    pairs = load_pairs(pairs)
    if len(noise.permutation) != len(pairs):
        raise DataError(f"the noise is of {len(noise.permutation)} pairs, and the data has {len(pairs)}")
    if pairs.true_mismatch is not None and pairs.true_mismatch.any():
        raise DataError("the data holds mismatched pairs already, by its 'true_mismatch'; corrupt the clean data")
    captions = [noise.rewritten.get(i, pairs.captions[at]) for i, at in enumerate(noise.permutation.tolist())]
    moved = pairs.with_captions(captions, of=None if noise.rewritten else noise.permutation)
    keys = [pairs.keys[i] for i in noise.permutation.tolist()]
    return replace(moved, true_mismatch=noise.mismatched, true_key=keys)


def corrupt(
    data: str | Path, rate: float | None, *, per: str = "caption", seed: int = 0, kind: NoiseKind | str = "uniform",
    out: str | Path, noise_file: str | Path | None = None, overwrite: bool = False, **options: Any,
) -> Noise:  # fmt: skip
    """Write a corrupted copy of data, with the truth.

    Parameters
    ----------
    data : str or Path
        Any input of :func:`cleanpairs.load_pairs`.
    rate : float in [0, 1] or None
        See :func:`inject_noise`. None: there is a ``noise_file``.
    per, seed, kind : str, int, NoiseKind or str
        See :func:`inject_noise`.
    out : str or Path
        Parquet with the input's columns and ``true_mismatch`` and ``true_key``. The latter is the key of the pair whose
        caption it is. Both are lists where the captions are lists. Data in the research layout becomes a directory of
        that layout, if ``out`` does not end in ``.parquet``. Its other splits stay as they are, and the truth is in
        ``{split}_truth.parquet``, which is read with the captions.
    noise_file : str or Path, optional
        See :func:`load_noise_file`.
    overwrite : bool
        Whether ``out`` is replaced.
    **options
        Options of :func:`cleanpairs.load_pairs`.

    Returns
    -------
    Noise
        The new caption of every pair, and which pairs are mismatched by it.

    Raises
    ------
    ConfigError
        There is neither a rate nor a noise file, or no pair would be mismatched.
    DataError
        The data cannot be read, or holds mismatched pairs already.
    OutputExistsError
        ``out`` exists.
    """
    pairs = load_pairs(data, **options)
    if noise_file is not None:
        noise = noise_of(pairs, load_noise_file(noise_file, len(pairs), pairs.image_index))
    elif rate is not None:
        noise = inject_noise(pairs, rate, per=per, seed=seed, kind=kind)
        if rate and not noise.mismatched.any():
            raise ConfigError(f"noise {rate:g} of the kind {kind} mismatches none of {plural(len(pairs), 'pair')}")
    else:
        raise ConfigError("corrupt needs a rate or a noise file")
    corrupted = apply_noise(pairs, noise)
    if pairs.source.kind == "precomp" and Path(out).suffix != ".parquet":
        ours = re.compile(r"\w+_(ims\.npy|caps\w*\.txt|truth\.parquet)")  # files of the layout
        with staged_directory(out, overwrite=overwrite, inputs=[data], ours=ours) as folder:
            _write_research(corrupted, Path(pairs.source.paths[0]), folder)
        return noise
    with staged_file(out, overwrite=overwrite, inputs=pairs.source.inputs) as file:
        write_tables(file, _corrupted_tables(pairs, corrupted, noise))
    return noise


def _write_research(corrupted: Pairs, images: Path, folder: Path) -> None:
    split = images.name.removesuffix("_ims.npy")
    for file in images.parent.iterdir():
        of_captions = file.match("*_caps*.txt") or file.match("*_truth.parquet")
        if file.match("*_ims.npy") or (of_captions and not re.match(rf"{re.escape(split)}_(caps|truth)", file.name)):
            shutil.copyfile(file, folder / file.name)
    (folder / f"{split}_caps.txt").write_text("".join(c + "\n" for c in corrupted.captions), encoding="utf-8")
    truth = {"true_mismatch": corrupted.true_mismatch, "true_key": corrupted.true_key}
    write_tables(folder / f"{split}_truth.parquet", [pa.table(truth)])


def _corrupted_tables(pairs: Pairs, corrupted: Pairs, noise: Noise) -> Iterator[pa.RecordBatch]:
    """The input's rows with the new captions, their vectors (none where captions were rewritten) and the truth. A
    caption whose fault the copy alone does not show is null.
    """
    moved, columns_of = noise.moved, pairs.source.columns
    assert corrupted.true_mismatch is not None and corrupted.true_key is not None
    new_columns = list[str | None](corrupted.captions), corrupted.true_mismatch.tolist(), corrupted.true_key
    evident = unusable_captions(corrupted.captions)
    unusable = np.zeros(len(pairs), bool)
    unusable[[i for i, why in corrupted.reasons.items() if why.startswith("the caption ") and i not in evident]] = True
    left_out = unusable & moved
    for first, rows in iter_noted(pairs.source):
        dropped = columns_of.get("text_features") if corrupted.text_vectors is None else None
        table = rows.batch.drop_columns([c for c in (*TRUTH, dropped) if c in rows.batch.column_names])
        lo, hi = np.searchsorted(pairs.row, [first, first + len(rows)])
        row = pairs.row[lo:hi] - first
        left_out[lo:hi] |= unusable[lo:hi] & np.isin(row, [*rows.faults, *(i for i, _ in rows.caption_faults)])
        left_out[lo:hi] |= np.isin(row, [i for i, why in rows.faults.items() if not concerns_caption(why)])
        for i in (np.flatnonzero(left_out[lo:hi]) + lo).tolist():
            new_columns[0][i] = None
        columns: list[list[Any]] = [c[lo:hi] for c in new_columns]
        if pairs.source.explicit_lists:
            cuts = np.searchsorted(pairs.row[lo:hi], np.arange(first, first + len(rows) + 1)).tolist()
            columns = [[c[a:b] for a, b in pairwise(cuts)] for c in columns]
        changed = np.unique(row[(moved | left_out)[lo:hi]])
        replaced: dict[str, Any] = {}
        if "text" in columns_of:
            replaced[columns_of["text"]] = [columns[0][r] for r in changed.tolist()]
        if "text_features" in columns_of and corrupted.text_vectors is not None:
            vectors = corrupted.text_vectors[lo:hi][changed]
            replaced[columns_of["text_features"]] = [v if v.any() else None for v in vectors]
        replaced |= {name: [None] * len(changed) for name in score_columns(columns_of)}
        for name, cells in replaced.items():
            field, at = table.schema.field(name), table.schema.get_field_index(name)
            field = field.with_nullable(field.nullable or any(cell is None for cell in cells))
            table = table.set_column(at, field, replace_values(table[name], changed, pa.array(cells, field.type)))
        list_of = pa.list_ if pairs.source.explicit_lists else (lambda kind: kind)
        table = table.append_column(TRUTH[0], pa.array(columns[1], list_of(pa.bool_())))
        table = table.append_column(TRUTH[1], pa.array(columns[2], list_of(pa.string())))
        yield table
