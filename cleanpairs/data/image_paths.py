"""Finds the column that names the images, and the folder of its paths."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from cleanpairs.core import DataError, without_secrets
from cleanpairs.core.recipe import DataOptions
from cleanpairs.data.columns import find_columns, is_text, usual_columns
from cleanpairs.data.images import embedded, resolve_path

LOOK_AT = 100  # rows by which readers find fields, lists of captions, and images, of which at least one must exist


def with_images(schema: pa.Schema, column: Callable[[str], list[Any]], file: Path, request: DataOptions) -> DataOptions:
    """The request with the folder of the images, and with the first column that names existing ones.

    ``column``: the values of a column of ``schema``, the first rows at least. Raises DataError: no image exists.
    """

    def usual(role: str) -> list[str]:
        return [name for name in usual_columns(schema, role) if is_text(schema.field(name).type)]

    missing: DataError | None = None
    try:
        roles = find_columns(schema, vars(request), str(file))
        name = roles.get("image")
        if name is None or not is_text(schema.field(name).type):
            return request
        names = [name] if request.image_column or "features" in roles else list(dict.fromkeys([name, *usual("image")]))
        names.sort(key=lambda other: "://" in next(filter(None, column(other)), "://"))  # addresses last
    except DataError as error:  # the names may be in a column of keys
        name, names, missing = None, [] if request.image_column else usual("key"), error
    for other in names:
        try:
            root = find_root(column(other), file, request.image_root)
            return replace(request, image_root=root, image_column=request.image_column if other == name else other)
        except DataError as error:
            missing = missing or error
    raise missing or DataError(f"{file} has no column of images")


def find_root(paths: Sequence[Any], file: Path, given: str | None, also: Sequence[Path] = ()) -> str:
    """The folder that image ``paths`` are relative to: ``given``, or the first usual one with some of them."""
    first = [path for path in paths[:LOOK_AT] if path]
    if given is not None:
        folders, siblings = [Path(given).absolute()], []
    else:
        usual = ("", "images", "Images", "image", "img", "imgs")
        folders = [p for p in [*(file.parent / name for name in usual), *also] if p.is_dir()]
        siblings = sorted(p for p in file.parent.glob("[!.]*") if p.is_dir() and p not in folders) if first else []
    for folder in folders:
        if not first or any(image_exists(path, folder, file.parent) for path in first):
            return str(folder)
    counts = Counter({folder: sum(image_exists(path, folder) for path in first) for folder in siblings})
    best = [folder for folder, count in counts.items() if count and count == max(counts.values())]
    if len(best) == 1:
        return str(best[0])
    if best:
        remedy = f"as many are in {best[0]} as in {best[1]}: name their folder with --image-root"
    elif "://" in first[0]:
        remedy = "they are URLs: download them by img2dataset"
    elif links := _link_remedy(first[0], folders[0]):
        remedy = links
    else:
        above = [p for p in (Path.cwd(), *file.parent.parents) if image_exists(first[0], p)]
        remedy = f"name their folder with --image-root{f' {quote(str(above[0]))}' if above else ''}"
    name = without_secrets(first[0])[:200]
    raise DataError(f"none of the first {len(first)} images of {file} is in {folders[0]} (first: {name!r}); {remedy}")


def image_exists(path: str, folder: Path, table_folder: Path | None = None) -> bool:
    """Whether ``path`` holds an image, or names a file, as of :func:`cleanpairs.data.images.resolve_path`."""
    with suppress(DataError, OSError):
        return embedded(path) is not None or resolve_path(path, folder, table_folder).is_file()
    return False


def _link_remedy(path: str, folder: Path) -> str:
    """The remedy for an image that is a link out of the folder. Empty where it is no such link."""
    try:
        resolve_path(path, folder)
    except DataError as error:
        return str(error).partition("; ")[2]
    return ""
