"""What a method sees of the training: its networks, an evaluation pass, a training forward, random batches."""

from collections.abc import Callable
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
from cleanpairs.trainer.inputs import Inputs, Prefetch
from cleanpairs.trainer.staged import Staged
from cleanpairs.trainer.types import TrainingData, TrainingSettings, step_seed


class Compiled:
    """Calls ``module`` compiled; where torch.compile fails, which it does at the first call, as it is from then on.

    - ``failed``: what the compiler said
    """

    def __init__(self, module: nn.Module, backend: str = "inductor") -> None:
        self.module = module
        self.compiled: Any = torch.compile(module, dynamic=True, backend=backend)  # captions have many lengths
        self.failed: str | None = None

    def __call__(self, *args: Any) -> Any:
        """As the module."""
        if self.failed is None:
            try:
                return self.compiled(*args)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the compiler of this machine throws
                lines = str(error).strip().splitlines()
                said = " ".join(lines[:2]) or "it does not say why"  # torch says in the second what the backend said
                self.failed = f"{type(error).__name__}: {said}"[:200]
        return self.module(*args)


class Network(nn.Module):
    """A dual encoder and what else a method learns beside it (``head``, which stays with the training)."""

    def __init__(self, model: Any, head: nn.Module | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.head = head
        self.compiled: Compiled | None = None

    def forward(self, images: Tensor, keep: Tensor | None, tokens: Any) -> tuple[State, State]:
        """States of B pairs."""
        states: tuple[State, State] = (self.compiled or self.model)(images, keep, tokens)
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
        self.device = torch.device(distributed.local_device(settings.device))
        self.stage = self.epoch = 1
        self.last = False
        self.staged = [Staged(network, settings.micro_batch) for network in networks]
        self.ahead = Prefetch(self.inputs) if self.device.type == "cuda" else None  # a CPU has no time to spare
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
            model, tokens = self.networks[network].model, self.data.tokens
            images = self.data.images if self.held is None else self.held
            mine = slice(None)
            divided = distributed.world_size() > 1 and not model.local  # parts would have to be gathered too
            if divided:
                mine = slice(distributed.rank(), None, distributed.world_size())
                tokens = tokens.take(np.arange(len(tokens))[mine])
            embedded_images = embed_images(model, images[mine], device=self.device)
            embedded_texts = embed_texts(model, tokens, device=self.device)
            if divided:
                embedded_images = gathered(embedded_images, len(images))
                embedded_texts = gathered(embedded_texts, len(self.data.tokens))
            self._encoded[network] = Encoded(embedded_images, embedded_texts, model, self.device)
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
        inputs = self.ahead.take(network, groups, seed) if self.ahead is not None else None
        if inputs is None:
            inputs = self.inputs(network, groups, seed)

        def run(at: np.ndarray) -> tuple[State, State]:
            images, keep, tokens = inputs.stages[int(at[0])].to(self.device, self.held)
            with self.autocast():
                found = self.networks[network](images, keep, tokens)
            return full_precision(found[0]), full_precision(found[1])

        z_image, z_text = self.staged[network].states(len(inputs.rows), run, seed, inputs.width)
        excluded = None if inputs.excluded is None else inputs.excluded.to(self.device, non_blocking=True)
        model = self.networks[network].model
        return BatchOutput(self, model, inputs.rows, inputs.source, z_image, z_text, excluded)

    def inputs(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> Inputs:
        """What :meth:`forward` takes through the network, on the CPU."""
        s, model = self.settings, self.networks[network].model
        return Inputs.of(
            self.data, groups, self.captions, seed, image_drop=model.image_drop, text_drop=model.text_drop,
            exclude_duplicates=s.exclude_duplicates, micro_batch=s.micro_batch, pin=self.device.type == "cuda",
            held=self.held is not None,
        )  # fmt: skip

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
        if not self.settings.exclude_duplicates:
            return None
        data = self.data
        found = duplicate_mask(torch.from_numpy(data.image_group[rows]), torch.from_numpy(data.text_group[texts]))
        return None if found is None else found.to(self.device)

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
    shares = distributed.gather_rows(torch.from_numpy(own.vectors), -(-n // distributed.world_size()))
    return Embeddings(shares.transpose(0, 1).flatten(0, 1)[:n].numpy())


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
