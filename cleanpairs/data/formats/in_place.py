"""Parquet in an object store, read where it lies: only the ranges of bytes that a reader asks for are fetched.

A small file in the cache directory stands for it, so that whatever takes the path of a file takes this one too: a JSON
object of its URL, its size and its mark (ETag, time of change), by which it is known whether it is still the same. One
that lies anywhere else is no such file: a stranger's data cannot make this machine ask the network.
"""

import json
import os
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular
from cleanpairs.data.source import cache_dir

FOLDER = "remote"  # of the cache directory
_BEGIN = '{"in place": '
_MARKS = ("ETag", "etag", "generation", "LastModified", "last_modified", "mtime", "created", "updated")


def mark_of(about: dict[str, Any]) -> str:
    """By which a file is known to be as it was, of what fsspec tells about it; empty where it tells too little."""
    known = [str(about[name]) for name in _MARKS if about.get(name) is not None]
    return "|".join([str(about.get("size")), *known]) if known else ""


def url_of(url: str, path: str) -> str:
    """The URL of a ``path`` in the file system of another URL."""
    return f"{url.split('://', 1)[0]}://{path.lstrip('/')}"


def stand_in(url: str, path: str, about: dict[str, Any]) -> bytes:
    """What the file holds that stands for ``path`` in the file system of ``url``."""
    what = {"url": url, "path": path, "size": about["size"], "mark": mark_of(about)}
    return f"{_BEGIN}{json.dumps(what)}}}\n".encode()


def _told(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Of the file that a local one stands for; None where that is an ordinary file."""
    name = os.path.abspath(path)
    if os.path.dirname(os.path.dirname(name)) != os.path.abspath(cache_dir() / FOLDER):
        return None
    with open_regular(name) as file:
        begin = file.read(len(_BEGIN))
        if begin != _BEGIN.encode():
            return None
        told: dict[str, Any] = json.loads(begin + file.read())["in place"]
    return told


def location(path: str) -> str:
    """Where the contents of a file are: its URL, or its path as it is."""
    told = _told(path) if os.path.isfile(path) else None
    return path if told is None else url_of(told["url"], told["path"])


def bytes_of(path: str) -> int:
    """Bytes of a file, or of the one that it stands for."""
    told = _told(path)
    return Path(path).stat().st_size if told is None else int(told["size"])


def open_remote(path: str) -> Any:
    """The file that a local one stands for, open, nothing read ahead; None where that is an ordinary file.

    Raises DataError: it has changed, or is gone; whatever its file system raises: it cannot be reached.
    """
    told = _told(path)
    if told is None:
        return None
    import fsspec

    try:
        system, _ = fsspec.core.url_to_fs(told["url"])
        system.invalidate_cache(told["path"])
        if mark_of(system.info(told["path"])) != told["mark"]:
            raise DataError(f"{location(path)} has changed since it was opened: run the command again")
        return system.open(told["path"], "rb", cache_type="none")
    except FileNotFoundError as error:
        raise DataError(f"{location(path)} is not there any more") from error
