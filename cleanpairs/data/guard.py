"""What is never written: the inputs of a command, the folders that they lie in, and what a person has made by hand.

An output is renamed into place, so an input is lost where the output is it, holds it, or lies among the files that it
is read from. Links are followed on both sides, and files are compared by device and inode as well as by name.
"""

import csv
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from cleanpairs.core.errors import OutputExistsError
from cleanpairs.data.formats.file_names import expand_braces

PathLike = str | os.PathLike[str]
Kept = Callable[[Path], bool]
_Output = tuple[Path, set[Path]]  # as it was named, and as it may be spelled

_IMAGES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
_BRACES = re.compile(r"\{[^{}/]*\}")  # 00000..00012 and a,b
_FOLDERS = re.compile(r"\{[^{}]*/[^{}]*\}")  # files of several folders
# The files that a saved model and an audit consist of.
MODEL_FILES = re.compile(r"config\.json|vocabulary\.json|(model|bank)\.safetensors")
AUDIT_FILES = re.compile(r"labels\.csv|label\.html|images/\d+\.jpg|result\.json|probabilities\.parquet")

# What a killed writer has left: of cleanpairs.data.atomic and of cleanpairs.data.locks.
_STAGING = re.compile(r"(^|/)(\.cleanpairs-|\.[^/]*\.cleanpairs-lock$)")
_LABELS = {"pair_id", "key", "stratum", "matched"}  # columns of an audit's labels


@dataclass(frozen=True)
class Input:
    """A file, a directory, or several files by a glob or by braces. ``keeps``: whether a path in a directory (relative
    to it) belongs to the input; ``deep``: look in it for links that lead out of it.
    """

    path: PathLike
    keeps: Kept = lambda inside: True
    deep: bool = True


def data_inputs(
    data: object, options: Mapping[str, object] | None, noise: Mapping[str, object] | None = None
) -> Iterator[Input]:
    """What :func:`cleanpairs.load_pairs` reads of ``data`` with ``options``, also the images that a table may name."""
    options = options or {}
    named = data, options.get("text_vectors"), options.get("captions")  # a column's name is no path
    paths = [os.fspath(p) for p in named if isinstance(p, str | os.PathLike) and "://" not in os.fspath(p)]
    for path in paths:
        yield from map(Input, expand_braces(path) if _FOLDERS.search(path) else [path])
    root = options.get("image_root")
    if root is None and str(data) in paths[:1] and os.path.isfile(paths[0]):
        root = os.path.dirname(os.path.abspath(paths[0]))
    if isinstance(root, str | os.PathLike):
        folder = os.fspath(root)
        yield Input(folder, lambda p: p.suffix.lower() in _IMAGES and os.path.lexists(os.path.join(folder, p)), False)
    if isinstance(noise, Mapping) and isinstance(noise.get("file"), str):
        yield Input(noise["file"])  # type: ignore[arg-type]


def refuse_inputs(outputs: Iterable[PathLike], inputs: Iterable[PathLike | Input]) -> None:
    """Raise :class:`OutputExistsError` where an output would replace an input, hold it, or lie in a directory of it."""
    written = [(Path(output), _spellings(output)) for output in outputs]
    for one in inputs if written else ():
        given = one if isinstance(one, Input) else Input(one)
        for problem in _conflicts(written, given):
            raise OutputExistsError(f"{problem}, which is never written; name another output")


def _conflicts(written: list[_Output], given: Input) -> Iterator[str]:
    name = os.fspath(given.path)
    if os.path.lexists(name):
        yield from _touched(written, name, given)
        return
    pattern = _BRACES.sub("*", name)
    if not glob.has_magic(pattern):
        return  # there is no such input, or it is the name of something else
    whole = _real(pattern)
    for output, spelled in written:
        alike = (path for path in spelled if "**" in whole.parts or len(path.parts) == len(whole.parts))
        if any(fnmatchcase(str(path), str(whole)) for path in alike):
            yield f"{output} would be read as a part of the input {name}"
    for found in glob.iglob(pattern, recursive=True):
        yield from _touched(written, found, given)


def _touched(written: list[_Output], name: str, given: Input) -> Iterator[str]:
    inputs = _spellings(name)
    for output, outputs in written:
        if outputs & inputs or _same(output, name):
            yield f"{output} is the input {name}"
        elif any(one.is_relative_to(out) for out in outputs for one in inputs):
            yield f"{output} holds the input {name}"
        elif any(given.keeps(out.relative_to(one)) for out in outputs for one in inputs if out.is_relative_to(one)):
            yield f"{output} lies in the input {name}"
    if not given.deep or not os.path.isdir(name):
        return
    inodes = {os.stat(output).st_ino: output for output, _ in written if os.path.exists(output)}
    for entry in _entries(name):
        linked = inodes.get(entry.inode())  # by another name
        if linked is None or not _same(linked, entry.path):
            linked = next((output for output, outputs in written if _leads_to(entry, outputs)), None)
        if linked is not None and given.keeps(Path(entry.path).relative_to(name)):
            yield f"{linked} is linked from the input {name}"


def _leads_to(entry: os.DirEntry[str], outputs: set[Path]) -> bool:
    """Whether an entry of an input directory is a symbolic link to the output, into it, or to a folder around it."""
    if not entry.is_symlink():
        return False
    real = Path(os.path.realpath(entry.path))
    return any(real.is_relative_to(out) or (real.is_dir() and out.is_relative_to(real)) for out in outputs)


def _same(a: PathLike, b: PathLike) -> bool:
    with suppress(OSError):
        return os.path.samefile(a, b)  # through links and mounts as well
    return False


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything in a directory and below; links are not followed."""
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def _spellings(path: PathLike) -> set[Path]:
    """The path with its folder's links followed, and with its own as well."""
    real = _real(path)
    return {real, Path(os.path.realpath(real))}


def _real(path: PathLike) -> Path:
    folder, name = os.path.split(os.path.abspath(path))
    return Path(os.path.realpath(folder), name)


def refuse_unless(ours: Kept, path: Path, whose: str) -> None:
    """OutputExistsError where a file beside an output, which nobody has named, is there and none of ``ours``."""
    if not path.is_file():
        return
    known = False
    with suppress(Exception):  # what cannot be read is none of ours, whatever says so
        known = ours(path)
    if not known:
        raise OutputExistsError(
            f"{path} exists and is no {whose}: it would be replaced by one; move it away, or name another output"
        )


def holds(folder: Path) -> list[str]:
    """The sorted names in a directory, without what a killed writer of ours has left there."""
    return sorted(p.name for p in folder.iterdir() if not _STAGING.match(p.name))


def refuse_foreign(folder: Path, ours: re.Pattern[str]) -> None:
    """OutputExistsError where a directory holds files whose names, relative to it, ``ours`` does not fit."""
    inside = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    if foreign := [name for name in inside if not (ours.fullmatch(name) or _STAGING.search(name))]:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise OutputExistsError(
            f"{folder} holds {foreign[0]!r}{more}, which is no part of what would be written: it is not replaced; "
            "move that away, or name another directory"
        )


def refuse_labels(path: Path) -> None:
    """Raise :class:`OutputExistsError` if ``path`` is, or is a directory that holds, labels given by hand."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.csv")) if path.is_dir() else ():
        if file.suffix.lower() == ".csv" and (given := _labels_in(file)):
            raise OutputExistsError(
                f"{file} holds {given:,} label{'s' if given > 1 else ''} given by hand, which nothing here deletes: "
                "move it away, or name another output"
            )


def _labels_in(file: Path) -> int:
    """How many labels an audit's CSV holds, 0 for other files; separated as spreadsheets do."""
    with suppress(OSError, csv.Error), file.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        head = stream.readline(10_000)
        mark = max(",;\t", key=head.count)
        names: Sequence[str] = next(csv.reader([head], delimiter=mark), [])
        labels = csv.DictReader(stream, names, delimiter=mark) if set(names) >= _LABELS else ()
        return sum(bool((row["matched"] or "").strip()) for row in labels)
    return 0
