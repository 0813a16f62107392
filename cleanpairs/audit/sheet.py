"""The forms of an audit: a CSV for a spreadsheet, thumbnails beside it, and a page to label by key or mouse, whose
sheet the report shows, too; and the labels that a person gave, read back.
"""

import base64
import csv
import hashlib
import io
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_bytes, reading
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.display import visible
from cleanpairs.data.guard import AUDIT_FILES
from cleanpairs.data.pairs import ImageSource, Pairs
from cleanpairs.repair.editing import same_key, write_csv

CSV_NAME, PAGE_NAME, IMAGES = "labels.csv", "label.html", "images"
THUMBNAIL = 360  # longest side, pixels
CAPTION_LENGTH = 2_000  # characters: a spreadsheet's cell holds 32,767, a person's patience less
READ_AT_ONCE = 32
LABELS = dict.fromkeys(("1", "1.0", "1,0", "yes", "true", "y", "t", "matched", "match", "✓"), 1.0)
LABELS |= dict.fromkeys(("0", "0.0", "0,0", "no", "false", "n", "f", "mismatched", "mismatch", "✗"), 0.0)
LABELS |= dict.fromkeys(("", "?", "unsure", "-"), math.nan)  # left out
NEEDED = ("pair_id", "key", "stratum", "matched")
KEY_LENGTH = 200  # characters of a key in the form
ROUNDING = 1e-6  # of an edge in the form


def write_forms(
    folder: str | Path, sample: AuditSample, pairs: Pairs, *, title: str = "Audit", overwrite: bool = False
) -> Path:
    """Write ``labels.csv``, ``label.html`` and ``images/`` into a directory of their own, published whole; its path.

    The page loads nothing and sends nothing. ``overwrite``: replace an audit that lies there; never one with labels
    given by hand.
    Raises OutputExistsError: the directory exists; or, with ``overwrite``, holds files that are none of an audit's;
    DataError: the sample names pairs beyond N.
    """
    with staged_directory(folder, overwrite=overwrite, ours=AUDIT_FILES) as staged:
        jpegs = thumbnails_of(sample, pairs, THUMBNAIL)
        pictures: list[str | None] = [None] * len(sample)
        for k, (i, jpeg) in enumerate(zip(sample.pair_id.tolist(), jpegs, strict=True)):
            if jpeg is not None:
                (staged / IMAGES).mkdir(exist_ok=True)
                pictures[k] = f"{IMAGES}/{i}.jpg"
                (staged / IMAGES / f"{i}.jpg").write_bytes(jpeg)
        write_csv(labels_table(sample, pairs, pictures), staged / CSV_NAME)
        sheet = sheet_html(sample, pairs, jpegs, whole=True)
        style, script = asset("label.css") + asset("sheet.css"), asset("label.js")
        text = page("label.html", style=style, script=script, title=visible(title, 200), sheet=sheet)
        (staged / PAGE_NAME).write_text(text, encoding="utf-8")
    return Path(folder)


def labels_table(sample: AuditSample, pairs: Pairs, pictures: list[str | None]) -> pa.Table:
    """What ``labels.csv`` holds, of n pairs with the file of their picture, or None."""
    ids = sample.pair_id.tolist()
    return pa.table({
        "pair_id": pa.array(ids, pa.int64()),
        "matched": pa.array([None if math.isnan(v) else str(int(v)) for v in sample.matched.tolist()], pa.string()),
        "caption": pa.array([visible(pairs.captions[i], CAPTION_LENGTH) for i in ids], pa.string()),
        "image": pa.array(pictures, pa.string()),
        "key": pa.array([visible(pairs.keys[i], KEY_LENGTH) for i in ids], pa.string()),
        "stratum": pa.array([sample.stratum_name(h) for h in sample.stratum.tolist()], pa.string()),
        "weight": pa.array(np.round(sample.weight, 4)),
        "correspondence": pa.array(np.round(sample.correspondence, 6)),
    })  # fmt: skip


def read_labels(path: str | Path, *, keys: Sequence[str], correspondence: ArrayLike) -> AuditSample:
    """The sample that was drawn, with labels, out of the CSV (or of the page's) as spreadsheets leave it.

    Rows may be in any order, and some missing; columns beyond :data:`NEEDED` are not needed, and ``matched`` holds one
    of :data:`LABELS`. What each row stands for is computed anew, by ``correspondence`` (N,) of all pairs of the run.

    Raises DataError: not readable, a value that is none of its column's (with line and column), or labels of other
    pairs.
    """
    path, y = Path(path), np.asarray(correspondence, dtype=np.float64).ravel()
    lines: dict[int, int] = {}  # of each pair
    matched: list[float] = []
    strata: set[tuple[float, float]] = set()
    for line, row in _rows(path):
        where = f"{path}, line {line}, column"
        i = _pair_id(where, row, keys, y)
        if i in lines:
            raise DataError(f"{where} pair_id: the pair {i} is in line {lines[i]} already")
        lines[i] = line
        strata.add(_stratum(where, row["stratum"], float(y[i])))
        if (told := row["matched"].lower()) not in LABELS:
            raise DataError(
                f"{where} matched: 1 or 0, yes or no, true or false, matched or mismatched are understood, nothing and "
                f"? leave the pair out; found {row['matched'][:40]!r}"
            )
        matched.append(LABELS[told])
    if not lines:
        raise DataError(f"{path} holds no row below its header")
    edges = np.unique([0.0, 1.0, *(e for pair in strata for e in pair)])  # also of those of which no row is left
    for low, high in strata:
        if ((edges > low) & (edges < high)).any():
            raise DataError(f"{path}: the strata overlap ({low:g} to {high:g}); are these rows of two audits?")
    return AuditSample.of(np.array(list(lines), dtype=np.int64), edges, y, np.array(matched))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The line and the :data:`NEEDED` fields of each row."""
    with reading(f"the labels {path}"):
        raw = read_bytes(path)
    try:
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save it as 'CSV UTF-8' from the spreadsheet") from error
    lines = list(io.StringIO(text, newline=""))
    # a spreadsheet's note to itself, and empty lines
    first = next((k for k, one in enumerate(lines) if one.strip() and not one.lower().startswith("sep=")), len(lines))
    head = lines[first] if lines[first:] else ""
    reader = csv.DictReader(lines[first:], delimiter=max(",;\t", key=head.count), restval="")
    try:
        reader.fieldnames = names = [name.strip().lower() for name in reader.fieldnames or NEEDED]
        if missing := [name for name in NEEDED if name not in names]:
            raise DataError(
                f"{path}, line {first + 1}: an audit has the columns {', '.join(NEEDED)}; {missing[0]} is missing "
                f"(found: {', '.join(names)[:200]})"
            )
        for fields in reader:
            row = {name: fields[name].strip() for name in NEEDED}
            if any(row.values()):
                yield first + reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {first + reader.line_num} cannot be read as CSV: {error}") from error


def _pair_id(where: str, row: dict[str, str], keys: Sequence[str], y: np.ndarray) -> int:
    try:
        number = float(row["pair_id"].replace(",", "."))
    except ValueError:
        number = math.nan
    if not number.is_integer() or not 0 <= number < min(len(y), len(keys)):
        raise DataError(
            f"{where} pair_id: a whole number from 0 to {len(y) - 1} is needed, found {row['pair_id'][:40]!r}; "
            "are these the labels of another run?"
        )
    i = int(number)
    shown = visible(keys[i], KEY_LENGTH)
    if row["key"] != "'" + shown and not same_key(row["key"], shown):
        raise DataError(
            f"{where} key: pair {i} of the run has the key {keys[i][:60]!r}, found {row['key'][:60]!r}; these labels "
            "are of another run, or the spreadsheet has rewritten the key (import that column as text, or label in "
            "the page)"
        )
    if not np.isfinite(y[i]):
        raise DataError(f"{where} pair_id: pair {i} is quarantined in this run; it was drawn from other scores")
    return i


def _stratum(where: str, told: str, score: float) -> tuple[float, float]:
    try:
        low, high = map(float, told.split(" to "))
    except ValueError:
        low = high = math.nan
    if not 0 <= low < high <= 1:
        raise DataError(f"{where} stratum: two edges such as '0.05 to 0.2' are needed, found {told[:40]!r}")
    if not low - ROUNDING <= score <= high + ROUNDING:
        raise DataError(
            f"{where} stratum: the pair was drawn from {told}, and its correspondence in this run is {score:.6g}: the "
            "scores are others than those of the audit; draw another"
        )
    return low, high


def sheet_html(sample: AuditSample, pairs: Pairs, jpegs: Sequence[bytes | None], *, whole: bool = False) -> str:
    """Cards with a thumbnail (n,), or None, a caption and three buttons each, in the sample's order, without scores;
    labels that there are, are pressed already. Their page has to let in ``sheet.css`` and ``label.js``.

    ``whole``: the page holds nothing else: keys act without a card in focus.
    """
    table = labels_table(sample, pairs, [None] * len(sample)).to_pylist()
    drawn = repr([(row["pair_id"], row["key"], row["stratum"]) for row in table])
    return page(
        "sheet.html",
        rows=[row | {"image": data_address(jpeg)} for row, jpeg in zip(table, jpegs, strict=True)],
        whole=whole,
        # what is labelled but not saved is found again by this name
        storage=f"cleanpairs-audit-{hashlib.sha256(drawn.encode()).hexdigest()[:16]}",
        without="the data holds vectors: look the picture up by its key"
        if pairs.images.kind != "bytes"
        else "the picture cannot be read",
    )


def page(
    template: str, package: str = "cleanpairs.audit", *, style: str = "", script: str = "",
    filters: Mapping[str, Any] | None = None, **values: Any,
) -> str:  # fmt: skip
    """A page of ``template``, whose content security policy lets in this style and script by their hashes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(*package.split(".")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= filters or {}
    for name, text in (("style", style), ("script", script)):
        digest = hashlib.sha256(text.encode()).digest()
        values |= {name: text, f"{name}_hash": base64.b64encode(digest).decode()}
    return environment.get_template(template).render(**values)


def asset(name: str, package: str = "cleanpairs.audit") -> str:
    """Text of a file that lies in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def thumbnails_of(sample: AuditSample, pairs: Pairs, size: int) -> list[bytes | None]:
    """(n,), or None. Raises DataError: the sample names pairs beyond those given."""
    if len(sample) and sample.pair_id.max() >= len(pairs):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the data has {len(pairs)}")
    return list(thumbnails(pairs.images, pairs.image_index[sample.pair_id], size))


def thumbnails(images: ImageSource, rows: np.ndarray, size: int) -> Iterator[bytes | None]:
    """A small JPEG (k,) of each of the images ``rows``, without the original's metadata; None where there is none."""
    parts = (rows[start : start + READ_AT_ONCE].tolist() for start in range(0, len(rows), READ_AT_ONCE))
    with Decoder(_shrunk(size), workers_for(len(rows))) as decoder:
        for batch in decoder.batches((0, images.read(part)) for part in parts):
            made = dict(zip(batch.rows.tolist(), batch.arrays, strict=True))
            yield from (made[i].tobytes() if i in made else None for i in range(batch.size))


def thumbnail(data: bytes, size: int) -> bytes | None:
    """The same of one image, for a page that asks for one after the other: the process that decodes lives on."""
    with _ONE_AT_A_TIME:
        (batch,) = _shrinking(size).batches([(0, [data])])
    return batch.arrays[0].tobytes() if batch.arrays else None


_ONE_AT_A_TIME = threading.Lock()


@cache
def _shrinking(size: int) -> Decoder:
    return Decoder(_shrunk(size), min(1, workers_for(1)))


def _shrunk(size: int) -> Preparation:
    return Preparation("cleanpairs.data.images:small_jpeg", {"size": size}, about=size)


def data_address(jpeg: bytes | None) -> str | None:
    """A picture as an address that holds it."""
    return None if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
