"""The forms of an audit: a CSV for a spreadsheet, thumbnails beside it, and a page to label by key or mouse."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.audit.labels import KEY_LENGTH
from cleanpairs.audit.sample import AuditSample
from cleanpairs.audit.text import one_line
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs
from cleanpairs.errors import DataError, OutputExistsError
from cleanpairs.plan_editing import write_csv

__all__ = ["CSV_NAME", "OUR_NAMES", "PAGE_NAME", "AuditForms", "write_forms"]

CSV_NAME, PAGE_NAME, IMAGES = "labels.csv", "label.html", "images"
OUR_NAMES = {CSV_NAME, PAGE_NAME, IMAGES, "result.json", "probabilities.parquet"}
THUMBNAIL = 360  # longest side, pixels
CAPTION_LENGTH = 2_000  # characters: a spreadsheet's cell holds 32,767, a person's patience less
READ_AT_ONCE = 32


@dataclass(frozen=True)
class AuditForms:
    """The files written: ``pictures`` of ``pairs`` rows have a thumbnail."""

    folder: Path
    csv: Path
    page: Path
    pairs: int
    pictures: int


def write_forms(
    folder: str | Path, sample: AuditSample, pairs: Pairs, *, title: str = "Audit", overwrite: bool = False
) -> AuditForms:
    """Write ``labels.csv``, ``label.html`` and ``images/`` into a directory of their own.

    The page loads nothing and sends nothing: its content security policy lets in one style and one script by their
    hashes, and pictures that it carries itself. The CSV is UTF-8 with a byte order mark; text that begins with
    ``= + - @``, a tab or an apostrophe gets an apostrophe, so that no spreadsheet takes it for a formula.

    Parameters
    ----------
    folder : path
        Made; published whole.
    sample : AuditSample
    pairs : Pairs
        The N pairs that it was drawn from.
    title : str
        Of the page.
    overwrite : bool
        Replace an audit that lies there, with its labels.

    Raises
    ------
    OutputExistsError
        The directory exists; or, with ``overwrite``, holds files that are none of an audit's.
    DataError
        The sample names pairs beyond N.
    """
    folder = Path(folder)
    check_folder(folder, overwrite)
    if len(sample) and sample.pair_id.max() >= len(pairs):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the data has {len(pairs)}")
    with staged_directory(folder, overwrite=overwrite) as staged:
        pictures: list[str | None] = []
        (staged / IMAGES).mkdir()
        for i, jpeg in zip(sample.pair_id.tolist(), _thumbnails(sample, pairs), strict=True):
            pictures.append(None if jpeg is None else f"{IMAGES}/{i}.jpg")
            if jpeg is not None:
                (staged / IMAGES / f"{i}.jpg").write_bytes(jpeg)
        if not any(pictures):
            (staged / IMAGES).rmdir()
        table = _table(sample, pairs, pictures)
        write_csv(table, staged / CSV_NAME)
        (staged / PAGE_NAME).write_text(_page(table, staged, title, pairs), encoding="utf-8")
    known = sum(p is not None for p in pictures)
    return AuditForms(folder, folder / CSV_NAME, folder / PAGE_NAME, len(sample), known)


def check_folder(folder: Path, overwrite: bool) -> None:
    """OutputExistsError where an audit must not be written; asked before the work, not after it."""
    if not folder.exists():
        return
    if not overwrite:
        raise OutputExistsError(
            f"{folder} exists, and may hold labels that somebody has given; --overwrite replaces all of it, --out "
            "names another directory"
        )
    others = sorted(p.name for p in folder.iterdir() if p.name not in OUR_NAMES) if folder.is_dir() else []
    if others:
        raise OutputExistsError(
            f"{folder} holds {others[0]!r}, which is none of an audit's files: it is not replaced; move that away, or "
            "name another directory"
        )


def _thumbnails(sample: AuditSample, pairs: Pairs) -> Iterator[bytes | None]:
    images = pairs.image_index[sample.pair_id]
    for start in range(0, len(images), READ_AT_ONCE):
        for data in pairs.images.read(images[start : start + READ_AT_ONCE].tolist()):
            yield None if data is None else _thumbnail(data)


def _thumbnail(data: bytes) -> bytes | None:
    """A small JPEG, without the original's metadata; None where it cannot be decoded."""
    try:
        small = read_image(data)
    except DataError:
        return None
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85)
    return buffer.getvalue()


def _table(sample: AuditSample, pairs: Pairs, pictures: list[str | None]) -> pa.Table:
    ids = sample.pair_id.tolist()
    return pa.table({
        "pair_id": pa.array(ids, pa.int64()),
        "matched": pa.array([_shown(v) for v in sample.matched.tolist()], pa.string()),
        "caption": pa.array([one_line(pairs.captions[i], CAPTION_LENGTH) for i in ids], pa.string()),
        "image": pa.array(pictures, pa.string()),
        "key": pa.array([one_line(pairs.keys[i], KEY_LENGTH) for i in ids], pa.string()),
        "stratum": pa.array([sample.stratum_name(h) for h in sample.stratum.tolist()], pa.string()),
        "weight": pa.array(np.round(sample.weight, 4)),
        "correspondence": pa.array(np.round(sample.correspondence, 6)),
    })  # fmt: skip


def _shown(label: float) -> str | None:
    return None if np.isnan(label) else str(int(label))


def _page(table: pa.Table, staged: Path, title: str, pairs: Pairs) -> str:
    import jinja2

    here = resources.files("cleanpairs.audit")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("label.css", "label.js"))
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if row["image"]:
            row["image"] = "data:image/jpeg;base64," + _base64((staged / row["image"]).read_bytes())
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    digest = hashlib.sha256(repr([(r["pair_id"], r["key"], r["stratum"]) for r in rows]).encode()).hexdigest()[:16]
    return environment.from_string(here.joinpath("label.html").read_text(encoding="utf-8")).render(
        title=one_line(title, 200),
        rows=rows,
        storage=f"cleanpairs-audit-{digest}",  # what is labelled but not saved is found again by this name
        without="the data holds vectors: look the picture up by its key"
        if pairs.images.kind != "bytes"
        else "the picture cannot be read",
        style=style,
        script=script,
        style_hash=_base64(hashlib.sha256(style.encode()).digest()),
        script_hash=_base64(hashlib.sha256(script.encode()).digest()),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
