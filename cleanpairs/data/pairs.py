"""Pairs: N image-caption pairs, column by column."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cleanpairs.core import DataError, plain_text, plural
from cleanpairs.data.arrays import as_array
from cleanpairs.data.images import ImageSource, comparable_vectors, encoded_list, vector_groups
from cleanpairs.data.source import Source
from cleanpairs.data.text import concerns_caption, content_hash, text_groups, unusable_captions


@dataclass(frozen=True, eq=False)
class Pairs:
    """N pairs of M images. ``pair_id`` is the position, and follows a pair to the exported file.

    Parameters
    ----------
    captions : list of str
        N captions. All are empty where the input has none: vectors of both sides do without.
    image_index : (N,) int64
        Row of ``images`` of each pair.
    row, position : (N,) int64
        Input row of each pair, and its place in the row's list of captions.
    keys : list of str
        N names.
    images : ImageSource
        M images. ``images.read([image_index[i]])[0]`` is the encoded image of pair i, None where there is none.
        ``images.array()`` are the vectors (M, R, D), None where there are only encoded images.
    image_group : (M,) int64
        Equal where images are the same.
    text_group : (N,) int64
        Equal where texts are the same after normalisation. Without captions, where vectors are equal.
    reasons : dict of int to str
        Why a pair is quarantined, by pair_id.
    source : Source
        Where the pairs came from.
    true_mismatch, true_key : (N,) bool and list of str, optional
        The truth, where the input has it, masked where it is null: whether a pair is mismatched, and the key of the
        pair that its caption belongs to. ``fit`` never looks at it.
    text_vectors : (N, D) float, optional
        Vectors of the captions that the input brings, maybe memory-mapped, of the same model as the images' vectors.
    precomputed_scores : mapping of str to (N,) float32
        Image-text similarities that the input brings, by the name of their column. NaN where there is none.
    """

    captions: list[str]
    image_index: np.ndarray
    row: np.ndarray
    position: np.ndarray
    keys: list[str]
    images: ImageSource
    image_group: np.ndarray
    text_group: np.ndarray
    reasons: dict[int, str]
    source: Source
    true_mismatch: np.ndarray | None = None
    true_key: list[str] | None = None
    text_vectors: np.ndarray | None = None
    precomputed_scores: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.captions)

    def __repr__(self) -> str:
        bad = f", {len(self.reasons):,} quarantined" if self.reasons else ""
        of = f"{plural(len(self), 'pair')} of {plural(len(self.images), 'image')}"
        return f"Pairs({of} ({self.images.kind}){bad})"

    @property
    def shape(self) -> tuple[int]:
        """(N,): by it scikit-learn divides them, through ``pairs[rows, ...]``."""
        return (len(self),)

    def __getitem__(self, rows: Any) -> "Pairs":
        return self.select(np.atleast_1d(np.arange(len(self))[rows]))

    @property
    def pair_id(self) -> np.ndarray:
        """(N,) int64: 0 .. N - 1."""
        return np.arange(len(self), dtype=np.int64)

    @property
    def pair_image_group(self) -> np.ndarray:
        """(N,) int64: the image group of each pair's image."""
        return self.image_group[self.image_index]

    @property
    def has_both_vectors(self) -> bool:
        """Whether the input brings vectors of the images and of the captions."""
        return self.text_vectors is not None and self.images.array() is not None

    @property
    def has_captions(self) -> bool:
        """Whether any pair has a caption."""
        return any(self.captions)

    @classmethod
    def from_arrays(
        cls,
        captions: Sequence[str] | None = None,
        *,
        image_vectors: np.ndarray | None = None,
        text_vectors: np.ndarray | None = None,
        features: np.ndarray | None = None,
        images: Sequence[bytes | None] | None = None,
        image_index: Sequence[int] | np.ndarray | None = None,
        keys: Sequence[str] | None = None,
        precomputed_scores: Mapping[str, Sequence[float] | np.ndarray] | None = None,
    ) -> "Pairs":
        """Make pairs in memory, of N captions and M images.

        Parameters
        ----------
        captions : sequence of str, optional
            N captions. They may be left out where there are vectors of both sides.
        image_vectors, features : (M, D) or (M, R, D) float, optional
            Vectors of the images, under either name.
        text_vectors : (N, D) float, optional
            Vectors of the captions.
        images : sequence of bytes, optional
            M encoded images, in place of their vectors.
        image_index : (N,) int, optional
            Image of each caption. The default is that caption i has image i.
        keys : sequence of str, optional
            N names. The default is the number of each pair.
        precomputed_scores : mapping of str to (N,) float, optional
            Similarities that are known already, by name.

        Returns
        -------
        Pairs
            The pairs. Those that cannot be used are quarantined.

        Raises
        ------
        DataError
            What is needed is missing, or sizes do not fit together.
        """
        if sum(given is not None for given in (image_vectors, features, images)) != 1:
            raise DataError("give either image_vectors (features) or images")
        features = image_vectors if features is None else features
        if not isinstance(precomputed_scores, Mapping | None):
            raise DataError(f"precomputed_scores are name -> scores, not {type(precomputed_scores).__name__}")
        for name, listed in (("captions", captions), ("keys", keys)):
            if isinstance(listed, str):
                raise DataError(f"{name} are a list, found the text {listed[:40]!r}")
        captioned = captions is not None
        if not captioned and (text_vectors is None or features is None):
            raise DataError("captions may be left out only where there are vectors of both sides")
        texts = None if text_vectors is None else as_array("text vectors", text_vectors)
        given = [None] * len(texts) if captions is None and texts is not None else list(captions)  # type: ignore[arg-type]
        captions = [caption_text(i, caption) for i, caption in enumerate(given)]
        n = len(captions)
        if features is not None:
            source_images, groups, bad = _of_vectors(as_array("image_vectors", features))
        else:
            source_images, groups, bad = _of_encoded(list(images))  # type: ignore[arg-type]
        if image_index is None and n != len(source_images):
            raise DataError(f"each caption needs an image: {n} and {len(source_images)} were given (or image_index)")
        index = np.arange(n) if image_index is None else as_array("image_index", image_index, int)
        named = (precomputed_scores or {}).items()
        scores = {name: as_array(f"scores {name!r}", values, float).astype(np.float32) for name, values in named}
        _check_sizes(n, len(source_images), index, keys, texts, scores)
        reasons = {i: bad[int(m)] for i, m in enumerate(index) if int(m) in bad}
        if texts is not None and n:
            texts, faults = comparable_vectors(texts, "text vector")
            reasons = faults | reasons
        if captioned:
            reasons |= {i: fault for i, fault in unusable_captions(captions).items() if i not in reasons}
        text_group = text_groups(captions) if captioned or texts is None else vector_groups(texts)
        known = [] if texts is None else [vector_groups(texts)]
        for name, values in sorted(scores.items()):
            known += [np.frombuffer(name.encode("utf-8", "surrogatepass"), np.uint8), values]
        fingerprint = _fingerprint(captions, groups, index, *known)
        return cls(
            captions=captions,
            image_index=index,
            row=np.arange(n),
            position=np.zeros(n, np.int64),
            keys=[plain_text(str(k)) for k in (range(n) if keys is None else keys)],
            images=source_images,
            image_group=groups,
            text_group=text_group,
            reasons=reasons,
            source=Source("memory", (), {}, fingerprint, n, None, False),
            text_vectors=texts,
            precomputed_scores=scores,
        )

    def select(self, indices: Sequence[int] | np.ndarray) -> "Pairs":
        """Return some of the pairs, numbered anew, in memory. Images are shared.

        Parameters
        ----------
        indices : (k,) int or (N,) bool
            Numbers of the pairs, or a mask.

        Returns
        -------
        Pairs
            k pairs.

        Raises
        ------
        DataError
            There is no such pair.
        """
        at = np.asarray(indices)
        if at.ndim != 1 or (at.dtype == bool and at.shape != self.shape):
            raise DataError(f"a mask of {len(self)} pairs is {self.shape}, numbers are (k,), found {at.shape}")
        at = np.flatnonzero(at) if at.dtype == bool else as_array("the numbers of pairs", at, int)
        if len(at) and not 0 <= at.min() <= at.max() < len(self):
            raise DataError(f"pairs are numbered 0 to {len(self) - 1}, found {at.min()} to {at.max()}")
        chosen = at.tolist()
        digest = hashlib.sha256(self.source.fingerprint.encode() + at.tobytes()).hexdigest()
        truth = None if self.true_mismatch is None else known_truth(self.true_mismatch[at])
        return replace(
            self,
            captions=[self.captions[i] for i in chosen],
            image_index=self.image_index[at],
            row=self.row[at],
            position=self.position[at],
            keys=[self.keys[i] for i in chosen],
            text_group=self.text_group[at],
            reasons={k: self.reasons[i] for k, i in enumerate(chosen) if i in self.reasons},
            source=replace(self.source, kind="memory", paths=(), fingerprint=digest, n_rows=len(at)),
            true_mismatch=truth,
            true_key=None if truth is None or self.true_key is None else [self.true_key[i] for i in chosen],
            text_vectors=None if self.text_vectors is None else self.text_vectors[at],
            precomputed_scores={name: values[at] for name, values in self.precomputed_scores.items()},
        )

    def with_captions(self, captions: Sequence[str], *, of: np.ndarray | None = None) -> "Pairs":
        """Return the same pairs with other captions, in memory. Precomputed scores are NaN where a caption changes.

        Parameters
        ----------
        captions : sequence of str
            N captions.
        of : (N,) int64, optional
            The pair whose caption each one is. Text vectors stay if it is given, or if no caption changes.

        Returns
        -------
        Pairs
            N pairs.

        Raises
        ------
        DataError
            There are not as many captions.
        """
        captions = list(captions)
        if len(captions) != len(self):
            raise DataError(f"each pair needs a caption: {len(self)} and {len(captions)} were given")
        digest = hashlib.sha256((self.source.fingerprint + "\0".join(captions)).encode("utf-8", "surrogatepass"))
        captioned = self.has_captions or any(captions)
        text_group = text_groups(captions) if captioned else self.text_group
        changed = {i for i, (a, b) in enumerate(zip(self.captions, captions, strict=True)) if a != b}
        vectors = self.text_vectors
        if of is not None and vectors is not None:
            vectors, text_group = np.asarray(vectors[of]), text_group if captioned else text_group[of]
            changed = set(np.flatnonzero(of != np.arange(len(self))).tolist())
            digest.update(of.tobytes())
        elif changed:
            vectors = None
        reasons = {i: why for i, why in self.reasons.items() if not (i in changed and concerns_caption(why))}
        to_check = list(changed - reasons.keys())
        new = unusable_captions([captions[i] for i in to_check]) if captioned else {}
        for k, i in enumerate(to_check):
            moved_fault = "" if of is None else self.reasons.get(int(of[i]), "")
            if fault := moved_fault if concerns_caption(moved_fault) else new.get(k):
                reasons[i] = fault
        scores = {name: np.array(values) for name, values in self.precomputed_scores.items()}
        for values in scores.values():
            values[list(changed)] = np.nan
        return replace(
            self,
            captions=captions,
            reasons=reasons,
            text_group=text_group,
            source=replace(self.source, kind="memory", paths=(), fingerprint=digest.hexdigest()),
            text_vectors=vectors,
            precomputed_scores=scores,
        )

    def mismatched_by(self, permutation: np.ndarray) -> np.ndarray:
        """Return which pairs a permutation of the captions mismatches.

        Parameters
        ----------
        permutation : (N,) int64
            The pair whose caption each pair gets.

        Returns
        -------
        (N,) bool
            Whether this caption is, by text, none of the captions of the pair's image.
        """
        _, owner = np.unique(self.pair_image_group, return_inverse=True)
        _, text = np.unique(self.text_group, return_inverse=True)
        fits = owner * (int(text.max(initial=0)) + 1) + text  # one number for each (image, text)
        return ~np.isin(owner * (int(text.max(initial=0)) + 1) + text[permutation], fits)

    def seen_in(self, train: "Pairs", role: str) -> str | None:
        """Return how many usable pairs show an image of other pairs.

        Parameters
        ----------
        train : Pairs
            The other pairs.
        role : str
            What the sentence calls these pairs.

        Returns
        -------
        str or None
            A sentence. None if no pair does.
        """
        seen = np.isin(self.pair_image_group, train.pair_image_group)
        seen[list(self.reasons)] = False
        n = int(seen.sum())
        return f"an image of the training data is in {n:,} of {len(self):,} {role} pairs" if n else None

    def true_mismatch_mask(self) -> np.ndarray:
        """Return which pairs are truly mismatched, by the input's column.

        Returns
        -------
        (N,) bool
            Masked where the truth is unknown.

        Raises
        ------
        DataError
            The input has no such column.
        """
        if self.true_mismatch is None:
            raise DataError("the data has no column 'true_mismatch'; give a file of true mismatches")
        return self.true_mismatch


def known_truth(wrong: np.ndarray) -> np.ndarray | None:
    """The truth as a plain array where nothing is masked. None where all is masked."""
    unknown = np.ma.getmaskarray(wrong)
    if not unknown.any():
        return np.asarray(wrong)
    return None if unknown.all() else wrong


def _fingerprint(captions: list[str], *arrays: np.ndarray) -> str:
    digest = hashlib.sha256("\0".join(captions).encode("utf-8", "surrogatepass"))
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _check_sizes(
    n: int, n_images: int, index: np.ndarray, keys: Sequence[str] | None, texts: np.ndarray | None,
    scores: Mapping[str, np.ndarray],
) -> None:  # fmt: skip
    """Raise :class:`DataError` where sizes do not fit n captions and the images."""
    if any(values.ndim != 1 for values in (index, *scores.values())) or (texts is not None and not texts.ndim):
        raise DataError("each caption needs one image index, one score and one vector")
    given = {"image indices": index, "keys": keys, "text vectors": texts}
    for what, values in (given | {f"scores {name!r}": s for name, s in scores.items()}).items():
        if values is not None and len(values) != n:
            raise DataError(f"each caption needs one of the {what}: {n} and {len(values)} were given")
    if n and not 0 <= index.min() <= index.max() < n_images:
        raise DataError(f"image indices are from 0 to {n_images - 1}, found {index.min()} to {index.max()}")
    if texts is not None and (texts.ndim != 2 or texts.dtype.kind != "f" or (n and not texts.size)):
        raise DataError(f"text vectors must be floats ({n}, D), found {texts.dtype} {texts.shape}")


def is_missing(value: Any) -> bool:
    """Whether a value is None, or what pandas has in its place."""
    return value is None or str(value) in ("nan", "<NA>")


def caption_text(i: int, given: Any) -> str:
    """The caption ``i`` as text, "" where pandas has none. Raises DataError: it is something else."""
    if isinstance(given, str):
        return plain_text(given)
    if is_missing(given):
        return ""
    raise DataError(f"caption {i} is {given!r}, and captions are text")


def _of_encoded(images: list[bytes | None]) -> tuple[ImageSource, np.ndarray, dict[int, str]]:
    """As :func:`_of_vectors`, of M encoded images."""
    for i, image in enumerate(images):
        if not isinstance(image, bytes | None):
            what = f"image {i} is {type(image).__name__}, not bytes"
            raise DataError(f"{what}; load_pairs({{'image': images, 'caption': captions}}) takes decoded images")
    hashed = (content_hash(b or f"missing {i}".encode()) for i, b in enumerate(images))
    bad = {i: "there is no image" for i, b in enumerate(images) if not b}
    return encoded_list(images), np.fromiter(hashed, np.int64, len(images)), bad


def _of_vectors(array: np.ndarray) -> tuple[ImageSource, np.ndarray, dict[int, str]]:
    """M vectors as images, zero where not finite. Their content hashes (M,). Image -> why it is unusable."""
    if array.ndim not in (2, 3) or array.dtype.kind != "f":
        found = f"found {array.dtype} {array.shape}"
        raise DataError(f"image_vectors (features) must be floats (M, D) or (M, R, D), {found}")
    if len(array) and not array.size:
        raise DataError(f"image_vectors (features) hold no numbers: their shape is {array.shape}")
    array = array[:, None, :] if array.ndim == 2 else array
    groups = vector_groups(array)
    array, bad = comparable_vectors(array) if len(array) else (array, {})
    return ImageSource(len(array), vectors=array), groups, bad
