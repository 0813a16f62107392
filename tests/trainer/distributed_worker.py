"""One of several processes that train together: what tests/trainer/test_distributed.py starts.

    python -m tests.trainer.distributed_worker OUT CASE...

trains each case, ``method[-backbone[-micro_batch]]``, and leaves the weights, the pairs' values and the losses in
``OUT/<case>.npz``, written by the first process. ``CASE:stop`` is stopped by a signal after some steps, and
``CASE:resume`` goes on. Dropout is off: every process would draw its own.
"""

import signal
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cleanpairs.core import METHODS, distributed
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SGR
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.trainer import Trainer, TrainingData, TrainingSettings
from cleanpairs.trainer.loop import Checkpoint
from tests.helpers import StopAt

WORDS = "red blue green cat dog bird big small old new fast slow".split()
BACKBONES = {"mlp": MLP, "sgr": SGR}
SPLIT = {"warmup": 1, "clean_above": 0.58}  # between the pairs, so early
OWN: dict[str, dict[str, Any]] = {
    "crcl": {"refine_epochs": (1,), "freeze": 1, "epochs": 2, "label_pass": "batch"}, "l2rm": SPLIT,
    "repair": {**SPLIT, "memory": 32, "neighbours": 4, "eta": 0.95}, "auto": {"label_epochs": 2},
}  # fmt: skip


def corpus(n: int, wrong: int = 16, regions: int = 3) -> tuple[TrainingData, Tokenizer]:
    """Captions of three words, whose images are the words' vectors; the captions of the first ``wrong`` rotate."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(len(WORDS), 16))
    sets = np.array(list(combinations(range(len(WORDS)), 3)))  # each once: equal ones would be ties to the last digit
    chosen = rng.permutation(sets)[:n]
    images = vectors[chosen].sum(1)[:, None] + 0.1 * rng.normal(size=(n, regions, 16))
    captions = [" ".join(WORDS[k] for k in row) for row in chosen]
    captions[:wrong] = captions[1:wrong] + captions[:1]
    tokenizer, ids = Tokenizer.fit(captions), np.arange(n)  # each caption once
    return TrainingData(images.astype(np.float32), tokenizer.encode(captions), ids, ids, ids), tokenizer


def train(
    case: str, *, n: int = 61, checkpoint: Checkpoint | None = None, resume: bool = False, stop_at: int | None = None,
    diverge: bool = False,
) -> Any:  # fmt: skip
    """One case."""
    method, backbone, micro = [*case.split("-"), *["mlp", "0"][case.count("-") :]]
    data, tokenizer = corpus(n)
    estimator = METHODS.load(method)(**{"epochs": 3, "batch_size": 16, "tau": 0.1, **OWN.get(method, {})})
    settings = TrainingSettings(
        batch_size=16, lr=2e-3, eval_group_size=16, bucket=2, seed=3, micro_batch=int(micro) or None,
        checkpoint_seconds=0.0,
    )  # fmt: skip

    def build() -> Any:
        extra = {"dim_sim": 8} if backbone == "sgr" else {}
        model = BACKBONES[backbone](len(tokenizer), 16, dim=16, dim_word=8, **extra)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    estimator._begin()
    strategy = estimator._make_strategy(data)
    if diverge:  # its loss explodes in an epoch, the first time that it comes to it
        start, loss, seen = strategy.start_epoch, strategy.loss, []

        def starting(view: Any) -> None:
            seen.append((view.stage, view.epoch))
            start(view)

        strategy.start_epoch = starting
        strategy.loss = lambda *args: loss(*args) * (1000 if seen[-1] == (2, 2) and seen.count((2, 2)) == 1 else 1)
    trainer = Trainer(settings, checkpoint=checkpoint, on_step=StopAt(stop_at, signal.SIGTERM))
    return trainer.fit(data, estimator._stages(), strategy, build, None, resume)


def keep(trained: Any, path: Path) -> None:
    """The figures that two trainings are compared by."""
    weights = {f"weight.{k}": v.numpy() for k, v in trained.model.state_dict().items()}
    told = {name: [line[name] for line in trained.history] for name in ("loss", "flagged", "fallbacks")}
    np.savez(path, **weights, **told, values=trained.values)


def main(out: Path, cases: list[str]) -> None:
    with distributed.process_group():
        for case in cases:
            name, _, task = case.partition(":")
            checkpoint = Checkpoint(out.parent / f"kept-{name}", "test") if task else None
            how = {"resume": task == "resume", "diverge": task == "diverge", "stop_at": 7 if task == "stop" else None}
            try:
                trained = train(name, n=3 if name == "infonce" else 61, checkpoint=checkpoint, **how)
            except KeyboardInterrupt:  # the first process had the signal, the others were told
                if task != "stop":
                    raise
                continue
            if distributed.rank() == 0:
                keep(trained, out / f"{case.replace(':', '-')}.npz")
    left = [name for name in threads() if "gloo" in name]
    if left:
        raise SystemExit(f"threads outlive the group, and may abort the process at its exit: {left}")


def threads() -> list[str]:
    """Names of this process's threads, those of libraries included; none where /proc does not tell them."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
