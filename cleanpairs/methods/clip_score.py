"""CLIP-score: similarity by a pretrained CLIP or SigLIP, with nothing trained. It is normalised by default.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021. Schuhmann et al.,
LAION, 2021 and 2022. Gadre et al., DataComp, 2023. Wang et al., NeurIPS 2024 (negCLIPLoss). The score, its threshold
and departures from the papers: docs/methods/clip-score.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cleanpairs.core import ConfigError
from cleanpairs.core.parameters import choice, text
from cleanpairs.encoders.model_files import FrozenPair
from cleanpairs.estimators.frozen import FrozenScorer, GivenScores, GivenVectors
from cleanpairs.ops.normalised_similarity import VectorPairs


@dataclass(kw_only=True, eq=False, repr=False)
class ClipScore(FrozenScorer):
    """Scores by a pretrained model. ``fit`` encodes the pairs, and sets the threshold and the bank.

    Parameters
    ----------
    score_column : str, optional
        Column of the data with cosines, in place of a model. Repairs need vectors of both sides too. Nothing is known
        of such cosines, so without ``threshold`` and ``quantile`` the lowest 30 % are flagged. Several columns of
        scores, ``"clip_score,aesthetic"``, are combined to one.

    label_column : str, optional
        Column of labels that weigh several scores: 1 for a matched pair, 0 for a mismatched one, null if unknown.
        None: a score counts as much as it agrees with the others.

    normalise : {"background", "csls", "none"}
        How the similarity is normalised: by the softmax over a background, by the nearest neighbours, or not at all.
    """

    method_name: ClassVar[str] = "clip-score"

    score_column: str | None = text(None)
    label_column: str | None = text(None)
    normalise: str = choice("background", "csls", "none")

    def compare(self, pairs: VectorPairs, background: VectorPairs, null: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`cleanpairs.estimators.FrozenScorer.compare`."""
        kind = {"background": "softmax", "csls": "csls", "none": None}[self.normalise]
        return background.scores_and_null(pairs, null, kind=kind, tau=self._model.temperature)

    def uncalibrated(self, score: np.ndarray) -> np.ndarray:
        """See :meth:`cleanpairs.estimators.FrozenScorer.uncalibrated`.

        Parameters
        ----------
        score : (n,) float
            What :meth:`compare` gave.

        Returns
        -------
        (n,) float
            The mean matching probability ("background"), or half of 1 + score.
        """
        if self.normalise == "background":
            return np.asarray(np.exp(score / self._model.temperature))
        return np.asarray(np.clip((1 + score) / 2, 0, 1))

    @property
    def _pointwise(self) -> bool:
        return self.normalise == "none"

    def _source(self, name: str | Path | None) -> FrozenPair | GivenVectors:
        if self.label_column is not None and "," not in (self.score_column or ""):
            raise ConfigError("label_column of clip-score weighs several scores: name them, score_column=NAME,NAME")
        if self.score_column is None:
            return super()._source(name)
        if name is not None or self.text_encoder is not None:
            raise ConfigError("clip-score takes a model, text_encoder='features' or score_column, and found several")
        return GivenScores(tuple(name.strip() for name in self.score_column.split(",")), self.label_column)
