"""The forms of an audit: a CSV for a spreadsheet, thumbnails beside it, and a page to label by key or mouse."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.audit.fragment import (
    CAPTION_LENGTH,
    asset,
    check_fits,
    page,
    sheet_fragment,
    shown_label,
    thumbnails,
)
from cleanpairs.audit.labels import KEY_LENGTH
from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import OutputExistsError
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.display import visible
from cleanpairs.data.guard import AUDIT_FILES, refuse_foreign, refuse_labels
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.editing import write_csv

CSV_NAME, PAGE_NAME, IMAGES = "labels.csv", "label.html", "images"
THUMBNAIL = 360  # longest side, pixels


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
    """Write ``labels.csv``, ``label.html`` and ``images/`` into a directory of their own, published whole.

    The page loads nothing and sends nothing: its content security policy lets in one style and one script by their
    hashes, and pictures that it carries itself. The CSV is that of :func:`cleanpairs.repair.editing.write_csv`.
    ``overwrite``: replace an audit that lies there; never one with labels given by hand.
    Raises OutputExistsError: the directory exists; or, with ``overwrite``, holds files that are none of an audit's;
    DataError: the sample names pairs beyond N.
    """
    folder = Path(folder)
    check_folder(folder, overwrite)
    check_fits(sample, pairs)
    with staged_directory(folder, overwrite=overwrite, ours=AUDIT_FILES) as staged:
        (staged / IMAGES).mkdir()
        small = list(thumbnails(pairs.images, pairs.image_index[sample.pair_id], THUMBNAIL))
        pictures: list[str | None] = []
        for i, jpeg in zip(sample.pair_id.tolist(), small, strict=True):
            pictures.append(None if jpeg is None else f"{IMAGES}/{i}.jpg")
            if jpeg is not None:
                (staged / IMAGES / f"{i}.jpg").write_bytes(jpeg)
        if not any(pictures):
            (staged / IMAGES).rmdir()
        write_csv(labels_table(sample, pairs, pictures), staged / CSV_NAME)
        sheet = sheet_fragment(sample, pairs, small, whole=True)
        style = asset("label.css") + sheet.style
        text = page("label.html", style=style, script=sheet.script, title=visible(title, 200), sheet=sheet.html)
        (staged / PAGE_NAME).write_text(text, encoding="utf-8")
    known = sum(p is not None for p in pictures)
    return AuditForms(folder, folder / CSV_NAME, folder / PAGE_NAME, len(sample), known)


def check_folder(folder: Path, overwrite: bool) -> None:
    """OutputExistsError where an audit must not be written; asked before the work, not after it."""
    if not folder.exists():
        return
    if not overwrite:
        raise OutputExistsError(
            f"{folder} exists; --overwrite replaces it where nobody has given labels in it, --out names another "
            "directory"
        )
    if folder.is_dir():
        refuse_labels(folder)
        refuse_foreign(folder, AUDIT_FILES)


def labels_table(sample: AuditSample, pairs: Pairs, pictures: list[str | None]) -> pa.Table:
    """What ``labels.csv`` holds, of n pairs with the file of their picture, or None."""
    ids = sample.pair_id.tolist()
    return pa.table({
        "pair_id": pa.array(ids, pa.int64()),
        "matched": pa.array([shown_label(v) for v in sample.matched.tolist()], pa.string()),
        "caption": pa.array([visible(pairs.captions[i], CAPTION_LENGTH) for i in ids], pa.string()),
        "image": pa.array(pictures, pa.string()),
        "key": pa.array([visible(pairs.keys[i], KEY_LENGTH) for i in ids], pa.string()),
        "stratum": pa.array([sample.stratum_name(h) for h in sample.stratum.tolist()], pa.string()),
        "weight": pa.array(np.round(sample.weight, 4)),
        "correspondence": pa.array(np.round(sample.correspondence, 6)),
    })  # fmt: skip
