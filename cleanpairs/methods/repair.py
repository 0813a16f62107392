"""REPAIR: rank correlation and noisy pair half-replacing with memory (Zheng et al., 2024), section III.

Equations, and departures from the paper: docs/methods/repair.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import number, whole
from cleanpairs.data import Pairs
from cleanpairs.methods.splitting import FeatureMemory, Splitting, SplittingCleaner
from cleanpairs.ops.matching import places
from cleanpairs.ops.ranks import rank_correlation
from cleanpairs.repair.candidates import DonorSearch, half_replacing
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import BatchOutput, EpochContext


def correspondence_of_ranks(c: np.ndarray, low: float, high: float) -> np.ndarray:
    """Soft correspondence by rank correlations (eq. 9 of REPAIR).

    Parameters
    ----------
    c : (n,) float
        Rank correlations.
    low, high : float
        Where the correspondence is 0, and 1.

    Returns
    -------
    (n,) float32
        In [0, 1].
    """
    return np.clip((c - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)


def ends_of_ranks(c: np.ndarray) -> tuple[float, float]:
    """Return where the correspondence of rank correlations is 0, and 1 (eq. 7 and 8 of REPAIR).

    Parameters
    ----------
    c : (N,) float
        Rank correlations.

    Returns
    -------
    (float, float)
        The mean of the lowest 1 %, not below 0, and that of the highest 10 %.
    """
    ordered = np.sort(c)
    low = float(ordered[: max(1, len(c) // 100)].mean())
    return max(0.0, low), float(ordered[-max(1, len(c) // 10) :].mean())


class _Repairing(Splitting):
    kept = (*Splitting.kept, "ends")

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.memories = [FeatureMemory(method.memory, method._resolved_device()) for _ in range(self.networks)]
        self.ends = np.tile(np.array([0.0, 1.0]), (self.networks, 1))

    def judge(self, view: EpochContext) -> np.ndarray:
        c_y = []
        for k, memory in enumerate(self.memories):
            z_image, z_text = (torch.from_numpy(z).to(view.device) for z in view.pair_vectors(k))  # (N, E)
            if not len(memory):  # nothing was trained on clean pairs yet: they are taken as they stand
                clean = np.flatnonzero(self.w[k] > self.clean_above)
                chosen = np.random.default_rng([self.method.random_state_, k]).permutation(clean)[: memory.size]
                memory.push(z_image[chosen], z_text[chosen], chosen)
            c = self.correlation(memory, z_image, z_text, np.arange(self.n))
            self.ends[k] = ends_of_ranks(c)
            c_y.append(correspondence_of_ranks(c, *self.ends[k]))
        self.y[:] = c_y[::-1]
        return np.asarray((np.mean(c_y, axis=0) + self.w.mean(axis=0)) / 2)

    def correlation(
        self, memory: FeatureMemory, z_image: Tensor, z_text: Tensor, rows: np.ndarray | None
    ) -> np.ndarray:
        """Rank correlation of pairs of vectors (n, E) with the memory: (n,). A pair's own entry is left out."""
        few = len(memory) < 3 or not len(z_image)
        if few or min(float((z.amax(0) - z.amin(0)).max()) for z in (z_image, z_text)) < 1e-5:
            return np.ones(len(z_image))  # all alike: ranks would be of rounding errors
        kept = np.flatnonzero(memory.rows >= 0)
        exclude = None if rows is None else torch.from_numpy(places(memory.rows[kept], rows)).to(z_image.device)
        remembered = memory.images[kept], memory.texts[kept]
        return np.asarray(rank_correlation(z_image, z_text, *remembered, exclude=exclude).cpu())

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        loss = self.pair_loss(clean, clean.of(self.y[network]))
        memory = self.memories[network]
        if noisy is not None and len(memory) and view.epoch > self.method.replace_after:
            wrong = np.asarray((self.w[:, noisy.rows] < self.method.eta).all(axis=0))
            if wrong.sum() >= 2:
                mismatched = noisy.select(wrong)
                of_images, of_texts = (self.replaced(view, network, mismatched, image=image) for image in (True, False))
                loss = loss + self.method.noisy_weight * (of_images + of_texts)
        with torch.no_grad():
            memory.push(clean.model.vector(clean.images), clean.model.vector(clean.texts), clean.rows)
        return loss

    def replaced(self, view: EpochContext, network: int, f: BatchOutput, *, image: bool) -> Tensor:
        memory = self.memories[network]
        with torch.no_grad():
            kept = f.model.vector(f.texts if image else f.images).detach().float()  # (n, E)
        same, other = (memory.texts, memory.images) if image else (memory.images, memory.texts)
        near = memory.near(kept, same, self.method.neighbours)
        scores = torch.einsum("nke,ne->nk", other[near], kept)  # S(f_j, T_n) of the K nearest
        chosen = near.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0]  # (n,) of the memory
        given = other[chosen]
        z_image, z_text = (given, kept) if image else (kept, given)
        c = self.correlation(memory, z_image, z_text, None)
        y = torch.from_numpy(correspondence_of_ranks(c, *self.ends[network])).to(view.device)
        sources = memory.rows[chosen.cpu().numpy()]
        given_state = view.encode(network, sources, image=image) if f.model.local else given
        images, texts = (given_state, f.texts) if image else (f.images, given_state)
        S = view.similarity(f.model, images, texts)  # (n, n): new pairs on the diagonal
        excluded = view.duplicates(sources if image else f.rows, f.rows if image else sources)
        return self.pair_objective(S, y, excluded).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class REPAIR(SplittingCleaner):
    """Two networks, labels by rank correlation with a memory of clean pairs, half-replaced noisy pairs.

    Parameters
    ----------
    memory : int
        Feature pairs M that each network remembers.

    neighbours : int
        Nearest texts, or images, K among which a replacement is looked for.

    eta : float in [0, 1]
        Pairs with a clean probability below it in both networks are half-replaced.

    noisy_weight : float
        Weight of the loss of half-replaced pairs.

    replace_after : int
        Epochs before the first half-replacing, the warm-up among them. 20 in the paper's figure 7.

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

    label_epochs : int, optional
        How many splits enter the correspondence, from the end of the warm-up on, one an epoch. None: all.

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
    REPAIR: Rank Correlation and Noisy Pair Half-replacing with Memory for Noisy Correspondence, 2024. Labels: eq. 6
    to 9. Half-replacing: eq. 10 to 13. Departures: docs/methods/repair.md.
    """

    method_name: ClassVar[str] = "repair"

    memory: int = whole(4096, 4)
    neighbours: int = whole(32, 1)
    eta: float = number(0.25, least=0, most=1)
    noisy_weight: float = number(0.15, least=0)
    replace_after: int = whole(0, 0)

    _strategy = _Repairing
    _paper: ClassVar[dict[str, Any]] = {**SplittingCleaner._papers, "replace_after": 20}

    def _search(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> DonorSearch:
        """Half-replacing over the trusted pairs: what is nearest in the kept modality offers its other half."""
        return half_replacing(images.vectors[pairs.image_index], texts.vectors, self.neighbours)
