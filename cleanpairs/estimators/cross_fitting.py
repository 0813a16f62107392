"""Cross-fitting: every pair is also scored by a model that was not trained on it.

The images are split into K folds (all pairs of an image, by content, go together, so that no fold knows an image from
another). A model of the same settings is trained on all folds but one, and scores the pairs of that one against its
own bank of trusted pairs. The soft correspondence is the mean of that score and of the label within the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from cleanpairs.core.errors import RefusedError
from cleanpairs.data import Pairs

if TYPE_CHECKING:
    from cleanpairs.estimators.cleaner import PairCleaner

__all__ = ["out_of_fold_scores"]


def out_of_fold_scores(
    estimator: PairCleaner,
    pairs: Pairs,
    usable: np.ndarray,
    folds: int,
    *,
    val: Any = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    on_step: Callable[[int, int, float], None] | None = None,
) -> np.ndarray:
    """Matching probability of each usable pair under a model that has not seen its image.

    Parameters
    ----------
    estimator : PairCleaner
        Its settings are taken, not what it has learned.
    pairs : Pairs
    usable : (n,) int64
        Those that are not quarantined.
    folds : int
        K, at least 2.
    val, resume, on_step
        As of :meth:`cleanpairs.estimators.PairCleaner.fit`.
    run_dir : path, optional
        Each fold has its checkpoints in ``run_dir/fold-k``.

    Returns
    -------
    (n,) float32 in [0, 1]

    Raises
    ------
    RefusedError
        Fewer images than folds.
    """
    from sklearn.model_selection import GroupKFold

    groups = pairs.pair_image_group[usable]
    if len(np.unique(groups)) < folds:
        raise RefusedError(f"cross_fit={folds} needs {folds} different images, found {len(np.unique(groups))}")
    scores = np.empty(len(usable), dtype=np.float32)
    splitter = GroupKFold(folds, shuffle=True, random_state=estimator.random_state)
    for k, (seen, held_out) in enumerate(splitter.split(groups, groups=groups), 1):
        model = clone(estimator).set_params(cross_fit=0, text_encoder=estimator.text_encoder_)  # all folds as the whole
        model.fit(
            pairs.take(usable[seen]),
            val=val,
            run_dir=None if run_dir is None else Path(run_dir) / f"fold-{k}",
            resume=resume,
            on_step=on_step,
        )
        scores[held_out] = model.score_pairs(pairs.take(usable[held_out]))
    return scores
