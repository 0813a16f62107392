"""One of several processes that train together: what tests/trainer/test_distributed.py starts.

    python distributed_worker.py OUT CASE...

trains each case, ``method[-backbone[-micro_batch]]``, and leaves the weights, the pairs' values and the losses in
``OUT/<case>.npz``, written by the first process. ``CASE:stop`` is stopped by a signal after some steps, and
``CASE:resume`` goes on. Dropout is off: every process would draw its own.
"""

import os
import signal
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cleanpairs.core import distributed
from cleanpairs.core.registry import METHODS
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SGR
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.trainer import Trainer, TrainingData, TrainingSettings
from cleanpairs.trainer.loop import Checkpoint

WORDS = "red blue green cat dog bird big small old new fast slow".split()
BACKBONES = {"mlp": MLP, "sgr": SGR}


def corpus(n: int, wrong: int = 16, regions: int = 3) -> tuple[TrainingData, Tokenizer]:
    """Captions of three words, whose images are the words' vectors; the captions of the first ``wrong`` rotate."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(len(WORDS), 16))
    sets = np.array(list(combinations(range(len(WORDS)), 3)))  # each once: equal ones would be ties to the last digit
    chosen = rng.permutation(sets)[:n]
    images = [vectors[row].sum(0) + 0.1 * rng.normal(size=(regions, 16)) for row in chosen]
    captions = [" ".join(WORDS[k] for k in row) for row in chosen]
    captions[:wrong] = captions[1:wrong] + captions[:1]
    ids = np.arange(n)
    _, text_group = np.unique([" ".join(sorted(c.split())) for c in captions], return_inverse=True)
    tokenizer = Tokenizer.fit(captions)
    data = TrainingData(np.array(images, np.float32), tokenizer.encode(captions), ids, ids, text_group.astype(np.int64))
    return data, tokenizer


def train(
    case: str, *, n: int = 61, checkpoint: Checkpoint | None = None, resume: bool = False, stop_at: int | None = None,
    diverge: bool = False,
) -> Any:  # fmt: skip
    """One case."""
    method, backbone, micro = [*case.split("-"), *["mlp", "0"][case.count("-") :]]
    data, tokenizer = corpus(n)
    own: dict[str, Any] = {"epochs": 3, "batch_size": 16, "tau": 0.1}
    if method == "crcl":
        own |= {"refine_epochs": (1,), "freeze": 1, "epochs": 2, "label_pass": "batch"}
    if method in ("repair", "l2rm"):
        own |= {"warmup": 1, "epochs": 3, "clean_above": 0.58}  # between the pairs, so early
    if method == "repair":
        own |= {"memory": 32, "neighbours": 4, "eta": 0.95}
    if method == "auto":
        own |= {"label_epochs": 2, "epochs": 3}
    estimator = METHODS.load(method)(**own)
    settings = TrainingSettings(
        batch_size=16, lr=2e-3, eval_group_size=16, bucket=2, seed=3, micro_batch=int(micro) if micro != "0" else None,
        checkpoint_seconds=0.0,
    )  # fmt: skip

    def build() -> Any:
        extra = {"dim_sim": 8} if backbone == "sgr" else {}
        model = BACKBONES[backbone](len(tokenizer), 16, dim=16, dim_word=8, **extra)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    steps: list[int] = []

    def on_step(done: int, total: int, loss: float) -> None:
        steps.append(done)
        if len(steps) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    estimator._begin()
    procedure = estimator._procedure(data)
    if diverge:  # its loss explodes in an epoch, the first time that it comes to it
        start, loss, seen = procedure.start_epoch, procedure.loss, []

        def starting(view: Any) -> None:
            seen.append((view.stage, view.epoch))
            start(view)

        procedure.start_epoch = starting
        procedure.loss = lambda *args: loss(*args) * (1000 if seen[-1] == (2, 2) and seen.count((2, 2)) == 1 else 1)
    trainer = Trainer(settings, checkpoint=checkpoint, on_step=on_step)
    return trainer.fit(data, estimator._stages(), procedure, build, None, resume)


def keep(trained: Any, path: Path) -> None:
    """The figures that two trainings are compared by."""
    np.savez(
        path,
        **{f"weight.{k}": v.numpy() for k, v in trained.model.state_dict().items()},
        values=trained.values,
        losses=[line["loss"] for line in trained.history],
        flagged=[line["flagged"] for line in trained.history],
        fallbacks=[line["fallbacks"] for line in trained.history],
    )


def main(out: Path, cases: list[str]) -> None:
    with distributed.process_group():
        for case in cases:
            name, _, task = case.partition(":")
            checkpoint = Checkpoint(out.parent / f"kept-{name}", "test") if task else None
            stop_at = 7 if task == "stop" else None
            n = 3 if name == "infonce" else 61
            try:
                how = {"resume": task == "resume", "diverge": task == "diverge"}
                trained = train(name, n=n, checkpoint=checkpoint, stop_at=stop_at, **how)
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
