"""A job: work over all partitions of an input, of which any part may be done already.

In the job's folder lie the partitions' outputs, ``part-000000`` and on, and ``manifest.jsonl``: a line that says which
job it is, then one line for each finished partition, appended when its output is in place. A line that a kill has torn,
or whose file is missing or of another size, counts for nothing: that partition is done again.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from cleanpairs.core.errors import OutputError, OutputExistsError
from cleanpairs.core.regular import writing
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.locks import hold
from cleanpairs.engine.work import Engine, Finished, Partition, Work

MANIFEST = "manifest.jsonl"
LOCK = ".job-lock"
ATTEMPTS = ".attempts"  # behind the name of a partition: an engine's note of how often it was begun
PART = re.compile(rf"part-\d{{6,}}({re.escape(ATTEMPTS)})?")  # see Partition.name


def run_partitions(
    work: Work,
    partitions: Sequence[Partition],
    folder: Path,
    *,
    job: str,
    engine: Engine,
    overwrite: bool = False,
) -> list[Finished]:
    """Do what is left of a job: what is finished, in the order of the partitions; ``folder / partition.name`` are the
    outputs.

    - ``folder``: of the job; made if it does not exist. On a cluster every machine must see it
    - ``job``: names everything that the outputs depend on: input, model, settings
    - ``overwrite``: start over where the folder holds another job

    Raises OutputExistsError: the folder holds another job, or one that is running; CleanpairsError: as the work and the
    engine do; run again to go on.
    """
    name = hashlib.sha256(json.dumps([job, [asdict(p) for p in partitions]]).encode()).hexdigest()
    claim_folder(folder)
    with hold([folder]):
        done = _begin(folder, name, overwrite)
        done = {p.number: done[p.number] for p in partitions if p.number in done}
        left = [p for p in partitions if p.number not in done]
        with _writing(folder), (folder / MANIFEST).open("a", encoding="utf-8") as manifest:
            for finished in engine.run(work, left, folder) if left else ():
                _append(manifest, asdict(finished))
                done[finished.number] = finished
    return [done[p.number] for p in partitions]


def claim_folder(folder: Path) -> None:
    """Make the folder of a job, or go on in one that a job has made; it is known by the file :data:`LOCK` in it.

    Raises OutputExistsError: somebody else's files are in it; OutputError: it cannot be made.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / LOCK).exists() and (theirs := next(folder.iterdir(), None)) is not None:
            raise OutputExistsError(
                f"{folder} holds {theirs.name!r}, and no job has made it: what lies there could be lost among its "
                "parts; move it away, or name another output"
            )
        (folder / LOCK).touch(mode=0o600)


def remove_job(folder: Path) -> None:
    """Remove what a job has left in its folder, and the folder if there is nothing else in it."""
    with suppress(OSError):
        for file in [*_parts(folder), folder / MANIFEST, folder / LOCK]:
            file.unlink(missing_ok=True)
        folder.rmdir()


def release_folder(folder: Path) -> None:
    """Remove the folder of jobs that have removed what they left in it, if there is nothing else."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def _parts(folder: Path) -> list[Path]:
    """The outputs of partitions, of whichever job."""
    return [path for path in folder.iterdir() if PART.fullmatch(path.name)]


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        if error.errno is None or not str(error.filename or "").startswith(str(folder)):
            raise
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error


def _begin(folder: Path, name: str, overwrite: bool) -> dict[int, Finished]:
    """The partitions that are finished, by number; the manifest is there afterwards, and whole."""
    manifest = folder / MANIFEST
    lines = _lines(manifest)
    if lines and lines[0].get("job") == name:
        done = [Finished(**line) for line in lines[1:] if line.keys() == {"number", "bytes", "facts"}]
        sizes = {path.name: path.stat().st_size for path in _parts(folder)}
        kept = {f.number: f for f in done if sizes.get(Partition(f.number, 0, 0).name) == f.bytes}
    elif manifest.exists() and not overwrite:
        raise OutputExistsError(
            f"{folder} holds parts of another job (other data, another model or version): remove it, or give "
            "--overwrite (overwrite=True) to start over"
        )
    else:
        kept = {}
        for old in _parts(folder):
            old.unlink()
    lines = [{"job": name}, *(asdict(finished) for finished in kept.values())]
    write_whole(manifest, "".join(json.dumps(line) + "\n" for line in lines))
    return kept


def _append(file: IO[str], line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines up to the first that is torn; none where there is no file."""
    found: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, ValueError):
        for line in path.read_bytes().decode("utf-8", "replace").splitlines(keepends=True):
            value = json.loads(line) if line.endswith("\n") else None
            if not isinstance(value, dict):
                break
            found.append(value)
    return found
