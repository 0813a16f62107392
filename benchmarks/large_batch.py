"""Peak memory and time of one training step at a large batch, plain and by gradient cache.

    OMP_NUM_THREADS=1 python benchmarks/large_batch.py --batch 4096 --micro 0,512,128

Each row is a process of its own: what it holds at most (VmHWM) before and after its steps. Synthetic regions and words;
0 is the plain step. The similarity matrix and the loss are those of the whole batch in every row.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def high_water() -> float:
    """GiB that this process has held at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 2**20
    raise RuntimeError("this system does not tell VmHWM")


def measure(backbone: str, batch: int, micro: int, regions: int, dim: int) -> None:
    """One step, and what it took."""
    import torch

    from cleanpairs.core.registry import BACKBONES
    from cleanpairs.encoders.tokenizer import TokenTable
    from cleanpairs.methods.crcl import ActiveComplementaryLoss
    from cleanpairs.trainer import SingleNetwork, Trainer, TrainingData, TrainingSettings, TrainingStage

    rng = np.random.default_rng(0)
    lengths = rng.integers(6, 16, batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = TokenTable(rng.integers(1, 1000, int(offsets[-1])), offsets)
    ids = np.arange(batch)
    data = TrainingData(rng.normal(size=(batch, regions, dim)).astype(np.float32), tokens, ids, ids, ids)
    settings = TrainingSettings(batch_size=batch, micro_batch=micro or None)
    before, times = high_water(), [time.perf_counter()]
    strategy = SingleNetwork(batch, ActiveComplementaryLoss(tau=0.07))
    torch.manual_seed(0)
    trainer = Trainer(settings, on_step=lambda *_: times.append(time.perf_counter()))
    trained = trainer.fit(data, [TrainingStage(1)], strategy, lambda: BACKBONES.load(backbone)(1001, dim, dim=256))
    print(
        f"{micro or 'plain':>11} {before:>11.2f} {high_water():>9.2f} {high_water() - before:>10.2f} "
        f"{times[1] - times[0]:>7.1f} {trained.history[0]['loss']:>12.5f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="vse_inf")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--micro", default="0,512,128", help="pairs of a stage; 0 is the plain step")
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--dim", type=int, default=256, help="of a region")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.backbone, options.batch, int(options.micro), options.regions, options.dim)
        return
    print(
        f"{'micro_batch':>11} {'before GiB':>11} {'peak GiB':>9} {'step GiB':>10} {'step s':>7} {'loss':>12}",
        flush=True,
    )
    for micro in options.micro.split(","):
        own = ["--backbone", options.backbone, "--batch", str(options.batch), "--regions", str(options.regions)]
        subprocess.run(
            [sys.executable, __file__, *own, "--dim", str(options.dim), "--micro", micro, "--one"], check=True
        )


if __name__ == "__main__":
    main()
