"""Training steps of the backbones, one thread: SGR and SAF against the same similarity one caption at a time.

    python benchmarks/bench_backbones.py [--big]

The baseline computes the same numbers with the same weights, caption by caption as the published code does (the largest
difference is printed; tests/encoders/test_sgraf.py holds ours in value and gradient). Both train a whole step:
encoders, similarity, loss, gradient, AdamW. CPU seconds, the minimum of interleaved rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from side_by_side import one_thread, take_turns
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SAF, SGR
from cleanpairs.encoders.tokenizer import Tokenizer, pack
from cleanpairs.objectives import TripletLoss


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--big", action="store_true", help="also batch 128, 36 regions, 1024 dimensions")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    one_thread()
    torch.set_num_threads(1)
    sizes = [("batch 32, 9 regions, 12 words, 256-d", (32, 9, 12, 1280), {"dim": 256, "dim_sim": 64})]
    if args.big:
        sizes.append(("batch 128, 36 regions, 15 words, 1024-d", (128, 36, 15, 2048), {"dim": 1024, "dim_sim": 256}))
    for name, shape, dims in sizes:
        inputs = inputs_of(*shape)
        print(name)
        for kind in (SGR, SAF):
            torch.manual_seed(0)
            ours: Any = kind(2001, shape[3], **dims)  # type: ignore[arg-type]
            theirs: Any = kind(2001, shape[3], **dims)  # type: ignore[arg-type]
            theirs.load_state_dict(ours.state_dict())
            with torch.no_grad():
                states = ours.eval()(inputs[0], None, inputs[1])
                difference = (ours.similarity(*states) - caption_by_caption(ours, *states)).abs().max()
            ours.train()
            rounds = args.rounds if shape[0] < 100 else min(args.rounds, 2)
            took = take_turns(
                {
                    "ours": step_of(ours, inputs, ours.similarity),
                    "loop": step_of(theirs, inputs, lambda i, t, m=theirs: caption_by_caption(m, i, t)),
                },
                rounds,
            ).seconds
            print(
                f"  {kind.__name__}: {took['loop'] / took['ours']:.2f}x the caption loop"
                f", {shape[0] / took['ours']:.0f} pairs per CPU second (largest difference {float(difference):.1e})",
                flush=True,
            )
        for vectors in (VSEInf, MLP):
            torch.manual_seed(0)
            model = vectors(2001, shape[3], dim=dims["dim"])
            took = take_turns({"ours": step_of(model, inputs, model.similarity)}, args.rounds).seconds
            print(f"  {vectors.__name__}: {shape[0] / took['ours']:.0f} pairs per CPU second", flush=True)


if __name__ == "__main__":
    main()
