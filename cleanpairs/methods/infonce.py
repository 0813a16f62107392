"""The plain dual encoder: symmetric InfoNCE, every pair trusted. What users do today, and the baseline of all."""

from __future__ import annotations

from typing import ClassVar

from cleanpairs.correspondence.constant import Trusting
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.base import Objective
from cleanpairs.objectives.infonce import InfoNCELoss
from cleanpairs.trainer import Correspondence, Piece

__all__ = ["InfoNCE"]


class InfoNCE(PairCleaner):
    """Contrastive training without any resistance to wrong pairs.

    Its correspondence is the matching probability of the last epoch. Parameters as in
    :class:`cleanpairs.methods.crcl.CRCL`, where they are described; ``epochs`` are all in one piece.

    Source: van den Oord et al. 2018, as in CLIP (Radford et al. 2021).
    """

    method_name: ClassVar[str] = "infonce"

    def __init__(
        self,
        *,
        backbone: str = "vse_inf",
        image_encoder: str = "auto",
        image_size: int | None = None,
        dim: int = 256,
        dim_word: int = 300,
        image_drop: float = 0.3,
        text_drop: float = 0.2,
        epochs: int = 18,
        lr_update: int | None = None,
        lr: float = 5e-4,
        weight_decay: float = 1e-4,
        batch_size: int = 64,
        grad_clip: float = 2.0,
        tau: float = 0.07,
        threshold: float | str | None = None,
        label_group: int = 64,
        label_tau: float | None = None,
        exclude_duplicates: bool = True,
        standardise: bool = True,
        min_count: int = 1,
        max_length: int = 64,
        device: str = "auto",
        precision: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.backbone = backbone
        self.image_encoder = image_encoder
        self.image_size = image_size
        self.dim = dim
        self.dim_word = dim_word
        self.image_drop = image_drop
        self.text_drop = text_drop
        self.epochs = epochs
        self.lr_update = lr_update
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.grad_clip = grad_clip
        self.tau = tau
        self.threshold = threshold
        self.label_group = label_group
        self.label_tau = label_tau
        self.exclude_duplicates = exclude_duplicates
        self.standardise = standardise
        self.min_count = min_count
        self.max_length = max_length
        self.device = device
        self.precision = precision
        self.random_state = random_state

    label_pass: ClassVar[str] = "eval"

    def _pieces(self) -> list[Piece]:
        return [Piece(self.epochs, self.lr_update or max(1, self.epochs * 2 // 3))]

    def _objective(self) -> Objective:
        return InfoNCELoss(tau=self.tau)

    def _correspondence(self, n: int) -> Correspondence:
        return Trusting(n, self.epochs)

    def _default_threshold(self) -> float:
        return 0.1
