"""An export opened again: the cleaned file, the manifest beside it and the ledger, and whether they are as written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cleanpairs.errors import DataError
from cleanpairs.export.files import manifest_of, sha256_of

__all__ = ["Exported", "open_export"]


@dataclass(frozen=True)
class Exported:
    """The files of an export, and what its manifest says of ``out`` (SHA-256, bytes) and ``ledger`` (SHA-256)."""

    out: Path
    manifest: Path
    ledger: Path
    out_sha256: str
    ledger_sha256: str
    out_bytes: int

    def check_out(self) -> None:
        """Raise :class:`DataError` if the cleaned file is not the one that was written."""
        _check(self.out, self.out_sha256, self.manifest)

    def check_size(self) -> None:
        """As :meth:`check_out`, but by the file's size only: at once, for what does not read it."""
        found = self.out.stat().st_size
        if found != self.out_bytes:
            raise _changed(self.out, self.manifest, f"{found:,} bytes, not {self.out_bytes:,}")

    def check_ledger(self) -> None:
        """Raise :class:`DataError` if the ledger is not the one that was written."""
        _check(self.ledger, self.ledger_sha256, self.manifest)


def open_export(out: str | Path, ledger: str | Path | None = None) -> Exported:
    """The files of the export whose cleaned file is ``out``; they are there, but their contents are not checked.

    Parameters
    ----------
    out : path
    ledger : path, optional
        Where the ledger is now; where the manifest says when None.

    Raises
    ------
    DataError
        A file is missing, or the manifest cannot be read or names no ledger.
    """
    out = Path(out)
    manifest = manifest_of(out)
    if not out.is_file():
        raise DataError(f"there is no file {out}; name the cleaned file of `cleanpairs export`")
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        roles = {
            entry["role"]: (str(name), str(entry["sha256"]), int(entry["bytes"]))
            for name, entry in entries.items()
            if "role" in entry
        }
    except FileNotFoundError as error:
        raise DataError(
            f"{out} has no {manifest.name} beside it: it is no export of cleanpairs, or it was moved or renamed "
            "without its manifest; bring them together"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{manifest} cannot be read as the manifest of an export: {error}") from error
    if "out" not in roles or "ledger" not in roles:
        raise DataError(f"{manifest} names no ledger: the export was made by an earlier version; export again")
    name, ledger_sha256, _ = roles["ledger"]
    path = out.parent / name if ledger is None else Path(ledger)
    if not path.is_file():
        raise DataError(f"there is no ledger {path}, without which {out} tells nothing; say where it is by --ledger")
    return Exported(out, manifest, path, roles["out"][1], ledger_sha256, roles["out"][2])


def _check(path: Path, wanted: str, manifest: Path) -> None:
    try:
        found = sha256_of(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if found != wanted:
        raise _changed(path, manifest, f"SHA-256 {found[:12]}..., not {wanted[:12]}...")


def _changed(path: Path, manifest: Path, how: str) -> DataError:
    return DataError(
        f"{path} is not the file that {manifest.name} describes ({how}): it was edited after the export, or an export "
        "over it was cut short; bring the exported file back, or export again"
    )
