"""What can go wrong in a training, how it is noticed, and what is left to do: divergence, and batches too large.

Divergence is one of two things, both far from what a training that works was ever seen to do (docs/log.md has the
figures of all recipes):

    collapse    all images, or all captions, have become one point: the mean cosine of any two of a sample is above
                COLLAPSED, and was below APART when the stage began (a fresh network may have them all near each
                other); after the first epoch of a stage, which some objectives spend there
    explosion   the mean loss of the epoch is EXPLODED times as large as any before it, and as 1
"""

from collections.abc import Sequence

import numpy as np

from cleanpairs.trainer.context import EpochContext

SAMPLE = 64  # images, and captions, that are looked at
COLLAPSED, APART = 0.999, 0.99
EXPLODED = 10.0
LEAST_PART = 2  # pairs of a batch: one alone has no negative


class Diverged(Exception):  # noqa: N818 - a finding within the training, and no error until it comes twice
    """The training has diverged; the message says how."""


def collapse(view: EpochContext, network: int) -> tuple[float, float]:
    """Mean cosine of any two images, and of any two captions, of a sample of the pairs, under one network.

    0 where the data itself has only one image, or one text, to show.
    """
    data, model = view.data, view.networks[network].model
    rows = np.random.default_rng(view.seed(11, network)).permutation(len(data))[:SAMPLE]
    training = model.training
    model.eval()
    found = []
    for group, image in ((data.image_group, True), (data.text_group, False)):
        distinct = rows[np.unique(group[rows], return_index=True)[1]]
        if len(distinct) < 2:
            found.append(0.0)
            continue
        z = model.vector(view.encode(network, distinct, image=image)).float()  # (k, E)
        k = len(distinct)
        found.append((float(z.sum(dim=0).square().sum()) - k) / (k * (k - 1)))
    model.train(training)
    return found[0], found[1]


def explosion(loss: float, before: Sequence[float]) -> bool:
    """Whether the mean loss of an epoch is out of all proportion to those ``before`` it."""
    return len(before) > 0 and abs(loss) > EXPLODED * max(1.0, *(abs(value) for value in before))


def halves(batch: tuple[np.ndarray, ...], parts: int) -> list[tuple[np.ndarray, ...]]:
    """A batch, one or several groups of rows, in ``parts`` of about the same size; fewer, where a part would hold less
    than a pair and its negative.
    """
    smallest = min(len(rows) for rows in batch)
    parts = max(1, min(parts, smallest // LEAST_PART))
    if parts == 1:
        return [batch]
    cut = [np.array_split(rows, parts) for rows in batch]
    return [tuple(group[k] for group in cut) for k in range(parts)]
