"""The labels of an audit as a CSV, which a spreadsheet opens: written next to a folder of images, and read back."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from cleanpairs.audit.sample import AuditSample
from cleanpairs.core import DataError, first_few, plural
from cleanpairs.data import Pairs, load_pairs, staged_directory, staged_file, visible
from cleanpairs.data.decoding import thumbnails
from cleanpairs.data.label_rows import COLUMNS, label_rows, relabelled
from cleanpairs.repair.editing import same_key, write_csv

MEANS = {  # what a field `matched` may hold
    **dict.fromkeys(("1", "1.0", "1,0", "yes", "true", "y", "t", "matched", "match", "✓"), 1.0),
    **dict.fromkeys(("0", "0.0", "0,0", "no", "false", "n", "f", "mismatched", "mismatch", "✗"), 0.0),
    **dict.fromkeys(("", "?", "unsure", "-"), math.nan),  # left out
}
AUDIT_FILES = re.compile(r"labels\.csv|images/\d+\.jpg|result\.json")


def write_labels(folder: str | Path, sample: AuditSample, pairs: Any, *, overwrite: bool = False) -> Path:
    """Write a sample as ``labels.csv``, with its images in ``images/``, into a directory of their own.

    Parameters
    ----------
    folder : str or Path
    sample : AuditSample
    pairs : Pairs, path or table
        All pairs, of which the sample was drawn, as :func:`cleanpairs.load_pairs` takes them.
    overwrite : bool
        Replace the audit in the directory. One with labels given by hand is never replaced.

    Returns
    -------
    Path
        The CSV.

    Raises
    ------
    OutputExistsError
        The directory exists, or it holds labels or files that are no part of an audit.
    DataError
        The sample names pairs that are not in the data.
    """
    pairs = load_pairs(pairs)
    if len(sample) and sample.pair_id.max() >= len(pairs):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the data has {len(pairs)}")
    with staged_directory(folder, overwrite=overwrite, ours=AUDIT_FILES) as staged:
        ids, images = np.sort(sample.pair_id), staged / "images"  # rising: no part of the input is read again
        jpegs = thumbnails(pairs.images, pairs.image_index[ids], 360)
        for i, jpeg in zip(ids.tolist(), jpegs, strict=True):
            if jpeg is not None:
                images.mkdir(exist_ok=True)
                (images / f"{i}.jpg").write_bytes(jpeg)
        write_csv(_table(sample, pairs, images), staged / "labels.csv")
    return Path(folder) / "labels.csv"


def update_labels(path: str | Path, sample: AuditSample, pairs: Pairs) -> None:
    """Write the labels that are known now, those of the CSV among them, into a CSV of the same sample. All else that is
    in it stays.
    """
    if not Path(path).exists():
        with staged_file(path) as staged:
            return write_csv(_table(sample, pairs, Path(path).parent / "images"), staged)
    labels = dict(zip(sample.pair_id.tolist(), sample.matched.tolist(), strict=True))

    def label_of(pair: str, field: str) -> str:
        known, means = labels.get(float(pair.replace(",", ".")), math.nan), MEANS.get(field.lower(), math.nan)
        same = known == means or (math.isnan(known) and math.isnan(means))
        return field if same else "" if math.isnan(known) else str(int(known))

    with staged_file(path, overwrite=True, keeps_labels=True) as staged:
        text, encoding = relabelled(Path(path), label_of)
        staged.write_text(text, encoding, newline="")


def _table(sample: AuditSample, pairs: Pairs, images: Path) -> pa.Table:
    ids, edges = sample.pair_id.tolist(), sample.edges
    paths = [f"images/{i}.jpg" if (images / f"{i}.jpg").exists() else None for i in ids]
    return pa.table({
        "pair_id": pa.array(ids, pa.int64()),
        "matched": pa.array([None if math.isnan(v) else str(int(v)) for v in sample.matched.tolist()], pa.string()),
        "caption": pa.array([visible(pairs.captions[i], 2_000) for i in ids], pa.string()),
        "image": pa.array(paths, pa.string()),
        "key": pa.array([visible(pairs.keys[i], 200) for i in ids], pa.string()),
        "stratum": pa.array([f"{edges[h]:.9g} to {edges[h + 1]:.9g}" for h in sample.stratum.tolist()], pa.string()),
        "weight": pa.array(np.round(sample.weight, 4)),
        "correspondence": pa.array(np.round(sample.correspondence, 6)),
    })  # fmt: skip


def read_labels(path: str | Path, *, keys: Sequence[str], correspondence: ArrayLike) -> AuditSample:
    """Read a sample with its labels, as spreadsheets leave the CSV.

    Parameters
    ----------
    path : str or Path
        Rows may be in any order, and some may be missing. Only the columns `COLUMNS` are needed.
    keys : sequence of str
        Keys of all N pairs of the run.
    correspondence : array_like of float, shape (N,)
        Correspondence of all pairs. It tells how many pairs each row stands for.

    Returns
    -------
    AuditSample

    Raises
    ------
    DataError
        The file cannot be read, a value is not of its column's kind, or the labels are of other pairs.
    """
    path, y = Path(path), np.asarray(correspondence, dtype=np.float64).ravel()
    lines, strata = dict[int, float](), set[tuple[float, float]]()
    for where, i, label, row in _labelled(path, COLUMNS, keys, y):
        strata.add(_stratum(where, row["stratum"], float(y[i])))
        lines[i] = label
    edges = np.unique([0.0, 1.0, *(e for pair in strata for e in pair)])  # also of those of which no row is left
    for low, high in strata:
        if ((edges > low) & (edges < high)).any():
            raise DataError(f"{path}: the strata overlap ({low:g} to {high:g}); are these rows of two audits?")
    return AuditSample.of(np.array(list(lines), dtype=np.int64), edges, y, np.array(list(lines.values())))


def read_answers(
    path: str | Path, *, correspondence: ArrayLike, keys: Sequence[str] | None = None
) -> dict[int, bool | None]:
    """Read answers about pairs out of a CSV with the columns `pair_id` and `matched`.

    Parameters
    ----------
    path : str or Path
    correspondence : array_like of float, shape (N,)
        Correspondence of all pairs.
    keys : sequence of str, optional
        Keys of all N pairs. A column `key` must agree with them.

    Returns
    -------
    dict of int to bool or None
        Pair -> whether it is matched. None where nobody can say. An empty field is no answer.

    Raises
    ------
    DataError
        The file cannot be read, a value is not of its column's kind, or the answers are of other pairs.
    """
    y, columns = np.asarray(correspondence, dtype=np.float64).ravel(), ("pair_id", "matched")
    labels = {i: label for _, i, label, row in _labelled(Path(path), columns, keys, y) if row["matched"]}
    return {i: None if math.isnan(label) else bool(label) for i, label in labels.items()}


def _labelled(
    path: Path, columns: Sequence[str], keys: Sequence[str] | None, y: np.ndarray
) -> Iterator[tuple[str, int, float, dict[str, str]]]:
    """Yield where each row stands, its pair, its label, NaN where there is none, and its fields."""
    lines, unscored = dict[int, int](), list[int]()  # the line of each pair, and the pairs that are quarantined
    for line, row in label_rows(path, columns):
        where = f"{path}, line {line}, column"
        i = _pair_id(where, row, keys, y)
        if i in lines:
            raise DataError(f"{where} pair_id: the pair {i} is in line {lines[i]} already")
        lines[i] = line
        if (label := row["matched"].lower()) not in MEANS:
            raise DataError(f"{where} matched: 1 or 0, or nothing to leave the pair out, not {row['matched'][:40]!r}")
        if np.isfinite(y[i]):
            yield where, i, MEANS[label], row
        else:
            unscored.append(i)
    if not lines:
        raise DataError(f"{path} holds no row below its header")
    refuse_quarantined(f"{path}: ", unscored)


def refuse_quarantined(where: str, pairs: Sequence[int]) -> None:
    """DataError where any labels, or answers, are of ``pairs`` that are quarantined."""
    if pairs:
        what = f"{plural(len(pairs), 'labelled pair')} {'is' if len(pairs) == 1 else 'are'} quarantined in this run"
        raise DataError(f"{where}{what}, without a score: pair_id {first_few(pairs)}; leave these rows out")


def _pair_id(where: str, row: dict[str, str], keys: Sequence[str] | None, y: np.ndarray) -> int:
    try:
        number = float(row["pair_id"].replace(",", "."))
    except ValueError:
        number = math.nan
    if not number.is_integer() or not 0 <= number < len(y):
        found = row["pair_id"][:40]
        raise DataError(f"{where} pair_id: {found!r} is not from 0 to {len(y) - 1}; are these labels of another run?")
    i = int(number)
    key = None if keys is None or "key" not in row else visible(keys[i], 200)
    if keys is not None and key is not None and row["key"] != "'" + key and not same_key(row["key"], key):
        raise DataError(
            f"{where} key: pair {i} of the run has the key {keys[i][:60]!r}, found {row['key'][:60]!r}; these labels "
            "are of another run, or the spreadsheet has rewritten the key (import that column as text, or label on "
            "the page)"
        )
    return i


def _stratum(where: str, text: str, score: float) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(" to "))
    except ValueError:
        low = high = math.nan
    if not 0 <= low < high <= 1:
        raise DataError(f"{where} stratum: two edges such as '0.05 to 0.2' are needed, found {text[:40]!r}")
    if not low - 1e-6 <= score <= high + 1e-6:  # the edges are rounded in the CSV
        raise DataError(f"{where} stratum: drawn from {text}, and now {score:.6g}: the scores are others; draw anew")
    return low, high
