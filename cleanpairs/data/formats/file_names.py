"""File names of the user: one file, a directory, a glob, or braces as WebDataset writes them."""

import glob
import os
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from cleanpairs.core import reading
from cleanpairs.core.errors import DataError, MissingInputError

IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")  # endings


def expand_braces(pattern: str) -> list[str]:
    """``a{00..02}.tar`` and ``{x,y}.tar`` spelt out, in order. Raises DataError: it means more than a million names."""
    count, choices = 1, []
    for i, text in enumerate(re.split(r"\{([^{}]*)\}", pattern)):  # fixed, inside braces, fixed, ...
        options = [text] if i % 2 == 0 else text.split(",") if "," in text else ["{" + text + "}"]
        numbers = re.fullmatch(r"(\d+)\.\.(\d+)", text) if i % 2 else None
        count *= int(numbers[2]) - int(numbers[1]) + 1 if numbers else len(options)
        if count > 1_000_000:
            raise DataError(f"{pattern} means more than 1,000,000 files")
        if numbers:
            width = len(numbers[1]) if numbers[1].startswith("0") else 0
            options = [str(k).zfill(width) for k in range(int(numbers[1]), int(numbers[2]) + 1)]
        choices.append(options)
    return ["".join(chosen) for chosen in product(*choices)]


def expand_files(data: str, ending: str) -> list[str]:
    """The files, absolute, that ``data`` means: one, a directory, a glob, braces. Raises DataError: there is none."""
    path = Path(data)
    if path.is_dir():
        paths = [str(p) for p in files_below(path, ending, depth=0) if p.is_file()]
    else:
        paths = [data] if path.exists() else []
        for name in () if paths else expand_braces(data):
            matches = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else [name]
            if missing := [m for m in matches if not Path(m).is_file()]:
                of = "" if missing[0] == data else f" (of {data})"
                raise MissingInputError(f"no such input: {missing[0]}{of}")
            paths += matches
    if not paths:
        raise MissingInputError(f"no such input: {data} matches no file *{ending}")
    return [str(Path(p).absolute()) for p in paths]


def files_below(folder: Path, ending: str = "", depth: int = 4) -> Iterator[Path]:
    """The files in a folder, and in those below it down to ``depth``, sorted, without hidden ones.

    ``ending``: in small letters. Names in capitals match too.
    """
    with reading(folder), os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith(".") or entry.name in ("__MACOSX", "lost+found"):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth:
                yield from files_below(folder / entry.name, ending, depth - 1)
        elif entry.name.lower().endswith(ending) and not os.path.isdir(entry.path):
            yield folder / entry.name
