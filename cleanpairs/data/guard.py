"""Refuses to write over the inputs of a command, the folders of their files, and labels given by hand.

An output is renamed into place, so an input is lost where the output is it, holds it, or lies among the files that it
is read from. Links are followed on both sides, and files are compared by device and inode as well as by name.
"""

import csv
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cleanpairs.core import ConfigError, DataError, OutputExistsError, plural
from cleanpairs.core.regular import AnyPath
from cleanpairs.data.formats.file_names import IMAGES, expand_braces
from cleanpairs.data.label_rows import label_rows

Kept = Callable[[Path], bool]


@dataclass(frozen=True)
class Input:
    """A file, a directory, or several files by a glob or by braces.

    In a directory ``keeps`` says of a relative path whether it belongs to the input. With ``deep`` the directory is
    searched for links that lead out of it.
    """

    path: AnyPath
    keeps: Kept = lambda inside: True
    deep: bool = True


def data_inputs(data: object, options: Mapping[str, object] | None) -> Iterator[Input]:
    """All inputs of :func:`cleanpairs.load_pairs` for ``data`` and ``options``, also images that a table may name."""
    options = options or {}
    named = data, options.get("text_vectors"), options.get("captions")  # a column's name is no path
    paths = [os.fspath(p) for p in named if isinstance(p, str | os.PathLike) and "://" not in os.fspath(p)]
    for path in paths:
        folders = re.search(r"\{[^{}]*/[^{}]*\}", path)  # files of several folders
        yield from map(Input, expand_braces(path) if folders else [path])
    root = options.get("image_root")
    if root is None and str(data) in paths[:1] and os.path.isfile(paths[0]):
        root = os.path.dirname(os.path.abspath(paths[0]))
    if isinstance(root, str | os.PathLike):
        yield Input(root, lambda p: p.suffix.lower() in IMAGES and os.path.lexists(Path(root, p)), False)


def refuse_inputs(outputs: Iterable[AnyPath], inputs: Iterable[AnyPath | Input]) -> None:
    """Raise :class:`OutputExistsError` where an output would replace an input, hold it, or lie in a directory of it.

    And :class:`ConfigError` where it is a URL, whose protocol would become a directory.
    """
    written = {Path(output): _spellings(output) for output in outputs}
    if any(folder.name.endswith(":") and not folder.exists() for output in written for folder in output.parents):
        raise ConfigError("an output cannot be a URL: write it on this machine, then copy it there")
    for entry in inputs if written else ():
        given = entry if isinstance(entry, Input) else Input(entry)
        for output, how, name in _conflicts(written, given):
            raise OutputExistsError(f"{output} {how} the input {name}, which is never written; name another output")


def _conflicts(written: dict[Path, set[Path]], given: Input) -> Iterator[tuple[Path, str, str]]:
    """Outputs that conflict with an input, how, and its name. ``written``: output -> its spellings."""
    name = os.fspath(given.path)
    pattern = re.sub(r"\{[^{}/]*\}", "*", name)  # 00000..00012 and a,b
    paths: Iterable[str] = [name] if os.path.lexists(name) else ()
    if not paths and glob.has_magic(pattern):  # else there is no such input, or it is no path
        paths, whole = glob.iglob(pattern, recursive=True), _real(pattern)
        for output, spelled in written.items():
            alike = (path for path in spelled if "**" in whole.parts or len(path.parts) == len(whole.parts))
            if any(fnmatchcase(str(path), str(whole)) for path in alike):
                yield output, "would be read as a part of", name
    for path in paths:
        inputs = _spellings(path)
        for output, outputs in written.items():
            if outputs & inputs or same_file(output, path):
                yield output, "is", path
            elif any(one.is_relative_to(out) for out in outputs for one in inputs):
                yield output, "holds", path
            elif any(given.keeps(out.relative_to(one)) for out in outputs for one in inputs if out.is_relative_to(one)):
                yield output, "lies in", path
        if given.deep and os.path.isdir(path):
            for linked, entry in _links(written, path):
                if given.keeps(Path(entry).relative_to(path)):
                    yield linked, "is linked from", path


def _links(written: dict[Path, set[Path]], folder: str) -> Iterator[tuple[Path, str]]:
    """Outputs to which an entry of a directory leads: a hard link, or a link to them, into or around them."""
    inodes = {os.stat(output).st_ino: output for output in written if os.path.exists(output)}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            real = Path(os.path.realpath(entry.path)) if entry.is_symlink() else None
            if (output := inodes.get(entry.inode())) is not None and same_file(output, entry.path):
                yield output, entry.path
            elif real is not None:
                for output, outputs in written.items():
                    if any(real.is_relative_to(o) or (real.is_dir() and o.is_relative_to(real)) for o in outputs):
                        yield output, entry.path
            elif entry.is_dir(follow_symlinks=False):
                yield from _links(written, entry.path)


def same_file(a: AnyPath, b: AnyPath) -> bool:
    """Whether both exist, and are the same file."""
    with suppress(OSError):
        return os.path.samefile(a, b)  # through links and mounts as well
    return False


def _spellings(path: AnyPath) -> set[Path]:
    """The path with its folder's links followed, and with its own as well."""
    real = _real(path)
    return {real, Path(os.path.realpath(real))}


def _real(path: AnyPath) -> Path:
    folder, name = os.path.split(os.path.abspath(path))
    return Path(os.path.realpath(folder), name)


def require_own_file(path: Path, is_ours: Kept) -> None:
    """Raise OutputExistsError where ``path``, which the user has not named, exists and is not ours."""
    replaceable = not path.is_file()
    with suppress(Exception):  # what cannot be read is not ours, whatever the error
        replaceable = replaceable or is_ours(path)
    if not replaceable:
        raise OutputExistsError(f"{path} exists and is no export's: move it away, or name another output")


def is_leftover(name: str) -> bool:
    """Whether a killed writer has left a path: one of :mod:`cleanpairs.data.atomic` or :mod:`cleanpairs.data.locks`."""
    return re.search(r"(^|/)(\.cleanpairs-|\.[^/]*\.cleanpairs-lock$)", name) is not None


def holds(folder: Path) -> list[str]:
    """The sorted names in a directory, without what a killed writer of ours has left there."""
    return sorted(p.name for p in folder.iterdir() if not is_leftover(p.name))


def refuse_foreign(folder: Path, ours: re.Pattern[str]) -> None:
    """OutputExistsError where a directory holds files whose names, relative to it, ``ours`` does not fit."""
    inside = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    if foreign := [name for name in inside if not (ours.fullmatch(name) or is_leftover(name))]:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise OutputExistsError(
            f"{folder} holds {foreign[0]!r}{more}, which is no part of what would be written: it is not replaced; "
            "move that away, or name another directory"
        )


def refuse_labels(path: Path) -> None:
    """Raise :class:`OutputExistsError` if ``path`` is, or is a directory that holds, labels given by hand."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.csv")) if path.is_dir() else ():
        if file.suffix.lower() == ".csv" and (given := _labels_in(file)):
            raise OutputExistsError(f"{file} holds {plural(given, 'label')} given by hand: name another output")


def _labels_in(file: Path) -> int:
    """The number of labels in a CSV. A damaged row counts as one. Other files have 0."""
    count = 0
    try:
        for _, row in label_rows(file, ("pair_id", "matched"), errors="replace"):
            count += bool(row["matched"])
    except DataError as error:
        count += isinstance(error.__cause__, csv.Error)
    return count
