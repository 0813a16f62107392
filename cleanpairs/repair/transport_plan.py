"""Who gets whom, decided for all mismatched pairs at once: partial transport between mismatched images and
mismatched captions.

Each distinct image and each distinct caption of the mismatched pairs is a node; its mass is the number of mismatched
pairs that show it, times the rows that one donor may serve.
The candidate edges of both directions (captions for an image, images for a caption) are one graph, and

    C = - cosine,    lambda = temperature / 2,    xi = - (w + 0.3 (t - w))

with w the median cosine of the mismatched pairs as they stand, which are mostly wrong, and t that of the trusted
pairs: an edge pays off above w + 0.3 (t - w). The two constants were chosen on photographs (docs/log.md).
"""

from collections.abc import Iterator

import numpy as np

from cleanpairs.ops.scratch import MEMORY, Scratch, release
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.candidates import Corpus
from cleanpairs.repair.edge_pairs import Paired
from cleanpairs.repair.settings import RepairSettings

STAY, SHARPNESS = 0.3, 0.5
RELAXATION = 1.8
_ROWS = 1 << 20  # pairs that are worked on at once


def transport_shares(
    corpus: Corpus, paired: Paired, settings: RepairSettings, temperature: float, *, scratch: Scratch = MEMORY
) -> np.ndarray:
    """Share of its row's mass that the transport plan sends along each pair that an edge to a mismatched donor makes.

    ``paired``: u pairs that the edges make; ``temperature``: of the model's softmax. Returns (u,) float32 in [0, 1]; 0
    for pairs of trusted donors alone.
    """
    share = scratch.full(paired.count, 0, np.float32)
    graph, typical = paired.graph, corpus.typical
    if not len(graph):
        return share
    # How many mismatched pairs show each image, and each text; and how many rows that of one pair may serve.
    a = np.bincount(corpus.image.group[corpus.mismatched])[graph.image_group].astype(np.float64)
    b = np.bincount(corpus.text.group[corpus.mismatched])[graph.text_group].astype(np.float64)
    lent = (settings.lenders != "trusted" and some for some in (settings.replaces_image, settings.replaces_text))
    capacity = [settings.max_reuse if some else 1 for some in lent]
    stay = typical.wrong + STAY * max(typical.right - typical.wrong, 0.0)
    cost = scratch.empty(len(graph), np.float64)
    for s in _blocks(len(graph)):
        cost[s] = -graph.similarity[s].astype(np.float64)
        release(cost, graph.similarity)
    # Rows are images, in order, and within these columns: the kernel is built of them as they are.
    mass = sparse_transport(
        graph.row, graph.column, cost, a * capacity[0], b * capacity[1], stay_cost=-stay, reg=SHARPNESS * temperature,
        relaxation=RELAXATION,
    ).mass  # fmt: skip
    for s in _blocks(len(graph)):
        most = np.minimum(a[graph.row[s]], b[graph.column[s]])
        share[graph.number[s]] = np.minimum(mass[s] / most, 1).astype(np.float32)
        release(share, mass, graph.row, graph.column, graph.number)
    return share


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _ROWS):
        yield slice(start, start + _ROWS)
