"""What a path holds, and the check for it."""

from pathlib import Path

from cleanpairs.commands.run import SCORES_SCHEMA
from cleanpairs.core.errors import DataError
from cleanpairs.data.parquet_io import open_parquet, parquet_files
from cleanpairs.export.manifest import manifest_of
from cleanpairs.verification.exports import verify_export
from cleanpairs.verification.findings import Verification
from cleanpairs.verification.runs import verify_model, verify_run
from cleanpairs.verification.tables import check_scores, read_pages

_MANIFEST = ".manifest.json"


def kind_of(path: Path) -> str:
    """``export``, ``run``, ``model``, ``parquet`` (a file) or ``directory`` (of Parquet files).

    Raises DataError: there is nothing, or nothing that can be verified.
    """
    if path.name.endswith(_MANIFEST) or manifest_of(path).is_file():
        return "export"
    if not path.exists():
        raise DataError(f"there is no {path}: name an export, a run, a model or a Parquet file")
    if path.is_dir():
        if (path / "run.json").exists():
            return "run"
        if (path / "config.json").exists():
            return "model"
        if parquet_files(path):
            return "directory"
        raise DataError(
            f"{path} holds no run.json (a run), no config.json (a model) and no Parquet, and no {path.name}{_MANIFEST} "
            "lies beside it (an export): nothing that could be verified"
        )
    if path.suffix in (".parquet", ".pq"):
        return "parquet"
    raise DataError(f"{path} is no Parquet file, and no {path.name}{_MANIFEST} lies beside it: it cannot be verified")


def verify_path(path: str | Path, data: str | Path | None = None) -> Verification:
    """Check an export (its cleaned data, or the manifest), a run, a model or Parquet, by what it says of itself.

    ``data``: the input of an export, to compare every value with; found by itself in the export's folder or below.
    Raises DataError: there is nothing at ``path`` that could be verified.
    """
    path = Path(path)
    kind = kind_of(path)
    findings = Verification(path, kind)
    if kind == "export":
        out = path.with_name(path.name.removesuffix(_MANIFEST)) if path.name.endswith(_MANIFEST) else path
        with findings.section(f"{out.name}{_MANIFEST}: a manifest", manifest_of(out)):
            verify_export(out, findings, data)
    elif kind == "run":
        verify_run(path.resolve(), findings)  # runs/latest is a link
    elif kind == "model":
        verify_model(path, findings)
    else:
        for file in [path] if kind == "parquet" else [Path(p) for p in parquet_files(path)]:
            _verify_parquet(file, findings)
    return findings


def _verify_parquet(path: Path, findings: Verification) -> None:
    with findings.section(f"{path.name}: pages", path):
        rows = read_pages(path, findings)
    if rows is None:
        return
    with open_parquet(str(path)) as file:
        schema = file.schema_arrow
        groups = range(file.metadata.num_row_groups)
        findings.notes += [f"{path.name}: {rows:,} rows, {len(groups)} row groups, {len(schema)} columns"]
    if schema.names[: len(SCORES_SCHEMA)] == SCORES_SCHEMA.names:
        with findings.section(f"{path.name}: a scores table, one row a pair, ranges", path):
            check_scores(path, findings)
