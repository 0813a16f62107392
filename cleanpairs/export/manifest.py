"""The manifest of an export: it lists the files, to find them again and to notice changes."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import cleanpairs
from cleanpairs.core import DataError, read_json, reading, sha256_of
from cleanpairs.core.regular import AnyPath
from cleanpairs.data import Source, remember_user_path
from cleanpairs.data.formats.remote import location
from cleanpairs.data.recorded import check_inside

# Input rows in memory at once: a row may hold an image of many megabytes.
BATCH_ROWS = 128
CARD = "README.md"  # the dataset card in a directory, where the hub looks for it
# Names of the files that hold the rows of a directory, in any of the formats. Lance has more than one kind.
STORED = (
    r"\d{5,}\.(tar|parquet)|data-\d{5,}\.arrow"
    r"|data/[^/]+\.lance|_versions/[^/]+\.(manifest|json)|_transactions/[^/]+\.txn"
)


def manifest_of(out: str | Path) -> Path:
    """The path of the manifest of the cleaned file ``out``."""
    out = Path(out)
    out = out if out.name else out.absolute()  # "." has no name
    return out.parent / f"{out.name}.manifest.json"


def write_manifest(
    path: Path, files: dict[str, tuple[Path, Path, int | None]], parts: Mapping[str, int], source: Source, **noted: Any
) -> None:
    """Write the role, rows, bytes and SHA-256 of every file of an export.

    - ``files``: role (out, dropped, ledger, card) -> (final path, present path, rows or None). Paths are noted
      as seen from the folder of ``out``, so that the files may be moved together. Of a directory every file in it
    - ``parts``: of a directory: file name -> rows, where a file holds any
    - ``noted``: what else is noted: ``format``, ``counts`` and ``threshold``
    """
    entries, home = {}, files["out"][0].parent
    inputs = [location(path) for path in source.files]
    for role, (target, staged, rows) in files.items():
        if target.parent != home:
            remember_user_path(target)  # so that `verify` and `restore` may follow the manifest there
        inside = sorted(p for p in staged.rglob("*") if p.is_file()) if staged.is_dir() else [staged]
        for file in inside:
            file_rows = rows if file == staged else parts.get(file.name)
            entry = {
                "role": "card" if file.name == CARD and file != staged else role,
                **({} if file_rows is None else {"rows": file_rows}),
                "sha256": sha256_of(file),
                "bytes": file.stat().st_size,
            }
            entries[os.path.relpath(target / file.relative_to(staged), home)] = entry
    manifest = {
        **noted,
        "files": entries,
        "fingerprint": source.fingerprint,
        "input": {"paths": [path if "://" in path else os.path.relpath(path, home) for path in inputs]},
        "versions": {
            "python": platform.python_version(),
            "cleanpairs": cleanpairs.__version__,
            "pyarrow": pa.__version__,
        },
    }
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Part:
    """A file of an export, by its entry in the manifest. ``rows`` is None where it holds none of its own."""

    path: Path
    role: str
    sha256: str
    bytes: int
    rows: int | None

    def difference(self, contents: bool = True) -> str:
        """How the file differs from the manifest, by size or SHA-256. Empty where it does not."""
        with reading(self.path):
            size = self.path.stat().st_size
            if size != self.bytes:
                return f"{size:,} bytes, not {self.bytes:,}"
            if contents and (digest := sha256_of(self.path)) != self.sha256:
                return f"SHA-256 {digest[:12]}..., not {self.sha256[:12]}..."
        return ""


def read_manifest(out: Path) -> tuple[dict[str, Any], list[Part]]:
    """The contents of the manifest of ``out``, and the files that it lists. Raises DataError: it is none."""
    manifest = manifest_of(out)
    with reading(manifest, "read as the manifest of an export", ValueError, KeyError, TypeError, AttributeError):
        noted = dict(read_json(manifest))
        parts = [
            Part(
                out.parent / name, str(entry["role"]), str(entry["sha256"]), int(entry["bytes"]),
                int(entry["rows"]) if "rows" in entry else None,
            )
            for name, entry in noted["files"].items()
        ]  # fmt: skip
        noted["format"], noted["counts"] = str(noted["format"]), {k: int(n) for k, n in noted["counts"].items()}
        noted["inputs"] = tuple(out.parent / path for path in noted.get("input", {}).get("paths", ()))
    return noted, parts


@dataclass(frozen=True)
class Exported:
    """The files of an export, and of its input. ``parts`` are those of ``out``."""

    out: Path
    manifest: Path
    ledger: Part
    parts: tuple[Part, ...]
    format: str
    inputs: tuple[Path, ...]

    def check(self, *files: Part, contents: bool = True) -> None:
        """Raise :class:`DataError` if one of the ``files`` is not what was written: by its size, and by its SHA-256."""
        for file in files:
            if how := file.difference(contents):
                what = f"is not the file that {self.manifest.name} describes ({how})"
                raise DataError(f"{file.path} {what}: it was edited after the export, or cut short; export again")


def check_name(out: Path, manifest: Path, parts: Sequence[Part]) -> None:
    """Raise :class:`DataError` where the cleaned data among ``parts`` has another name than ``out``."""
    for path in (part.path for part in parts if part.role == "out"):
        if path != out and out not in path.parents:
            raise DataError(f"{manifest} describes {path.name}, and not {out.name}: give the export its name back")


def open_export(out: AnyPath, ledger: AnyPath | None = None) -> Exported:
    """The files of the export whose cleaned file is ``out``. They are there, but their contents are not checked.

    Raises DataError: a file is missing, or the manifest cannot be read or names no ledger.
    """
    out = Path(out)
    manifest = manifest_of(out)
    if not out.exists():
        raise DataError(f"there is no file {out}; name the cleaned file of `cleanpairs export`")
    if not manifest.exists():
        raise DataError(f"{out} has no {manifest.name} next to it: it is no export, or was moved without its manifest")
    noted, listed = read_manifest(out)
    parts, ledgers = ([part for part in listed if part.role == role] for role in ("out", "ledger"))
    if not parts or not ledgers:
        raise DataError(f"{manifest} names no cleaned data, or no ledger: export again")
    noted_ledger = ledgers[0]
    home = (out.parent, out)
    for part in parts:
        check_inside(part.path, home, manifest, "export again")
    check_name(out, manifest, parts)
    if ledger is None:
        check_inside(noted_ledger.path, home, manifest, "name the ledger with --ledger")
    else:
        noted_ledger = replace(noted_ledger, path=Path(ledger))
    if not (path := noted_ledger.path).is_file():
        raise DataError(f"there is no ledger {path}, which {out} needs; name it with --ledger")
    return Exported(out, manifest, noted_ledger, tuple(parts), noted["format"], noted["inputs"])
