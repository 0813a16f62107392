"""Who gets whom, decided for all orphans at once: partial transport between orphaned images and orphaned captions.

Each distinct image and each distinct caption of the orphans is a node; its mass is the number of orphans that show it,
times the rows that one donor may serve.
The candidate edges of both directions (captions for an image, images for a caption) are one graph, and

    C = - cosine,    lambda = temperature / 2,    xi = - (w + 0.3 (t - w))

with w the median cosine of the orphans as they stand, which are mostly wrong, and t that of the trusted pairs: an edge
pays off above w + 0.3 (t - w). The two constants were chosen on photographs (docs/log.md).
"""

from __future__ import annotations

import numpy as np

from cleanpairs.errors import ConfigError
from cleanpairs.ops.candidates import Edges, Numbered, Side
from cleanpairs.ops.sparse_transport import sparse_transport

__all__ = ["SOLVERS", "dense_transport", "transport_shares"]

SOLVERS = ("sparse", "pot", "pot-exact")
STAY, SHARPNESS = 0.3, 0.5
MOST_DENSE = 25_000_000  # entries of the dense problem: 200 MB of float64, several times


def transport_shares(
    edges: Edges,
    image: Side,
    text: Side,
    orphans: np.ndarray,
    trusted: np.ndarray,
    *,
    temperature: float,
    capacity: int = 1,
    solver: str = "sparse",
    pairs: Numbered | None = None,
) -> np.ndarray:
    """Share of its row's mass that the transport plan sends along each edge.

    Parameters
    ----------
    edges : Edges
        E candidate edges; those to trusted donors take no part.
    image, text : Side
    orphans, trusted : (R,), (T,) int64
        Pairs to repair, and pairs taken for right.
    temperature : float
        Of the model's softmax.
    capacity : int
        How many rows the caption (image) of one orphan may serve; where captions (images) are given at all.
    solver : {"sparse", "pot", "pot-exact"}
        Our own over the edges; POT's ``sinkhorn`` or ``emd`` on the dense problem, for what fits.
    pairs : Numbered, optional
        ``edges.number_pairs()``, where it is known.

    Returns
    -------
    (E,) float32 in [0, 1]; 0 for edges to trusted donors

    Raises
    ------
    ConfigError
        An unknown solver, or a problem too large for a dense one.
    """
    if edges.trusted.all():
        return np.zeros(len(edges), np.float32)
    free = None if not edges.trusted.any() else np.flatnonzero(~edges.trusted)
    edge_pair = edges.number_pairs() if pairs is None else pairs
    # Of the pairs that edges to orphaned donors make, in order of their keys: by rows, and within these by columns.
    pair = edge_pair.number if free is None else edge_pair.number[free]
    if free is None:
        first, values = edge_pair.first, edge_pair.values
    else:
        kept = np.full(len(edge_pair.values), -1, np.int64)
        kept[pair[::-1]] = free[::-1]  # the last write wins: the first edge of each
        first, values = kept[kept >= 0], edge_pair.values[kept >= 0]
        pair = (np.cumsum(kept >= 0) - 1).astype(np.int32)[pair]
        del kept
    # Keys rise, so images are numbered in order; texts by which of them occur at all.
    group = values // edges.n_text
    images = group[np.append(True, group[1:] != group[:-1])]
    row = np.searchsorted(images, group).astype(np.int32)
    group = values % edges.n_text
    occurs = np.bincount(group, minlength=edges.n_text) > 0
    texts, column = np.flatnonzero(occurs), (np.cumsum(occurs, dtype=np.int32) - 1)[group]
    del group, values
    a = np.bincount(image.group[orphans], minlength=int(images.max()) + 1)[images].astype(np.float64)
    b = np.bincount(text.group[orphans], minlength=int(texts.max()) + 1)[texts].astype(np.float64)
    wrong, right = (_median_cosine(image, text, rows) for rows in (orphans, trusted))
    stay = wrong + STAY * max((right if len(trusted) else 1.0) - wrong, 0.0)
    to_image = edges.is_image if free is None else edges.is_image[free]
    most = a, b
    a = a * (capacity if to_image.any() else 1)
    b = b * (capacity if not to_image.all() else 1)
    cost = -edges.similarity[first].astype(np.float64)
    reg = SHARPNESS * temperature
    if solver == "sparse":
        mass = sparse_transport(row, column, cost, a, b, stay_cost=-stay, reg=reg).mass
    elif solver in SOLVERS:
        mass = dense_transport(row, column, cost, a, b, stay_cost=-stay, reg=reg if solver == "pot" else None)
    else:
        raise ConfigError(f"solver must be one of {', '.join(SOLVERS)}, found {solver!r}")
    del cost
    of_pair = np.minimum(mass / np.minimum(most[0][row], most[1][column]), 1).astype(np.float32)
    if free is None:
        return np.asarray(of_pair[pair])
    share = np.zeros(len(edges), np.float32)
    share[free] = of_pair[pair]
    return share


def dense_transport(
    row: np.ndarray,
    column: np.ndarray,
    cost: np.ndarray,
    row_mass: np.ndarray,
    column_mass: np.ndarray,
    *,
    stay_cost: float,
    reg: float | None,
) -> np.ndarray:
    """Mass (E,) of each edge as POT has it, of the problem of :func:`cleanpairs.ops.sparse_transport.sparse_transport`.

    Entropic with ``reg``, exact without (``ot.emd``).

    Raises
    ------
    ConfigError
        More than 25 million entries.
    """
    import ot

    n, m = len(row_mass), len(column_mass)
    if (n + 1) * (m + 1) > MOST_DENSE:
        raise ConfigError(f"POT needs the dense problem, and {n:,} x {m:,} is too large for it: use solver='sparse'")
    C = np.full((n + 1, m + 1), cost.max(initial=stay_cost) + 100 * (reg or 1) + abs(stay_cost) + 1)  # no edge
    C[row, column] = cost
    C[:-1, -1] = C[-1, :-1] = stay_cost / 2
    C[-1, -1] = 0
    a, b = np.append(row_mass, column_mass.sum()), np.append(column_mass, row_mass.sum())
    if reg is None:
        plan = ot.emd(a, b, C, numItermax=10_000_000)
    else:
        plan = ot.sinkhorn(a, b, C, reg, method="sinkhorn_log", stopThr=1e-6, numItermax=2000, warn=False)
    return np.asarray(plan[row, column])


def _median_cosine(image: Side, text: Side, rows: np.ndarray, sample: int = 20_000) -> float:
    rows = rows[:: max(1, len(rows) // sample)]
    if not len(rows):
        return 0.0
    return float(np.median(np.einsum("ij,ij->i", image.z[image.index[rows]], text.z[text.index[rows]])))
