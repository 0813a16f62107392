"""Training steps of the backbones, CRCL's loss and the loader, against the straightforward implementation.

    python benchmarks/bench_all.py --only training

The baselines are written from the papers' equations, with the same weights, and give the same numbers (the largest
difference is in the note). One thread, CPU seconds, the minimum of interleaved rounds.

step     encoders, similarity, loss, gradient, AdamW. VSE infinity: each set's pooling weights by a recurrent network of
         their own, captions padded, regions dropped image by image. SGR, SAF: one caption after another, as the
         published code does. MLP: captions padded. With CRCL's loss on both sides, ours and the plain one; the caption
         loops with the triplet loss.
loss     CRCL's eq. 3, 6, 8 and 9 with autograd, value and gradient.
loader   `torch.utils.data.DataLoader` with a sample as an item and a collate function, which drop regions and words.
embed    images and captions in evaluation mode, batches of 128 in the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from side_by_side import Machine, Row, take_turns
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SAF, SGR
from cleanpairs.encoders.tokenizer import PackedTokens, Tokenizer, pack
from cleanpairs.methods.crcl import ActiveComplementaryLoss
from cleanpairs.objectives import TripletLoss
from cleanpairs.scoring import embed_images, embed_texts
from cleanpairs.trainer.context import EpochContext
from cleanpairs.trainer.types import TrainingData, TrainingSettings

TAU, LAM = 0.05, 5.0


def plain_loss(S: Tensor, labels: Tensor) -> Tensor:
    """CRCL, eq. 3, 6, 8, 9: (B,)."""
    others = ~torch.eye(len(S), dtype=torch.bool)

    def one_way(S: Tensor) -> Tensor:
        p = (S / TAU).softmax(dim=1)
        tan = torch.tan(p)
        complementary = (tan / tan.sum(dim=1, keepdim=True) ** (1 - labels[:, None]) * others).sum(dim=1)
        return -labels * p.diag().log() + LAM * complementary

    return one_way(S) + one_way(S.T)


def padded(tokens: PackedTokens) -> Tensor:
    """(B, L) int64: the captions as a loader without packing has them."""
    ids = torch.zeros(len(tokens.lengths), len(tokens.batch_sizes), dtype=torch.int64)
    start = 0
    for step, size in enumerate(tokens.batch_sizes.tolist()):
        ids[:size, step] = tokens.ids[start : start + size]
        start += size
    return ids


def pooled(gpo: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Generalised pooling of B sets (B, L, E), each with weights of its own recurrent pass, as it is published."""
    B, L, _ = x.shape
    position = torch.arange(L, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, gpo.d_pe, 2) * -(np.log(10000.0) / gpo.d_pe))
    encoding = torch.zeros(B, L, gpo.d_pe)
    encoding[..., 0::2], encoding[..., 1::2] = torch.sin(position * rate), torch.cos(position * rate)
    packed = pack_padded_sequence(encoding, lengths, batch_first=True, enforce_sorted=False)
    hidden = pad_packed_sequence(gpo.gru(packed)[0], batch_first=True)[0]
    half = hidden.shape[-1] // 2
    scores = gpo.linear((hidden[..., :half] + hidden[..., half:]) / 2).squeeze(-1)
    behind = torch.arange(L) >= lengths[:, None]
    weights = (scores.masked_fill(behind, -10000) / 0.1).softmax(dim=1)
    ordered = x.masked_fill(behind[..., None], -10000).sort(dim=1, descending=True).values
    return (ordered.masked_fill(behind[..., None], 0) * weights[..., None]).sum(dim=1)


def unit(x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


def plain_vse_inf(model: Any, images: Tensor, keep: Tensor | None, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
    lengths = torch.full((len(images),), images.shape[1])
    if keep is not None:
        kept = [image[row] for image, row in zip(images, keep, strict=True)]
        lengths = torch.tensor([len(k) for k in kept])
        images = nn.utils.rnn.pad_sequence(kept, batch_first=True)
    tower = model.image
    flat = ((images - tower.shift) * tower.scale).reshape(-1, images.shape[2])  # padding passes the layers too
    features = (tower.linear(flat) + tower.mlp(flat)).view(*images.shape[:2], -1)
    z_image = unit(pooled(tower.pool, features, lengths))
    words = model.text.dropout(model.text.embedding(padded(tokens)))
    packed = pack_padded_sequence(words, tokens.lengths, batch_first=True)
    hidden = pad_packed_sequence(model.text.gru.rnn(packed)[0], batch_first=True)[0]
    half = hidden.shape[-1] // 2
    both = (hidden[..., :half] + hidden[..., half:]) / 2
    return z_image, unit(pooled(model.text.pool, both, tokens.lengths))


def plain_mlp(model: Any, images: Tensor, keep: Tensor | None, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
    mean = images.mean(dim=1) if keep is None else torch.stack([x[k].mean(dim=0) for x, k in zip(images, keep)])  # noqa: B905
    ids = padded(tokens)
    words = model.embedding(ids) * (torch.arange(ids.shape[1]) < tokens.lengths[:, None])[..., None]
    z_text = words.sum(dim=1) / tokens.lengths[:, None]
    heads = ((model.image, (mean - model.shift) * model.scale), (model.text, z_text))
    z_image, z_text = (unit(head.linear(x) + head.mlp(x)) for head, x in heads)
    return z_image, z_text


BatchOutput = Callable[..., tuple[Tensor, Tensor]]


def vector_step(model: Any, forward: BatchOutput, loss: Callable[..., Tensor], inputs: Any, **adam: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), **adam)
    images, tokens = inputs
    keep = kept_regions(images)
    labels = torch.linspace(0, 1, len(images))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        z_image, z_text = forward(model, images, keep, tokens)
        loss(z_image @ z_text.T, labels).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()

    return step


def kept_regions(images: Tensor) -> Tensor:
    """Four in five, (B, R) bool."""
    keep = torch.rand(images.shape[:2], generator=torch.Generator().manual_seed(0)) >= 0.2
    keep[:, 0] = True
    return keep


def flops_of(model: Any, inputs: Any, keep: Tensor | None = None) -> float:
    """Of the matrix products of a training step, forward and backward, as PyTorch counts them."""
    images, tokens = inputs
    with FlopCounterMode(display=False) as counted:
        model.similarity(*model(images, keep, tokens)).sum().backward()
    model.zero_grad(set_to_none=True)
    return float(counted.get_total_flops())


def twins(kind: Any, *args: Any, **settings: Any) -> tuple[Any, Any]:
    """Two models of the same weights."""
    torch.manual_seed(0)
    ours, theirs = kind(*args, **settings), kind(*args, **settings)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gap(ours: Any, theirs: Any, inputs: Any, forward: BatchOutput) -> str:
    with torch.no_grad():
        one, two = ours.eval()(inputs[0], None, inputs[1]), forward(theirs.eval(), inputs[0], None, inputs[1])
        difference = float((one[0] @ one[1].T - two[0] @ two[1].T).abs().max())
    ours.train(), theirs.train()
    return f"similarities differ by {difference:.0e}"


def vector_steps(machine: Machine, rounds: int) -> Iterator[Row]:
    inputs = inputs_of(128, 36, 12, 2048)
    plain: list[tuple[Any, int, BatchOutput, float | None]] = [
        (VSEInf, 1024, plain_vse_inf, 1.4),
        (MLP, 256, plain_mlp, None),
    ]
    for kind, dim, forward, target in plain:
        ours, theirs = twins(kind, 2001, 2048, dim=dim)
        note = gap(ours, theirs, inputs, forward)
        steps = {
            "ours": vector_step(ours, kind.forward, ActiveComplementaryLoss(TAU, LAM), inputs, fused=True),
            "plain": vector_step(theirs, forward, plain_loss, inputs),
        }
        took = take_turns(steps, rounds).seconds
        floor = machine.floor(flops_of(ours, inputs, kept_regions(inputs[0])))
        size = f"batch 128, 36 regions, {dim}-d"
        yield Row(f"{ours_name(kind)} training step", size, took["ours"], "papers' equations", took["plain"], target,
                  floor, note)  # fmt: skip


def ours_name(kind: Any) -> str:
    return {VSEInf: "vse_inf", MLP: "mlp", SGR: "sgr", SAF: "saf"}[kind]


def caption_by_caption(model: Any, images: Local, texts: Local) -> Tensor:
    """(Bi, Bt): the similarity of all images with one caption after the other."""
    compare = model.compare
    regions, n = images.parts, len(images.parts)
    v_bar, t_bar = compare.image_attention(images), compare.text_attention(texts)
    columns = []
    for t in range(len(texts.parts)):
        words = texts.parts[t, : int(texts.lengths[t])][None].repeat(n, 1, 1)  # (n, L, D)
        s = leaky_relu(regions @ words.transpose(1, 2), 0.1)  # (n, R, L)
        a = (9 * normalize(s, dim=2)).transpose(1, 2).softmax(dim=2)  # (n, L, R)
        context = normalize(a @ regions, dim=-1)
        local = normalize(compare.local((context - words) ** 2), dim=-1)
        whole = normalize(compare.whole((v_bar - t_bar[t][None]) ** 2), dim=-1)
        x = torch.cat([whole[:, None], local], dim=1)
        r = compare.reasoning
        if isinstance(model, SGR):
            for query, key, graph in zip(r.query, r.key, r.graph, strict=True):
                edge = (query(x) @ key(x).transpose(1, 2)).softmax(dim=-1)
                x = graph(edge @ x).relu()
            columns.append(torch.sigmoid(r.score(x[:, 0])))
        else:
            weight = torch.sigmoid(r.attention(x))
            kept = normalize((weight / weight.sum(dim=1, keepdim=True) * x).sum(dim=1), dim=-1)
            columns.append(torch.sigmoid(r.score(kept)))
    return torch.cat(columns, dim=1)


def step_of(model: Any, inputs: Any, similarity: Callable[..., Tensor]) -> Callable[[], None]:
    """One training step as a function."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    loss = TripletLoss()
    images, tokens = inputs

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        S = similarity(*model(images, None, tokens))
        loss(S, torch.ones(len(S))).mean().backward()
        optimizer.step()

    return step


def inputs_of(batch: int, regions: int, words: int, dim_image: int) -> Any:
    rng = np.random.default_rng(0)
    vocabulary = [f"w{k}" for k in range(2000)]
    captions = [" ".join(rng.choice(vocabulary, max(3, int(rng.normal(words, 2))))) for _ in range(batch)]
    tokens, _ = pack(Tokenizer(vocabulary).encode(captions), np.arange(batch))
    return torch.randn(batch, regions, dim_image), tokens


def local_steps(machine: Machine, rounds: int) -> Iterator[Row]:
    inputs = inputs_of(32, 9, 12, 1280)
    for kind, target in ((SGR, 1.6), (SAF, None)):
        ours, theirs = twins(kind, 2001, 1280, dim=256, dim_sim=64)
        steps = {
            "ours": step_of(ours, inputs, ours.similarity),
            "loop": step_of(theirs, inputs, partial(caption_by_caption, theirs)),
        }
        took = take_turns(steps, rounds).seconds
        floor = machine.floor(flops_of(ours, inputs))
        yield Row(f"{ours_name(kind)} training step", "batch 32, 9 regions, 256-d", took["ours"], "caption by caption",
                  took["loop"], target, floor)  # fmt: skip


def losses(machine: Machine, rounds: int) -> Iterator[Row]:
    ours = ActiveComplementaryLoss(TAU, LAM)
    for batch, target in ((128, 1.4), (512, None), (1024, 3.0), (4096, 3.0)):
        rng = torch.Generator().manual_seed(0)
        S = (0.1 * torch.randn(batch, batch, generator=rng) + 0.3 * torch.eye(batch)).requires_grad_()
        labels = torch.rand(batch, generator=rng)

        def both(loss: Callable[..., Tensor], S: Tensor = S, labels: Tensor = labels) -> Tensor:
            S.grad = None
            loss(S, labels).mean().backward()
            assert S.grad is not None
            return S.grad

        timed = take_turns({"ours": lambda: both(ours), "plain": lambda: both(plain_loss)}, rounds)
        gradient = timed.result
        off = float((gradient["ours"] - gradient["plain"]).norm() / gradient["plain"].norm())
        floor = machine.floor(moved=2 * S.nbytes)
        yield Row("CRCL loss, value and gradient", f"batch {batch:,}", timed.seconds["ours"], "papers' equations",
                  timed.seconds["plain"], target, floor, f"gradients differ by {off:.0e}")  # fmt: skip


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A pair an item: its regions, some of them dropped, and the numbers of its words, some of them dropped."""

    def __init__(self, images: np.ndarray, captions: list[str], image_of: np.ndarray, number: dict[str, int]) -> None:
        self.images, self.captions, self.image_of, self.number = images, captions, image_of, number

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        words = [self.number.get(w, 0) for w in self.captions[at].lower().split()]
        words = [w for w in words if np.random.rand() > 0.2] or words[:1]  # noqa: NPY002
        image = self.images[self.image_of[at]]
        keep = np.random.rand(len(image)) > 0.2  # noqa: NPY002
        return torch.tensor(image[keep], dtype=torch.float32), torch.tensor(words)


def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    samples.sort(key=lambda s: len(s[1]), reverse=True)
    images, words = zip(*samples, strict=True)
    sizes = torch.tensor([len(i) for i in images]), torch.tensor([len(w) for w in words])
    padded = torch.zeros(len(words), int(sizes[1].max()), dtype=torch.int64)
    regions = torch.zeros(len(images), int(sizes[0].max()), images[0].shape[1])
    for k, (image, word) in enumerate(zip(images, words, strict=True)):
        regions[k, : len(image)], padded[k, : len(word)] = image, word
    return regions, sizes[0], padded, sizes[1]


def loader(machine: Machine, rounds: int) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    for regions, width in ((9, 1280), (36, 2048)):
        n, images = 2560, rng.standard_normal((512, regions, width), np.float32)
        vocabulary = [f"w{k}" for k in range(2000)]
        captions = [" ".join(rng.choice(vocabulary, max(3, int(rng.normal(12, 2))))) for _ in range(n)]
        image_of = np.repeat(np.arange(512), 5)
        data = TrainingData(images, Tokenizer(vocabulary).encode(captions), image_of, image_of, np.arange(n))
        model = SimpleNamespace(text_drop=0.2, image_drop=0.2, local=False)
        network: Any = SimpleNamespace(model=model)
        view = EpochContext(data, TrainingSettings(batch_size=128), [network])
        theirs = DataLoader(
            Samples(images, captions, image_of, {w: k + 1 for k, w in enumerate(vocabulary)}), 128, shuffle=True,
            collate_fn=collate,
        )  # fmt: skip

        def ours(view: EpochContext = view) -> int:
            return sum(len(view.inputs(0, (batch,), k).rows) for k, batch in enumerate(view.batches()))

        def usual(theirs: Any = theirs) -> int:
            return sum(len(batch[0]) for batch in theirs)

        timed = take_turns({"ours": ours, "loader": usual}, rounds)
        if timed.result != {"ours": n, "loader": n}:
            raise SystemExit(f"an epoch of {n} pairs was loaded as {timed.result}")
        floor = machine.floor(moved=2 * n * regions * width * 4)
        yield Row("loader, an epoch", f"{n:,} pairs, {regions} regions of {width}", timed.seconds["ours"],
                  "getitem and collate", timed.seconds["loader"], 5.0, floor)  # fmt: skip


def embedding(machine: Machine, rounds: int) -> Iterator[Row]:
    images, captions, dim = 512, 5120, 512
    ours, _ = twins(VSEInf, 2001, 2048, dim=dim)
    ours.eval()
    rng = np.random.default_rng(0)
    regions = rng.standard_normal((images, 36, 2048), np.float32)
    words = [f"w{k}" for k in range(2000)]
    table = Tokenizer(words).encode(
        " ".join(rng.choice(words, size)) for size in np.maximum(3, rng.normal(12, 3, captions)).astype(int)
    )
    tower = ours.text

    @torch.inference_mode()
    def plain_texts() -> np.ndarray:
        out = []
        for start in range(0, captions, 128):
            rows = range(start, min(start + 128, captions))
            parts = [torch.from_numpy(table.ids[table.offsets[i] : table.offsets[i + 1]]) for i in rows]
            lengths = torch.tensor([len(p) for p in parts])
            x = tower.embedding(nn.utils.rnn.pad_sequence(parts, batch_first=True))
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            hidden = pad_packed_sequence(tower.gru.rnn(packed)[0], batch_first=True)[0]
            out.append(unit(pooled(tower.pool, (hidden[..., :dim] + hidden[..., dim:]) / 2, lengths)))
        return torch.cat(out).numpy()

    @torch.inference_mode()
    def plain_images() -> np.ndarray:
        out = []
        for start in range(0, images, 128):
            x = torch.from_numpy(regions[start : start + 128])
            flat = ((x - ours.image.shift) * ours.image.scale).reshape(-1, 2048)
            features = (ours.image.linear(flat) + ours.image.mlp(flat)).view(len(x), 36, dim)
            out.append(unit(pooled(ours.image.pool, features, torch.full((len(x),), 36))))
        return torch.cat(out).numpy()

    parts: list[tuple[str, int, Any, Any, float]] = [
        ("images", images, lambda: embed_images(ours, regions).vectors, plain_images,
         2.0 * images * 36 * (2048 * dim * 3 // 2 + dim * dim // 2)),
        ("captions", captions, lambda: embed_texts(ours, table).vectors, plain_texts,
         2.0 * 2 * 3 * (300 + dim) * dim * len(table.ids)),
    ]  # fmt: skip
    for name, n, mine, plain, flops in parts:
        timed = take_turns({"ours": mine, "plain": plain}, rounds)
        off = float(np.abs(timed.result["ours"] - timed.result["plain"]).max())
        yield Row(f"embedding {name}, vse_inf", f"{n:,} {name}, {dim}-d", timed.seconds["ours"], "papers' equations",
                  timed.seconds["plain"], None, machine.floor(flops), f"vectors differ by {off:.0e}")  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """All of them."""
    yield from vector_steps(machine, 3)
    yield from local_steps(machine, 5)
    yield from losses(machine, 4)
    yield from loader(machine, 3)
    yield from embedding(machine, 3)
