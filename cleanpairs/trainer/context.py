r"""What a method sees of the training: its networks, an evaluation pass, a training forward, random batches.

A batch in pieces has the loss and the gradient of the whole: gradient cache (Gao et al. 2021, "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup").

    dL/dw = sum_i dL/dz_i dz_i/dw

dL/dz is computed once, from the embeddings of the whole batch. Those of a piece are computed without a graph, and once
more with one when dL/dz is known. The same dropout is drawn, and only the second pass moves batch norm's statistics.
Several processes embed a share each. All compute the same loss of all embeddings. Each takes the gradient of its own
share into the towers. The weights' gradients are summed.
"""

import operator
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core import distributed
from cleanpairs.encoders.base import DualEncoder, Local, State, full_precision, take_state
from cleanpairs.encoders.tokenizer import PackedTokens, pack
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.matching import duplicate_mask, matching_probability
from cleanpairs.scoring import Embeddings, Encoded, as_input, embed_images, embed_texts, in_groups
from cleanpairs.trainer.types import TrainingData, TrainingSettings, step_seed

Run = Callable[[np.ndarray], tuple[State, State]]


def on_device(images: np.ndarray, device: torch.device) -> Tensor | None:
    """Return all M images on a GPU, as they are stored. None elsewhere, or if they leave it too little memory."""
    if device.type != "cuda" or images.nbytes > 0.25 * torch.cuda.mem_get_info(device)[0]:
        return None
    device_images = torch.empty(images.shape, dtype=torch.from_numpy(np.array(images[:0])).dtype, device=device)
    for some in blocks(len(images), 1024):
        device_images[some] = torch.from_numpy(np.array(images[some]))
    return device_images


@dataclass(frozen=True)
class PieceInputs:
    """b pairs on the CPU: images (b, R, D) or (b, 3, H, W), or rows (b,) of those on a GPU. ``keep`` (b, R) bool."""

    images: Tensor
    keep: Tensor | None
    tokens: PackedTokens

    def pinned(self) -> "PieceInputs":
        """Return these inputs in memory that a GPU reads by itself."""
        keep = None if self.keep is None else self.keep.pin_memory()
        return PieceInputs(self.images.pin_memory(), keep, self.tokens.each(Tensor.pin_memory))

    def to(self, device: torch.device, device_images: Tensor | None) -> tuple[Tensor, Tensor | None, PackedTokens]:
        """Return a network's arguments. ``device_images``: all images, where they are on the device."""
        keep = None if self.keep is None else self.keep.to(device, non_blocking=True)
        images = self.images if device_images is None else device_images[self.images.to(device, non_blocking=True)]
        return as_input(images, device), keep, self.tokens.to(device)


@dataclass(frozen=True)
class Inputs:
    """B pairs in packed order, as :class:`BatchOutput`. How they are ``cut``. The pieces by their first position."""

    rows: np.ndarray
    source: np.ndarray
    cut: list[np.ndarray]
    pieces: dict[int, PieceInputs]
    excluded: Tensor | None


def take_packed(tokens: PackedTokens, rows: np.ndarray) -> PackedTokens:
    """Return the chosen sequences (b,) int64, ascending, of packed ones on the CPU: packed themselves."""
    at = torch.from_numpy(rows)
    sizes = tokens.batch_sizes
    present = at[None, :] < sizes[:, None]  # (L, b)
    starts = sizes.cumsum(0) - sizes
    left = present.sum(dim=1)
    sentences = None if tokens.sentences is None else tokens.sentences[at]
    return PackedTokens(tokens.ids[(starts[:, None] + at)[present]], left[left > 0], tokens.lengths[at], sentences)


def pieces(size: int, micro_batch: int | None) -> list[np.ndarray]:
    """Positions (b,) int64 of the pairs of each of this process's pieces of ``micro_batch`` pairs at most, ascending.
    All when None, or of fewer pairs than processes. Every n-th of the packed pairs makes pieces of about as many words.
    One has a pair more where a single pair would be left, as batch norm knows no deviation of one.
    """
    world, rank = distributed.world_size(), distributed.rank()
    if size < world:
        return [np.arange(size)]
    n = 1 if micro_batch is None else max(1, min(size // (2 * world), -(-size // (world * micro_batch))))
    return [np.arange(rank + k * world, size, n * world) for k in range(n)]


@dataclass
class Staged:
    """The forwards of a step of one network, and the way back. A new step clears the ``halves`` of one that failed."""

    module: nn.Module
    # Forwards whose gradient has come as far as the embeddings, the leaves. With the states of an only piece.
    halves: list[tuple[list[np.ndarray], Run, int, tuple[Tensor, Tensor], tuple[State, State] | None]] = field(
        default_factory=list
    )

    def states(self, size: int, cut: list[np.ndarray], run: Run, seed: int) -> tuple[State, State]:
        """States of the images and the texts of a batch of ``size`` pairs that is ``cut`` (:func:`pieces`).

        The function ``run`` gives those of a piece. Every process and piece draws its own dropout, by ``seed``.
        """
        if len(cut[0]) == size:
            return run(cut[0])
        before, outputs, graph = [b.clone() for b in self.module.buffers()], [], torch.is_grad_enabled()
        with torch.set_grad_enabled(graph and len(cut) == 1):
            for k, piece in enumerate(cut):
                torch.manual_seed(step_seed(seed, distributed.rank(), k))
                outputs.append(run(piece))
        for buffer, old in zip(self.module.buffers(), before, strict=True):
            if len(cut) > 1:
                buffer.copy_(old)
        torch.manual_seed(seed)  # what follows is the same on all processes, and as after a plain step without dropout
        images, texts = (_whole(states, cut, size) for states in zip(*outputs, strict=True))
        if graph:
            leaves = (_tensor(images).requires_grad_(), _tensor(texts).requires_grad_())
            self.halves.append((cut, run, seed, leaves, outputs[0] if len(cut) == 1 else None))
        return images, texts

    def finish(self) -> None:
        """Take the gradient of the embeddings, which a backward pass has left there, into the weights."""
        for cut, run, seed, leaves, outputs in self.halves:
            for k, piece in enumerate(cut):
                torch.manual_seed(step_seed(seed, distributed.rank(), k))
                inner = []  # <z, dL/dz>: its gradient is the loss's
                for leaf, state in zip(leaves, outputs or run(piece), strict=True):
                    z = _tensor(state)
                    if leaf.grad is not None and z.requires_grad:
                        g = leaf.grad[torch.from_numpy(piece).to(leaf.device)]
                        inner.append((z * (g[:, : z.shape[1]] if isinstance(state, Local) else g)).sum())
                if inner:
                    torch.stack(inner).sum().backward()
        self.halves.clear()


def _tensor(state: State) -> Tensor:
    return state.parts if isinstance(state, Local) else state


def _whole(states: Sequence[State], cut: list[np.ndarray], size: int) -> State:
    """The state of all B pairs, in the batch's order, of those of the pieces of all processes. Without gradient."""
    order = torch.from_numpy(np.argsort(np.concatenate(cut)))

    def rows(parts: list[Tensor]) -> Tensor:
        return distributed.all_gather(torch.cat(parts)[order.to(parts[0].device)], size)

    if not isinstance(states[0], Local):
        return rows([_tensor(s) for s in states])
    local = [s for s in states if isinstance(s, Local)]
    width = distributed.all_reduce_max(max(s.parts.shape[1] for s in local))
    padded = [nn.functional.pad(s.parts, (0, 0, 0, width - s.parts.shape[1])) for s in local]
    return Local(rows(padded), rows([s.lengths for s in local]))


class Network(nn.Module):
    """A dual encoder and what else a method learns (``head``, which stays with the training)."""

    def __init__(self, model: Any, head: nn.Module | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.head: Any = head


@dataclass
class BatchOutput:
    """B pairs through a network in training mode, in the order of ``rows``, which packing has changed.

    Each pair is of the given group ``source`` (B,). Pairs that are no negatives are ``excluded`` (B, B).
    """

    view: "EpochContext"
    model: DualEncoder
    rows: np.ndarray
    source: np.ndarray
    images: State
    texts: State
    excluded: Tensor | None

    def similarity(self) -> Tensor:
        """Return the similarities (B, B) float32."""
        return self.view.similarity(self.model, self.images, self.texts)

    def select(self, chosen: np.ndarray) -> "BatchOutput":
        """Return the chosen pairs alone: (b,) int64 or (B,) bool."""
        at = torch.from_numpy(np.arange(len(self.rows))[chosen]).to(self.view.device)
        excluded = None if self.excluded is None else self.excluded[at][:, at]
        return BatchOutput(
            self.view, self.model, self.rows[chosen], self.source[chosen], take_state(self.images, at),
            take_state(self.texts, at), excluded,
        )  # fmt: skip

    def of(self, values: np.ndarray) -> Tensor:
        """Values of these pairs, out of (N,) float: (B,) on the device."""
        return torch.from_numpy(values[self.rows]).to(self.view.device)


class EpochContext:
    """One epoch as a method sees it.

    - ``stage``, ``epoch``: counted from 1
    - ``last``: whether it is the last stage
    - ``captions`` (N,) int64: whose caption each pair is trained with. None: its own
    - ``device_images``: all images, where they are on the device
    """

    def __init__(
        self, data: TrainingData, settings: TrainingSettings, networks: list[Network],
        device_images: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.data, self.settings, self.networks, self.device_images = data, settings, networks, device_images
        self.captions: np.ndarray | None = None
        self.device = torch.device(settings.device)
        self.stage = self.epoch = 1
        self.last = False
        self.micro_batch = settings.micro_batch
        self.staged = [Staged(network) for network in networks]
        # Inputs that are made before they are needed. A CPU has no time to spare.
        self.prefetching = ThreadPoolExecutor(max_workers=1) if self.device.type == "cuda" else None
        self.prefetched: list[tuple[int, tuple[np.ndarray, ...], int, Future[Inputs]]] = []
        self._encoded: dict[int, Encoded] = {}

    def autocast(self) -> torch.autocast:
        """Computes in bfloat16 where the settings say so."""
        half = self.settings.precision == "bf16"
        # A cache of cast weights would live as long as default_modes, and steps change weights.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False)

    def seed(self, *tags: int) -> int:
        """Return a seed of this epoch, for a purpose."""
        return step_seed(self.settings.seed, self.stage, self.epoch, *tags)

    def changed(self) -> None:
        """Forget the evaluation passes, as the weights have changed."""
        self._encoded.clear()

    def encoded(self, network: int) -> Encoded:
        """Encode all images and captions by one network in evaluation mode. Kept until the next step."""
        if network not in self._encoded:
            model, data, world = self.networks[network].model, self.data, distributed.world_size()
            images, tokens = data.images if self.device_images is None else self.device_images, data.tokens
            divided = 1 < world <= len(images) and not model.local  # parts would have to be gathered too
            if divided:
                images = images[distributed.rank() :: world]
                tokens = tokens.take(np.arange(distributed.rank(), len(tokens), world))
            embeddings = embed_images(model, images, device=self.device), embed_texts(model, tokens, device=self.device)
            if divided:
                shares = zip(embeddings, (len(data.images), len(data.tokens)), strict=True)
                whole = [distributed.all_gather(torch.from_numpy(own.vectors), n).numpy() for own, n in shares]
                embeddings = Embeddings(whole[0]), Embeddings(whole[1])
            self._encoded[network] = Encoded(*embeddings, model, self.device)
        return self._encoded[network]

    def figure(
        self,
        network: int,
        figure: Callable[[Tensor, Tensor | None], Tensor],
        *,
        seed: int | None = None,
        pairs: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Return a figure (N,) float32 of every pair in evaluation mode. See :func:`cleanpairs.scoring.in_groups`.

        ``pairs``: others to look at instead, rows (K,) of images and rows (K,) of captions. ``seed``: of the groups.
        """
        data, s, encoded = self.data, self.settings, self.encoded(network)
        seed = self.seed(7, network) if seed is None else seed
        images, texts = (slice(None), slice(None)) if pairs is None else pairs
        if pairs is not None:
            encoded = replace(encoded, texts=encoded.texts.take(pairs[1]))
        local = self.networks[network].model.local
        groups = (data.image_group[images], data.text_group[texts]) if s.exclude_duplicates else None
        return in_groups(
            figure, encoded, data.image_index[images], groups,
            group_size=s.eval_group_size, rounds=1 if local else s.label_rounds, seed=seed,
        )  # fmt: skip

    def probability(self, network: int, tau: float, **others: Any) -> np.ndarray:
        """Matching probability (N,) float32 of every pair in evaluation mode. ``others``: of :meth:`figure`."""
        return self.figure(network, lambda S, excluded: matching_probability(S, tau, excluded), **others)

    def pair_vectors(self, network: int) -> tuple[np.ndarray, np.ndarray]:
        """Return unit vectors (N, E) float32 of the images and the captions of all pairs in evaluation mode."""
        encoded = self.encoded(network)
        return encoded.images.vectors[self.data.image_index], encoded.texts.vectors

    def similarity(self, model: DualEncoder, images: State, texts: State) -> Tensor:
        """Return the similarities (B_image, B_text) float32, with gradient."""
        if not model.local:  # in full precision: a product of unit vectors at a low temperature
            return model.similarity(full_precision(images), full_precision(texts))
        with self.autocast():
            return model.similarity(images, texts).float()

    def forward(self, network: int, *groups: np.ndarray, seed: int) -> BatchOutput:
        """Pairs of groups of rows (b,) int64 through a network in training mode, at once. ``seed``: of dropping."""
        for of, expected, by, made in self.prefetched:
            if (of, by, len(expected)) == (network, seed, len(groups)) and all(map(operator.is_, expected, groups)):
                inputs = made.result()
                break
        else:
            inputs = self.inputs(network, groups, seed)

        def run(at: np.ndarray) -> tuple[State, State]:
            images, keep, tokens = inputs.pieces[int(at[0])].to(self.device, self.device_images)
            with self.autocast():
                outputs = self.networks[network].model(images, keep, tokens)
            return full_precision(outputs[0]), full_precision(outputs[1])

        z_image, z_text = self.staged[network].states(len(inputs.rows), inputs.cut, run, seed)
        excluded = None if inputs.excluded is None else inputs.excluded.to(self.device, non_blocking=True)
        model = self.networks[network].model
        return BatchOutput(self, model, inputs.rows, inputs.source, z_image, z_text, excluded)

    def expect(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> None:
        """On a GPU make the inputs of the batch that comes next, in a thread."""
        if self.prefetching is not None:
            made = self.prefetching.submit(self.inputs, network, groups, seed)
            self.prefetched = [*self.prefetched[-1:], (network, groups, seed, made)]

    def inputs(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> Inputs:
        """Return the inputs of :meth:`forward`, on the CPU."""
        data, model, pin = self.data, self.networks[network].model, self.device.type == "cuda"
        rng = np.random.default_rng(seed)
        rows = np.concatenate(groups)
        source = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        texts = rows if self.captions is None else self.captions[rows]
        tokens, order = pack(data.tokens, texts, drop=model.text_drop, rng=rng)
        rows, texts, source = rows[order], texts[order], source[order]
        kept = None
        if data.images.ndim == 3 and data.images.shape[1] > 1 and model.image_drop > 0:
            u = rng.random((len(rows), data.images.shape[1]), dtype=np.float32)
            kept = u >= model.image_drop
            kept[np.arange(len(rows)), u.argmax(axis=1)] = True
        cut, made = pieces(len(rows), self.micro_batch), {}
        for at in cut:
            image_rows = data.image_index[rows[at]]
            piece = PieceInputs(
                torch.from_numpy(image_rows if self.device_images is not None else np.asarray(data.images[image_rows])),
                None if kept is None else torch.from_numpy(kept[at]),
                tokens if len(at) == len(rows) else take_packed(tokens, at),
            )
            made[int(at[0])] = piece.pinned() if pin else piece
        excluded = self.duplicates(rows, texts, "cpu")
        return Inputs(rows, source, cut, made, excluded.pin_memory() if pin and excluded is not None else excluded)

    @torch.no_grad()
    def encode(self, network: int, rows: np.ndarray, *, image: bool) -> State:
        """State of the images, or of the captions, of pairs (b,), in their order, without gradient or dropping."""
        model, data = self.networks[network].model, self.data
        with self.autocast():
            if image:
                return model.encode_images(as_input(data.images[data.image_index[rows]], self.device))
            tokens, order = pack(data.tokens, rows)
            packed = model.encode_texts(tokens.to(self.device))
        return take_state(packed, torch.from_numpy(np.argsort(order)).to(self.device))

    def duplicates(self, rows: np.ndarray, texts: np.ndarray, device: str | None = None) -> Tensor | None:
        """Return which pairs (B, B) share an image or a text, that of ``texts``. None if none is to be excluded."""
        if not self.settings.exclude_duplicates:
            return None
        groups = self.data.image_group[rows], self.data.text_group[texts]
        mask = duplicate_mask(*map(torch.from_numpy, groups))
        return None if mask is None else mask.to(device or self.device)

    def all_batches(self, network: int = 0) -> list[tuple[np.ndarray, ...]]:
        """Return all pairs in random batches. Each network has an order of its own."""
        return [(rows,) for rows in self.batches(None, *([network] if network else []))]

    def batches(self, rows: np.ndarray | None = None, *tags: int, size: int | None = None) -> list[np.ndarray]:
        """Random batches of all pairs, or of ``rows``. See :func:`random_batches`. ``tags`` make another draw."""
        rows = np.arange(len(self.data)) if rows is None else rows
        rng = np.random.default_rng(self.seed(1_000_003, *tags))
        return random_batches(
            rows, self.data.tokens.lengths, size or self.settings.batch_size, self.settings.bucket, rng
        )


def random_batches(
    rows: np.ndarray, lengths: np.ndarray, size: int, bucket: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Random batches of the pairs ``rows`` (n,). ``bucket`` of them are drawn together, sorted by ``lengths`` (N,)."""
    order = rows[rng.permutation(len(rows))]
    batches: list[np.ndarray] = []
    span = size * max(bucket, 1)
    for start in range(0, len(order), span):
        chunk = order[start : start + span]
        if bucket > 1:
            chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    if len(batches) > 1 and len(batches[-1]) < max(2, size // 4):
        tail = batches.pop()  # a few pairs have few negatives: they join the batch before
        batches[-1] = np.concatenate([batches[-1], tail])
    return [batches[i] for i in rng.permutation(len(batches))]
