"""CRCL: cross-modal robust complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

Loss: eq. 8-9. Momentum correction: eq. 10-12. ``CRCL.paper()``: supplement, table 5. See docs/methods/crcl.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cleanpairs.core import ConfigError
from cleanpairs.core.parameters import check_whole, choice, number, whole
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.trainer import SingleNetwork, TrainingData, TrainingStage


@dataclass(frozen=True)
class ActiveComplementaryLoss:
    """Active complementary loss ``lam`` L_r + ``active`` L_d (eq. 8 and 9 of CRCL).

    Parameters
    ----------
    tau : float
        Temperature.
    lam, active : float
        Weights of L_r and of L_d.
    q : float in [0, 1], optional
        Tolerance, the same for all pairs. None: 1 - yhat.
    """

    tau: float = 0.05
    lam: float = 5.0
    active: float = 1.0
    q: float | None = None

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of S (B, B), rows are images, and labels (B,) in [0, 1], constants."""
        y, logits = labels.detach().to(S.dtype), S / self.tau
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return self._one_way(logits, y) + self._one_way(logits.T, y)

    def _one_way(self, logits: Tensor, y: Tensor) -> Tensor:
        log_p = logits.log_softmax(dim=1)
        tan = log_p.exp().tan()
        total = tan.sum(dim=1)
        complementary = (total - tan.diagonal()).clamp_min(0) * total.pow(y - 1 if self.q is None else -self.q)
        return self.lam * complementary - self.active * y * log_p.diagonal()


class MomentumCorrection(SingleNetwork):
    """Labels of pairs over the stages of a training (eq. 10 to 12 of CRCL).

    Parameters
    ----------
    n, objective, others
        See :class:`SingleNetwork`.
    beta, epsilon, freeze, label_epochs
        See :class:`CRCL`.
    guard : bool
        Hold the first freeze while the probabilities do not separate. Else all labels would fall below epsilon.

    Notes
    -----
    The stored y stays raw, with the paper and unlike the public code.
    """

    kept = ("y", "started", "p_of_batches")

    def __init__(
        self, n: int, objective: ActiveComplementaryLoss, *, beta: float = 0.8, epsilon: float = 0.1,
        freeze: int = 2, guard: bool = True, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(n, objective, start=freeze, **others)
        self.beta, self.epsilon, self.guard = beta, epsilon, guard
        self.y: np.ndarray = np.ones(n, dtype=np.float32)
        self.started = False  # a probability has been taken over

    def wants(self, epoch: int) -> bool:
        """Whether p of this epoch (from 1) will be used by the next one: it need not be computed otherwise."""
        return super().wants(epoch) or (not self.started and epoch >= self.start)

    def update(self, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch`` (from 1), as the next epoch's label."""
        if not self.wants(epoch):
            return
        p = np.asarray(p, dtype=np.float32)
        if self.started:
            self.y = np.float32(self.beta) * self.y + np.float32(1 - self.beta) * p
        # Chance gives a tenth of the pairs .016 in a group of 64, .06 in one of 16.
        elif not self.guard or len(p) < 2 or np.quantile(p, 0.9) >= 0.25:
            self.y, self.started = p.copy(), True

    def labels(self) -> np.ndarray:
        """Corrected labels yhat (N,) float32 in [0, 1] of eq. 12, for the loss."""
        return np.where(self.y < self.epsilon, np.float32(0), self.y)

    def value(self) -> np.ndarray:
        """Raw labels y (N,) float32 in [0, 1]."""
        return self.y


@dataclass(kw_only=True, eq=False, repr=False)
class CRCL(PairCleaner):
    """Active complementary loss, and labels that momentum corrects over several stages.

    Parameters
    ----------
    refine_epochs : sequence of int
        Epochs of the stages before the last, which only refine the labels.

    freeze : int
        Epochs e_f at the start of a stage in which the labels stand still.

    label_epochs : int, "auto" or None
        Epochs of a stage that enter the label. "auto": those of the longest refining stage. None: all.

    beta : float in [0, 1]
        Momentum of the labels.

    epsilon : float in [0, 1]
        Labels below it count as 0 in the loss. Also the default threshold.

    lam : float
        Weight lambda of the complementary loss L_r.

    active : float
        Weight of the active loss L_d.

    q : float in [0, 1], optional
        Tolerance of L_r, the same for all pairs. None: 1 - yhat.

    correction : bool
        False: all labels stay 1. The correspondence is then the mean probability of the first ``label_epochs`` epochs
        of the last stage.

    label_pass : {"eval", "batch"}
        Whether the label's probability comes from an evaluation pass or from the training batches.

    epochs : int
        Epochs of the last stage, whose model is kept.

    backbone : str
        Dual encoder: "mlp", "vse_inf", "saf", "sgr" or "sgraf".

    image_size : int, optional
        Side in pixels of the square that the image encoder sees. None: its own.

    image_transform : callable, optional
        For a torch module as ``image_encoder``: turns a list of Pillow's RGB images into its pixels.

    tune : str
        What is trained of ``encoder``: "head" (frozen towers), "lora", "blocks:N" (the last N) or "full".

    encoder_lr : float, optional
        Learning rate of the trained weights of ``encoder``. None: 2e-4 for LoRA, else 1e-5.

    lora_rank : int
        Rank of LoRA's matrices.

    gradient_checkpointing : bool
        Recompute the activations of the towers: less memory, more time.

    dim : int
        Dimensions of the joint embedding.

    dim_word : int
        Dimensions of a word's embedding.

    dim_sim : int
        Dimensions of the similarity vectors of backbones that compare words with regions.

    dropout : float in [0, 1)
        Dropout in the heads of "mlp".

    image_drop : float in [0, 1)
        Share of the regions that are left out at random in training.

    text_drop : float in [0, 1)
        Share of the words that are left out at random in training.

    standardise : bool
        Centre and scale the input vectors by dimension.

    tokenizer : {"words", "characters", "subword"}
        What a token is. "words" takes characters where a script has no spaces.

    min_count : int
        Words that occur less often are not in the vocabulary.

    max_length : int
        Captions are cut after so many words, or four times as many characters.

    encoder : str or Path, optional
        CLIP, SigLIP or another encoder of both sides, in place of backbone, image encoder and learned words.
        It is a directory, a name on the Hugging Face hub, or ``open_clip:MODEL/PRETRAINED``.

    image_encoder : str or torch.nn.Module
        "auto": vectors of the data where it has them, else "efficientnet_lite0". "efficientnet_lite0": frozen.
        "features": vectors of the data. A torch module is frozen.

    text_encoder : str or Path, optional
        With "words", words are learned from the captions. With "auto", vectors of the installed sentence encoder join
        them, where that knows the language. With "features", the captions' vectors of the data are taken. Else it is a
        frozen encoder: a directory, or a name on the hub. None means "words". But None and "auto" take the data's
        vectors, where it has those of both sides.

    threshold : float in [0, 1], "auto" or None
        Pairs with a correspondence below it are flagged. "auto": the density minimum between the two modes, or 0 where
        there is only a high one and no pair looks mismatched. None: the method's own.

    eval_group_size : int
        Pairs in a group of an evaluation pass. Larger groups lower the probability of every pair.

    require_dependence : bool
        Refuse pairs whose images and captions do not depend on each other.

    max_bad_share : float in [0, 1], optional
        Share of the pairs that may be quarantined. None: ``CLEANPAIRS_MAX_BAD_SHARE``, or 0.2.

    drop : str
        Names of filters that quarantine more pairs, with commas between them. Some filters always do.

    near_duplicates : bool
        Copies of an image in other sizes, qualities or formats count as one image, as equal bytes do.

    device : {"auto", "cpu", "cuda"}
        "auto": a GPU where there is one.

    random_state : int, numpy.random.Generator or None
        Seed of everything. A generator, and None, draw one at ``fit``, which is then ``random_state_``.

    lr : float
        Learning rate of AdamW.

    lr_update : int, optional
        The rate falls to a tenth after each so many epochs of the last stage, without its warm-up. None: once, after
        two thirds of all.

    lr_decay : {"steps", "cosine"}
        How the rate falls after the warm-up: as ``lr_update`` says, or along half a cosine.

    weight_decay : float
        Weight decay of AdamW.

    grad_clip : float
        Largest norm of the gradient.

    batch_size : int
        Pairs in a step, of all processes together.

    micro_batch : int, optional
        Pairs that go through the towers at once, where a batch is too large for memory.

    tau : float
        Temperature of the matching probability.

    exclude_duplicates : bool
        Pairs with the same image or text are no negatives of each other.

    precision : {"auto", "fp32", "bf16"}
        "auto": bf16 on a GPU, fp32 on a CPU.

    Notes
    -----
    Qin et al., Cross-modal Active Complementary Learning with Self-refining Correspondence, NeurIPS 2023. Loss: eq. 8
    and 9. Labels: eq. 10 to 12. Departures: docs/methods/crcl.md.
    """

    method_name: ClassVar[str] = "crcl"

    epochs: int = 8
    refine_epochs: Sequence[int] = (5, 5)
    freeze: int = whole(2, 1)
    label_epochs: int | str | None = "auto"
    beta: float = number(0.8, least=0, most=1)
    epsilon: float = number(0.1, least=0, most=1)
    lam: float = number(5.0, least=0)
    active: float = number(1.0, least=0)
    q: float | None = number(None, least=0, most=1, also=(None,))
    correction: bool = True
    label_pass: str = choice("eval", "batch")

    _paper: ClassVar[dict[str, Any]] = {  # supplement, table 5
        "backbone": "vse_inf", "dim": 1024, "epochs": 32, "refine_epochs": (7, 7, 7), "label_epochs": None, "tau": 0.05,
        "lr_update": 15, "batch_size": 128, "label_pass": "batch", "eval_group_size": 128, "exclude_duplicates": False,
        "near_duplicates": False, "standardise": False, "image_drop": 0.2,
        "weight_decay": 0.01,  # the public code leaves AdamW its default
    }  # fmt: skip

    def _validate(self) -> None:
        super()._validate()
        if isinstance(self.refine_epochs, str) or not isinstance(self.refine_epochs, Sequence):
            raise ConfigError(f"refine_epochs of crcl are a sequence of whole numbers, found {self.refine_epochs!r}")
        for epochs in self.refine_epochs:
            check_whole("crcl", f"every number of refine_epochs {self.refine_epochs!r}", epochs, 1)
        if self.label_epochs != "auto":
            check_whole("crcl", "label_epochs (if not 'auto')", self.label_epochs, self.freeze, none=True)

    def _stages(self) -> list[TrainingStage]:
        return [*(TrainingStage(e) for e in self.refine_epochs), *self._one_stage()]

    def _make_strategy(self, data: TrainingData) -> SingleNetwork:
        label_epochs = self.label_epochs
        if label_epochs == "auto":
            label_epochs = max([*self.refine_epochs, self.freeze]) if self.refine_epochs else None
        loss = ActiveComplementaryLoss(tau=self.tau, lam=self.lam, active=self.active, q=self.q)
        how: dict[str, Any] = {"label_epochs": label_epochs, "label_pass": self.label_pass}
        if not self.correction:
            return SingleNetwork(len(data), loss, **how)
        how |= {"beta": self.beta, "epsilon": self.epsilon, "freeze": self.freeze}
        return MomentumCorrection(len(data), loss, guard=self.label_pass == "eval", **how)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.at_most(self.epsilon)
