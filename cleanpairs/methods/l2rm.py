"""L2RM: learning to rematch mismatched pairs (Han et al., CVPR 2024), section 4 and appendices.

At ``cost_lr`` = 2e-6 the cost net stays relu(1 - S): Adam moves a weight by no more than that a step. Equations, and
departures from the paper: docs/methods/l2rm.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.data import Pairs
from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.ops.search import TopK
from cleanpairs.ops.transport import partial_transport
from cleanpairs.repair.candidates import DonorSearch
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import BatchOutput, EpochContext


@dataclass(frozen=True)
class RematchingLoss:
    """Divergence of the matching probabilities from a transport plan (eq. 10 of L2RM).

    Parameters
    ----------
    tau : float
        Temperature of the probabilities.
    divergence : {"symmetric", "kl", "infonce"}
        "symmetric": the paper's. Its ablations are "kl", KL(R || P) alone, and "infonce", -log P of the entry that the
        plan gave most in a row, or column.
    """

    tau: float = 0.05
    divergence: str = "symmetric"

    def __call__(self, S: Tensor, plan: Tensor) -> Tensor:
        """Unreduced loss (n,) >= 0, of row i and column i together, by S (n, n) and the constant plan (n, n)."""
        log_p, log_q = ((S / self.tau).log_softmax(dim=dim) for dim in (1, 0))
        kept = plan.clamp_min(1e-10)  # before it is normalised
        target_p, target_q = (kept / kept.sum(dim=dim, keepdim=True) for dim in (1, 0))
        return self._apart(target_p, log_p, 1) + self._apart(target_q, log_q, 0)

    def _apart(self, target: Tensor, log_p: Tensor, dim: int) -> Tensor:
        if self.divergence == "infonce":
            return -log_p.gather(dim, target.argmax(dim=dim, keepdim=True)).squeeze(dim)
        weight = target if self.divergence == "kl" else target - log_p.exp()
        return (weight * (target.log() - log_p)).sum(dim=dim)


class CostNet(nn.Module):
    """Similarities (n, n) to costs (n, n) >= 0: a linear layer over a row's K positions, and ReLU. Starts as 1 - S.

    Of n < K rows the rest are similarities of 0. Positions behind K take the plain cost 1 - S.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.linear = nn.Linear(size, size)
        with torch.no_grad():
            self.linear.weight.copy_(-torch.eye(size))
            self.linear.bias.fill_(1.0)

    def forward(self, S: Tensor) -> Tensor:
        """Costs, of the same shape."""
        n = min(S.shape[1], self.size)
        padded = nn.functional.pad(S[:, :n], (0, self.size - n))  # (rows, K)
        learned = self.linear(padded)[:, :n].relu()
        return torch.cat([learned, (1 - S[:, n:]).relu()], dim=1)


class _Rematching(Splitting):
    networks = 1
    mixture = "beta"

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.head_lr = method.cost_lr
        self.rematching = RematchingLoss(method.transport_tau, method.divergence)

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        loss = self.pair_loss(clean, torch.ones(len(clean.rows), device=view.device))
        if noisy is None:
            return loss
        S = noisy.similarity()  # (n, n)
        with torch.no_grad():
            cost = self.costs(view, S.detach()).clamp_min(1e-10)
            diagonal = torch.eye(len(S), dtype=torch.bool, device=S.device) if self.method.masked else None
            m = self.method
            plan = partial_transport(cost, mass=m.mass, reg=m.transport_reg, forbidden=diagonal).to(S.dtype)
        loss = loss + self.method.rematch_weight * self.rematching(S, plan).mean()
        if self.method.cost == "learned" and len(clean.rows) == len(noisy.rows):
            loss = loss + self.cost_loss(view, clean, noisy)
        return loss

    def costs(self, view: EpochContext, S: Tensor) -> Tensor:
        head = view.networks[0].head
        return (1 - S).relu() if head is None else head(S)

    def cost_loss(self, view: EpochContext, clean: BatchOutput, noisy: BatchOutput) -> Tensor:
        """Eq. 6 on reconstructed pairs: a few matched images at random slots among mismatched images."""
        n = len(clean.rows)
        kept = min(self.method.kept, n)
        column = torch.randperm(n)[:kept]  # the captions whose images are kept
        slot = torch.randperm(n)[:kept]  # where their images stand
        with torch.no_grad():
            S = view.similarity(clean.model, noisy.images, clean.texts)  # (n, n)
            own = clean.select(column.numpy())
            S[slot.to(S.device)] = view.similarity(clean.model, own.images, clean.texts)
        return self.costs(view, S)[slot.to(S.device), column.to(S.device)].sum()


@dataclass(kw_only=True, eq=False, repr=False)
class L2RM(SplittingCleaner):
    """One network. Mismatched batches are rematched by partial optimal transport.

    Parameters
    ----------
    mass : float in (0, 1]
        Share rho of a mismatched batch that is transported.

    transport_reg : float
        Entropic regularisation lambda of the transport.

    transport_tau : float
        Temperature of the rematching loss.

    cost : {"learned", "cosine"}
        The cost net, or the plain cost 1 - S.

    cost_lr : float
        Learning rate of the cost net.

    kept : int
        Matched images in a reconstructed batch.

    masked : bool
        Whether the pairs of a mismatched batch may not be matched as they are.

    divergence : {"symmetric", "kl", "infonce"}
        Form of the rematching loss. See :class:`RematchingLoss`.

    rematch_weight : float
        Weight of the rematching loss. 0.5 is the paper's, which halves the two divergences.

    rematch_mass : float in (0, 1]
        Share of the mismatched pairs that ``rematch`` transports.

    label_epochs : int, optional
        How many splits enter the correspondence, from the end of the warm-up on, one an epoch. None: all.

    warm_loss : {"rce", "mean", "sum", "infonce"}
        Loss of the warm-up. The cross entropy with its reverse is "rce" (:mod:`cleanpairs.objectives`), without it
        "infonce". The triplet over the mean of the negatives is "mean", over their sum "sum".

    split_by : {"probability", "triplet"}
        What is split. With "probability" it is 1 minus the matching probability at ``tau``. With "triplet" it is the
        triplet loss over the mean of the negatives.

    clean_loss : {"rce", "triplet"}
        Loss of a pair with the label y after the warm-up. With "rce" it is y times the cross entropy with its
        reverse. With "triplet" it is the papers' triplet of the hardest negatives, whose soft margin depends on y.

    margin : float
        Alpha of the soft margin alpha (m^y - 1) / (m - 1).

    curve : float
        m of the soft margin.

    clean_above : float in [0, 1]
        Pairs with a clean probability above it are trained on as clean.

    warmup : int
        Epochs on all pairs before the first split.

    epochs : int
        Epochs of the last stage, whose model is kept.

    weight_decay : float
        Weight decay of AdamW.

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
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024. Cost: eq. 6.
    Rematching loss: eq. 10. Partial transport: appendix B. Departures: docs/methods/l2rm.md.
    """

    method_name: ClassVar[str] = "l2rm"

    label_epochs: int | None = 2
    mass: float = number(0.1, above=0, most=1)
    transport_reg: float = number(0.01, above=0)
    transport_tau: float = number(0.05, above=0)
    cost: str = choice("learned", "cosine")
    cost_lr: float = number(2e-6, above=0)
    kept: int = whole(8, 1)
    masked: bool = True
    divergence: str = choice("symmetric", "kl", "infonce")
    rematch_weight: float = number(0.1, least=0)
    rematch_mass: float = number(0.5, above=0, most=1)

    _strategy = _Rematching
    _paper: ClassVar[dict[str, Any]] = {
        **SplittingCleaner._papers, "lr_update": 15, "tau": 0.05, "warm_loss": "rce", "rematch_weight": 0.5,
    }  # fmt: skip

    def _head(self, model: Any) -> CostNet | None:
        """Return the learned cost, where it is one."""
        return CostNet(self.batch_size) if self.cost == "learned" else None

    def _search(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> DonorSearch:
        """The transport plan among the mismatched pairs, by the learned layer's mean weight and bias: relu(w S + b)."""
        z_image, z_text = images.vectors[pairs.image_index], texts.vectors
        weight, bias = -1.0, 1.0
        if self._heads and self._heads[0] is not None:
            linear = self._heads[0].linear
            weight, bias = float(linear.weight.detach().diagonal().mean()), float(linear.bias.detach().mean())

        def search(is_image: bool, trusted: bool, queries: np.ndarray, donors: np.ndarray, k: int) -> TopK | None:
            most = 1 << 24  # entries of a transport problem. Beyond, the nearest are taken.
            if trusted or len(queries) * len(donors) > most or min(len(queries), len(donors)) < 2:
                return None
            kept, given = (z_text, z_image) if is_image else (z_image, z_text)
            S = torch.from_numpy(kept[queries] @ given[donors].T)
            cost = (weight * S + bias).clamp_min(1e-10)
            own = torch.from_numpy(queries[:, None] == donors[None, :])
            plan = partial_transport(cost, mass=self.rematch_mass, reg=self.transport_reg, forbidden=own)
            best = plan.topk(min(k, plan.shape[1]), dim=1)
            moved = best.values > 0
            return TopK(
                torch.where(moved, S.gather(1, best.indices), -torch.inf).numpy().astype(np.float32),
                torch.where(moved, best.indices, -1).numpy(),
            )

        return search
