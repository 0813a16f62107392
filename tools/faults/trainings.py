"""What must not change a training: a damaged cache, a caller's modes of torch, other threads, too few of them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.cases import copy, digest
from faults.figures import Figure
from faults.forked import in_child, run_command

__all__ = ["caches", "limits", "modes", "threads"]

FIT = (
    "--method infonce --batch-size 16 --device cpu --epochs 1 --set dim=8 --set dim_word=4 --set image_size=32 "
    "--set require_dependence=false --quiet --out run --overwrite"
)
CACHED = {  # what is fitted, of a copy of the prepared directory
    "images": f"fit data.parquet {FIT}",
    "a folder": f"fit folder {FIT}",
    "joined columns": f"fit data.parquet --column text=caption,key {FIT}",
    "arrays": f"fit x.npy --column captions=captions.txt {FIT}",
}


def _flipped(at: float) -> Callable[[bytes], bytes]:
    def harm(data: bytes) -> bytes:
        k = min(int(at * len(data)), len(data) - 1)
        return data[:k] + bytes([data[k] ^ 16]) + data[k + 1 :]

    return harm


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "a bit flipped in its head": _flipped(0.01),
    "a bit flipped in its middle": _flipped(0.5),
    "a bit flipped at its end": _flipped(1.0),
    "zeros at its end": lambda data: data[: len(data) * 2 // 3] + bytes(len(data) - len(data) * 2 // 3),
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
}


def caches(base: Path, folder: Path, *, quick: bool = False) -> Figure:
    """Damage each file of the cache: the fit is as before, and the file too."""
    problems, tried = [], 0
    for name, told in list(CACHED.items())[:: 3 if quick else 1]:
        work, whole = copy(base, folder / "work"), folder / "whole"
        for left in ("run", ".cache"):
            shutil.rmtree(work / left)
        in_child(_lay_out, str(work))
        done = run_command(told.split(), work)
        if done.code != 0:
            raise RuntimeError(f"`{told}` ends with {done.code}: {done.err}")
        wanted = digest(work / "run" / "scores.parquet")
        shutil.rmtree(whole, ignore_errors=True)
        shutil.copytree(work / ".cache", whole)
        files = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
        files = [file for file in files if file.parts[0] != "named"]  # that they are there is all they say
        for file, (what, harm) in itertools.product(files, list(HARMS.items())[:: 6 if quick else 1]):
            shutil.rmtree(work / ".cache")
            shutil.copytree(whole, work / ".cache")
            (work / ".cache" / file).write_bytes(harm((whole / file).read_bytes()))
            done, tried = run_command(told.split(), work), tried + 1
            if done.code != 0:
                problems.append(f"{name}, {file}, {what}: exit code {done.code}: {done.err.strip()[-200:]}")
            elif digest(work / "run" / "scores.parquet") != wanted:
                problems.append(f"{name}, {file}, {what}: other scores")
            elif digest(work / ".cache" / file) != digest(whole / file):
                problems.append(f"{name}, {file}, {what}: it stays damaged")
    return Figure("damaged files of the cache, by which a fit ends, or differs", tried, problems)


def _lay_out(work: str) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    table = pq.read_table(Path(work) / "data.parquet")
    captions, images = table["caption"].to_pylist(), table["image"].to_pylist()
    (Path(work) / "folder").mkdir()
    for i, (caption, image) in enumerate(zip(captions, images, strict=True)):
        (Path(work) / "folder" / f"{i}.png").write_bytes(image["bytes"])
        (Path(work) / "folder" / f"{i}.txt").write_text(caption)
    np.save(Path(work) / "x.npy", np.array(table["image_features"].to_pylist(), np.float32))
    (Path(work) / "captions.txt").write_text("\n".join(captions) + "\n")


METHODS = ("infonce", "auto", "crcl", "npc", "pc2", "l2rm", "cream", "decl")


def modes(base: Path, *, quick: bool = False) -> Figure:
    """Fits in each mode that a caller may have set in torch: the same model, and the mode is as it was."""
    methods = METHODS[: 2 if quick else None]
    found: list[str] = [problem for method in methods for problem in in_child(_in_modes, str(base), method)]
    return Figure(
        "fits within no_grad, inference_mode and others of torch's modes that differ", 6 * len(methods), found
    )


def _fitted(base: str, method: str) -> Any:
    from cleanpairs import load_pairs
    from cleanpairs.core.registry import METHODS as REGISTERED

    kind = REGISTERED.load(method)
    small = {"dim": 8, "dim_word": 4, "epochs": 2, "refine_epochs": (1,), "freeze": 1, "batch_size": 16, "classes": 4}
    small |= {"eval_group_size": 16, "lr": 0.01, "device": "cpu", "random_state": 1, "memory": 32, "networks": 1}
    settings = {name: value for name, value in small.items() if name in kind.__dataclass_fields__}
    return kind(**settings).fit(load_pairs(Path(base) / "data.parquet", image_column="image_features"))


def _in_modes(base: str, method: str) -> list[str]:
    import numpy as np
    import torch

    def type_is_double() -> Any:
        torch.set_default_dtype(torch.float64)
        return torch.enable_grad()

    contexts: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "set_grad_enabled(False)": lambda: torch.set_grad_enabled(False),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "the device meta": lambda: torch.device("meta"),
        "float64": type_is_double,
    }
    wanted, problems = _fitted(base, method).correspondence_, []
    for name, context in contexts.items():
        with context():
            before = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state().tolist()
            found = _fitted(base, method).correspondence_
            after = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state().tolist()
        torch.set_default_dtype(torch.float32)
        if not np.array_equal(found, wanted):
            problems.append(f"{method} within {name} differs by {np.abs(found - wanted).max():.3g}")
        if after != before:
            problems.append(f"{method} changes {name}")
    return problems


def threads(base: Path, folder: Path, *, quick: bool = False) -> Figure:
    """Fits of one ``random_state`` in several threads, beside scores and plans: the same as alone."""
    counts, methods = (2, 3, 5, 8)[: 1 if quick else None], METHODS[: 1 if quick else 3]
    found: list[str] = [
        problem
        for method, count in itertools.product(methods, counts)
        for problem in in_child(_in_threads, str(base), str(folder / "model"), method, count)
    ]
    return Figure("fits, scores and plans in threads that differ", len(counts) * len(methods), found)


def _in_threads(base: str, saved: str, method: str, count: int) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from cleanpairs import PairScorer, load_pairs

    alone, others = _fitted(base, method), load_pairs(Path(base) / "clean.parquet", image_column="image_features")
    alone.save_pretrained(saved, overwrite=True)

    def beside() -> tuple[Any, Any]:
        model = PairScorer.from_pretrained(saved)
        return model.score_pairs(others), model.rematch(others).table

    scores, plan = beside()
    with ThreadPoolExecutor(count + 1) as pool:
        fits = [pool.submit(_fitted, base, method) for _ in range(count)]
        told = [pool.submit(beside) for _ in range(count)]
    wrong = [np.abs(fit.result().correspondence_ - alone.correspondence_).max() for fit in fits]
    problems = [f"{method} in {count} threads differs by {by:.3g}" for by in wrong if by]
    if any(not np.array_equal(each.result()[0], scores) or not each.result()[1].equals(plan) for each in told):
        problems.append(f"{method}: scores or a plan beside {count} fits differ")
    return problems


def limits(base: Path, folder: Path, *, quick: bool = False) -> Figure:
    """Commands of a user who may start few threads and processes: they end well, or with 6 and a sentence."""
    work = copy(base, folder / "work")
    for path in [work, *work.rglob("*")]:
        path.chmod(0o777)
    env = {**os.environ, "CLEANPAIRS_CACHE": str(work / ".cache"), "HOME": str(work), "TMPDIR": str(work)}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    problems, tried = [], 0
    for told, openmp, most in itertools.product(
        (f"fit data.parquet {FIT}", "inspect data.parquet"),
        ("", "1")[: 1 if quick else 2],
        (2, 12) if quick else (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16),
    ):
        argv = ["bash", "-c", f"ulimit -u {most} && exec {sys.executable} -m cleanpairs {told}"]
        if os.geteuid() == 0:  # whom the limit does not hold for
            caps = [f"--{kind}-caps=+dac_override,+dac_read_search" for kind in ("inh", "ambient")]
            argv = ["setpriv", "--reuid=54321", "--clear-groups", *caps, *argv]
        done = subprocess.run(
            argv, cwd=work, env=env | {"OMP_NUM_THREADS": openmp}, capture_output=True, text=True, check=False
        )
        tried += 1
        if done.returncode != 0 and not (done.returncode == 6 and done.stderr.startswith("Error [limit]")):
            problems.append(
                f"`{told.split()[0]}`, {most} processes, OMP_NUM_THREADS={openmp}: exit code {done.returncode}: "
                f"{done.stderr.strip()[-200:]}"
            )
    return Figure("commands that may start few threads and processes, and do not say so", tried, problems)
