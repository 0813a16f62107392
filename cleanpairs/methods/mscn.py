"""MSCN: meta similarity correction network (Han et al., CVPR 2023). See docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core import ConfigError, DataError
from cleanpairs.core.parameters import number, whole
from cleanpairs.core.torch_state import evaluating
from cleanpairs.data import load_pairs
from cleanpairs.encoders.base import State, take_state
from cleanpairs.encoders.tokenizer import pack
from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.objectives import TripletLoss
from cleanpairs.scoring import as_input
from cleanpairs.trainer import BatchOutput, EpochContext, TrainingData, step_seed


def meta_gradient_weights(losses: Any, parameters: dict[str, Tensor], direction: dict[str, Tensor]) -> Tensor:
    """Central difference of losses along a direction of the parameters.

    Parameters
    ----------
    losses : callable
        Gives losses (n,) for parameters.
    parameters : dict of Tensor
        The difference is taken here.
    direction : dict of Tensor
        The same names and shapes. The difference is over a thousandth of the parameters' norm.

    Returns
    -------
    (n,) Tensor
        The differences.
    """
    norm = torch.sqrt(sum((v.double() ** 2).sum() for v in direction.values()))  # type: ignore[arg-type]
    size = torch.sqrt(sum((p.double() ** 2).sum() for p in parameters.values()))  # type: ignore[arg-type]
    epsilon = float(1e-3 * size / norm.clamp_min(1e-12))
    with torch.no_grad():
        ahead = losses({k: p + epsilon * direction[k] for k, p in parameters.items()})
        behind = losses({k: p - epsilon * direction[k] for k, p in parameters.items()})
    return (ahead - behind) / (2 * epsilon)


class _Correcting(Splitting):
    mixture = "beta"
    needs_whole_graph = True  # a gradient at weights a step ahead

    def __init__(self, n: int, method: Any, meta: TrainingData) -> None:
        super().__init__(n, method)
        self.head_lr, self.meta = method.meta_lr, meta
        self.smooth = TripletLoss(margin=self.margin, negatives="mean")  # its slope is not zero almost everywhere

    def head(self, model: Any) -> nn.Module:
        """Similarity vectors (n, E + 1) to weights (n,) in (0, 1)."""
        return nn.Sequential(nn.Linear(model.dim + 1, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0), nn.Sigmoid())

    @torch.no_grad()
    def vectors(self, model: Any, images: State, texts: State) -> Tensor:
        product = model.vector(images).float() * model.vector(texts).float()  # (B, E)
        own = model.paired_similarity(images, texts).float()
        return torch.cat([product * product.shape[1] ** 0.5, own[:, None]], dim=1)

    @torch.inference_mode()
    def judge(self, view: EpochContext) -> np.ndarray:
        values = []
        for k in range(self.networks):
            z_image, z_text = view.pair_vectors(k)
            own = view.encoded(k).paired(view.data.image_index, np.arange(self.n))
            product = z_image * z_text * z_image.shape[1] ** 0.5
            s = torch.from_numpy(np.concatenate([product, own[:, None]], axis=1)).to(view.device)
            weight = view.networks[k].head(s).float().cpu().numpy()
            self.y[1 - k] = weight
            values.append((self.w[k] + weight) / 2)
        return np.asarray(np.mean(values, axis=0))

    def warm_loss(self, view: EpochContext, network: int, f: BatchOutput) -> Tensor:
        seed = step_seed(view.seed(network, 29), int(f.rows[0]))
        return super().warm_loss(view, network, f) + self.recognition(view, network, seed)

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        loss = self.pair_loss(clean, torch.ones(len(clean.rows), device=view.device))
        seed = step_seed(view.seed(network, 29), int(clean.rows[0]))
        if noisy is None:
            return loss + self.recognition(view, network, seed)
        s = self.vectors(noisy.model, noisy.images, noisy.texts)
        weight = view.networks[network].head(s)  # (n,), with the gradient of theta alone
        each = self.pair_objective(noisy.similarity(), torch.ones(len(noisy.rows), device=view.device), noisy.excluded)
        loss = loss + (weight.detach() * each).mean()
        if seed % self.method.meta_every == 0:
            slope = self.slopes(view, network, loss, noisy, seed)
            if slope is not None:
                loss = loss + (slope * weight).mean()  # its gradient is theta's meta gradient
        return loss + self.recognition(view, network, seed)

    def slopes(self, view: EpochContext, network: int, loss: Tensor, noisy: BatchOutput, seed: int) -> Tensor | None:
        """-eta (d l_i / dw . v) of the noisy pairs (n,), scaled to a mean magnitude of one. None where all are 0."""
        model = view.networks[network].model
        named = {k: p for k, p in model.named_parameters() if p.requires_grad}
        start = {k: p.detach() for k, p in named.items()}
        slopes = torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
        size = torch.sqrt(sum((p**2).sum() for p in start.values()))
        norm = torch.sqrt(sum((g**2).sum() for g in slopes))  # type: ignore[arg-type]
        if not bool(norm > 0):
            return None
        eta = float(self.method.lookahead * size / norm)
        ahead = {k: (p - eta * g).requires_grad_() for (k, p), g in zip(start.items(), slopes, strict=True)}
        meta = self.meta_inputs(view, seed)
        with evaluating(model):  # dropout would drown a finite difference
            value = self.smooth_loss(view, model, ahead, meta).mean()
            back = torch.autograd.grad(value, list(ahead.values()), materialize_grads=True)
            v = dict(zip(ahead, back, strict=True))
            rows = self.inputs(view, view.data, noisy.rows)
            slope = -eta * meta_gradient_weights(lambda p: self.smooth_loss(view, model, p, rows), start, v)
        scale = float(slope.abs().mean())
        return slope / scale if scale > 0 and np.isfinite(scale) else None

    def smooth_loss(self, view: EpochContext, model: Any, parameters: dict[str, Tensor], inputs: Any) -> Tensor:
        """Return the triplet loss (n,) over the mean of the negatives, with other weights, in batch order."""
        images, tokens, order, same = inputs
        weights = {f"model.{k}": p for k, p in parameters.items()}
        S = torch.func.functional_call(_Similarity(model), weights, (images, tokens))
        loss = self.smooth(S.float(), torch.ones_like(S[0]), same if view.settings.exclude_duplicates else None)
        return loss[order.argsort()]

    def inputs(self, view: EpochContext, data: TrainingData, rows: np.ndarray) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Images and tokens of pairs (n,) in the order of their packing, that order (n,), and which pairs (n, n) share
        an image or a text.
        """
        tokens, order = pack(data.tokens, rows)
        rows = rows[order]
        same = np.any([group[rows, None] == group[rows] for group in (data.image_group, data.text_group)], axis=0)
        images = as_input(data.images[data.image_index[rows]], view.device)
        at, shared = (torch.from_numpy(x).to(view.device) for x in (order, same))
        return images, tokens.to(view.device), at, shared

    def meta_inputs(self, view: EpochContext, seed: int) -> tuple[Tensor, Any, Tensor, Tensor]:
        rng = np.random.default_rng(seed)
        return self.inputs(view, self.meta, rng.permutation(len(self.meta))[: self.method.meta_batch])

    def recognition(self, view: EpochContext, network: int, seed: int) -> Tensor:
        """Cross entropy of V on right meta pairs and on wrong ones put together of them. Theta's gradient alone."""
        own = view.networks[network]
        images, tokens, _, same = self.meta_inputs(view, seed)
        with evaluating(own.model), torch.no_grad():
            z_image, z_text = own.model(images, None, tokens)
            wrong = take_state(z_text, torch.arange(len(images), device=view.device).roll(1))
        p = torch.cat([own.head(self.vectors(own.model, z_image, texts)) for texts in (z_text, wrong)])
        target = torch.tensor([1.0, 0.0], device=p.device).repeat_interleave(len(images))
        known = torch.cat([same.diagonal(), ~same.roll(1, 1).diagonal()])  # other captions of an image are right, too
        return nn.functional.binary_cross_entropy(p.float().clamp(1e-6, 1 - 1e-6)[known], target[known])


class _Similarity(nn.Module):
    """Similarities as a module's forward, which can be called with other weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, images: Tensor, tokens: Any) -> Tensor:
        return self.model.similarity(*self.model(images, None, tokens))


@dataclass(kw_only=True, eq=False, repr=False)
class MSCN(SplittingCleaner):
    """Two networks, and a small one that learns on a clean meta set how much a noisy pair counts.

    Parameters
    ----------
    meta : pairs
        The clean meta set of at least two pairs. ``fit`` refuses without one.

    meta_batch : int
        Meta pairs in a step.

    meta_every : int
        One of so many batches takes the second-order step.

    meta_lr : float
        Learning rate of the correction network.

    lookahead : float
        Length of the step ahead, relative to the weights' norm.

    Notes
    -----
    Han et al., CVPR 2023. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "mscn"

    meta: Any = None
    meta_batch: int = whole(64, 2)
    meta_every: int = whole(4, 1)
    meta_lr: float = number(1e-3, above=0)
    lookahead: float = number(1e-2, above=0)

    _paper: ClassVar[dict[str, Any]] = {**SplittingCleaner._papers, "epochs": 55, "batch_size": 64, "meta_every": 1}

    def _validate(self) -> None:
        super()._validate()
        if self.meta is None:
            raise ConfigError(
                "meta of mscn must be a small clean set of pairs, on which it learns its correction, found None: "
                "meta=DATA, or --set method.meta=DATA"
            )

    def _make_strategy(self, data: TrainingData) -> _Correcting:
        pairs = load_pairs(self.meta)
        matrix = self._images(pairs)
        quarantined = self._quarantine(pairs, matrix)
        usable = np.array([i for i in range(len(pairs)) if i not in quarantined], dtype=np.int64)
        if len(usable) < 2:
            raise DataError(f"the meta set needs at least 2 usable pairs, found {len(usable)}")
        if matrix.array.shape[1:] != data.images.shape[1:]:
            raise DataError(
                f"the meta set's images are {matrix.array.shape[1:]}, those of the data {data.images.shape[1:]}: "
                "both must be read and encoded alike"
            )
        tokens = self.tokenizer_.table(pairs)
        strategy = _Correcting(len(data), self, self._data(self._grouped(pairs), matrix, tokens, usable))
        strategy.meta_fingerprint = pairs.source.fingerprint
        return strategy
