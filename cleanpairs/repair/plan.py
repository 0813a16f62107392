"""The repair plan: one row per pair, made by :mod:`cleanpairs.repair.planning`, to be carried out by an export."""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import ConfigError, DataError, OutputExistsError, cached_by_file, check_number, percent, reading
from cleanpairs.data import Pairs, ParquetSink, load_pairs, staged_file
from cleanpairs.data.columns import TRUTH, score_columns
from cleanpairs.data.parquet_io import open_parquet, read_table
from cleanpairs.data.rewriting import of_images
from cleanpairs.ops.columns import as_schema, filtered, one_array, plain_schema, taken, with_columns
from cleanpairs.repair.actions import (
    ACTIONS,
    DISPLACED,
    REMATCHED,
    REPAIRED,
    WRITTEN,
    ActionCounts,
    acted,
    count_actions,
    why_none_is_repaired,
)
from cleanpairs.repair.editing import followed, read_csv, same_key, write_csv

if TYPE_CHECKING:  # pandas takes a second to import and only ``to_pandas`` needs it
    import pandas as pd

CAPTIONS = pa.list_(pa.struct({"text": pa.string(), "source": pa.string(), "weight": pa.float32()}))
PLAN_SCHEMA = pa.schema(
    [
        ("pair_id", pa.int64()),
        ("key", pa.string()),
        ("action", pa.string()),
        ("correspondence", pa.float32()),
        ("donor_pair_id", pa.int64()),
        ("donor_key", pa.string()),
        ("caption", pa.string()),
        ("original_caption", pa.string()),
        ("repair_score", pa.float32()),
        ("margin", pa.float32()),
        ("confidence", pa.float32()),
        ("donor_use", pa.int32()),
        ("reason", pa.string()),
        ("why", pa.string()),
        ("captions", CAPTIONS),
    ]
)

METADATA_KEY = b"cleanpairs.repair.plan"
WRITTEN_KEY = "cleanpairs.written"  # in the metadata of the file: no program that rewrites it keeps it


def counted(column: pa.ChunkedArray) -> Counter[str]:
    """Count each value, in the order of first occurrence."""
    found = pc.value_counts(column)
    return Counter(dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True)))


@dataclass(frozen=True)
class PlanSummary(ActionCounts):
    """Counts of a plan. ``str`` of it is a small table.

    - ``mean_confidence``: mean over the repairs whose confidence is known, which are ``judged``. None of none
    - ``reasons``: why pairs were dropped -> how many
    - ``displaced``: new captions by the rule of displaced rows
    """

    threshold: float
    min_repair_score: float
    mean_confidence: float | None
    reasons: Mapping[str, int]
    displaced: int = 0
    judged: int = 0

    def __str__(self) -> str:
        def line(name: str, count: int, note: str = "") -> str:
            share = percent(count / self.pairs) if self.pairs else ""
            return f"{name:<16}{count:>10,}  {share:>7}{'  ' + note if note else ''}".rstrip()

        lines = [
            line("pairs", self.pairs),
            line("  kept", self.kept, f"correspondence >= {self.threshold:g}"),
            line("  new caption", self.rematched_text, f"{self.displaced:,} of displaced rows" * bool(self.displaced)),
            line("  new image", self.rematched_image),
            *([line("  caption written", self.recaptioned)] if self.recaptioned else []),
            line("  dropped", self.dropped),
            *(line("", count, "  " + reason) for reason, count in self.reasons.items()),
            line("  quarantined", self.quarantined),
        ]
        if self.repaired:
            sure, left = self.mean_confidence or 0.0, self.repaired - self.judged
            digits = int(not 0.005 <= sure < 0.995)  # neither 0 nor 100 % where it is not
            expected = f"{percent(sure, digits)} of"
            if not self.judged:
                lines.append("how many of the repairs are right is undetermined")
            elif left:
                known = f"{self.judged:,} repair" + "s" * (self.judged > 1)
                lines.append(f"{expected} {known} expected to be right, {left:,} undetermined")
            else:
                lines.append(f"{expected} the repairs are expected to be right")
        elif why := why_none_is_repaired(self.reasons, listed=True):
            lines.append(why)
        return "\n".join(lines)


@dataclass(frozen=True)
class RepairPlan:
    """What becomes of every pair.

    Parameters
    ----------
    table : pyarrow.Table
        One row a pair, in order of ``pair_id`` (0 .. N-1). Its columns are below.
    threshold : float in [0, 1]
        Pairs with a correspondence below it are not kept.
    min_repair_score : float in [0, 1]
        No repair scores lower.
    fingerprint : str
        That of the input that the plan is for.
    settings : mapping
        The others that it was made with.

    Raises
    ------
    DataError
        The table is no plan. A column is missing, the pairs are not 0 .. N-1 in order, an action is unknown, or a
        repair names no donor.
    ConfigError
        The threshold or the least score is not in [0, 1].

    Notes
    -----
    Columns of the table:

    - ``key``
    - ``action``: keep, rematch_text, rematch_image, recaption, drop or quarantine
    - ``correspondence``: before the repair, null if quarantined
    - ``donor_pair_id``, ``donor_key``: the pair whose caption or image is taken
    - ``caption``: after the repair, null where dropped or quarantined
    - ``original_caption``
    - ``repair_score``: that of the repaired pair
    - ``margin``: this score less that of the row's next best candidate in the same direction
    - ``confidence``: probability that the repaired pair belongs together, null where undetermined
    - ``donor_use``: how many repaired rows carry the caption or image that was taken
    - ``reason``: why it was dropped or quarantined, or which kind of donor it has
    - ``why``: what the run says against the pair. Null where it says nothing
    - ``captions``: those of several donors, whose weights add up to ``repair_score``. Null where there is one donor
    """

    table: pa.Table
    threshold: float
    min_repair_score: float
    fingerprint: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("threshold", "min_repair_score"):
            check_number("a repair plan", name, getattr(self, name), least=0, most=1)
        object.__setattr__(self, "table", checked(self.table))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        counts = (f", {n:,} {action}" for action, n in counted(self.table["action"]).items())
        return f"RepairPlan({len(self):,} pairs{''.join(counts)})"

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a data frame.

        Returns
        -------
        pandas.DataFrame
            One row a pair.
        """
        return self.table.to_pandas()

    def summary(self) -> PlanSummary:
        """Return the counts per action.

        Returns
        -------
        PlanSummary
            Counts, the reasons of dropped pairs, and the mean confidence of the repairs.
        """
        return _summary(self, [self.table])

    def check_for(self, pairs: Any) -> "RepairPlan":
        """Return the plan, with the keys and captions of the data where a spreadsheet has rewritten them.

        Parameters
        ----------
        pairs : Pairs or data
            As :func:`cleanpairs.load_pairs` takes them.

        Returns
        -------
        RepairPlan
            The plan for these pairs.

        Raises
        ------
        DataError
            The plan is for other pairs.
        """
        pairs = load_pairs(pairs)
        check_data(self, len(self), pairs.source.fingerprint, len(pairs))
        keys = pa.array(pairs.keys, pa.string())
        table = _with_captions(self.table, pa.array(pairs.captions, pa.string()))
        if pc.all(pc.equal(table["key"], keys), skip_nulls=False, min_count=0).as_py():
            return self if table is self.table else replace(self, table=table)
        for i, (planned, key) in enumerate(zip(table["key"].to_pylist(), pairs.keys, strict=True)):
            if not same_key(planned, key):
                raise DataError(f"pair {i} has key {planned!r} in the plan and {key!r} in the data")
        donor_keys = taken(keys, one_array(table["donor_pair_id"]))
        return replace(self, table=with_columns(table, {"key": keys, "donor_key": donor_keys}))

    def apply(self, pairs: Any) -> Any:
        """Return the kept and the repaired pairs, in order, as a new corpus in memory.

        Parameters
        ----------
        pairs : Pairs or datasets.Dataset
            What the plan is for.

        Returns
        -------
        Pairs or datasets.Dataset
            Images stay where they are. Pairs are numbered anew. ``row``, ``position`` and ``keys`` remain those of the
            input, and a truth follows the repairs. A Dataset has the same features. Given similarities of its repaired
            rows are null, and so are the vectors of captions that were written.

        Raises
        ------
        ConfigError
            The rows of a Dataset hold lists of captions, or it is neither Pairs nor a Dataset.
        DataError
            The plan is for other pairs.
        """
        if not isinstance(pairs, Pairs):
            return self._applied_to(pairs)
        table = self.check_for(pairs).table
        text_from, image_from = part_sources(table)
        planned, truth = table["caption"].to_pylist(), truth_of(pairs, table)
        captions = [own if new is None else new for own, new in zip(pairs.captions, planned, strict=True)]
        whole = pairs.with_captions(captions, of=None if acted(table, ["recaption"]).any() else text_from)
        moved = image_from != np.arange(len(pairs))
        digest = hashlib.sha256(whole.source.fingerprint.encode() + image_from.tobytes())
        whole = replace(
            whole,
            image_index=pairs.image_index[image_from],
            reasons={},
            source=replace(whole.source, fingerprint=digest.hexdigest(), explicit_lists=False),
            precomputed_scores={k: np.where(moved, np.nan, v) for k, v in whole.precomputed_scores.items()},
            true_mismatch=truth.get("true_mismatch"),
            true_key=truth.get("true_key"),
        )
        return whole.select(acted(table, WRITTEN))

    def _applied_to(self, dataset: Any) -> Any:
        """Return a Dataset with other captions and images, without the rows that are dropped."""
        import datasets

        if not isinstance(dataset, datasets.Dataset):
            what = type(dataset).__name__
            raise ConfigError(
                f"a plan is applied to Pairs or a datasets.Dataset, not to {what}; load_pairs makes Pairs of it"
            )
        pairs = load_pairs(dataset)
        table = self.check_for(pairs).table
        if pairs.source.explicit_lists:
            raise ConfigError("a plan takes a Dataset of one caption a row; export_pairs(explode=True) makes that")
        text_from, image_from = part_sources(table)
        left, truth = np.flatnonzero(acted(table, WRITTEN)), truth_of(pairs, table)
        written, repaired = acted(table, ["recaption"]), acted(table, REPAIRED)[left]
        lender = {"text_features": pa.array(text_from, mask=written), "image": image_from, "features": image_from}
        whole, roles = dataset.with_format("arrow")[:], pairs.source.columns
        whole = as_schema(whole, plain_schema(whole.schema))  # pyarrow 26 takes no rows out of views
        columns = {name: taken(whole[name], left) for name in whole.column_names}
        columns |= {name: taken(pa.array(values), left) for name, values in truth.items()}
        for name in score_columns(roles):
            columns[name] = pc.if_else(repaired, None, columns[name])
        for role, name in roles.items():
            if role == "text":
                columns[name] = taken(table["caption"], left)
            elif role in lender:
                columns[name] = taken(whole[name], taken(pa.array(lender[role]), left))
        return type(dataset)(as_schema(pa.table(columns), dataset.features.arrow_schema))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the plan, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Parquet, or CSV for a spreadsheet where it ends in ``.csv``. The last column of a CSV is empty. Its name is
            JSON, and has what a plan holds besides its rows. A caption that a spreadsheet would take for a formula gets
            an apostrophe in front, which :meth:`load` ignores.
        overwrite : bool
            Whether an old file is replaced.

        Raises
        ------
        OutputExistsError
            It exists, and ``overwrite`` is False.
        """
        with staged_file(path, overwrite=overwrite) as staging:
            if Path(path).suffix == ".csv":
                nothing = pa.nulls(len(self), pa.string())
                write_csv(self.table.append_column(json.dumps(self.note), nothing), staging)
            else:
                write_plan(staging, self, [self.table])

    @property
    def note(self) -> dict[str, Any]:
        """What a plan has besides its rows, for JSON."""
        known = {name: getattr(self, name) for name in ("threshold", "min_repair_score", "fingerprint")}
        return {**known, "settings": dict(self.settings)}

    @classmethod
    def load(cls, path: str | Path) -> "RepairPlan":
        """Return a plan as :meth:`save` left it, or as somebody edited it.

        Parameters
        ----------
        path : str or Path
            Parquet or CSV. Its ``action`` and ``donor_pair_id`` count. The rest follows from them. Scores are kept only
            with the donor that they were computed for.

        Returns
        -------
        RepairPlan
            The plan.

        Raises
        ------
        DataError
            The file cannot be read, or holds no plan.
        """
        path = Path(path)
        if not path.exists():
            raise DataError(
                f"there is no repair plan {path}; write one by cleanpairs rematch --out PLAN, or by cleanpairs review"
            )
        with reading(f"the repair plan {path}", "read", TypeError, ValueError, RecursionError):
            table = read_csv(path, PLAN_SCHEMA) if path.suffix == ".csv" else read_table(path)
            note = _note(table.schema)
            if note is None:
                raise DataError(
                    f"{path} is no repair plan: it lacks what is noted of its settings, in CSV as the name of its last "
                    f"column, in Parquet as the metadata {METADATA_KEY.decode()!r}, which pandas does not write: edit "
                    "a plan as CSV, cleanpairs rematch --out plan.csv"
                )
            try:
                return cls(followed(_typed(table)), **json.loads(note))
            except ConfigError as error:
                raise DataError(f"{path} is a damaged repair plan: its note is not as written: {error}") from error


def _with_captions(table: pa.Table, captions: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Rows of a plan with the ``captions`` (N,) of the data, where a program that rewrote the file has changed them.
    Itself where they are these.
    """
    captions = captions.fill_null("")
    if pc.all(pc.equal(table["original_caption"].fill_null(""), captions), min_count=0).as_py():
        return table
    donor_captions = taken(captions, part_sources(table)[0])
    follows = pa.array(acted(table, ["keep", *REMATCHED]))
    caption = pc.if_else(follows, donor_captions, table["caption"])
    return with_columns(table, {"original_caption": captions, "caption": caption})


def _summary(plan: RepairPlan, tables: Iterable[pa.Table]) -> PlanSummary:
    actions, reasons, displaced, judged, confidence = Counter[str](), Counter[str](), 0, 0, 0.0
    for table in tables:
        actions += counted(table["action"])
        reasons += counted(filtered(table, pc.equal(table["action"], "drop"))["reason"])
        displaced += pc.sum(pc.starts_with(table["reason"], DISPLACED)).as_py() or 0
        confidence += pc.sum(table["confidence"].cast(pa.float64())).as_py() or 0.0
        judged += pc.count(table["confidence"]).as_py()
    return PlanSummary(
        pairs=actions.total(),
        **count_actions(actions),
        threshold=plan.threshold,
        min_repair_score=plan.min_repair_score,
        reasons=dict(reasons.most_common()),
        mean_confidence=confidence / judged if judged else None,
        displaced=displaced,
        judged=judged,
    )


def check_data(plan: RepairPlan, planned: int, fingerprint: str, pairs: int) -> None:
    """DataError where a plan of so many pairs, or none, is not for data of this fingerprint, and of so many pairs."""
    if planned != pairs:
        raise DataError(f"the plan is for {planned} pairs, the data has {pairs}: make the plan from this data")
    if plan.fingerprint and plan.fingerprint != fingerprint:
        raise DataError(
            "the plan was made for other data (its fingerprint differs): give what it was made from, or make a plan "
            "from this data. A file, and its rows in memory, have two fingerprints"
        )


def write_plan(path: str | Path, head: RepairPlan, tables: Iterable[pa.Table]) -> PlanSummary:
    """Write a plan in Parquet: ``tables`` of consecutive rows, and what ``head`` has besides. Returns its counts."""
    schema = PLAN_SCHEMA.with_metadata({METADATA_KEY: json.dumps(head.note).encode()})
    with ParquetSink(path, schema, note=WRITTEN_KEY) as sink:

        def written() -> Iterator[pa.Table]:
            for table in tables:
                sink.write(table)
                yield table

        return _summary(head, written())


def _note(schema: pa.Schema) -> str | bytes | None:
    """Return what a file has besides the rows: metadata of Parquet, or the name of the last column of CSV."""
    names = [name for name in schema.names if name.startswith("{")]
    return (schema.metadata or {}).get(METADATA_KEY, names[-1] if names else None)


def as_written(path: str | Path) -> RepairPlan | None:
    """Return the plan of an unedited Parquet file, without its rows, else None. Raises DataError."""
    if Path(path).suffix == ".csv":
        return None
    schema, written = _stored(str(path))
    with suppress(KeyError, TypeError, ValueError, RecursionError):  # `RepairPlan.load` says what is wrong
        if written and set(PLAN_SCHEMA.names) <= set(schema.names):
            return RepairPlan(PLAN_SCHEMA.empty_table(), **json.loads(_note(schema) or ""))
    return None


@cached_by_file(16)
def _stored(path: str) -> tuple[pa.Schema, bool]:
    """Return the schema of a Parquet file, and whether it is as we wrote it."""
    with open_parquet(path) as file:
        return file.schema_arrow, WRITTEN_KEY.encode() in (file.metadata.metadata or {})


def refuse_edited(path: Path) -> None:
    """Raise :class:`OutputExistsError` where a plan in Parquet is there, and is not as cleanpairs has written it."""
    with suppress(DataError):
        if not os.path.lexists(path) or as_written(path) is not None:
            return
    raise OutputExistsError(
        f"{path} was edited, or not written by this version: it is not replaced; carry it out by "
        f"`cleanpairs export --plan {quote(str(path))}`, or move it away"
    )


def _typed(table: pa.Table, first: int = 0) -> pa.Table:
    """Rows of a plan, from pair ``first`` on, with its columns and types, in order. Raises DataError."""
    missing = [name for name in PLAN_SCHEMA.names if name not in table.column_names]
    if missing:
        raise DataError(f"a repair plan needs the columns {', '.join(missing)}; found {', '.join(table.column_names)}")
    try:
        table = table.select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA)
    except pa.ArrowException as error:
        raise DataError(f"a column of the repair plan has the wrong type: {error}") from error
    ids, wanted = table["pair_id"].to_numpy(), np.arange(first, first + len(table))
    if not np.array_equal(ids, wanted):
        odd = int(np.argmax(ids != wanted))
        found = f"has no row of pair {wanted[odd]}" if ids[odd] > wanted[odd] else f"has pair {ids[odd]} in row {odd}"
        raise DataError(
            f"the repair plan {found}: it has one row for each pair, in order of pair_id from 0; leave a pair out by "
            "the action 'drop', not by taking its row away"
        )
    return table


def checked(table: pa.Table, first: int = 0, pairs: int | None = None) -> pa.Table:
    """Rows of a plan, from pair ``first`` on, of ``pairs`` in all. DataError: they are none, or cannot be done."""
    table = _typed(table, first)
    ids, action = table["pair_id"].to_numpy(), table["action"]
    known = pc.fill_null(pc.is_in(action, pa.array(ACTIONS)), False)
    if not pc.all(known, min_count=0).as_py():
        at = pc.index(known, False).as_py()
        whose = f"pair {ids[at]}, key {table['key'][at]}, has the action {action[at].as_py()!r}"
        raise DataError(f"{whose}, and there are only {', '.join(ACTIONS)}")
    donor = np.array(table["donor_pair_id"].fill_null(-1), np.int64)
    repaired, most = acted(table, REMATCHED), len(table) if pairs is None else pairs
    wrong = np.flatnonzero(repaired & ((donor < 0) | (donor >= most) | (donor == ids)))
    if len(wrong):
        i = int(wrong[0])
        named = "it names no donor_pair_id" if donor[i] < 0 else f"its donor_pair_id {donor[i]} is no other pair"
        beyond = f", of 0 to {most - 1}: rows may not be taken away" if donor[i] >= most else ""
        raise DataError(f"pair {ids[i]} of the repair plan is {action[i].as_py()} but {named}{beyond}")
    banned = np.flatnonzero(repaired & np.isin(donor, ids[acted(table, ["quarantine"])]))
    if len(banned):
        raise DataError(
            f"pair {ids[banned[0]]} of the repair plan takes a part of pair {donor[banned[0]]}, which is quarantined"
        )
    blank = np.array(pc.equal(pc.utf8_trim_whitespace(table["caption"].fill_null("")), ""), bool)
    none = ~np.array(table["caption"].is_valid(), bool) | (acted(table, ["recaption"]) & blank)
    bare = np.flatnonzero(acted(table, WRITTEN) & none)
    if len(bare):
        raise DataError(f"pair {ids[bare[0]]} of the repair plan is {action[int(bare[0])].as_py()} but has no caption")
    captions = one_array(table["captions"])
    text, weight = captions.flatten().flatten()[::2]
    known = pc.and_(text.is_valid(), pc.fill_null(pc.greater_equal(weight, 0), False))
    if not pc.all(known, min_count=0).as_py():
        i = int(ids[captions.value_parent_indices()[pc.index(known, False).as_py()].as_py()])
        raise DataError(f"pair {i} of the repair plan has captions without a text, or a weight of at least 0")
    return table


def part_sources(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs that give each pair its caption and its image, (N,) int64 each. Mostly the pair itself."""
    own = np.arange(len(table))
    donor = np.array(table["donor_pair_id"].fill_null(-1), np.int64)
    new_text, new_image = (acted(table, [action]) for action in REMATCHED)
    return np.where(new_text, donor, own), np.where(new_image, donor, own)


def truth_after(
    pairs: Pairs, text_from: np.ndarray, image_from: np.ndarray, written: np.ndarray | None = None
) -> dict[str, Any]:
    """The columns :data:`TRUTH` of N pairs whose texts and images come from the pairs ``text_from`` and ``image_from``
    (N,). They hold whether a pair is mismatched, (N,) bool, and the key that its caption came with. Empty where not
    known. Without keys that of a repaired pair is masked.

    A caption is matched with each image that its words came with, and where it was ``written`` (N,) bool for it,
    without a key (""). One that is mismatched though its key is its pair's own has other words mixed in. It is matched
    nowhere.
    """
    if pairs.true_mismatch is None:
        return {}
    own = np.arange(len(pairs))
    repaired = (text_from != own) | (image_from != own)
    if pairs.true_key is None:
        known = np.ma.array(pairs.true_mismatch, mask=repaired, copy=True)
        known[np.zeros(len(pairs), bool) if written is None else written] = False
        return {"true_mismatch": known}
    group = pairs.image_group[pairs.image_index]
    came = of_images(pairs, ([own_key] for own_key in pairs.keys))  # several images may have one key
    key = [pairs.true_key[i] for i in text_from.tolist()]
    mismatch, unknown = pairs.true_mismatch.copy(), np.ma.getmaskarray(pairs.true_mismatch)[text_from]
    text, origins = pairs.text_group.tolist(), defaultdict[int, set[str]](set)
    for i, (wrong, a, b) in enumerate(zip(mismatch.tolist(), pairs.true_key, pairs.keys, strict=True)):
        if not wrong or a != b:
            origins[text[i]].add(a)
    for i in np.flatnonzero(repaired).tolist():
        image, alike = int(group[image_from[i]]), origins[text[text_from[i]]]
        mismatch[i] = np.ma.masked if unknown[i] else came[image].isdisjoint(alike)
    for i in np.flatnonzero(written).tolist() if written is not None else ():
        mismatch[i], key[i] = False, ""
    return dict(zip(TRUTH, (mismatch, key), strict=True))


def truth_of(pairs: Pairs, table: pa.Table) -> dict[str, Any]:
    """Return :func:`truth_after` a plan, whose ``table`` has all N pairs in order."""
    return truth_after(pairs, *part_sources(table), acted(table, ["recaption"]))


def wrong_in_output(pairs: Pairs, table: pa.Table) -> tuple[float, float] | None:
    """Share of mismatched pairs among those that a plan, whose ``table`` has all pairs in order, keeps, and among those
    and the repaired ones. NaN of none. None where the truth is not known.
    """
    if pairs.true_mismatch is None or pairs.true_key is None:
        return None
    truth = truth_of(pairs, table)
    parts = (truth["true_mismatch"][acted(table, actions)] for actions in (["keep"], WRITTEN))
    kept, left = (float(np.ma.filled(part.mean(), np.nan)) if len(part) else float("nan") for part in parts)
    return kept, left
