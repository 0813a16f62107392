"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024), section 4 and appendix B.

Equations, and departures from the paper: docs/methods/pc2.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.correspondence.mixture import guarded_split
from cleanpairs.data import Pairs
from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.repair.candidates import DonorSearch, pseudo_captioning
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import BatchOutput, EpochContext


def negative_batch_entropy(logits: Tensor) -> Tensor:
    """Minus the entropy of the mean prediction (eq. 3 of PC2).

    Parameters
    ----------
    logits : (B, K) Tensor
        Logits of the pseudo-classes.

    Returns
    -------
    Tensor
        A scalar in [-log K, 0]. The lower, the more evenly the classes are used.
    """
    mean = logits.softmax(dim=1).mean(dim=0)  # (K,)
    return (mean * mean.clamp_min(1e-12).log()).sum()


def oscillation(previous: Tensor, current: Tensor) -> Tensor:
    """Divergence of an epoch's class probabilities from those before (eq. 7 of PC2).

    Parameters
    ----------
    previous, current : (N, K) Tensor
        Class probabilities.

    Returns
    -------
    (N,) Tensor
        KL(previous || current).
    """
    tiny = 1e-12
    return (previous * (previous.clamp_min(tiny).log() - current.clamp_min(tiny).log())).sum(dim=1).clamp_min(0)


def pseudo_caption(p_noisy: Tensor, p_clean: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each noisy prediction the clean one of the highest cosine (eq. 4 of PC2).

    Parameters
    ----------
    p_noisy : (n, K) Tensor
        Class probabilities of noisy images.
    p_clean : (m, K) Tensor
        Class probabilities of clean pairs.

    Returns
    -------
    (n,) Tensor, (n,) Tensor
        Which clean one, and the cosine in [0, 1].
    """
    unit = nn.functional.normalize
    best = (unit(p_noisy, dim=1) @ unit(p_clean, dim=1).T).max(dim=1)
    return best.indices, best.values.clamp(0, 1)


class PseudoClassifier(nn.Module):
    """Cosine of a unit vector (B, E) with K learned directions, over a temperature: logits (B, K)."""

    def __init__(self, dim: int, classes: int, tau: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.functional.normalize(torch.randn(classes, dim), dim=1))
        self.tau = tau

    def forward(self, z: Tensor) -> Tensor:
        """Logits of the pseudo-classes.

        Parameters
        ----------
        z : (B, E) Tensor
            Unit vectors.

        Returns
        -------
        (B, K) Tensor
            Cosines over the temperature.
        """
        return nn.functional.linear(z, nn.functional.normalize(self.weight, dim=1)) / self.tau


class _PseudoCaptioning(Splitting):
    half = True
    kept = (*Splitting.kept, "p", "p_known")

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.head_lr = method.class_lr
        self.p = np.zeros((self.networks, n, method.classes), dtype=np.float32)  # of the last epoch
        self.p_known = False
        self.previous: np.ndarray | None = None

    def end_epoch(self, view: EpochContext) -> None:
        self.previous = self.p if self.p_known else None
        self.p = np.stack([self.predictions(view, k) for k in range(self.networks)])
        super().end_epoch(view)
        self.p_known = True

    @torch.inference_mode()
    def predictions(self, view: EpochContext, network: int) -> np.ndarray:
        head = view.networks[network].head
        z = view.encoded(network).images.vectors
        logits = [head(torch.from_numpy(z[i : i + 4096]).to(view.device)).float().cpu() for i in range(0, len(z), 4096)]
        return np.asarray(torch.cat(logits).softmax(dim=1).numpy()[view.data.image_index])

    def judge(self, view: EpochContext) -> np.ndarray:
        values = []
        for k, w in enumerate(self.w):
            steady = np.zeros(self.n, dtype=np.float32)
            if self.previous is not None:
                o = oscillation(torch.from_numpy(self.previous[k]), torch.from_numpy(self.p[k])).numpy()
                split = guarded_split(_scaled(o), "gaussian", None)
                if not split.refused:
                    steady = np.where(split.clean >= self.clean_above, split.clean, 0).astype(np.float32)
            values.append(np.where(w > self.clean_above, w + (1 - w) * steady, w))  # eq. 8 is of clean pairs
        self.y[:] = values[::-1] if self.method.rectify else 1
        return np.asarray(np.mean(values, axis=0))

    def class_loss(self, view: EpochContext, network: int, clean: BatchOutput, everyone: BatchOutput) -> Tensor:
        """L_pse of the clean pairs (eq. 2 of PC2) and the weighted L_ent of all."""
        head = view.networks[network].head
        p, q = head(clean.model.vector(clean.images)), head(clean.model.vector(clean.texts))
        spread = self.method.entropy_weight * negative_batch_entropy(head(everyone.model.vector(everyone.images)))
        own = nn.functional.cross_entropy(p, q.argmax(dim=1), reduction="none").mean()  # the class of the text
        return self.method.pseudo_weight * own + spread

    def warm_loss(self, view: EpochContext, network: int, f: BatchOutput) -> Tensor:
        return super().warm_loss(view, network, f) + self.class_loss(view, network, f, f)

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        loss = self.pair_loss(clean, clean.of(self.y[network])) + self.class_loss(view, network, clean, clean)
        if noisy is None:
            return loss
        head = view.networks[network].head
        with torch.no_grad():
            p_clean, p_noisy = clean.model.vector(clean.images).float(), noisy.model.vector(noisy.images).float()
            if self.method.donor_by == "classes":
                p_clean, p_noisy = head(p_clean).softmax(dim=1), head(p_noisy).softmax(dim=1)
            index, similarity = pseudo_caption(p_noisy, p_clean)
        texts = clean.select(index.cpu().numpy())
        S = view.similarity(noisy.model, noisy.images, texts.texts)  # (n, n): noisy images, captions that were given
        captioned = self.triplet(S, similarity.clamp(0, 1), view.duplicates(noisy.rows, texts.rows))
        return loss + self.method.noisy_weight * self.reduced(captioned)


def _scaled(x: np.ndarray) -> np.ndarray:
    top = float(np.quantile(x, 0.99))
    return np.clip(x / top, 0, 1) if top > 0 else np.zeros_like(x)


@dataclass(kw_only=True, eq=False, repr=False)
class PC2(SplittingCleaner):
    """Two networks, pseudo-classes in both modalities, captions borrowed by class, labels steadied by oscillation.

    Parameters
    ----------
    classes : int
        Pseudo-classes K.

    class_tau : float
        Temperature of the pseudo-classifier.

    class_lr : float
        Learning rate of the pseudo-classifier.

    entropy_weight : float
        Weight of L_ent.

    noisy_weight : float
        Weight of L_n. 0: no pseudo-captions. 1 in the paper.

    pseudo_weight : float
        Weight of L_pse. 1 in the paper.

    rectify : bool
        Whether clean pairs have the label y_i, or 1.

    donor_by : {"classes", "embeddings"}
        What a noisy image finds the clean pair by whose caption it takes.

    reduction : {"mean", "sum"}
        Whether L_c and L_n are averaged over a batch, or summed, as in the paper.

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
    Duan et al., PC2: Pseudo-Classification Based Pseudo-Captioning for Noisy Correspondence Learning, ACM MM 2024.
    Classes: eq. 2 and 3. Pseudo-captions: eq. 4 to 6. Labels: eq. 7 and 8. Departures: docs/methods/pc2.md.
    """

    method_name: ClassVar[str] = "pc2"

    classes: int = whole(128, 2)
    class_tau: float = number(0.1, above=0)
    class_lr: float = number(5e-3, above=0)
    entropy_weight: float = number(10.0, least=0)
    noisy_weight: float = number(1.0, least=0)
    pseudo_weight: float = number(1.0, least=0)
    rectify: bool = True
    donor_by: str = choice("classes", "embeddings")
    reduction: str = choice("mean", "sum")

    _strategy = _PseudoCaptioning
    _paper: ClassVar[dict[str, Any]] = {**SplittingCleaner._papers, "epochs": 55, "reduction": "sum"}

    def _head(self, model: Any) -> PseudoClassifier:
        """Return the pseudo-classifier."""
        return PseudoClassifier(model.dim, self.classes, self.class_tau)

    def _search(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> DonorSearch:
        """Pseudo-captioning over the trusted pairs: those of the most similar class probabilities lend their part."""
        return pseudo_captioning(self._predicted(images.vectors)[pairs.image_index], self._predicted(texts.vectors))

    @torch.inference_mode()
    def _predicted(self, vectors: np.ndarray) -> np.ndarray:
        """Class probabilities (n, networks x K) of vectors (n, E) as unit rows. An ensemble's stand side by side."""
        dims = [head.weight.shape[1] for head in self._heads]
        parts = torch.from_numpy(vectors).split(dims, dim=1)
        unit = nn.functional.normalize
        each = [
            unit(head(unit(z.to(head.weight.device), dim=1)).softmax(dim=1), dim=1)
            for head, z in zip(self._heads, parts, strict=True)
        ]
        return np.asarray((torch.cat(each, dim=1) / len(each) ** 0.5).float().cpu().numpy())
