"""What surrounds an export: what donors lend, fetched beforehand, and the manifest."""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

import cleanpairs
from cleanpairs.core.regular import sha256_of
from cleanpairs.data import Source, iter_tables, note_named
from cleanpairs.export.donors import StoredRows
from cleanpairs.export.layout import IMAGE_ROLES, TEXT_ROLES

# Input rows in memory at once: a row may hold an image of many megabytes.
BATCH_ROWS = 128
DONOR_ROWS = 2048  # where only columns of images or vectors are read; readers give fewer where they are large

CARD = "README.md"  # the dataset card in a directory, where the hub looks for it


def donor_columns(source: Source, folder: Path, *, images: np.ndarray, texts: np.ndarray) -> dict[str, StoredRows]:
    """What some input rows lend to others, by column, in mapped files in ``folder``, for other processes, too.

    ``images``, ``texts`` (k,) int64: input rows, rising, each once. Of the first the images and their vectors are kept,
    of the second the vectors of the captions; the input is read once for each, and not at all where there are no rows
    or no such columns.
    """
    stored: dict[str, StoredRows] = {}
    for name, rows, roles in (("images", images, IMAGE_ROLES), ("texts", texts, TEXT_ROLES)):
        columns = [source.columns[role] for role in roles if role in source.columns]
        if len(rows) and columns:
            batches = iter_tables(source, batch_rows=DONOR_ROWS, columns=columns)
            stored |= dict.fromkeys(columns, StoredRows.collect(folder / f"{name}.arrow", batches, rows))
    return stored


def manifest_of(out: str | Path) -> Path:
    """Where the manifest of the cleaned file ``out`` is."""
    out = Path(out)
    return out.with_name(out.name + ".manifest.json")


def write_manifest(
    path: str | Path,
    *,
    format: str,
    files: Mapping[str, tuple[Path, Path, int | None]],
    parts: Mapping[str, int],
    counts: Mapping[str, int],
    source: Source,
    threshold: float,
) -> None:
    """Write what an export left: of every file its role, rows, bytes and SHA-256.

    - ``files``: role (out, dropped, ledger, card) -> (final path, where it is now, its rows or None). The final paths
      are noted as seen from the folder of ``out``, so that the files may be moved together. Of a directory every file
      in it is noted, its README.md as the card
    - ``parts``: of a directory: file name -> rows, where a file holds any
    - ``source``: its fingerprint is noted, and what finds the same rows again
    """
    entries, home = {}, files["out"][0].parent
    for role, (target, where, rows) in files.items():
        if target.parent != home:
            note_named(target)  # so that `verify` and `restore` may follow the manifest there
        inside = sorted(p for p in where.rglob("*") if p.is_file()) if where.is_dir() else [where]
        for file in inside:
            held = rows if file == where else parts.get(file.name)
            entry = {
                "role": "card" if file.name == CARD and file != where else role,
                **({} if held is None else {"rows": held}),
                "sha256": sha256_of(file),
                "bytes": file.stat().st_size,
            }
            entries[os.path.relpath(target / file.relative_to(where), home)] = entry
    manifest = {
        "format": format,
        "files": entries,
        "counts": dict(counts),
        "fingerprint": source.fingerprint,
        "input": {
            "kind": source.kind,
            "paths": [os.path.relpath(path, home) for path in source.paths],
            "columns": dict(source.columns),
            "rows": source.n_rows,
            "image_root": source.image_root,
            "explicit_lists": source.explicit_lists,
            "options": dict(source.options),
        },
        "threshold": threshold,
        "versions": {
            "python": platform.python_version(),
            "cleanpairs": cleanpairs.__version__,
            "pyarrow": pa.__version__,
        },
    }
    Path(path).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
