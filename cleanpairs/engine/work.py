"""Work on partitions of an input, and a job: work over all of them, of which any part may be done already.

An input is cut by its row groups and its size alone, so that every engine cuts alike. The job's folder holds the
partitions' outputs, ``part-000000`` and on. The file ``manifest`` there says which job it is and which partitions are
finished. It is written anew when an output is in place. A partition whose file is missing or damaged is done again.
"""

import hashlib
import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from cleanpairs.core import ConfigError, OutputExistsError, current_progress, sha256_of, writing
from cleanpairs.core.registry import ENGINES
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.guard import holds
from cleanpairs.data.locks import output_lock
from cleanpairs.data.source import read_cached, write_cached

MANIFEST = "manifest"
LOCK = ".job-lock"
ATTEMPTS = ".attempts"  # behind the name of a partition: an engine's note of how often it was begun


@dataclass(frozen=True)
class Partition:
    """The input rows ``first`` to ``first + rows``. ``number`` counts partitions from 0."""

    number: int
    first: int
    rows: int

    @property
    def name(self) -> str:
        """The name of its output in the folder of the job."""
        return f"part-{self.number:06d}"


def plan_partitions(groups: Sequence[int], rows: int, *, target: int = 65_536) -> list[Partition]:
    """Cut the first ``rows`` rows of an input into parts of ``target`` rows or more. ``groups`` are the sizes of its
    row groups. A part is minutes of work for a slow model, seconds for a fast one.

    A cut is where a row group ends, since it is read as a whole. One of more than ``2 * target`` rows is cut evenly.
    """
    ends, row, begun = {0, rows}, 0, 0
    for group in groups:
        if group > 2 * target:
            parts = group // target
            ends |= {row + group * i // parts for i in range(parts + 1)}
            begun = row + group
        elif row + group - begun >= target:
            begun = row + group
            ends.add(begun)
        row += group
    cuts = pairwise(sorted(end for end in ends if end <= rows))
    return [Partition(i, first, end - first) for i, (first, end) in enumerate(cuts)]


Work = Callable[[Partition, Path], dict[str, Any]]
# ``work(partition, path)`` writes the partition's output to ``path`` and returns facts about it, as JSON has them.
#
# It can be sent to another process. The same partition gives the same file, bit for bit, with as many threads.


@dataclass(frozen=True)
class Finished:
    """``number`` of a partition whose output is in place, its ``sha256``, and the ``facts`` of its making."""

    number: int
    sha256: str
    facts: dict[str, Any]


class Engine(Protocol):
    """Drives work over partitions. ``remote``: in other processes, to which it has to be sent."""

    remote: bool

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """Do all partitions, in any order. Outputs go to ``folder``. ResourceError: workers die again and again."""


def carry_out(work: Work, partition: Partition, folder: Path) -> Finished:
    """Do one partition: its output appears in ``folder`` whole or not at all, over that of an earlier attempt."""
    target = folder / partition.name
    with staged_file(target, overwrite=True) as path:
        facts = work(partition, Path(path))
    return Finished(partition.number, sha256_of(target), facts)


def attempt(work: Work, partition: Partition, folder: Path) -> Finished | Exception:
    """In a worker: do one partition. Errors are returned, as a raised one would end the worker."""
    try:
        return carry_out(work, partition, folder)
    except Exception as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return error


def make_engine(name: str, *, workers: int = 1, address: str | None = None) -> Engine:
    """The engine registered as ``name``. ``workers``: processes at once. ``address``: of its cluster. ConfigError."""
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, found {workers}")
    return ENGINES.load(name)(workers=workers, address=address)


def run_partitions(
    work: Work, partitions: Sequence[Partition], folder: Path, *, job: str, engine: Engine, overwrite: bool = False,
    stage: str = "parts",
) -> list[Finished]:  # fmt: skip
    """Do the rest of a job, whose outputs are ``folder / partition.name``. Return all, in the partitions' order.

    - ``folder``: made if it does not exist. On a cluster every machine must see it
    - ``job``: names everything that the outputs depend on: input, model, settings
    - ``overwrite``: start over where the folder holds another job
    - ``stage``: what progress calls it

    Raises OutputExistsError: the folder holds another job, or one that is running, else as the work and the engine do.
    """
    name = hashlib.sha256(json.dumps([job, [asdict(p) for p in partitions]]).encode()).hexdigest()
    claim_folder(folder)
    with output_lock([folder]):
        done = _begin(folder, name, overwrite)
        _note(folder, name, done)
        left = [p for p in partitions if p.number not in done]
        for finished in engine.run(work, left, folder) if left else ():
            done[finished.number] = finished
            _note(folder, name, done)
            rows = sum(p.rows for p in partitions if p.number in done)
            current_progress().advance(stage, "rows", rows, sum(p.rows for p in partitions))
    return [done[p.number] for p in partitions]


def claim_folder(folder: Path) -> None:
    """Make the folder of a job, or take one that a job has made. Raises OutputExistsError: it has other files."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / LOCK).exists() and (foreign := holds(folder)):
            raise OutputExistsError(
                f"{folder} holds {foreign[0]!r}, and no job has made it: the files in it could be lost among the "
                "parts; move them away, or name another output"
            )
        (folder / LOCK).touch(mode=0o600)


def remove_job(folder: Path) -> None:
    """Remove the files of a job from its folder, and the folder if there is nothing else in it."""
    with suppress(OSError):
        for file in [*_parts(folder), folder / MANIFEST, folder / LOCK]:
            file.unlink(missing_ok=True)
        folder.rmdir()


def _parts(folder: Path) -> list[Path]:
    names = rf"part-\d{{6,}}({re.escape(ATTEMPTS)})?"  # see Partition.name
    return [path for path in folder.iterdir() if re.fullmatch(names, path.name)]


def _begin(folder: Path, name: str, overwrite: bool) -> dict[int, Finished]:
    """The partitions of the job called ``name`` that are finished, by number."""
    manifest = json.loads(read_cached(folder / MANIFEST) or b"{}")
    if manifest.get("job") == name:
        digests = {path.name: sha256_of(path) for path in _parts(folder)}
        done = [Finished(**line) for line in manifest["done"]]
        return {f.number: f for f in done if digests.get(Partition(f.number, 0, 0).name) == f.sha256}
    if (folder / MANIFEST).exists() and not overwrite:
        raise OutputExistsError(
            f"{folder} holds parts of another job (other data, another model or version): remove it, or give "
            "--overwrite (overwrite=True) to start over"
        )
    for old in _parts(folder):
        old.unlink()
    return {}


def _note(folder: Path, name: str, done: dict[int, Finished]) -> None:
    manifest = {"job": name, "done": [asdict(finished) for finished in done.values()]}
    write_cached(folder / MANIFEST, json.dumps(manifest).encode())
