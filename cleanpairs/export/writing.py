"""Carries out a repair plan on the input, which is read again in batches. All files are written beside their targets,
and published only when every pair is accounted for, the cleaned data last.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import cleanpairs
from cleanpairs.core import check_whole, current_progress, plural, read_json, reading, refuse_unknown, writing
from cleanpairs.core.errors import CleanpairsError, ConfigError, OutputExistsError
from cleanpairs.data import Pairs, ParquetSink, Source, refuse_changed_input, staged_set
from cleanpairs.data.atomic import StagedSet, scratch_directory
from cleanpairs.data.columns import TRUTH
from cleanpairs.data.guard import holds, refuse_foreign, require_own_file
from cleanpairs.data.readers import load_pairs, reader_of
from cleanpairs.data.writing import Sink
from cleanpairs.engine import Engine, Partition, make_engine, plan_partitions, remove_job, run_partitions
from cleanpairs.export.croissant import croissant
from cleanpairs.export.csv_format import CsvSink
from cleanpairs.export.decisions import Decisions, PlanInMemory
from cleanpairs.export.formats import FORMATS, Output, choose_format
from cleanpairs.export.layout import IMAGE_ROLES, TEXT_ROLES, Layout, StoredRows, donor_columns
from cleanpairs.export.ledger import Ledger
from cleanpairs.export.manifest import BATCH_ROWS, CARD, STORED, manifest_of, write_manifest
from cleanpairs.export.pushing import CardFacts, dataset_card
from cleanpairs.ops.columns import filtered, with_columns
from cleanpairs.repair.actions import DUPLICATE, NEW_CAPTION, REASONS, ActionCounts, count_actions, why_none_is_repaired
from cleanpairs.repair.plan import RepairPlan, counted


def _refuse_types(schema: pa.Schema) -> None:
    """Raise :class:`ConfigError` if there is a column that Parquet cannot hold: the ledger has its old values."""
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowNotImplementedError as error:
            what = f"column {field.name!r} is {field.type}, which Parquet cannot hold"
            raise ConfigError(f"{what}, and the ledger is Parquet: leave it out of the input") from error


def _refuse_foreign_directory(out: Path) -> None:
    """Raise :class:`OutputExistsError` if ``out`` is there and no export: replacing it would delete what is in it."""
    if not out.is_dir() or out.is_symlink():
        return  # the staging refuses anything else
    refuse_foreign(out, re.compile(rf"{STORED}|dataset_info\.json|state\.json|{re.escape(CARD)}"))
    if holds(out) and not manifest_of(out).is_file():
        raise OutputExistsError(f"{out} exists, with no {manifest_of(out).name} next to it: name another directory")


def _output_paths(out: Path, directory: bool, settings: "ExportSettings") -> dict[str, Path]:
    """Role -> final path, in the reverse of the order in which they are published. ConfigError, OutputExistsError."""
    targets = {"out": out, "manifest": manifest_of(out)}
    targets |= {role: Path(path) for role in ("dropped", "card") if (path := getattr(settings, role)) is not None}
    default = out.with_name(out.name + ".ledger.parquet")
    targets["ledger"] = default if settings.ledger is None else Path(settings.ledger)
    seen: dict[Path, str] = {}
    for name, path in targets.items():
        resolved = path.resolve()
        if resolved in seen:
            raise ConfigError(f"{seen[resolved]} and {name} would both be {path}: give each its own path")
        if directory and name != "out" and resolved.is_relative_to(out.resolve()):
            raise ConfigError(f"{name} would be {path}, in the output {out}, which is written as a whole: name another")
        seen[resolved] = name
    require_own_file(targets["manifest"], lambda path: {"files", "counts"} <= read_json(path).keys())
    if settings.ledger is None:
        require_own_file(targets["ledger"], lambda p: {"pair_id", "action"} <= set(pq.read_schema(p).names))
    return targets


@dataclass(frozen=True)
class ExportSummary(ActionCounts):
    """The counts and the files of an export.

    - ``rows``: rows of cleaned data
    - ``files``: role -> path. The roles are out, manifest, ledger, dropped and card
    - ``renamed``: columns of the input that gave way to an added one -> their new names
    - ``reasons``: why pairs were dropped -> how many
    - ``image_root``: see :meth:`cleanpairs.export.layout.Layout.paths_from`
    - ``joined``: see :class:`cleanpairs.data.Source`
    """

    rows: int
    files: Mapping[str, Path]
    renamed: Mapping[str, str]
    reasons: Mapping[str, int]
    format: str = "parquet"
    image_root: Path | None = None
    joined: str | None = None

    def __str__(self) -> str:
        written = f"{self.recaptioned:,} with a caption written for it, " if self.recaptioned else ""
        lines = [
            f"{plural(self.pairs, 'pair')} in: {self.kept:,} kept, {self.rematched_text:,} with a new caption, "
            f"{self.rematched_image:,} with a new image, {written}{self.dropped:,} dropped, "
            f"{self.quarantined:,} quarantined",
            *filter(None, [why_none_is_repaired(self.reasons, uids=self.format == "uids") * (not self.repaired)]),
            *(f"near duplicates of better pairs: {n:,} dropped" for n in [self.reasons.get(REASONS[DUPLICATE])] if n),
            f"{plural(self.rows, 'uid' if self.format == 'uids' else 'row')} out: {self.files['out']}",
            *(f"{name}: {path}" for name, path in self.files.items() if name != "out"),
            *(f"column {a!r} of the input is now {b!r}" for a, b in self.renamed.items() if self.format != "uids"),
            *(f"only {j!r} has the new captions, not the columns joined into it" for j in [self.joined] if j),
            *(f"images are paths: read them with --image-root {shlex.quote(str(r))}" for r in [self.image_root] if r),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class ExportSettings:
    """The outputs of an export besides the cleaned data, and their format. See :func:`export_pairs`.

    - ``dropped``: the dropped and quarantined pairs, one a row: Parquet, or CSV where it is named so. ``ledger``: see
      :mod:`cleanpairs.export.ledger`. By default ``<out>.ledger.parquet``
    - ``explode``: rows with lists of captions become one row a pair, with a string in the text column
    - ``all_captions``: with a column of that name, see :class:`cleanpairs.export.layout.Layout`
    - ``format``: of :data:`cleanpairs.export.formats.FORMATS`. By default of the suffix of ``out``. Pairs that
      were to be repaired are dropped from a uid list
    - ``shard_size``: samples to a tar of webdataset. 10,000 when None
    - ``card``: where the dataset card goes, which a directory always has as its README.md. ``about``: its facts.
      A name that ends in .json gets Croissant metadata instead
    """

    dropped: str | Path | None = None
    ledger: str | Path | None = None
    card: str | Path | None = None
    format: str | None = None
    shard_size: int | None = None
    explode: bool = False
    all_captions: bool = False
    overwrite: bool = False
    about: CardFacts | None = None


def export_pairs(
    pairs: Any, plan: RepairPlan, out: str | Path, *, engine: Engine | None = None, **settings: Any
) -> ExportSummary:
    """Write the kept and repaired pairs.

    Parameters
    ----------
    pairs : Pairs or data
        As :func:`cleanpairs.load_pairs` takes them. The input must not have changed since they were read.
    plan : RepairPlan
        What becomes of each pair.
    out : str or Path
        The rows, in the order of the input. Beside it comes ``<out>.manifest.json``.
    engine : Engine, optional
        Who does the work. The default is this process. The parts that other processes write lie in ``OUT.parts`` until
        all are there. An export that was killed resumes from the finished ones.
    **settings
        Settings of :class:`ExportSettings`, by their names.

    Returns
    -------
    ExportSummary
        The counts and the files.

    Raises
    ------
    ConfigError
        Two outputs have one name, or the format cannot hold this input.
    DataError
        The plan is not for this data, or the input has changed.
    OutputExistsError, OutputError
        An output exists, or cannot be written.
    CleanpairsError
        The counts do not add up.

    Notes
    -----
    The input's columns come first. Captions, images and what was computed from them follow the repair. Added columns:

    - ``correspondence`` float32: before the repair
    - ``action``: keep, rematch_text, rematch_image or recaption
    - ``original_caption``: null where the caption is the original one
    - ``source_key``: key of the pair whose caption or image it is. Null where it is its own, or was written for it
    - ``repair_score`` float32
    - ``sample_weight`` float32, for a plan of plausible repairs: 1 for a kept pair, ``confidence`` for a repaired one,
      null where undetermined

    A row with a list of captions stays one row, and the added columns are lists. Pairs of such rows that need another
    image are dropped. If it raises, nothing is published.
    """
    refuse_unknown("export_pairs", settings, ExportSettings.__dataclass_fields__)
    if not isinstance(plan, RepairPlan):
        what = type(plan).__name__
        raise ConfigError(f"export_pairs takes a RepairPlan, not {what}: rematch makes one, RepairPlan.load reads one")
    pairs = load_pairs(pairs)
    export = Export(pairs.source, out, ExportSettings(**settings))
    decisions = export.decisions(plan, pairs)
    refuse_changed_input(pairs.source)
    return export.run(lambda _: decisions, engine)


@dataclass(frozen=True)
class ExportWork:
    """The rows of a partition's outputs, a :class:`cleanpairs.engine.work.Work`. A part has an Arrow stream for each
    batch of input rows and each of the ``roles`` (out, ledger and perhaps dropped). ``donor_values``: by column.
    """

    plan: Decisions
    layout: Layout
    donor_values: Mapping[str, StoredRows]
    roles: tuple[str, ...]
    batch_rows, partition_rows = 2048, 65_536  # larger batches of Parquet do not fit the processor's cache

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        with writing(path), path.open("wb") as part:
            for tables in self.tables(partition):
                for role in self.roles:
                    with pa.ipc.new_stream(part, tables[role].schema) as stream:
                        stream.write_table(tables[role])
        return {}

    def tables(self, partition: Partition) -> Iterator[dict[str, pa.Table]]:
        """By role the rows that each batch becomes. The ledger's ``out_row`` counts from the batch's first."""
        layout, ledger = self.layout, Ledger(self.layout)
        for decided in self.plan.decided(self._batches(partition), partition):
            out, out_row = layout.out(decided, self.donor_values)
            tables = {"out": out, "ledger": ledger.lines(decided, out_row)}
            if "dropped" in self.roles:
                tables["dropped"] = layout.dropped(decided)
            yield tables

    def by(self, engine: Engine, folder: Path, overwrite: bool) -> Iterator[dict[str, pa.Table]]:
        """As :meth:`tables` of the whole input, from parts in ``folder`` that the engine's workers write."""
        layout, source = self.layout, self.layout.source
        cut = [Partition(0, 0, source.n_rows)]  # what is no Parquet is read from its beginning
        if source.kind == "parquet":
            cut = plan_partitions(reader_of(source).row_groups(source), source.n_rows, target=self.partition_rows)
        kind = [layout.one_row_a_pair, layout.weighted, layout.all_captions, layout.schema.names, self.roles]
        job = json.dumps([cleanpairs.__version__, source.fingerprint, self.plan.digest, kind])
        run_partitions(self, cut, folder, job=job, engine=engine, overwrite=overwrite)
        for partition in cut:
            with reading(folder / partition.name, "read again", pa.ArrowException):
                part = pa.memory_map(str(folder / partition.name))
                while part.tell() < part.size():
                    yield {role: pa.ipc.open_stream(part).read_all() for role in self.roles}

    def _batches(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        source, names = self.layout.source, self.layout.schema.names
        large = {source.columns.get(role) for role in (*IMAGE_ROLES, *TEXT_ROLES)} & set(names)
        parquet = source.kind == "parquet"
        part = (partition.first, partition.rows) if parquet else ()  # what is no Parquet is one partition
        size = BATCH_ROWS if large and not parquet else self.batch_rows
        for rows in reader_of(source).batches(source, size, names, *part):
            yield pa.RecordBatch.from_arrays([rows.batch.column(n) for n in names], schema=self.layout.schema)


class Export:
    """An export that can be made: its outputs have different paths, and its format can hold the input.

    Raises as :func:`export_pairs`, before there is a plan.
    """

    def __init__(self, source: Source, out: str | Path, settings: ExportSettings) -> None:
        self.source, self.settings = source, settings
        self.name, self.out = choose_format(out, settings.format)
        self.format: type[Output] = FORMATS.load(self.name)
        self.output: Callable[[Path, Layout], Output] = self.format
        if settings.shard_size is not None:
            check_whole("export", "shard_size", settings.shard_size, 1)
            if self.name != "webdataset":
                raise ConfigError(f"--shard-size is of the tars of webdataset, and the format is {self.name}")
            self.output = partial(self.format, shard_rows=settings.shard_size)
        if settings.all_captions and self.format.selection:
            raise ConfigError("--captions all (all_captions) adds a column, and a list of uids has none: leave it out")
        self.one_row_a_pair = settings.explode or not source.explicit_lists
        self.croissant = settings.card is not None and Path(settings.card).suffix == ".json"
        if self.format.directory and settings.card is not None and not self.croissant:
            raise ConfigError(f"{self.out} is a directory and has its card in it, as {CARD}: leave --card out")
        self.license = (settings.about or CardFacts()).license
        if self.license is not None and settings.card is None and not self.format.directory:
            raise ConfigError("the licence (--license) is for the card, and there is none: give --card FILE, too")
        if self.format.directory and settings.overwrite:
            _refuse_foreign_directory(self.out)
        self.targets = _output_paths(self.out, self.format.directory, settings)
        self.schema: pa.Schema = reader_of(source).schema(source)
        if self.format.selection:  # vectors and images are not read
            unread = {source.columns.get(role) for role in (*IMAGE_ROLES, *TEXT_ROLES)}
            self.schema = pa.schema([field for field in self.schema if field.name not in unread])
        _refuse_types(self.schema)
        with scratch_directory("check") as folder:
            if self.format.directory:
                (folder / self.out.name).mkdir()
            layout = Layout(source, self.schema, self.one_row_a_pair, all_captions=settings.all_captions)
            self.output(folder / self.out.name, layout).abandon()
            if settings.dropped is not None and self._sink_of("dropped") is CsvSink:
                CsvSink(folder / self.targets["dropped"].name, layout.dropped_schema).abandon()

    @property
    def streams(self) -> bool:
        """Whether each row of the input is written without the others. Else all pairs are in memory."""
        plain = self.source.kind == "parquet" and not self.source.explicit_lists and not self.format.selection
        return plain and set(TRUTH).isdisjoint(self.schema.names)

    def decisions(self, plan: RepairPlan, pairs: Pairs) -> PlanInMemory:
        """The decisions of a plan about the pairs. Raises DataError: it is for others."""
        return PlanInMemory(plan, pairs, self.one_row_a_pair, self.format.selection)

    def run(self, decide: Callable[[StagedSet], Decisions], engine: Engine | None = None) -> ExportSummary:
        """Write the outputs. ``decide`` makes the plan when they are known to be writable, and may add an output."""
        source, settings, engine = self.source, self.settings, engine or make_engine("local")
        parts = self.out.with_name(self.out.name + ".parts")
        with staged_set() as outputs:  # renamed in the opposite order: out is the last
            how: dict[str, Any] = {"overwrite": settings.overwrite, "inputs": source.inputs}
            staged = {"out": outputs.add(self.out, directory=self.format.directory, **how)}
            staged |= {role: outputs.add(path, **how) for role, path in self.targets.items() if role != "out"}
            plan = decide(outputs)
            truth = tuple(name for name in plan.truth.column_names if name in self.schema.names)
            weighted = plan.head.settings.get("repairs") == "plausible"
            repeats = plan.head.settings.get("repeats", 1)
            if repeats > 1 and not self.format.selection:
                raise ConfigError(f"repeats (--set repeats={repeats}) is of uid lists (.npy): leave it out")
            layout = Layout(source, self.schema, self.one_row_a_pair, truth, weighted, settings.all_captions, repeats)
            out_rows, texts, images = plan.scan()
            roles = tuple(role for role in ("out", "ledger", "dropped") if role in staged)
            near = self.out.absolute().parent if engine.remote else None  # where other machines see it
            with scratch_directory("donors", near) as folder:
                donor_values = donor_columns(source, folder, images=images, texts=texts)
                work, whole = ExportWork(plan, layout, donor_values, roles), Partition(0, 0, source.n_rows)
                batches = work.by(engine, parts, settings.overwrite) if engine.remote else work.tables(whole)
                sinks, actions, reasons, named = self._write(batches, layout, staged, plan)
            counts = {"pairs": plan.pairs, **count_actions(actions)}
            _check(sinks, counts, out_rows)
            refuse_changed_input(source)
            if self.croissant:
                text = croissant(self.out, staged["out"], self.targets["card"].parent, layout.out_schema, self.license)
                staged["card"].write_text(text, encoding="utf-8")
            self._write_card_and_manifest(plan.head, sinks, counts, staged)
        if engine.remote:  # the whole is in place now
            remove_job(parts)
        return ExportSummary(
            **counts, rows=sinks["out"].rows, files=self.targets, renamed=layout.renamed, reasons=reasons,
            format=self.name, image_root=layout.paths_from(self.name, self.out.parent, named),
            joined=source.joined if actions.keys() & NEW_CAPTION else None,
        )  # fmt: skip

    def _write(
        self, batches: Iterable[dict[str, pa.Table]], layout: Layout, staged: Mapping[str, Path], plan: Decisions
    ) -> tuple[dict[str, Sink], Counter[str], Counter[str], bool]:
        """Write all files, batch by batch. Return what wrote them, by role, the pairs of each action, the dropped ones
        of each reason, and whether images are paths (:meth:`Layout.names_files`).

        The ledger notes the model that wrote captions for the ``plan``.
        """
        schema, recaption = Ledger(layout).schema, plan.head.settings.get("recaption")
        if recaption is not None:
            schema = schema.with_metadata({**schema.metadata, b"cleanpairs.recaption": json.dumps(recaption)})
        schemas = {"ledger": schema, "dropped": layout.dropped_schema}
        actions, reasons, named = Counter[str](), Counter[str](), False
        with ExitStack() as files:
            sinks: dict[str, Sink] = {"out": files.enter_context(self.output(staged["out"], layout))}
            for role in schemas.keys() & staged.keys():
                sinks[role] = files.enter_context(self._sink_of(role)(staged[role], schemas[role]))
            for tables in batches:
                lines, named = tables["ledger"], named or layout.names_files(tables["out"])
                tables["ledger"] = with_columns(lines, {"out_row": pc.add(lines["out_row"], sinks["out"].rows)})
                for role, table in tables.items():
                    sinks[role].write(table)
                actions.update(counted(lines["action"]))
                reasons.update(counted(filtered(lines, pc.equal(lines["action"], "drop"))["reason"].drop_null()))
                current_progress().advance("writing", "pairs", sinks["ledger"].rows, plan.pairs)
        return sinks, actions, reasons, named

    def _sink_of(self, role: str) -> type[ParquetSink] | type[CsvSink]:
        """The class that writes the ledger, or the dropped pairs."""
        return CsvSink if role == "dropped" and self.targets[role].suffix == ".csv" else ParquetSink

    def _write_card_and_manifest(
        self, head: RepairPlan, sinks: Mapping[str, Sink], counts: Mapping[str, int], staged: Mapping[str, Path]
    ) -> None:
        rows, parts = {role: sink.rows for role, sink in sinks.items()}, sinks["out"].parts
        if self.format.directory or ("card" in staged and not self.croissant):
            facts = {"name": self.out.name, "format": self.name, "counts": counts, "rows": rows["out"]}
            facts["shards"] = sum(part.endswith(".tar") for part in parts)
            facts["all_captions"] = self.settings.all_captions
            text = dataset_card(self.settings.about or CardFacts(), head, loads=self.format.loads, **facts)
            card = staged["out"] / CARD if self.format.directory else staged["card"]
            card.write_text(text, encoding="utf-8")
        files = {
            role: (path, staged[role], rows.get(role)) for role, path in self.targets.items() if role != "manifest"
        }
        noted = {"format": self.name, "counts": dict(counts), "threshold": head.threshold}
        write_manifest(staged["manifest"], files, parts, self.source, **noted)


def _check(sinks: Mapping[str, Sink], counts: Mapping[str, int], out: int) -> None:
    """Raise :class:`CleanpairsError` if a pair is missing or too many: in the counts, or in what is on disk."""
    accounted = sum(counts.values()) - counts["pairs"]
    if accounted != counts["pairs"]:
        raise CleanpairsError(f"export accounted for {accounted} of {counts['pairs']} pairs; nothing is published")
    wanted = {"out": out, "ledger": counts["pairs"], "dropped": counts["dropped"] + counts["quarantined"]}
    for role, sink in sinks.items():
        found, rows = sink.count(sink.path), sink.rows
        if not rows == found == wanted[role]:
            raise CleanpairsError(f"{role} has {found} rows on disk, {rows} written and {wanted[role]} expected")
