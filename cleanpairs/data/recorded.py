"""Inputs that a run, a plan or a manifest names: that file may be a stranger's.

Inputs that the user has named, in a command or a call on this machine, are noted in the cache directory, and a file may
name them too. Any other is opened only if its files are local, with images at or below the folder of the data. A URL,
the hub or another image root is refused, unless it is trusted. All are as they were recorded, by their fingerprints.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cleanpairs.core import CleanpairsError, ConfigError, DataError, check_settings
from cleanpairs.core.recipe import DataOptions
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.readers import open_source
from cleanpairs.data.source import Source, cache_dir, cache_folder

TRUST = "--trust-stored-paths"


def remember_user_path(data: str | Path, options: Mapping[str, Any] | None = None) -> None:
    """Remember, in the cache directory, that the user has named this input (or file) with these options."""
    note = _note(str(data), options or {})
    with suppress(OSError, CleanpairsError):
        if not note.exists():
            cache_folder("named")
            write_whole(note, json.dumps([str(data), dict(options or {})], default=str) + "\n")


def with_absolute_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an input as files record them: paths are absolute, as other commands have other directories."""
    arrays: Any = (".npy", ".txt", ".parquet")  # else it is a column
    ends = {"train": "", "val": "", "data": "", "image_root": "", "text_vectors": arrays, "captions": arrays}
    paths = {n: str(v) for n, v in options.items() if v and n in ends and str(v).endswith(ends[n])}
    return {**options, **{name: str(Path(path).absolute()) for name, path in paths.items() if "://" not in path}}


def _note(data: str, options: Mapping[str, Any]) -> Path:
    root = options.get("image_root")
    what = [
        data if "://" in data else os.path.abspath(data),
        None if root is None else os.path.abspath(root),
        bool(options.get("allow_urls")),
        *(str(name) for name in _files(with_absolute_paths(options))),
    ]
    return cache_dir() / "named" / hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _files(options: Mapping[str, Any]) -> list[Any]:
    """The files that are read in addition to the data."""
    return [options[name] for name in ("text_vectors", "captions") if options.get(name) is not None]


def check_recorded(data: Any, options: Any, file: str | Path, *, trusted: bool = False) -> bool:
    """Whether ``data`` may be read with any ``options``, as ``file`` records. False: locally only. Raises DataError:
    they are not what a file records. ConfigError: a URL, or the hub, that the user has not named.
    """
    wrong = DataError(f"{file} does not say which data it is of, as it was written: {data!r:.100} {options!r:.200}")
    if not isinstance(data, str) or not isinstance(options, Mapping) or {"train", "val"} & options.keys():
        raise wrong
    try:
        check_settings(str(file), DataOptions(**options))
    except (TypeError, ConfigError) as error:
        raise wrong from error
    if trusted or _note(data, options).exists():
        return True
    if urls := [name for name in (data, *_files(options)) if "://" in name]:
        raise ConfigError(
            f"{file} names the data {urls[0]!r:.200}, which would be fetched, and nobody has named it here: a "
            f"stranger's file may name anything. Fetch it yourself, or give {TRUST} if you know who made the file"
        )
    return False


def open_recorded(
    data: Any, options: Any, fingerprint: str | None, file: str | Path, *, trusted: bool = False
) -> Source:
    """The input that ``file`` records, with its ``fingerprint``.

    Raises ConfigError: the user has not named its URL, or its image root, which is not at or below the folder of the
    data. DataError: as :func:`cleanpairs.data.open_source`, or it has changed.
    """
    named = check_recorded(data, options, file, trusted=trusted)
    source = open_source(data, **options)
    root = options.get("image_root")
    if root is not None and not (named or (source.paths and all(_below(root, Path(p).parent) for p in source.paths))):
        raise ConfigError(
            f"{file} has images read from {root!r:.200}, which is not at or below the folder of the data, and nobody "
            f"has named it here: a stranger's file may name anything. Give {TRUST} if you know who made the file"
        )
    if source.fingerprint != fingerprint:
        raise DataError(f"{file} was made for other data: {data} has another fingerprint. Fit, or plan, again")
    return source


def check_inside(path: Path, folders: tuple[Path, ...], file: str | Path, remedy: str) -> None:
    """Raise :class:`DataError` where ``path``, links followed, is in none of ``folders`` and was not named here."""
    if not any(_below(path, folder) for folder in folders) and not _note(str(path), {}).exists():
        raise DataError(f"{file} names {str(path)!r:.200}, which is outside of its folder: {remedy}")


def _below(path: str | Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
