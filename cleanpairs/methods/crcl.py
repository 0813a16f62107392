r"""CRCL: cross-modal robust complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

The active complementary loss (:mod:`cleanpairs.objectives.acl`, eq. 8-9) trains on labels that momentum correction
(:mod:`cleanpairs.correspondence.momentum`, eq. 10-12) refines over several pieces, each from fresh weights.

Where the defaults depart from the paper, measured in docs/log.md:

- p of eq. 10 comes from an evaluation pass at the end of the epoch and not from the training batches
  (``label_pass="batch"`` is the paper);
- only the first ``horizon`` epochs of a piece enter the label, since later ones have learnt wrong pairs by heart
  (``horizon=None`` with ``label_pass="batch"`` is the paper);
- pieces are shorter, batches smaller and the temperature is 0.07: the paper's are for 145,000 pairs of 36 regions;
- more regions are left out at random, which a grid of 9 from a frozen network needs;
- duplicates are no negatives; inputs are standardised.

``CRCL.paper()`` has the paper's settings (000, table 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from cleanpairs.correspondence.momentum import MomentumCorrection
from cleanpairs.errors import ConfigError
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.acl import ActiveComplementaryLoss
from cleanpairs.objectives.base import Objective
from cleanpairs.parameters import check_number, check_whole
from cleanpairs.trainer import Correspondence, Piece

__all__ = ["CRCL"]


class CRCL(PairCleaner):
    """Robust dual encoder of CRCL.

    Parameters
    ----------
    backbone : str
        Dual encoder; see ``cleanpairs.registry.BACKBONES``.
    image_encoder : str
        ``auto`` (vectors of the data where it has them, else ``efficientnet_lite0``), ``efficientnet_lite0``
        (frozen), ``cnn`` (trained from the pixels), ``features``.
    image_size : int, optional
        Side in pixels of the square that the image encoder sees; its own default when None.
    dim, dim_word : int
        Joint embedding and word embedding.
    epochs : int
        Epochs of the last piece, whose model is kept.
    refine_epochs : sequence of int
        Epochs of the pieces before it, which only refine the labels; may be empty.
    image_drop, text_drop : float in [0, 1)
        Size augmentation: share of regions and of words left out at random in training.
    freeze : int
        Epochs e_f at the start of a piece in which the labels stand still.
    horizon : int or "auto" or None
        Epochs of a piece whose probabilities enter the label; "auto": the longest refining piece; None: all.
    beta : float in [0, 1]
        Momentum of the labels.
    epsilon : float in [0, 1]
        Labels below it count as 0 in the loss; also the default threshold.
    lam : float
        Weight of the complementary loss.
    tau : float
        Temperature of the matching probability.
    lr, lr_update, weight_decay, grad_clip, batch_size
        AdamW; the rate falls to a tenth after ``lr_update`` epochs of the last piece (two thirds of them when None).
    label_pass : {"eval", "batch"}
        Where the label's probability comes from.
    label_group : int
        Pairs in a group of the evaluation pass: the more, the lower the probability of every pair.
    label_tau : float, optional
        Temperature of the label's probability; ``tau`` when None.
    threshold : float, "auto" or None
        Pairs with a correspondence below it are flagged; "auto" takes the valley between the two heaps; None is
        ``epsilon``.
    exclude_duplicates : bool
        Pairs with the same image or text are no negatives of each other.
    standardise : bool
        Input vectors are centred and scaled per dimension.
    min_count, max_length : int
        Vocabulary: least occurrences of a word; words after which a caption is cut.
    device : {"auto", "cpu", "cuda"}
    precision : {"auto", "fp32", "bf16"}
        auto: bf16 on a GPU, fp32 on a CPU.
    random_state : int
        Seed of everything.
    """

    method_name: ClassVar[str] = "crcl"

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
        epochs: int = 8,
        refine_epochs: Sequence[int] = (5, 5),
        freeze: int = 2,
        horizon: int | str | None = "auto",
        beta: float = 0.8,
        epsilon: float = 0.1,
        lam: float = 5.0,
        tau: float = 0.07,
        lr: float = 5e-4,
        lr_update: int | None = None,
        weight_decay: float = 1e-4,
        grad_clip: float = 2.0,
        batch_size: int = 64,
        label_pass: str = "eval",
        label_group: int = 64,
        label_tau: float | None = None,
        threshold: float | str | None = None,
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
        self.refine_epochs = refine_epochs
        self.freeze = freeze
        self.horizon = horizon
        self.beta = beta
        self.epsilon = epsilon
        self.lam = lam
        self.tau = tau
        self.lr = lr
        self.lr_update = lr_update
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.batch_size = batch_size
        self.label_pass = label_pass
        self.label_group = label_group
        self.label_tau = label_tau
        self.threshold = threshold
        self.exclude_duplicates = exclude_duplicates
        self.standardise = standardise
        self.min_count = min_count
        self.max_length = max_length
        self.device = device
        self.precision = precision
        self.random_state = random_state

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings (Flickr30K; supplement, table 5), with ``changes``."""
        settings: dict[str, Any] = {
            "dim": 1024, "epochs": 32, "refine_epochs": (7, 7, 7), "horizon": None, "tau": 0.05, "lr_update": 15,
            "batch_size": 128, "label_pass": "batch", "label_group": 128, "exclude_duplicates": False,
            "standardise": False, "image_drop": 0.2,
        }  # fmt: skip
        return cls(**{**settings, **changes})

    def _validate(self) -> None:
        super()._validate()
        check_whole("crcl", "freeze", self.freeze, 1)
        check_number("crcl", "beta", self.beta, least=0, most=1)
        check_number("crcl", "epsilon", self.epsilon, least=0, most=1)
        check_number("crcl", "lam", self.lam, least=0)
        if isinstance(self.refine_epochs, str) or not isinstance(self.refine_epochs, Sequence):
            raise ConfigError(
                f"refine_epochs of crcl must be a sequence of whole numbers, found {self.refine_epochs!r}"
            )
        for epochs in self.refine_epochs:
            check_whole("crcl", f"every number of refine_epochs {self.refine_epochs!r}", epochs, 1)
        if self.horizon not in (None, "auto") and (not isinstance(self.horizon, int) or self.horizon < self.freeze):
            raise ConfigError(
                f"horizon of crcl must be 'auto', None or a whole number >= freeze ({self.freeze}), "
                f"found {self.horizon!r}"
            )

    def _pieces(self) -> list[Piece]:
        last = Piece(self.epochs, self.lr_update or max(1, self.epochs * 2 // 3))
        return [Piece(e) for e in self.refine_epochs] + [last]

    def _objective(self) -> Objective:
        return ActiveComplementaryLoss(tau=self.tau, lam=self.lam)

    def _correspondence(self, n: int) -> Correspondence:
        horizon = self.horizon
        if horizon == "auto":
            horizon = max([*self.refine_epochs, self.freeze]) if self.refine_epochs else None
        assert horizon is None or isinstance(horizon, int)
        return MomentumCorrection(
            n,
            beta=self.beta,
            epsilon=self.epsilon,
            freeze=self.freeze,
            guard=self.label_pass == "eval",
            horizon=horizon,
        )

    def _default_threshold(self) -> float:
        return self.epsilon
