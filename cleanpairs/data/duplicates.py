"""Near duplicates: the same image in another size, quality or format is one image, as the same bytes are.

Two signatures must agree. Each alone fails on a catalogue, where every shirt lies on white in one pose. The perceptual
hash sees shapes and no colours. It has 63 signs of the lowest frequencies of a 32 x 32 grey image (Zauner,
"Implementation and Benchmarking of Perceptual Image Hash Functions", 2010). The second signature is the means of an
8 x 8 grid of colours.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cleanpairs.core.limits import decoding_limits
from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.images import ImageSource
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.source import cache_dir, read_cached, write_cached
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.search import load_faiss

SIGNATURE = Preparation("cleanpairs.data.duplicates:signature", about=128)  # pixels of a side that are enough
FLAT = 4.0  # standard deviation of the grey image, of 255: below it the signs are those of noise

_groupings: WeakKeyDictionary[Pairs, tuple[Pairs | None, np.ndarray]] = WeakKeyDictionary()


def signature(image: Any) -> np.ndarray:
    """(201,) uint8 of a decoded image: the hash (8), the colours (192), and whether the image has any shape."""
    from PIL import Image
    from scipy.fft import dctn

    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), dtype=np.float64)
    low = dctn(grey, norm="ortho")[:8, :8].ravel()[1:]  # (63,): without the mean
    colours = np.asarray(image.resize((8, 8), Image.Resampling.BOX), dtype=np.uint8).ravel()
    return np.concatenate([np.packbits(low > np.median(low)), colours, [np.uint8(grey.std() >= FLAT)]])


def image_signatures(images: ImageSource) -> np.ndarray:
    """Signatures (M, 201) of encoded images. Zeros where one cannot be decoded: the reader of features says why."""
    table = np.zeros((len(images), 201), np.uint8)
    with Decoder(SIGNATURE, workers_for(len(images))) as decoder:
        for batch in decoder.batches(images.iter_encoded(256)):
            table[batch.rows] = np.reshape(batch.arrays, (-1, 201))
    return table


def near_duplicate_groups(signatures: np.ndarray) -> np.ndarray:
    """Group (M,) int64 of each of M images, by signatures (M, 201): the lowest number of an image that it is linked to.

    Hashes of linked images differ in at most 6 of 63 bits. Their colours c and c' differ by at most
    ``.08 * min(|c - mean c|, |c' - mean c'|)``. So a white background does not make two ties alike.
    """
    rows, group, most_bits = np.flatnonzero(signatures[:, 200]), np.arange(len(signatures)), 6
    distinct, inverse = np.unique(signatures[rows], axis=0, return_inverse=True)
    codes, colours = np.ascontiguousarray(distinct[:, :8]), distinct[:, 8:200].astype(np.float32)  # 64 cells of three
    cells = colours.reshape(-1, 64, 3)
    contrast = np.linalg.norm((cells - cells.mean(axis=1, keepdims=True)).reshape(-1, 192), axis=1)
    index = load_faiss().IndexBinaryMultiHash(64, 4, 16)  # of 7 errors some quarter of the bits has at most one
    index.nflip = most_bits // 4
    size = np.einsum("ij,ij->i", colours, colours, dtype=np.float64)

    def alike(source: np.ndarray, near: np.ndarray) -> np.ndarray:
        (some, at), (others, place) = (np.unique(side, return_inverse=True) for side in (source, near))
        squared = size[source] + size[near] - 2 * (colours[some] @ colours[others].T)[at, place]  # all below 2^24
        return np.asarray(squared <= (0.08 * np.minimum(contrast[source], contrast[near])) ** 2)

    group[rows] = rows[_first_linked(_connecting_links(index, codes, most_bits, alike), len(codes), inverse)]
    return group


def _connecting_links(index: Any, codes: np.ndarray, most_bits: int, alike: Callable[..., Any]) -> Iterator[np.ndarray]:
    """As many of the links (2, e) of codes (K, b) as connect what all of them connect.

    Linked codes differ in at most ``most_bits``, and ``alike`` says which of these are linked: an index. Codes around a
    hub are connected by its links, so that they are not asked. A link between codes around two hubs is none where the
    hubs differ in more than three times ``most_bits``. Else the hubs must be connected already.
    """
    index.add(codes)
    hub_of, hubs, part = np.full(len(codes), -1), np.empty(0, np.int64), np.empty(0, np.int64)
    for rows in blocks(len(codes), 64):
        asked = rows.start + np.flatnonzero(hub_of[rows] < 0)
        if not len(asked):
            continue
        ends, _, near = index.range_search(codes[asked], most_bits + 1)  # strictly nearer, and thousands of one code
        links = np.stack([np.repeat(asked, np.diff(ends).astype(np.int64)), near])
        yield (links := links[:, alike(*links)])
        for hub, around in zip(asked, np.split(links[1], np.flatnonzero(np.diff(links[0])) + 1), strict=True):
            new = around[hub_of[around] < 0]
            if len(new) < 64:  # it is cheaper to ask them
                continue
            connected = np.isin(part, part[np.setdiff1d(hub_of[around], [-1])])
            far = np.bitwise_count(codes[hubs] ^ codes[hub]).sum(axis=1) > 3 * most_bits
            if np.all(far | connected):
                part = np.append(np.where(connected, len(hubs), part), len(hubs))
                hub_of[new], hubs = len(hubs), np.append(hubs, hub)


def _first_linked(edges: Iterable[np.ndarray], count: int, code: np.ndarray) -> np.ndarray:
    """The first (M,) whose code is linked to that of each, by ``edges`` (2, e) of ``count`` codes. ``code`` (M,)."""
    known, size = [np.empty((2, 0), np.int64)], 0
    for some in edges:
        known.append(some)
        size += some.shape[1]
        if size > max(4 * count, 1 << 20):  # n images that are all alike have n^2 edges, of which n are enough
            known, size = [np.stack([np.arange(count), count + _linked(known, count)])], 0
    label = _linked(known, count)[code]
    _, first = np.unique(label, return_index=True)
    return np.asarray(first[label])


def _linked(edges: Sequence[np.ndarray], count: int) -> np.ndarray:
    """A number below ``count``, from 0 on, of each code (count,), the same of those that ``edges`` (2, e) link."""
    from scipy import sparse

    source, near = np.concatenate(edges, axis=1)
    graph = sparse.coo_array((np.ones(len(near), bool), (source, near)), shape=(2 * count, 2 * count))
    return np.asarray(sparse.csgraph.connected_components(graph, directed=False)[1][:count])


class VectorSigns:
    """256 signs of vectors, by which near duplicates are found where there are no encoded images.

    They tell on which side of random planes through the mean of the ``first`` rows (1,024, R, d) of all vectors lie.
    """

    def __init__(self, first: np.ndarray) -> None:
        self.mean = first[:1024].mean(axis=(0, 1), dtype=np.float32)
        self.planes = np.random.default_rng(0).normal(size=(len(self.mean), 256)).astype(np.float32)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(k, 32) uint8 of vectors (k, R, d)."""
        signs = np.empty((len(vectors), 32), np.uint8)
        for some in blocks(len(vectors), 4096):
            mean = vectors[some].mean(axis=1, dtype=np.float32)
            signs[some] = np.packbits((mean - self.mean) @ self.planes > 0, axis=1)
        return signs


def near_vector_groups(signs: np.ndarray, most_bits: int = 28) -> np.ndarray:
    """Group (M,) int64 of each of M vectors, by :class:`VectorSigns` (M, 32): as :func:`near_duplicate_groups`.

    Signs of linked vectors differ in at most ``most_bits`` bits. Of pairs that differ in 28 one in 400 is overlooked,
    of more than 50,000 vectors one in 15.
    """
    distinct, inverse = np.unique(signs, axis=0, return_inverse=True)
    # Number of hashes, and bits of each: linked vectors share one.
    parts = (21, 12) if len(distinct) <= 50_000 else (16, 16)
    index = load_faiss().IndexBinaryMultiHash(256, *parts)
    links = _connecting_links(index, np.ascontiguousarray(distinct), most_bits, lambda *_: slice(None))
    return _first_linked(links, len(distinct), inverse)


def group_near_vectors(pairs: Pairs, most_bits: int = 28) -> Pairs:
    """``pairs`` with one ``image_group`` for all near duplicates of an image, where images are vectors alone."""
    vectors = pairs.images.array()
    if vectors is None or not len(vectors):
        return pairs
    return replace(pairs, image_group=pairs.image_group[near_vector_groups(VectorSigns(vectors)(vectors), most_bits)])


def lesser_duplicates(group: np.ndarray, row: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Pairs (k,), rising, with a score, and in another row than the best of their ``group`` (n,)."""
    finite = np.flatnonzero(~np.isnan(score))
    order = finite[np.lexsort((row[finite], -score[finite], group[finite]))]
    _, first, place = np.unique(group[order], return_index=True, return_inverse=True)
    return np.sort(order[row[order] != row[order[first]][place]])


def group_near_duplicates(pairs: Pairs) -> Pairs:
    """``pairs`` with one ``image_group`` for all near duplicates of an image. Themselves where there are none."""
    grouped, _ = _grouped(pairs)
    return pairs if grouped is None else grouped


def flat_images(pairs: Pairs) -> np.ndarray:
    """Rows (k,) of the images of one colour, or that cannot be decoded. Empty where none can be decoded."""
    flat = _grouped(pairs)[1]
    present = flat[:, 200] > 0
    spread = flat[:, 8:200].reshape(-1, 64, 3).std(axis=1).max(axis=1, initial=0)  # grey alone takes red for green
    return np.flatnonzero(~present & (spread < FLAT)) if present.any() else np.empty(0, np.int64)


def _grouped(pairs: Pairs) -> tuple[Pairs | None, np.ndarray]:
    if pairs not in _groupings:
        signatures, grouped = _cached(pairs), None  # None, not the pairs themselves: the cache would keep them
        if signatures[:, 200].any():
            grouped = replace(pairs, image_group=pairs.image_group[near_duplicate_groups(signatures)])
        _groupings[pairs] = grouped, signatures
    return _groupings[pairs]


def _cached(pairs: Pairs) -> np.ndarray:
    vectors = pairs.images.kind == "features"  # whose groups are not those of their encoded images
    if pairs.images.in_memory or (vectors and pairs.source.kind == "memory"):
        return image_signatures(pairs.images)
    version = 3  # of the signatures
    images = hashlib.sha256(pairs.image_group.tobytes()).hexdigest()  # also of files that the input only names
    file = cache_dir() / "signatures" / f"{images[:32]}-{pairs.source.fingerprint[:24] * vectors}-{version}"
    cached, size, limits = read_cached(file), 201 * len(pairs.images), decoding_limits().encode()
    if cached is not None and len(cached) >= size:
        signatures = np.frombuffer(cached[:size], np.uint8).reshape(-1, 201)
        if cached[size:] == limits or signatures.any(axis=1).all():  # none failed, which other limits might let pass
            return signatures
    signatures = image_signatures(pairs.images)
    write_cached(file, signatures.tobytes() + limits)
    return signatures
