"""A repair plan carried out on the input: the cleaned data, the dropped pairs, and a ledger that adds up.

The input is read again, in batches, and never touched. All files are written beside their targets; they are published
only when every pair is accounted for, the cleaned data last: what a reader finds is the old output or the new one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputExistsError
from cleanpairs.core.regular import read_json
from cleanpairs.data import Pairs, ParquetSink, Source, fingerprint_of, iter_tables, staged_set
from cleanpairs.data.atomic import scratch_directory
from cleanpairs.data.guard import refuse_foreign, refuse_unless
from cleanpairs.data.table_reader import ParquetReader
from cleanpairs.data.writing import Sink
from cleanpairs.engine import Engine, Partition, make_engine, remove_job
from cleanpairs.export.card import CardFacts, dataset_card
from cleanpairs.export.decisions import Decisions, PlanFile, PlanInMemory
from cleanpairs.export.donors import donor_columns
from cleanpairs.export.formats import FORMATS, Output, ParquetOutput, choose_format
from cleanpairs.export.layout import Layout
from cleanpairs.export.ledger import REVERSIBLE, Ledger, input_schema
from cleanpairs.export.manifest import CARD, manifest_of, write_manifest
from cleanpairs.export.partitions import ExportWork
from cleanpairs.repair.actions import ActionCounts, count_actions
from cleanpairs.repair.plan import RepairPlan, check_data, counted

PARTS = ".parts"  # behind the output's name: the folder of its parts
TRUTH = ("true_mismatch", "true_key")  # follow the repairs by who else has which caption: that takes all pairs at once


# What the formats that are directories put into them.
OURS = re.compile(rf"\d{{5,}}\.(tar|parquet)|data-\d{{5,}}\.arrow|dataset_info\.json|state\.json|{re.escape(CARD)}")


def refuse_changed_input(source: Source) -> None:
    """Raise :class:`DataError` if the input is not as it was read."""
    if fingerprint_of(source) != source.fingerprint:
        raise DataError(
            f"the input {', '.join(source.files)} has changed since it was read: read it, score it and plan again"
        )
    if source.original is not None:
        refuse_changed_input(source.original)


def refuse_foreign_directory(out: Path) -> None:
    """Raise :class:`OutputExistsError` if ``out`` is there and no export: replacing it would delete what is in it.

    Names are compared, not the manifest's list: after a kill between two renames that may be of the other export.
    """
    if not out.is_dir() or out.is_symlink():
        return  # what else it may be is for the staging to refuse
    refuse_foreign(out, OURS)
    if any(out.iterdir()) and not manifest_of(out).is_file():
        raise OutputExistsError(
            f"{out} exists, and there is no {manifest_of(out).name} beside it: it is no export of cleanpairs and is "
            "not replaced; name another directory"
        )


def output_paths(
    out: Path, directory: bool, *, dropped: str | Path | None, ledger: str | Path | None, card: str | Path | None
) -> dict[str, Path]:
    """Role -> final path, in the reverse of the order in which they are published.

    Raises ConfigError: two have one path, or one lies in the directory ``out``, which is renamed as a whole;
    OutputExistsError: where the manifest or the ledger goes by default, there is something else.
    """
    targets = {"out": out, "manifest": manifest_of(out)}
    if dropped is not None:
        targets["dropped"] = Path(dropped)
    if card is not None:
        targets["card"] = Path(card)
    targets["ledger"] = out.with_name(out.name + ".ledger.parquet") if ledger is None else Path(ledger)
    seen: dict[Path, str] = {}
    for name, path in targets.items():
        whole = path.resolve()
        if whole in seen:
            raise ConfigError(f"{seen[whole]} and {name} would both be {path}: give each its own path")
        if directory and name != "out" and whole.is_relative_to(out.resolve()):
            raise ConfigError(f"{name} would be {path}, in the output {out}, which is written as a whole: name another")
        seen[whole] = name
    refuse_unless(lambda path: {"files", "counts"} <= read_json(path).keys(), targets["manifest"], "export's")
    if ledger is None:
        refuse_unless(lambda p: {"pair_id", "action"} <= set(pq.read_schema(p).names), targets["ledger"], "export's")
    return targets


@dataclass(frozen=True)
class ExportSummary(ActionCounts):
    """What an export wrote: ``rows`` of cleaned data; ``files``: role -> path, of out, manifest, ledger, dropped and
    card; ``renamed``: columns of the input that gave way to an added one -> their new names.
    """

    rows: int
    files: Mapping[str, Path]
    renamed: Mapping[str, str]
    format: str = "parquet"

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


@dataclass(frozen=True)
class ExportSettings:
    """What an export writes beside the cleaned data, and how; see :func:`export_pairs`.

    - ``dropped``: Parquet of the dropped and quarantined pairs, one a row: the input's columns, ``pair_id``,
      ``correspondence``, ``action``, ``reason``
    - ``ledger``: see :mod:`cleanpairs.export.ledger`; ``<out>.ledger.parquet`` when None
    - ``explode``: rows with lists of captions become one row a pair, with a string in the text column
    - ``format``: a name of :data:`cleanpairs.export.formats.FORMATS`; what the suffix of ``out`` says when None. A uid
      list holds no captions: pairs that were to be repaired are dropped
    - ``shard_size``: samples to a tar of webdataset; 10,000 when None
    - ``card``: where the dataset card goes. A directory always has one, as its README.md
    - ``about``: what the card tells beyond the export itself
    """

    dropped: str | Path | None = None
    ledger: str | Path | None = None
    card: str | Path | None = None
    format: str | None = None
    shard_size: int | None = None
    explode: bool = False
    overwrite: bool = False
    about: CardFacts | None = None


def export_pairs(
    pairs: Pairs, plan: RepairPlan, out: str | Path, *, engine: Engine | None = None, **settings: Any
) -> ExportSummary:
    """Write the kept and repaired pairs.

    - ``pairs``: as they were read from the input, which must not have changed since
    - ``out``: in the order of the input: all columns of the input, in which captions, images and what was computed from
      them follow the repair, and ``correspondence`` float32 (before the repair), ``action`` (keep, rematch_text,
      rematch_image, recaption), ``original_caption`` (null where the caption is the original one), ``source_key``
      (whose caption or image it is; null where its own, or written for it), ``repair_score`` float32; for a plan of
      plausible repairs ``sample_weight`` float32, for training: 1 for a kept pair, ``confidence`` for a repaired one,
      which is null where undetermined. A row with a list of captions stays one row, and the added columns are lists;
      images of such rows cannot be replaced: those pairs are dropped. Beside it comes ``<out>.manifest.json``
    - ``engine``: who does the work; this process when None. The parts that other processes write lie in ``OUT.parts``
      until all are there: an export that was killed goes on from those that are finished
    - ``**settings``: of :class:`ExportSettings`, by their names

    Raises ConfigError: two outputs with one name, or a format that cannot hold this input; DataError: the plan is not
    for this data, or the input has changed since it was read; OutputExistsError; OutputError; CleanpairsError: the
    counts do not add up. Nothing is published then.
    """
    export = _Export(pairs.source, out, ExportSettings(**settings))
    decisions = PlanInMemory(plan, pairs, export.one_row_a_pair, export.format.selection)
    refuse_changed_input(pairs.source)
    return export.run(decisions, engine)


def streams(source: Source, format: str) -> bool:
    """Whether rows of the input are exported one by one; else by way of others, so that all pairs are held."""
    known = () if source.kind != "parquet" else ParquetReader().schema(source).names
    selects = FORMATS.load(format).selection
    return source.kind == "parquet" and not (selects or source.explicit_lists or set(known) & {*TRUTH})


def export_file(
    plan: PlanFile, source: Source, out: str | Path, settings: ExportSettings, engine: Engine | None = None
) -> ExportSummary:
    """As :func:`export_pairs`, of a plan and an input that :func:`streams`: they are read side by side, in memory that
    does not grow with the rows.
    """
    check_data(plan.head, plan.pairs, source.fingerprint, source.n_rows)
    return _Export(source, out, settings).run(plan, engine)


def check_export(source: Source, out: str | Path, settings: ExportSettings) -> None:
    """Raise where an export of the input could not be written so, as :func:`export_pairs` does, but before there is a
    plan: ConfigError, OutputExistsError.
    """
    export = _Export(source, out, settings)
    with scratch_directory("check") as folder:
        path = folder / "out"
        if export.format.directory:
            path.mkdir()
        with export.output(path, Layout(source, export.schema(), export.one_row_a_pair)):
            pass


@dataclass(frozen=True)
class Written:
    """Rows of each output, and of the files of a directory; pairs of each action."""

    rows: Mapping[str, int]
    actions: Counter[str]
    parts: Mapping[str, int]


class _Export:
    """One input, and where its cleaned data goes."""

    def __init__(self, source: Source, out: str | Path, settings: ExportSettings) -> None:
        self.source, self.settings = source, settings
        self.name, self.out = choose_format(out, settings.format)
        self.format: type[Output] = FORMATS.load(self.name)
        self.output: Callable[[Path, Layout], Output] = self.format
        if settings.shard_size is not None:
            if self.name != "webdataset" or settings.shard_size < 1:
                raise ConfigError(
                    f"--shard-size is a number of samples to a tar of webdataset, at least 1: found "
                    f"{settings.shard_size}, and the format {self.name}"
                )
            self.output = partial(self.format, shard_rows=settings.shard_size)
        self.one_row_a_pair = settings.explode or not source.explicit_lists
        if self.format.directory and settings.card is not None:
            raise ConfigError(f"{self.out} is a directory and has its card in it, as {CARD}: leave --card out")
        if self.format.directory and settings.overwrite:
            refuse_foreign_directory(self.out)
        self.targets = output_paths(
            self.out, self.format.directory, dropped=settings.dropped, ledger=settings.ledger, card=settings.card
        )

    def run(self, plan: Decisions, engine: Engine | None) -> ExportSummary:
        """Write the files, count what is in them, and publish."""
        source, settings, engine = self.source, self.settings, engine or make_engine("local")
        layout, parts = self._layout(plan), self.out.with_name(self.out.name + PARTS)
        with staged_set() as outputs:  # renamed in the opposite order: out is the last
            staged: dict[str, Path] = {}
            for role, path in self.targets.items():
                stage = outputs.directory if role == "out" and self.format.directory else outputs.file
                staged[role] = Path(stage(path, overwrite=settings.overwrite, inputs=source.inputs))
            scan = plan.scan()
            roles = tuple(role for role in ("out", "ledger", "dropped") if role in staged)
            near = self.out.absolute().parent if engine.remote else None  # where other machines see it
            with scratch_directory("donors", near) as folder:
                lent = donor_columns(source, folder, images=scan.image_donors, texts=scan.text_donors)
                work = ExportWork(source, plan, layout, lent, roles)
                whole = Partition(0, 0, source.n_rows)
                batches = work.by(engine, parts, settings.overwrite) if engine.remote else work.tables(whole)
                written = self._write(batches, layout, staged)
            counts = {"pairs": plan.pairs, **count_actions(written.actions)}
            self._check(written, counts, scan.written, staged)
            refuse_changed_input(source)
            self._describe(plan.head, layout, written, counts, staged)
        if engine.remote:  # now that their whole is in place
            remove_job(parts)
        return ExportSummary(
            **counts, rows=written.rows["out"], files=self.targets, renamed=layout.renamed, format=self.name
        )

    def _write(self, batches: Iterable[dict[str, pa.Table]], layout: Layout, staged: Mapping[str, Path]) -> Written:
        """Write the rows of all files, batch by batch."""
        schemas = {"ledger": Ledger(layout).schema, "dropped": layout.dropped_schema}
        place, actions = schemas["ledger"].get_field_index("out_row"), Counter[str]()
        with ExitStack() as files:
            out = files.enter_context(self.output(staged["out"], layout))
            sinks: dict[str, Sink] = {"out": out}
            for role in schemas.keys() & staged.keys():
                sinks[role] = files.enter_context(ParquetSink(staged[role], schemas[role]))
            rows = dict.fromkeys(sinks, 0)
            for tables in batches:
                lines = tables["ledger"]
                tables["ledger"] = lines.set_column(place, "out_row", pc.add(lines["out_row"], rows["out"]))
                for role, table in tables.items():
                    sinks[role].write(table)
                    rows[role] += len(table)
                actions.update(counted(lines["action"]))
        return Written(rows, actions, out.parts)

    def schema(self) -> pa.Schema:
        """The input's columns."""
        return input_schema(self.source, next(iter_tables(self.source, batch_rows=1)).schema)

    def _layout(self, plan: Decisions) -> Layout:
        schema = self.schema()
        weighted = plan.head.settings.get("repairs") == "plausible"
        known = plan.truth.column_names if isinstance(plan, PlanInMemory) else ()
        truth = tuple(name for name in known if name in schema.names)
        return Layout(self.source, schema, self.one_row_a_pair, truth, weighted)

    def _check(self, written: Written, counts: Mapping[str, int], out: int, staged: Mapping[str, Path]) -> None:
        """Raise :class:`CleanpairsError` if a pair is missing or too many: in the counts, or in what is on disk."""
        found = sum(counts.values()) - counts["pairs"]
        if found != counts["pairs"]:
            raise CleanpairsError(f"export accounted for {found} of {counts['pairs']} pairs; nothing is published")
        wanted = {"out": out, "ledger": counts["pairs"], "dropped": counts["dropped"] + counts["quarantined"]}
        for role, rows in written.rows.items():
            counting = self.format if role == "out" else ParquetOutput
            on_disk = counting.count(staged[role])
            if not rows == on_disk == wanted[role]:
                raise CleanpairsError(
                    f"export wrote {rows} rows to {role}, the file has {on_disk}, there should be {wanted[role]}; "
                    "nothing is published"
                )

    def _describe(
        self, head: RepairPlan, layout: Layout, written: Written, counts: Mapping[str, int], staged: Mapping[str, Path]
    ) -> None:
        """The card and the manifest."""
        if self.format.directory or "card" in staged:
            text = dataset_card(
                name=self.out.name,
                format=self.name,
                loads=self.format.loads,
                shards=sum(part.endswith(".tar") for part in written.parts),
                counts=counts,
                rows=written.rows["out"],
                plan=head,
                restorable=self.name in REVERSIBLE,
                about=self.settings.about or CardFacts(),
            )
            where = staged["out"] / CARD if self.format.directory else staged["card"]
            where.write_text(text, encoding="utf-8")
        described = [role for role in self.targets if role != "manifest"]
        write_manifest(
            staged["manifest"],
            format=self.name,
            files={role: (self.targets[role], staged[role], written.rows.get(role)) for role in described},
            parts=written.parts,
            counts=counts,
            source=self.source,
            threshold=head.threshold,
        )
