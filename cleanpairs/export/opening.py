"""An export opened again: the cleaned file, the manifest beside it and the ledger, and whether they are as written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_json, reading
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.files import manifest_of, sha256_of


@dataclass(frozen=True)
class Part:
    """A file of the cleaned data, and what the manifest says of it."""

    path: Path
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Exported:
    """The files of an export, and what its manifest says of them; ``parts`` are those of ``out``."""

    out: Path
    manifest: Path
    ledger: Path
    ledger_sha256: str
    parts: tuple[Part, ...]
    format: str

    def check_out(self) -> None:
        """Raise :class:`DataError` if the cleaned data is not what was written."""
        for part in self.parts:
            _check(part.path, part.sha256, self.manifest)

    def check_size(self) -> None:
        """As :meth:`check_out`, but by the files' sizes only: at once, for what does not read them."""
        for part in self.parts:
            with reading(part.path):
                found = part.path.stat().st_size
            if found != part.bytes:
                raise _changed(part.path, self.manifest, f"{found:,} bytes, not {part.bytes:,}")

    def check_ledger(self) -> None:
        """Raise :class:`DataError` if the ledger is not the one that was written."""
        _check(self.ledger, self.ledger_sha256, self.manifest)


def open_export(out: str | Path, ledger: str | Path | None = None) -> Exported:
    """The files of the export whose cleaned file is ``out``; they are there, but their contents are not checked.

    ``ledger``: where the ledger is now; where the manifest says when None.
    Raises DataError: a file is missing, or the manifest cannot be read or names no ledger.
    """
    out = Path(out)
    manifest = manifest_of(out)
    if not out.exists():
        raise DataError(f"there is no file {out}; name the cleaned file of `cleanpairs export`")
    try:
        noted = read_json(manifest)
        roles: dict[str, list[Part]] = {}
        for name, entry in noted["files"].items():
            if "role" not in entry:
                continue
            part = Part(out.parent / name, str(entry["sha256"]), int(entry["bytes"]))
            roles.setdefault(str(entry["role"]), []).append(part)
        kind = str(noted.get("format", "parquet"))  # manifests before there were others do not say
    except FileNotFoundError as error:
        raise DataError(
            f"{out} has no {manifest.name} beside it: it is no export of cleanpairs, or it was moved or renamed "
            "without its manifest; bring them together"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{manifest} cannot be read as the manifest of an export: {error}") from error
    if "out" not in roles or "ledger" not in roles:
        raise DataError(f"{manifest} names no ledger: the export was made by an earlier version; export again")
    home = (out.parent, out)
    for part in roles["out"]:
        check_inside(part.path, home, manifest, "export again")
    path = roles["ledger"][0].path if ledger is None else Path(ledger)
    if ledger is None:
        check_inside(path, home, manifest, "say where the ledger is by --ledger")
    if not path.is_file():
        raise DataError(f"there is no ledger {path}, without which {out} tells nothing; say where it is by --ledger")
    return Exported(out, manifest, path, roles["ledger"][0].sha256, tuple(roles["out"]), kind)


def _check(path: Path, wanted: str, manifest: Path) -> None:
    with reading(path):
        found = sha256_of(path)
    if found != wanted:
        raise _changed(path, manifest, f"SHA-256 {found[:12]}..., not {wanted[:12]}...")


def _changed(path: Path, manifest: Path, how: str) -> DataError:
    return DataError(
        f"{path} is not the file that {manifest.name} describes ({how}): it was edited after the export, or an export "
        "over it was cut short; bring the exported file back, or export again"
    )
