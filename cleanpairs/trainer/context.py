"""What a method sees of the training: its networks, an evaluation pass, a training forward, random batches."""

import operator
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core import distributed
from cleanpairs.encoders.base import DualEncoder, State, full_precision, take_state
from cleanpairs.encoders.tokenizer import pack
from cleanpairs.ops.matching import duplicate_mask, matching_probability
from cleanpairs.scoring import Embeddings, Encoded, as_input, embed_images, embed_texts, in_groups
from cleanpairs.trainer.inputs import Inputs, PieceInputs, take_packed
from cleanpairs.trainer.staged import Staged, pieces
from cleanpairs.trainer.types import TrainingData, TrainingSettings, step_seed


class Network(nn.Module):
    """A dual encoder and what else a method learns beside it (``head``, which stays with the training)."""

    def __init__(self, model: Any, head: nn.Module | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.head = head

    def forward(self, images: Tensor, keep: Tensor | None, tokens: Any) -> tuple[State, State]:
        """States of B pairs."""
        states: tuple[State, State] = self.model(images, keep, tokens)
        return states


@dataclass
class BatchOutput:
    """B pairs through a network in training mode, in the order of ``rows`` (which packing has changed).

    ``source`` (B,): which of the given groups of rows each pair is of. ``excluded`` (B, B): what is no negative.
    """

    view: "EpochContext"
    model: DualEncoder
    rows: np.ndarray
    source: np.ndarray
    images: State
    texts: State
    excluded: Tensor | None

    def similarity(self) -> Tensor:
        """(B, B) float32."""
        return self.view.similarity(self.model, self.images, self.texts)

    def select(self, chosen: np.ndarray) -> "BatchOutput":
        """The chosen pairs alone: (b,) int64 or (B,) bool."""
        at = torch.from_numpy(np.arange(len(self.rows))[chosen])
        excluded = self.excluded
        if excluded is not None:
            here = at.to(excluded.device)
            excluded = excluded[here][:, here]
        at = at.to(self.view.device)
        return BatchOutput(
            self.view, self.model, self.rows[chosen], self.source[chosen], take_state(self.images, at),
            take_state(self.texts, at), excluded,
        )  # fmt: skip

    def of(self, values: np.ndarray) -> Tensor:
        """Values of these pairs, out of (N,) float: (B,) on the device."""
        return torch.from_numpy(values[self.rows]).to(self.view.device)


class EpochContext:
    """One epoch as a method sees it.

    - ``stage``, ``epoch``: from 1
    - ``last``: whether this is the last epoch of the last stage
    - ``captions`` (N,) int64: whose caption each pair is trained with; None: each its own
    - ``held``: all images, where they are on the device
    """

    def __init__(
        self, data: TrainingData, settings: TrainingSettings, networks: list[Network], held: Tensor | None = None
    ) -> None:
        self.data, self.settings, self.networks, self.held = data, settings, networks, held
        self.captions: np.ndarray | None = None
        self.device = torch.device(settings.device)
        self.stage = self.epoch = 1
        self.last = False
        self.micro_batch = settings.micro_batch
        self.staged = [Staged(network) for network in networks]
        # Inputs that are made before they are asked for; a CPU has no time to spare.
        self.ahead = ThreadPoolExecutor(max_workers=1) if self.device.type == "cuda" else None
        self.coming: list[tuple[int, tuple[np.ndarray, ...], int, Future[Inputs]]] = []
        self._encoded: dict[int, Encoded] = {}

    def autocast(self) -> torch.autocast:
        """In which a network computes: in bfloat16 where the settings say so."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16")

    def seed(self, *tags: int) -> int:
        """A seed of this epoch, for a purpose."""
        return step_seed(self.settings.seed, self.stage, self.epoch, *tags)

    def changed(self) -> None:
        """The weights have changed: evaluation passes are out of date."""
        self._encoded.clear()

    def encoded(self, network: int) -> Encoded:
        """All images and captions through one network in evaluation mode; kept until the next step."""
        if network not in self._encoded:
            model, data, world = self.networks[network].model, self.data, distributed.world_size()
            images, tokens = data.images if self.held is None else self.held, data.tokens
            divided = 1 < world <= len(images) and not model.local  # parts would have to be gathered too
            if divided:
                images = images[distributed.rank() :: world]
                tokens = tokens.take(np.arange(distributed.rank(), len(tokens), world))
            found = embed_images(model, images, device=self.device), embed_texts(model, tokens, device=self.device)
            if divided:
                found = gathered(found[0], len(data.images)), gathered(found[1], len(data.tokens))
            self._encoded[network] = Encoded(*found, model, self.device)
        return self._encoded[network]

    def figure(
        self,
        network: int,
        figure: Callable[[Tensor, Tensor | None], Tensor],
        *,
        seed: int,
        rounds: int | None = None,
        pairs: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> np.ndarray:
        """A figure (N,) float32 of every pair in evaluation mode; see :func:`cleanpairs.scoring.in_groups`.

        ``rounds``: the settings' by default, one where the model is slow (local); ``pairs``: others to look at instead,
        rows (K,) of images and rows (K,) of captions.
        """
        data, s, encoded = self.data, self.settings, self.encoded(network)
        images, texts = (slice(None), slice(None)) if pairs is None else pairs
        if pairs is not None:
            encoded = replace(encoded, texts=encoded.texts.take(pairs[1]))
        local = self.networks[network].model.local
        return in_groups(
            figure, encoded, data.image_index[images], data.image_group[images], data.text_group[texts],
            group_size=s.eval_group_size, rounds=rounds or (1 if local else s.label_rounds), seed=seed,
            exclude_duplicates=s.exclude_duplicates,
        )  # fmt: skip

    def probability(self, network: int, tau: float, *, seed: int, **others: Any) -> np.ndarray:
        """Matching probability (N,) float32 of every pair in evaluation mode; ``others``: of :meth:`figure`."""
        return self.figure(network, lambda S, excluded: matching_probability(S, tau, excluded), seed=seed, **others)

    def pair_vectors(self, network: int) -> tuple[np.ndarray, np.ndarray]:
        """(N, E) float32 unit vectors of the images and of the captions of all pairs in evaluation mode."""
        encoded = self.encoded(network)
        return encoded.images.vectors[self.data.image_index], encoded.texts.vectors

    def similarity(self, model: DualEncoder, images: State, texts: State) -> Tensor:
        """(B_image, B_text) float32, with gradient."""
        if not model.local:  # in full precision: a product of unit vectors at a low temperature
            assert isinstance(images, Tensor) and isinstance(texts, Tensor)
            return model.similarity(images.float(), texts.float())
        with self.autocast():
            return model.similarity(images, texts).float()

    def forward(self, network: int, *groups: np.ndarray, seed: int) -> BatchOutput:
        """Pairs of one or several groups of rows (b,) int64 through a network in training mode, at once.

        ``seed``: of region and word dropping.
        """
        for of, expected, by, made in self.coming:
            if (of, by, len(expected)) == (network, seed, len(groups)) and all(map(operator.is_, expected, groups)):
                inputs = made.result()
                break
        else:
            inputs = self.inputs(network, groups, seed)

        def run(at: np.ndarray) -> tuple[State, State]:
            images, keep, tokens = inputs.pieces[int(at[0])].to(self.device, self.held)
            with self.autocast():
                found = self.networks[network](images, keep, tokens)
            return full_precision(found[0]), full_precision(found[1])

        z_image, z_text = self.staged[network].states(len(inputs.rows), inputs.cut, run, seed)
        excluded = None if inputs.excluded is None else inputs.excluded.to(self.device, non_blocking=True)
        model = self.networks[network].model
        return BatchOutput(self, model, inputs.rows, inputs.source, z_image, z_text, excluded)

    def expect(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> None:
        """On a GPU make the inputs of the batch that comes next, in a thread."""
        if self.ahead is not None:
            made = self.ahead.submit(self.inputs, network, groups, seed)
            self.coming = [*self.coming[-1:], (network, groups, seed, made)]

    def inputs(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> Inputs:
        """What :meth:`forward` takes through the network, on the CPU."""
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
                torch.from_numpy(image_rows if self.held is not None else np.asarray(data.images[image_rows])),
                None if kept is None else torch.from_numpy(kept[at]),
                tokens if len(at) == len(rows) else take_packed(tokens, at),
            )
            made[int(at[0])] = piece.pinned() if pin else piece
        excluded = self._duplicates(rows, texts)
        return Inputs(rows, source, cut, made, excluded.pin_memory() if pin and excluded is not None else excluded)

    @torch.no_grad()
    def encode(self, network: int, rows: np.ndarray, *, image: bool) -> State:
        """State of the images, or of the captions, of pairs (b,), in their order, without gradient or dropping."""
        model, data = self.networks[network].model, self.data
        with self.autocast():
            if image:
                state: State = model.encode_images(as_input(data.images[data.image_index[rows]], self.device))
                return state
            tokens, order = pack(data.tokens, rows)
            packed: State = model.encode_texts(tokens.to(self.device))
        return take_state(packed, torch.from_numpy(np.argsort(order)).to(self.device))

    def duplicates(self, rows: np.ndarray, texts: np.ndarray) -> Tensor | None:
        """(B, B) bool: pairs of one image or one text, the latter of ``texts``; None when none is to be excluded."""
        found = self._duplicates(rows, texts)
        return None if found is None else found.to(self.device)

    def _duplicates(self, rows: np.ndarray, texts: np.ndarray) -> Tensor | None:
        if not self.settings.exclude_duplicates:
            return None
        data = self.data
        return duplicate_mask(torch.from_numpy(data.image_group[rows]), torch.from_numpy(data.text_group[texts]))

    def all_batches(self, network: int = 0) -> list[tuple[np.ndarray, ...]]:
        """All pairs once, in random batches; for each network in an order of its own."""
        return [(rows,) for rows in self.batches(None, *([network] if network else []))]

    def batches(self, rows: np.ndarray | None = None, *tags: int, size: int | None = None) -> list[np.ndarray]:
        """Random batches of all pairs, or of ``rows``; see :func:`random_batches`. ``tags`` make another draw."""
        rows = np.arange(len(self.data)) if rows is None else rows
        rng = np.random.default_rng(self.seed(1_000_003, *tags))
        return random_batches(
            rows, self.data.tokens.lengths, size or self.settings.batch_size, self.settings.bucket, rng
        )


def gathered(own: Embeddings, n: int) -> Embeddings:
    """Of all n rows, out of every process's share: each ``world``-th of them."""
    return Embeddings(distributed.gathered(torch.from_numpy(own.vectors), n).numpy())


def random_batches(
    rows: np.ndarray, lengths: np.ndarray, size: int, bucket: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Random batches of the pairs ``rows`` (n,), in random order; ``bucket``: so many are drawn together and sorted by
    the ``lengths`` (N,) of captions.
    """
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
