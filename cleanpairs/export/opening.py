"""An export opened again: the cleaned file, the manifest beside it and the ledger, and whether they are as written."""

from dataclasses import dataclass, replace
from pathlib import Path

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_json, reading
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.files import manifest_of, sha256_of


@dataclass(frozen=True)
class Part:
    """A file of an export, and what the manifest says of it."""

    path: Path
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Exported:
    """The files of an export; ``parts`` are those of ``out``."""

    out: Path
    manifest: Path
    ledger: Part
    parts: tuple[Part, ...]
    format: str

    def check(self, *files: Part, contents: bool = True) -> None:
        """Raise :class:`DataError` if one of the ``files`` is not what was written: by its size, and by its SHA-256."""
        for file in files:
            with reading(file.path):
                size = file.path.stat().st_size
                digest = sha256_of(file.path) if contents and size == file.bytes else file.sha256
            if size != file.bytes or digest != file.sha256:
                how = f"SHA-256 {digest[:12]}..., not {file.sha256[:12]}..."
                how = how if size == file.bytes else f"{size:,} bytes, not {file.bytes:,}"
                raise DataError(
                    f"{file.path} is not the file that {self.manifest.name} describes ({how}): it was edited after the "
                    "export, or an export over it was cut short; bring the exported file back, or export again"
                )


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
    noted_ledger = roles["ledger"][0]
    if ledger is None:
        check_inside(noted_ledger.path, home, manifest, "say where the ledger is by --ledger")
    else:
        noted_ledger = replace(noted_ledger, path=Path(ledger))
    if not (path := noted_ledger.path).is_file():
        raise DataError(f"there is no ledger {path}, without which {out} tells nothing; say where it is by --ledger")
    return Exported(out, manifest, noted_ledger, tuple(roles["out"]), kind)
