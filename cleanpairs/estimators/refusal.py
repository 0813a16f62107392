"""Refusing to fit where images and captions do not depend on each other, before a training and a deleted corpus.

The fit of 100 pairs or more is refused (:mod:`cleanpairs.correspondence.independence`). Of fewer the test says little:
they are trained on, but without a hint of dependence none is flagged. Pixels tell little before a network is trained on
them. So there only rows that are all alike are refused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cleanpairs.core import RefusedError
from cleanpairs.correspondence.displacement import DisplacedBlock
from cleanpairs.correspondence.independence import LEAST, IndependenceTest, independence_of_pairs, standardised
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators.spaces import caption_spaces


def independence_of(
    images: np.ndarray, texts: TokenTable | np.ndarray, image_index: np.ndarray, image_group: np.ndarray,
    text_group: np.ndarray, *, seed: int = 0,
) -> IndependenceTest:  # fmt: skip
    """Test whether the images and captions of pairs depend on each other.

    The parameters are those of :func:`cleanpairs.correspondence.independence.independence_of_pairs`, with all captions,
    or their vectors (N, E), as ``texts``.
    """

    def vectors_of(rows: np.ndarray) -> Any:
        return caption_spaces(texts.take(rows))[0] if isinstance(texts, TokenTable) else standardised(texts[rows])

    return independence_of_pairs(images, vectors_of, image_index, image_group, text_group, seed=seed)


def order_that_fits(
    images: np.ndarray, texts: TokenTable | np.ndarray, image_index: np.ndarray, *groups: np.ndarray, seed: int = 0
) -> str:
    """A sentence on the other order of all captions, shifted or reversed, in which pairs fit. Up to five images are
    tried, and more while they fit better.

    The parameters are those of :func:`independence_of`.
    """
    least_z = 4.0  # of eleven orders

    def fit(k: int) -> float:
        rows = np.flatnonzero((image_index >= k) & (image_index < len(images) + k))
        some = texts.take(rows) if isinstance(texts, TokenTable) else texts[rows]
        return independence_of(images, some, image_index[rows] - k, *(g[rows] for g in groups)).z if len(rows) else 0.0

    for k in (1, -1, 2, -2, 3, -3, 4, -4, 5, -5):
        if (z := fit(k)) >= least_z:
            while (further := fit(k + int(np.sign(k)))) > z:  # of rows of one image, many fit before all do
                k, z = k + int(np.sign(k)), further
            return str(DisplacedBlock(0, len(images) - 1, k)) + " Move the captions, and fit again."
    if independence_of(images, texts, len(images) - 1 - image_index, *groups, seed=seed).z >= least_z:
        return "The captions fit in reversed order. Reverse one side, and fit again."
    return "Hardly any pair fits, in any order that was tried. Check how the files were joined."


def refuse_independent(independence: IndependenceTest, method: str, given: Sequence[Any], *, seed: int = 0) -> None:
    """Refuse pairs whose images and captions are independent.

    Parameters
    ----------
    independence : IndependenceTest
        The test's result. Fewer than 100 pairs are not refused.

    method : str
        Name of the method, for the message.

    given : sequence
        The arguments of :func:`independence_of`. Pixels tell little before a network is trained on them.

    seed : int
        Seed of everything random.

    Raises
    ------
    RefusedError
        They are independent.
    """
    images, _, image_index, *_ = given
    enough = independence.n >= LEAST
    if len(image_index) < 100 or independence.dependent or (images.ndim == 4 and enough):
        return
    order = order_that_fits(*given, seed=seed) if enough else "Check that the captions, and the images, differ."
    raise RefusedError(
        f"{method} has nothing to tell wrong pairs from right ones by: {independence}; no pair is dropped. {order} "
        "require_dependence=False (--set method.require_dependence=false) trains all the same"
    )
