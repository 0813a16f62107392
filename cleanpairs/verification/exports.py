"""Checks of an export: its files by the manifest, its pages, its counts, and every pair exactly once in its ledger."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

from cleanpairs.core import DataError, plural, reading
from cleanpairs.data.parquet_io import common_schema, read_table
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.formats import FORMATS
from cleanpairs.export.ledger import LEDGER_SCHEMA, LedgerNote
from cleanpairs.export.manifest import Part, check_name, manifest_of, read_manifest
from cleanpairs.repair.actions import ACTIONS, COUNTED, WRITTEN, acted
from cleanpairs.repair.plan import counted
from cleanpairs.verification.findings import Verification, check_schema, read_pages


def verify_export(out: Path, findings: Verification) -> None:
    """Check the export whose cleaned data is ``out``, by the manifest beside it."""
    manifest = manifest_of(out)
    noted, parts = read_manifest(out)
    kind, counts = noted["format"], Counter[str](noted["counts"])  # a count that a manifest lacks is 0
    # The Parquet beside a tar holds the same rows again.
    beside_tars = any(part.path.suffix == ".tar" and part.rows is not None for part in parts)
    rows = Counter[str]()
    for part in parts:
        check_inside(part.path, (out.parent, out), manifest, "bring the files together, and export again")
        if not (part.role == "out" and part.path != out and beside_tars and part.path.suffix != ".tar"):
            rows[part.role] += part.rows or 0
        _check_file(part, manifest, findings)
    check_name(out, manifest, parts)
    roles = {part.role: part.path for part in parts if part.role != "out" or part.path == out}
    names = {part.path for part in parts}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p not in names):
        findings.wrong(path, f"is in the directory, and not in {manifest.name}: it would be read as a part of it")
    _check_counts(out, manifest, kind, rows, counts, findings)
    if "ledger" not in roles:
        findings.wrong(manifest, "names no ledger: export again")
    elif roles["ledger"].is_file():
        checked = f"every pair exactly once in {roles['ledger'].name}"
        with findings.section(checked, roles["ledger"]), suppress(DataError):  # page by page this is reported already
            _check_ledger(out, roles["ledger"], rows, counts, findings)


def _check_file(part: Part, manifest: Path, findings: Verification) -> None:
    path, name = part.path, os.path.relpath(part.path, manifest.parent)
    if not path.is_file():
        findings.wrong(path, f"is missing, and {manifest.name} lists it")
        return
    with findings.section(f"{name}: {part.bytes:,} bytes, SHA-256", path):
        if how := part.difference():
            findings.wrong(path, f"is not the file that {manifest.name} describes ({how}): damaged, cut or edited")
    if path.suffix == ".parquet":
        with findings.section(f"{name}: pages", path):
            pages = read_pages(path, findings)
            if pages is not None and part.rows is not None and pages != part.rows:
                findings.wrong(path, f"has {plural(pages, 'row')}, not the {part.rows:,} of {manifest.name}")


def _check_counts(
    out: Path, manifest: Path, kind: str, rows: Counter[str], counts: Counter[str], findings: Verification
) -> None:
    pairs = counts["pairs"]
    with findings.section(f"rows add up: {plural(pairs, 'pair')}, {plural(rows['out'], 'row')} out", manifest):
        total = sum(counts[name] for name in COUNTED)
        if total != pairs:
            findings.wrong(manifest, f"the counts add up to {total:,}, and the pairs are {pairs:,}")
        if "ledger" in rows and rows["ledger"] != pairs:
            findings.wrong(manifest, f"the ledger counts {rows['ledger']:,}, and the manifest {pairs:,}")
        gone = counts["dropped"] + counts["quarantined"]
        if "dropped" in rows and rows["dropped"] != gone:
            findings.wrong(manifest, f"the dropped file counts {rows['dropped']:,}, and the manifest {gone:,}")
        if kind not in FORMATS:
            findings.wrong(manifest, f"the format {kind!r} is none of {', '.join(FORMATS)}")
        elif out.exists() and kind != "parquet":  # of a Parquet file the rows were read, page by page
            with reading(out, f"read as {kind}", Exception):  # libraries raise anything for a damaged file
                on_disk = FORMATS.load(kind).count(out)
            if on_disk != rows["out"]:
                findings.wrong(out, f"has {plural(on_disk, 'row')}, not the {rows['out']:,} of {manifest.name}")


def _check_ledger(out: Path, path: Path, rows: Counter[str], counts: Counter[str], findings: Verification) -> None:
    if not check_schema(path, common_schema([str(path)]), LEDGER_SCHEMA, findings):
        return
    note = None
    with findings.section(f"{path.name}: its note of the input", path):
        note = LedgerNote.read(path)
    if note is None:
        return
    table = read_table(path, ["pair_id", "row", "action", "out_row"])
    pairs = len(table)
    by_action = counted(table["action"])
    for unknown in sorted(str(a) for a in by_action if a not in ACTIONS):
        findings.wrong(path, f"holds the action {unknown!r}, which is none", "column 'action'")
    for name, which in COUNTED.items():
        if by_action[which] != counts[name]:
            difference = f"has {by_action[which]:,} of {which!r}, and the manifest {counts[name]:,}"
            findings.wrong(path, difference, "column 'action'")
    numbers = table.select(["pair_id", "row", "out_row"]).columns
    pair, row, out_row = (np.asarray(column.fill_null(-1).to_numpy(), np.int64) for column in numbers)
    if (pair != np.arange(pairs)).any():
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    written = acted(table, WRITTEN)
    what = "has to be there exactly for the pairs that are written"
    findings.wrong_rows(path, "out_row", (out_row >= 0) != written, what)
    columns = ("row", row, note.rows, "the input"), ("out_row", out_row[written], rows["out"], out.name)
    for name, at, n, of in columns:
        steps = np.diff(at, prepend=-1)
        if ((steps < 0) | (steps > 1)).any() or (at[-1] + 1 if len(at) else 0) != n:
            findings.wrong(path, f"does not lead in order through {of}, of {plural(n, 'row')}", f"column {name!r}")
