"""A repair plan carried out on the input: a cleaned Parquet file, the dropped pairs, and a ledger that adds up.

The input is read again, in batches, and never touched. All files are written beside their targets; they are published
only when every pair is accounted for, the cleaned file last: what a reader finds is the old output or the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanpairs.data import Pairs, ParquetSink, fingerprint_of, iter_tables, staged_file
from cleanpairs.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.export.files import BATCH_ROWS, DonorParts, manifest_of, write_manifest
from cleanpairs.export.layout import WRITTEN, Layout
from cleanpairs.export.ledger import Ledger, input_schema
from cleanpairs.plan import RepairPlan, part_sources, truth_after

__all__ = ["ExportSummary", "export_pairs"]

NO_IMAGE_IN_LIST = "the image of a row with a list of captions cannot be replaced: export with explode"


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote: the counts add up to ``pairs``; ``rows`` are those of the cleaned file.

    ``files`` maps out, manifest, dropped (if written) and ledger to their paths; ``renamed`` maps columns of the input
    that gave way to an added column to their new names.
    """

    pairs: int
    kept: int
    rematched_text: int
    rematched_image: int
    recaptioned: int
    dropped: int
    quarantined: int
    rows: int
    files: Mapping[str, Path]
    renamed: Mapping[str, str]

    def __str__(self) -> str:
        written = f"{self.recaptioned:,} with a caption written for it, " if self.recaptioned else ""
        lines = [
            f"{self.pairs:,} pairs in: {self.kept:,} kept, {self.rematched_text:,} with a new caption, "
            f"{self.rematched_image:,} with a new image, {written}{self.dropped:,} dropped, "
            f"{self.quarantined:,} quarantined",
            f"{self.rows:,} rows out: {self.files['out']}",
            *(f"{name}: {path}" for name, path in self.files.items() if name != "out"),
            *(f"column {old!r} of the input is now {new!r}" for old, new in self.renamed.items()),
        ]
        return "\n".join(lines)


def export_pairs(
    pairs: Pairs,
    plan: RepairPlan,
    out: str | Path,
    *,
    dropped: str | Path | None = None,
    ledger: str | Path | None = None,
    explode: bool = False,
    overwrite: bool = False,
    extra_columns: Mapping[str, np.ndarray | pa.Array] | None = None,
) -> ExportSummary:
    """Write the kept and repaired pairs as Parquet.

    Parameters
    ----------
    pairs : Pairs
        As they were read from the input, which must not have changed since.
    plan : RepairPlan
        For these pairs.
    out : path
        Parquet, in the order of the input. All columns of the input, and: ``correspondence`` float32 (before the
        repair), ``action`` (keep, rematch_text, rematch_image, recaption), ``original_caption`` (null where the caption
        is the original one), ``source_key`` (whose caption or image it is; null where its own, or written for it),
        ``repair_score`` float32.
        A new caption stands in the text column; a new image in the image and the feature column; the row's key and
        other columns stay, but for ``true_mismatch`` and ``true_key``, which follow the repair. A row with a list of
        captions stays one row: wrong captions are taken out or replaced and the added columns are lists that run along
        the captions; a row without captions left is dropped. Images of such rows cannot be replaced: those pairs are
        dropped. Beside it comes ``<out>.manifest.json``: rows, bytes and SHA-256 of every file, the counts, the input's
        fingerprint, versions.
    dropped : path, optional
        Parquet of the dropped and quarantined pairs, one a row: the input's columns, ``pair_id``, ``correspondence``,
        ``action``, ``reason``.
    ledger : path, optional
        ``<out>.ledger.parquet`` when None. Parquet with every input pair exactly once, in order: ``pair_id``, ``key``,
        ``row`` and ``position`` in the input, ``action``, ``correspondence``, ``repair_score``, ``source_pair_id``,
        ``source_key``, ``original_caption``, ``new_caption`` (null unless replaced), ``reason``, ``out_row`` (null
        unless written). For an input in Parquet also ``original_row`` with the values of the input that the cleaned
        file does not hold, and ``original_columns`` with their names, in the line of each row's first pair:
        :func:`cleanpairs.export.restore_export` needs these, and the images of dropped pairs are among them.
    explode : bool
        Rows with lists of captions become one row a pair, with a string in the text column.
    overwrite : bool
        Replace files that exist.
    extra_columns : mapping of str to (N,) array, optional
        More columns, one value a pair.

    Returns
    -------
    ExportSummary

    Raises
    ------
    ConfigError
        Two outputs with one name, or an extra column that is not (N,).
    DataError
        The plan is not for this data, or the input has changed since it was read.
    OutputExistsError
        An output exists and ``overwrite`` is not given, or is the input.
    OutputError
        An output cannot be written.
    CleanpairsError
        The counts do not add up. Nothing is published then.
    """
    plan.check_for(pairs)
    targets = _targets(Path(out), dropped, ledger)
    one_row_a_pair = explode or not pairs.source.explicit_lists
    decided = _decided(plan.table, one_row_a_pair)
    extra = pa.table({k: _column(v, len(pairs), k) for k, v in (extra_columns or {}).items()})
    _refuse_changed_input(pairs)
    with ExitStack() as publish:  # leaves in the opposite order: out is renamed last
        staged = {
            name: publish.enter_context(staged_file(path, overwrite=overwrite, inputs=pairs.source.paths))
            for name, path in targets.items()
        }
        new_image = np.array(pc.equal(decided["action"], "rematch_image"), bool)
        donor_rows = pairs.row[part_sources(decided)[1][new_image]]
        roles = [pairs.source.columns[role] for role in ("image", "features") if role in pairs.source.columns]
        with DonorParts.collect(pairs.source, donor_rows, roles) as parts:
            written = _write(pairs, decided, extra, one_row_a_pair, parts, staged)
        counts = _check_counts(pairs, decided, written, staged)
        _refuse_changed_input(pairs)
        write_manifest(
            staged["manifest"],
            files={name: (targets[name], staged[name], rows) for name, rows in written.rows.items()},
            counts=counts,
            fingerprint=pairs.source.fingerprint,
            threshold=plan.threshold,
        )
    return ExportSummary(**counts, rows=written.rows["out"], files=targets, renamed=written.renamed)


@dataclass(frozen=True)
class _Written:
    """Rows of each file, pairs of each action, the renamed columns, and whether a row is one pair."""

    rows: dict[str, int]
    actions: Counter[str]
    renamed: dict[str, str]
    one_row_a_pair: bool


def _write(
    pairs: Pairs,
    decided: pa.Table,
    extra: pa.Table,
    one_row_a_pair: bool,
    parts: DonorParts,
    staged: Mapping[str, Path],
) -> _Written:
    """Stream the input into the staged files."""
    text_from, image_from = part_sources(decided)
    donor_row = pairs.row[image_from]
    after = truth_after(pairs, text_from, image_from, np.array(pc.equal(decided["action"], "recaption"), bool))
    truth = pa.table({} if after is None else {"true_mismatch": after.mismatch, "true_key": after.key})
    rows = {name: 0 for name in staged if name != "manifest"}
    actions: Counter[str] = Counter()
    layout: Layout | None = None
    ledger: Ledger | None = None
    first = 0
    with ExitStack() as files:
        sinks: dict[str, ParquetSink] = {}
        for table in iter_tables(pairs.source, batch_rows=BATCH_ROWS):
            if layout is None or ledger is None:
                known = tuple(name for name in truth.column_names if name in table.schema.names)
                schema = input_schema(pairs.source, table.schema)
                layout = Layout(pairs.source, schema, one_row_a_pair, extra.schema, known)
                ledger = Ledger(pairs, layout)
                schemas = {"out": layout.out_schema, "dropped": layout.dropped_schema, "ledger": ledger.schema}
                sinks = {name: files.enter_context(ParquetSink(staged[name], schemas[name])) for name in rows}
            table = table.select(layout.schema.names)  # the next file may have another order
            lo, hi = np.searchsorted(pairs.row, [first, first + len(table)])
            slice_, more, true = (t.slice(lo, hi - lo) for t in (decided, extra, truth))
            local = pairs.row[lo:hi] - first
            batch = layout.out(table, slice_, more, true, local, parts, donor_row[lo:hi])
            written = {"out": batch.table, "ledger": ledger.lines(table, slice_, batch, local, rows["out"])}
            if "dropped" in sinks:
                written["dropped"] = layout.dropped(table, slice_, true, local)
            for name, part in written.items():
                sinks[name].write(part)
                rows[name] += len(part)
            actions.update(slice_["action"].to_pylist())
            first += len(table)
    return _Written(rows, actions, layout.renamed if layout else {}, one_row_a_pair)


def _decided(table: pa.Table, one_row_a_pair: bool) -> pa.Table:
    """The plan as it can be carried out: a row that keeps its list of captions has one image for all of them."""
    if one_row_a_pair:
        return table
    impossible = pc.equal(table["action"], "rematch_image")
    changes = {"action": "drop", "reason": NO_IMAGE_IN_LIST}
    nulls = ("donor_pair_id", "donor_key", "caption", "repair_score", "margin", "confidence", "donor_use")
    for name in (*changes, *nulls):
        kind = table.schema.field(name).type
        value = pa.scalar(changes.get(name), kind)
        table = table.set_column(table.schema.get_field_index(name), name, pc.if_else(impossible, value, table[name]))
    return table


def _check_counts(pairs: Pairs, decided: pa.Table, written: _Written, staged: Mapping[str, Path]) -> dict[str, int]:
    """The counts of an export whose files agree with them, and with the input.

    Raises
    ------
    CleanpairsError
        If a pair is missing or too many anywhere.
    """
    actions = written.actions
    counts = {
        "pairs": len(pairs),
        "kept": actions["keep"],
        "rematched_text": actions["rematch_text"],
        "rematched_image": actions["rematch_image"],
        "recaptioned": actions["recaption"],
        "dropped": actions["drop"],
        "quarantined": actions["quarantine"],
    }
    left = np.isin(np.array(decided["action"].to_pylist(), object), WRITTEN)
    row = pairs.row[left]
    wanted = {
        "out": len(row) if written.one_row_a_pair else len(np.unique(row)),
        "dropped": counts["dropped"] + counts["quarantined"],
        "ledger": len(pairs),
    }
    if sum(counts.values()) != 2 * len(pairs):
        raise CleanpairsError(
            f"export accounted for {sum(actions.values())} of {len(pairs)} pairs; nothing is published"
        )
    for name, count in written.rows.items():
        in_file = pq.read_metadata(staged[name]).num_rows
        if not count == in_file == wanted[name]:
            raise CleanpairsError(
                f"export wrote {count} rows to {name}, the file has {in_file}, there should be {wanted[name]}; "
                "nothing is published"
            )
    return counts


def _refuse_changed_input(pairs: Pairs) -> None:
    if fingerprint_of(pairs.source) != pairs.source.fingerprint:
        raise DataError(
            f"the input {', '.join(pairs.source.paths)} has changed since it was read: read it, score it and plan again"
        )


def _targets(out: Path, dropped: str | Path | None, ledger: str | Path | None) -> dict[str, Path]:
    """Final paths in the reverse of the order in which they are published."""
    targets = {"out": out, "manifest": manifest_of(out)}
    if dropped is not None:
        targets["dropped"] = Path(dropped)
    targets["ledger"] = out.with_name(out.name + ".ledger.parquet") if ledger is None else Path(ledger)
    seen: dict[Path, str] = {}
    for name, path in targets.items():
        whole = path.resolve()
        if whole in seen:
            raise ConfigError(f"{seen[whole]} and {name} would both be {path}: give each its own path")
        seen[whole] = name
    return targets


def _column(values: np.ndarray | pa.Array, n: int, name: str) -> pa.Array:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    if len(column) != n:
        raise ConfigError(f"extra column {name!r} must have one value a pair ({n}), got {len(column)}")
    return column
