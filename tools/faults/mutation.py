"""Damaged files: bytes flipped, cut, doubled and filled in; every reader ends in a result or in an error of ours.

A batch of mutations runs in a child, which says the number of each before it reads it: one that ends the child, or
hangs, is known by its number, and the next child goes on behind it.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["KINDS", "Mutated", "mutate", "mutate_many"]

HANG = 20  # seconds for one file


@dataclass
class Mutated:
    """Of one kind of file: ``read`` were taken for good, ``refused`` by an error of ours; the rest is wrong."""

    tried: int = 0
    read: int = 0
    refused: int = 0
    bugs: Counter[str] = field(default_factory=Counter)  # another exception -> how often
    deaths: list[str] = field(default_factory=list)  # signal and number
    hangs: list[int] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every file was read or refused."""
        return not (self.bugs or self.deaths or self.hangs)


def mutate(data: bytes, number: int) -> bytes:
    """The ``number``-th mutation of a file; the same number gives the same bytes."""
    rng = np.random.default_rng(number)
    out = bytearray(data)
    kind = number % 6
    n = len(out)
    if kind == 0:  # bits
        for at in rng.integers(0, n, rng.integers(1, 9)):
            out[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:  # bytes, at the ends above all: there the headers and footers are
        for _ in range(int(rng.integers(1, 5))):
            at = int(rng.integers(0, min(n, 512)))
            out[at if rng.random() < 0.5 else n - 1 - at] = int(rng.integers(256))
    elif kind == 2:  # cut
        del out[int(rng.integers(0, n)) :]
    elif kind == 3:  # a stretch of one byte
        at, length = int(rng.integers(0, n)), int(rng.integers(1, 64))
        out[at : at + length] = bytes([int(rng.choice([0, 255, 127, 128]))]) * len(out[at : at + length])
    elif kind == 4:  # a number that is much too large, or negative
        at = int(rng.integers(0, max(n - 8, 1)))
        value = (2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 2**40)[int(rng.integers(5))]
        out[at : at + 8] = struct.pack("<Q", value)[: len(out[at : at + 8])]
    else:  # a stretch put elsewhere
        a, b, length = (int(rng.integers(0, n)) for _ in range(3))
        piece = out[a : a + min(length, 256)]
        out[b : b + len(piece)] = piece[: n - b]
    return bytes(out)


def mutate_many(kind: str, count: int, scratch: Path, *, batch: int = 250, first: int = 0) -> Mutated:
    """Read ``count`` mutations of a file of ``kind`` (a name of :data:`KINDS`)."""
    scratch.mkdir(parents=True, exist_ok=True)
    make, read = KINDS[kind]
    seed = scratch / f"seed-{kind}"
    _in_child(make, seed)
    data = seed.read_bytes()
    whole = scratch / f"whole-{kind}"
    whole.mkdir(exist_ok=True)
    _in_child(lambda folder: read(data, folder), whole)  # a reader that refuses the whole file would show nothing
    found, number, end = Mutated(), first, first + count
    while number < end:
        number = _batch(kind, data, number, min(number + batch, end), scratch, found)
    return found


def _in_child(function: Callable[[Path], None], path: Path) -> None:
    """So that this process stays without the threads that writing starts."""
    child = os.fork()
    if child == 0:
        try:
            function(path)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"{path}: it cannot be made, or read undamaged")


def _batch(kind: str, data: bytes, first: int, end: int, scratch: Path, found: Mutated) -> int:
    """Read mutations ``first`` .. ``end``, and return the first one that was not reached."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _child(kind, data, first, end, scratch, write_end)
    os.close(write_end)
    begun, done = None, first
    with os.fdopen(read_end) as lines:
        for line in lines:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "begin":
                begun = int(rest)
                continue
            done, begun = int(begun or 0) + 1, None
            found.tried += 1
            if word == "bug":
                found.bugs[rest] += 1
            else:
                found.read += word == "read"
                found.refused += word == "refused"
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if begun is None:
        if code:
            raise RuntimeError(f"the child of {kind} ended with {code} between two files: {_failure(scratch)}")
        return done
    found.tried += 1
    if code == -signal.SIGALRM:
        found.hangs.append(begun)
    else:
        found.deaths.append(f"{signal.Signals(-code).name if code < 0 else code} at {begun}")
    return begun + 1


def _failure(scratch: Path) -> str:
    file = scratch / "failed.txt"
    return file.read_text() if file.exists() else ""


def _child(kind: str, data: bytes, first: int, end: int, scratch: Path, out: int) -> None:
    from cleanpairs.core.errors import CleanpairsError

    work = scratch / f"work-{kind}"
    os.environ["CLEANPAIRS_CACHE"] = str(scratch / "cache")
    stream = os.fdopen(out, "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    _, read = KINDS[kind]
    try:
        for number in range(first, end):
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(scratch / "cache", ignore_errors=True)
            work.mkdir()
            bad = mutate(data, number)
            stream.write(f"begin {number}\n")
            signal.alarm(HANG)  # without a handler: it ends the process
            try:
                read(bad, work)
                word = "read"
            except CleanpairsError as error:
                word = "refused" if error.exit_code != 1 else f"bug {type(error).__name__}: {error}"
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)
                ours = next((f for f in reversed(where) if "cleanpairs" in f.filename), where[-1])
                word = f"bug {type(error).__name__} in {Path(ours.filename).name}:{ours.lineno}: {error}"
            signal.alarm(0)
            stream.write(" ".join(word.split())[:300] + "\n")
        stream.flush()
        os._exit(0)
    except BaseException:
        (scratch / "failed.txt").write_text(traceback.format_exc())
        os._exit(70)


# -- the files -----------------------------------------------------------------------------------------------------


def _table() -> Any:
    import pyarrow as pa

    n = 40
    image = io.BytesIO()
    from PIL import Image

    Image.new("RGB", (8, 8), (9, 9, 9)).save(image, "PNG")
    images = [{"bytes": image.getvalue() + bytes([i]), "path": None} for i in range(n)]
    return pa.table(
        {
            "key": [f"k{i}" for i in range(n)],
            "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "caption": [f"caption {i} of some words" for i in range(n)],
        }
    )


def _make_parquet(path: Path) -> None:
    from cleanpairs.data import ParquetSink

    table = _table()
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)


def _make_foreign_parquet(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(_table(), path, row_group_size=16)  # as others write: without page checksums


def _read_all(data: Path) -> None:
    """What `fit` reads first, and what `export` reads: pairs, rows, images."""
    from cleanpairs.data import iter_tables, load_pairs

    pairs = load_pairs(data)
    for table in iter_tables(pairs.source):
        len(table)
    pairs.images.read(range(min(len(pairs.images), 4)))


def _read_parquet(data: bytes, work: Path) -> None:
    (work / "f.parquet").write_bytes(data)
    _read_all(work / "f.parquet")


def _verify_parquet(data: bytes, work: Path) -> None:
    from cleanpairs.verification import verify_path

    (work / "f.parquet").write_bytes(data)
    verify_path(work / "f.parquet")


def _make_arrow(path: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_stream(stream, _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=16)


def _read_arrow(data: bytes, work: Path) -> None:
    (work / "f.arrow").write_bytes(data)
    _read_all(work / "f.arrow")


def _make_safetensors(path: Path) -> None:
    import torch

    from cleanpairs.trainer.loop import Checkpoint, Position, TrainingState, moments

    layer = torch.nn.Linear(6, 5)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    folder = path.with_name("checkpoint")
    folder.mkdir(exist_ok=True)
    labels, history = {"y": np.ones(4, np.float32), "k": 3}, [{"epoch": 1}]
    state = layer.state_dict(), moments([optimizer]), labels, None, None, history, None
    Checkpoint(folder, "f").save(TrainingState(Position(1, 1, 1), *state))
    path.write_bytes((folder / "last.safetensors").read_bytes())


def _read_safetensors(data: bytes, work: Path) -> None:
    from cleanpairs.trainer.loop import Checkpoint

    (work / "last.safetensors").write_bytes(data)
    Checkpoint(work, "f").load()


def _make_npy(path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(0).normal(size=(8, 3, 6)).astype(np.float32), allow_pickle=False)
    path.write_bytes(buffer.getvalue())


def _read_npy(data: bytes, work: Path) -> None:
    (work / "train_ims.npy").write_bytes(data)
    (work / "train_caps.txt").write_text("".join(f"caption {i} here\n" for i in range(8)))
    _read_all(work)


def _make_jpeg(path: Path) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    Image.fromarray(noise).save(path, "JPEG")


def _read_jpeg(data: bytes, work: Path) -> None:
    from cleanpairs.data import images

    images.read_image(data)


def _make_run(path: Path) -> None:
    from cleanpairs.commands.run import write_scores

    y = np.linspace(0, 1, 40, dtype=np.float32)
    write_scores(path, [f"k{i}" for i in range(40)], y, 0.5, {})


def _read_scores(data: bytes, work: Path) -> None:
    from cleanpairs.commands.run import Run

    (work / "scores.parquet").write_bytes(data)
    Run(work).scores()


def _make_plan(path: Path) -> None:
    import pyarrow as pa

    from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan

    n = 40
    columns = {"pair_id": range(n), "key": [f"k{i}" for i in range(n)], "action": ["keep"] * n}
    columns |= {"caption": ["x"] * n, "original_caption": ["x"] * n}
    table = pa.table([pa.array(columns.get(f.name, [None] * n), f.type) for f in PLAN_SCHEMA], schema=PLAN_SCHEMA)
    plan = path.with_name("plan.parquet")
    RepairPlan(table, 0.5, 0.5, "f", {}).save(plan)
    path.write_bytes(plan.read_bytes())


def _read_plan(data: bytes, work: Path) -> None:
    from cleanpairs.repair.plan import RepairPlan

    (work / "plan.parquet").write_bytes(data)
    RepairPlan.load(work / "plan.parquet")


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[bytes, Path], None]]] = {
    "Parquet": (_make_parquet, _read_parquet),
    "Parquet without checksums": (_make_foreign_parquet, _read_parquet),
    "Parquet in verify": (_make_foreign_parquet, _verify_parquet),
    "scores.parquet": (_make_run, _read_scores),
    "plan.parquet": (_make_plan, _read_plan),
    "Arrow": (_make_arrow, _read_arrow),
    "safetensors": (_make_safetensors, _read_safetensors),
    "npy": (_make_npy, _read_npy),
    "JPEG": (_make_jpeg, _read_jpeg),
}
