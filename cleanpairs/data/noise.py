"""Noise injection: pairs are mismatched by the protocols of the literature, and the truth is written beside them.

Noise rate eta: choose round(eta n) units at random, permute the captions among the chosen ones. ``per="caption"``: each
pair is a unit (NCR, BiCro, CRCL). ``per="image"``: an image is a unit and all its captions move together (DECL, RCL,
L2RM). A unit may land on itself or on another caption of its own image: such a pair is not mismatched. Corpora go
wrong in other ways, too: see :mod:`cleanpairs.data.noise_kinds`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.arrays import read_npy
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.columns import score_columns
from cleanpairs.data.noise_kinds import (
    NoiseKind,
    category_codes,
    choose_collapsed,
    choose_shifted,
    choose_within,
    mix_words,
)
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import iter_tables, load_pairs
from cleanpairs.data.writing import write_tables
from cleanpairs.ops.columns import replace_values

TRUTH = ("true_mismatch", "true_key")


@dataclass(frozen=True)
class Noise:
    """What every pair shows, and who is mismatched (N,) bool by it.

    ``permutation`` (N,) int64: pair i now shows the caption of pair permutation[i]; by ``collapse`` and ``shift`` a
    caption may be shown more than once, or no more. ``rewritten``: pair id to a text that there was not; all these are
    mismatched.
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
    """The noise that a permutation over the captions makes: who is mismatched by it.

    A pair is not when its new caption belongs to its own image, or is the same text as one of its image's own.
    """
    return Noise(permutation.astype(np.int64), pairs.mismatched_by(permutation))


def inject_noise(
    pairs: Pairs,
    rate: float,
    *,
    per: str = "caption",
    seed: int = 0,
    kind: NoiseKind | str = "uniform",
    groups: Sequence[int] | np.ndarray | None = None,
) -> Noise:
    """Choose, and permute or rewrite; nothing is changed yet, see :func:`apply_noise`.

    - ``rate`` float in [0, 1]: share of the units that are chosen. Reached is mostly less, see ``mismatched``
    - ``per`` {"caption", "image"}: what is a unit of uniform noise; of other kinds a caption, of ``shift`` an image
    - ``kind``: how they are mismatched; a text as :meth:`NoiseKind.parse` takes it
    - ``groups`` (N,) int: category of each pair for ``within``, in place of the input's column; negative: none

    Raises ConfigError: a rate, unit or kind that does not exist; a column that the input has not got.
    """
    if not 0 <= rate <= 1:
        raise ConfigError(f"the noise rate must be in [0, 1], found {rate}")
    kind = NoiseKind.parse(kind) if isinstance(kind, str) else kind
    if per not in ("caption", "image"):
        raise ConfigError(f"noise is per 'caption' or per 'image', found {per!r}")
    if kind.name == "uniform":
        return _uniform(pairs, rate, per, seed)
    if per == "image":
        raise ConfigError(f"noise per 'image' is uniform; {kind.name!r} has its own units, leave per out")
    rng = np.random.default_rng(seed)
    if kind.name == "partial":
        assert kind.amount is not None
        mixed = mix_words(pairs, rate, kind.amount, rng)
        mismatched = np.zeros(len(pairs), dtype=bool)
        mismatched[list(mixed)] = True
        return Noise(np.arange(len(pairs)), mismatched, mixed)
    if kind.name == "collapse":
        return noise_of(pairs, choose_collapsed(pairs, rate, int(kind.amount or 1), rng))
    _, owner = np.unique(pairs.pair_image_group, return_inverse=True)
    if kind.name == "shift":
        return noise_of(pairs, choose_shifted(owner, rate, int(kind.amount or 1), rng))
    codes = category_codes(pairs, str(kind.column)) if groups is None else np.asarray(groups, dtype=np.int64)
    if codes.shape != (len(pairs),):
        raise ConfigError(f"{len(pairs)} pairs need {len(pairs)} groups, found {codes.shape}")
    return noise_of(pairs, choose_within(owner, codes, rate, rng))


def _uniform(pairs: Pairs, rate: float, per: str, seed: int) -> Noise:
    rng = np.random.default_rng(seed)
    n = len(pairs)
    permutation = np.arange(n)
    if per == "caption":
        chosen = rng.choice(n, round(rate * n), replace=False)
        permutation[chosen] = rng.permutation(chosen)
        return noise_of(pairs, permutation)
    _, unit = np.unique(pairs.pair_image_group, return_inverse=True)
    order = np.argsort(unit, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(unit))[:-1]) if n else []
    chosen = rng.choice(len(members), round(rate * len(members)), replace=False) if members else np.empty(0, int)
    sizes = np.array([len(members[u]) for u in chosen], dtype=int)
    for size in np.unique(sizes):  # images trade captions with images that have as many
        alike = chosen[sizes == size]
        for to, giver in zip(alike, rng.permutation(alike), strict=True):
            permutation[members[to]] = members[giver]
    return noise_of(pairs, permutation)


def load_noise_file(path: str | Path, n: int, owner: np.ndarray | None = None) -> np.ndarray:
    """A research noise file as a permutation (n,) over the captions: pair i shows the caption of pair permutation[i].

    ``.npy`` of n whole numbers: a permutation, taken as it is; or, for images with several captions (NCR's files for
    Flickr30K and MS-COCO), the image that each caption is shown with, which becomes the permutation that makes the same
    pairs, by ``owner`` (n,) int64, the image of each caption. Raises DataError: it is neither.
    """
    values = read_npy(path)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) != n:
        raise DataError(f"{path} must hold {n} whole numbers, one a caption; found {values.dtype} {values.shape}")
    ordered = np.sort(values)
    if np.array_equal(ordered, np.arange(n)):
        return np.asarray(values, dtype=np.int64)
    if owner is None or not np.array_equal(ordered, np.sort(owner)):
        raise DataError(
            f"{path} is no permutation of the captions 0 to {n - 1}, nor does it name every image as often as it has "
            "captions"
        )
    permutation = np.empty(n, dtype=np.int64)
    permutation[np.argsort(owner, kind="stable")] = np.argsort(values, kind="stable")
    return permutation


def apply_noise(pairs: Pairs, noise: Noise) -> Pairs:
    """The pairs with their new captions, in memory, and with the truth in ``true_mismatch`` and ``true_key``.

    A rewritten caption keeps the key of the caption that it was made of: most of it still says where it belongs.
    """
    captions = [pairs.captions[i] for i in noise.permutation.tolist()]
    for i, caption in noise.rewritten.items():
        captions[i] = caption
    rewrites = pairs.text_vectors is None or noise.rewritten  # of a text that is new no vector is known
    moved = pairs.with_captions(captions, of=None if rewrites else noise.permutation)
    keys = [pairs.keys[i] for i in noise.permutation.tolist()]
    return replace(moved, true_mismatch=noise.mismatched, true_key=keys)


def corrupt(
    data: str | Path,
    rate: float | None,
    *,
    per: str = "caption",
    seed: int = 0,
    kind: NoiseKind | str = "uniform",
    out: str | Path,
    noise_file: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Noise:
    """Write a corrupted copy of ``data``, any input of :func:`cleanpairs.load_pairs` with ``options``, and the truth
    beside it.

    ``rate``, ``per``, ``seed``, ``kind``: see :func:`inject_noise`; or ``noise_file``: see :func:`load_noise_file`.
    ``out``: Parquet with the input's columns and ``true_mismatch``, ``true_key`` (the key of the pair whose caption it
    is); lists where the captions are lists.
    """
    pairs = load_pairs(data, **options)
    if pairs.true_mismatch is not None and pairs.true_mismatch.any():
        raise DataError(f"{data} holds mismatched pairs already, by its column 'true_mismatch'; corrupt the clean data")
    if noise_file is not None:
        noise = noise_of(pairs, load_noise_file(noise_file, len(pairs), pairs.image_index))
    elif rate is not None:
        noise = inject_noise(pairs, rate, per=per, seed=seed, kind=kind)
    else:
        raise ConfigError("corrupt needs a rate or a noise file")
    corrupted = apply_noise(pairs, noise)
    with staged_file(out, overwrite=overwrite, inputs=pairs.source.inputs) as file:
        write_tables(file, _corrupted_tables(pairs, corrupted, noise))
    return noise


def _corrupted_tables(pairs: Pairs, corrupted: Pairs, noise: Noise) -> Iterator[pa.Table]:
    """The input's rows with the new captions, their vectors (none where captions were rewritten) and the truth."""
    moved, columns_of = noise.moved, pairs.source.columns
    assert corrupted.true_mismatch is not None and corrupted.true_key is not None
    first = 0
    for batch in iter_tables(pairs.source):
        table = pa.Table.from_batches([batch])
        lost = columns_of.get("text_features") if corrupted.text_vectors is None else None
        table = table.drop_columns([c for c in (*TRUTH, lost) if c in table.column_names])
        lo, hi = np.searchsorted(pairs.row, [first, first + len(table)])
        columns: list[list[Any]] = [
            corrupted.captions[lo:hi],
            corrupted.true_mismatch[lo:hi].tolist(),
            corrupted.true_key[lo:hi],
        ]
        if pairs.source.explicit_lists:
            cuts = np.searchsorted(pairs.row[lo:hi], np.arange(first, first + len(table) + 1)).tolist()
            columns = [[c[a:b] for a, b in pairwise(cuts)] for c in columns]
        changed = np.unique(pairs.row[lo:hi][moved[lo:hi]]) - first
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
        first += len(table)
