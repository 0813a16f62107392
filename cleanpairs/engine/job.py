"""A job: work over all partitions of an input, of which any part may be done already.

In the job's folder lie the partitions' outputs, ``part-000000`` and on, and ``manifest.json``: which job it is, and the
partitions that are finished, written anew for each when its output is in place. One whose file is missing or of another
size is done again.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cleanpairs.core.errors import OutputExistsError
from cleanpairs.core.regular import read_json, writing
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.locks import hold
from cleanpairs.engine.work import Engine, Finished, Partition, Work

MANIFEST = "manifest.json"
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
        _note(folder, name, done)
        left = [p for p in partitions if p.number not in done]
        for finished in engine.run(work, left, folder) if left else ():
            done[finished.number] = finished
            _note(folder, name, done)
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


def _parts(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if PART.fullmatch(path.name)]


def _begin(folder: Path, name: str, overwrite: bool) -> dict[int, Finished]:
    """The partitions of the job called ``name`` that are finished, by number."""
    known = None
    with suppress(FileNotFoundError, ValueError):
        known = read_json(folder / MANIFEST)
    if isinstance(known, dict) and known.get("job") == name:
        sizes = {path.name: path.stat().st_size for path in _parts(folder)}
        done = [Finished(**line) for line in known["done"]]
        return {f.number: f for f in done if sizes.get(Partition(f.number, 0, 0).name) == f.bytes}
    if (folder / MANIFEST).exists() and not overwrite:
        raise OutputExistsError(
            f"{folder} holds parts of another job (other data, another model or version): remove it, or give "
            "--overwrite (overwrite=True) to start over"
        )
    for old in _parts(folder):
        old.unlink()
    return {}


def _note(folder: Path, name: str, done: dict[int, Finished]) -> None:
    lines = ",\n".join(json.dumps(asdict(finished)) for finished in done.values())
    write_whole(folder / MANIFEST, f'{{"job": {json.dumps(name)}, "done": [\n{lines}\n]}}\n')
