"""The changes of an export, pair by pair, by its ledger."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from cleanpairs.core import check_whole
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.export.ledger import LEDGER_SCHEMA
from cleanpairs.export.manifest import open_export
from cleanpairs.ops.columns import filtered
from cleanpairs.repair.actions import ACTIONS
from cleanpairs.repair.plan import counted


@dataclass(frozen=True)
class Change:
    """The change of one pair.

    - ``before``, ``after``: its caption. None where there was none, or it is not in the cleaned file
    - ``source_pair_id``, ``source_key``: the pair that gave it a caption or an image, and its key
    - ``correspondence``, ``repair_score``: in [0, 1], before the repair and after it
    - ``reason``: why it was not kept as it was
    """

    pair_id: int
    key: str
    action: str
    before: str | None
    after: str | None
    source_pair_id: int | None
    source_key: str | None
    correspondence: float | None
    repair_score: float | None
    reason: str | None


@dataclass(frozen=True)
class ExportDiff:
    """``counts``: all pairs by action, those kept too. ``changes``: the pairs that were not kept, in order."""

    counts: Mapping[str, int]
    changes: tuple[Change, ...]

    @property
    def pairs(self) -> int:
        """The number of the input's pairs."""
        return sum(self.counts.values())

    @property
    def changed(self) -> int:
        """Pairs that were not kept as they were."""
        return self.pairs - self.counts["keep"]


def diff_export(out: str | Path, *, ledger: str | Path | None = None, limit: int | None = None) -> ExportDiff:
    """Return what an export changed. Only its ledger is read.

    Parameters
    ----------
    out : str or Path
        The cleaned file, with its manifest beside it.
    ledger : str or Path, optional
        None: the manifest's.
    limit : int, optional
        At most so many changes. The counts are of all.

    Returns
    -------
    ExportDiff
        Counts by action, and the changed pairs in order.

    Raises
    ------
    ConfigError
        A negative limit.
    DataError
        A file is missing, the ledger is not as it was exported (SHA-256), or ``out`` has not the size that it had.
    """
    check_whole("diff", "limit", limit, 0, none=True)
    export = open_export(out, ledger)
    export.check(*export.parts, contents=False)  # SHA-256 takes a while, and no row of them is read
    export.check(export.ledger)
    counts, changes = Counter(dict.fromkeys(ACTIONS, 0)), list[Change]()
    columns = [n for n in LEDGER_SCHEMA.names if n not in ("row", "position", "out_row")]
    for _, batch in iter_batches([str(export.ledger.path)], columns, 8192):
        counts.update(counted(batch.column("action")))
        selected = filtered(batch, pc.not_equal(batch.column("action"), "keep"))
        for line in selected.slice(0, None if limit is None else limit - len(changes)).to_pylist():
            before, new = line.pop("original_caption"), line.pop("new_caption")
            after = None if line["action"] in ("drop", "quarantine") else before if new is None else new
            changes.append(Change(before=before, after=after, **line))
    return ExportDiff(counts, tuple(changes))
