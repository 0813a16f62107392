"""The forms of an audit: a CSV for a spreadsheet, thumbnails beside it, and a page to label by key or mouse, whose
sheet the report shows, too.
"""

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.audit.labels import KEY_LENGTH
from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import DataError
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.display import visible
from cleanpairs.data.guard import AUDIT_FILES
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import ImageSource, Pairs
from cleanpairs.repair.editing import write_csv

CSV_NAME, PAGE_NAME, IMAGES = "labels.csv", "label.html", "images"
THUMBNAIL = 360  # longest side, pixels
CAPTION_LENGTH = 2_000  # characters: a spreadsheet's cell holds 32,767, a person's patience less
READ_AT_ONCE = 32


def write_forms(
    folder: str | Path, sample: AuditSample, pairs: Pairs, *, title: str = "Audit", overwrite: bool = False
) -> Path:
    """Write ``labels.csv``, ``label.html`` and ``images/`` into a directory of their own, published whole; its path.

    The page loads nothing and sends nothing: its content security policy lets in one style and one script by their
    hashes, and pictures that it carries itself. The CSV is that of :func:`cleanpairs.repair.editing.write_csv`.
    ``overwrite``: replace an audit that lies there; never one with labels given by hand.
    Raises OutputExistsError: the directory exists; or, with ``overwrite``, holds files that are none of an audit's;
    DataError: the sample names pairs beyond N.
    """
    with staged_directory(folder, overwrite=overwrite, ours=AUDIT_FILES) as staged:
        jpegs = _thumbnails_of(sample, pairs, THUMBNAIL)
        pictures: list[str | None] = [None] * len(sample)
        for k, (i, jpeg) in enumerate(zip(sample.pair_id.tolist(), jpegs, strict=True)):
            if jpeg is not None:
                (staged / IMAGES).mkdir(exist_ok=True)
                pictures[k] = f"{IMAGES}/{i}.jpg"
                (staged / IMAGES / f"{i}.jpg").write_bytes(jpeg)
        write_csv(labels_table(sample, pairs, pictures), staged / CSV_NAME)
        sheet = sheet_html(sample, pairs, jpegs=jpegs, whole=True)
        style, script = asset("label.css") + asset("sheet.css"), asset("label.js")
        text = page("label.html", style=style, script=script, title=visible(title, 200), sheet=sheet)
        (staged / PAGE_NAME).write_text(text, encoding="utf-8")
    return Path(folder)


def labels_table(sample: AuditSample, pairs: Pairs, pictures: list[str | None]) -> pa.Table:
    """What ``labels.csv`` holds, of n pairs with the file of their picture, or None."""
    ids = sample.pair_id.tolist()
    return pa.table({
        "pair_id": pa.array(ids, pa.int64()),
        "matched": pa.array([_label(v) for v in sample.matched.tolist()], pa.string()),
        "caption": pa.array([visible(pairs.captions[i], CAPTION_LENGTH) for i in ids], pa.string()),
        "image": pa.array(pictures, pa.string()),
        "key": pa.array([visible(pairs.keys[i], KEY_LENGTH) for i in ids], pa.string()),
        "stratum": pa.array([sample.stratum_name(h) for h in sample.stratum.tolist()], pa.string()),
        "weight": pa.array(np.round(sample.weight, 4)),
        "correspondence": pa.array(np.round(sample.correspondence, 6)),
    })  # fmt: skip


def sheet_html(
    sample: AuditSample, pairs: Pairs, size: int = 240, *, jpegs: Sequence[bytes | None] | None = None,
    whole: bool = False,
) -> str:  # fmt: skip
    """Cards with a picture, a caption and three buttons each, in the sample's order, without scores; labels that there
    are, are pressed already. Their page has to let in ``sheet.css`` and ``label.js``.

    ``jpegs``: n thumbnails or None; made here, of at most ``size`` pixels on the longest side, when not given;
    ``whole``: the page holds nothing else: keys act without a card in focus.
    Raises DataError: the sample names pairs beyond those given.
    """
    table = labels_table(sample, pairs, [None] * len(sample)).to_pylist()
    small = _thumbnails_of(sample, pairs, size) if jpegs is None else jpegs
    drawn = repr([(row["pair_id"], row["key"], row["stratum"]) for row in table])
    return page(
        "sheet.html",
        rows=[row | {"image": data_address(jpeg)} for row, jpeg in zip(table, small, strict=True)],
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
    """A page of ``template``, whose content security policy lets in this style and script by their hashes: they are
    ours and have no markup to escape.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(*package.split(".")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    environment.filters |= filters or {}
    found = environment.get_template(template)
    return found.render(style=style, script=script, style_hash=style_hash, script_hash=script_hash, **values)


def asset(name: str, package: str = "cleanpairs.audit") -> str:
    """Text of a file that lies in a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _label(label: float) -> str | None:
    return None if np.isnan(label) else str(int(label))


def _thumbnails_of(sample: AuditSample, pairs: Pairs, size: int) -> list[bytes | None]:
    if len(sample) and sample.pair_id.max() >= len(pairs):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the data has {len(pairs)}")
    return list(thumbnails(pairs.images, pairs.image_index[sample.pair_id], size))


def thumbnails(images: ImageSource, rows: np.ndarray, size: int) -> Iterator[bytes | None]:
    """:func:`thumbnail` of each of the images ``rows`` (k,); None where there is none."""
    for start in range(0, len(rows), READ_AT_ONCE):
        for data in images.read(rows[start : start + READ_AT_ONCE].tolist()):
            yield None if data is None else thumbnail(data, size)


def data_address(jpeg: bytes | None) -> str | None:
    """A picture as an address that holds it."""
    return None if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")


def thumbnail(data: bytes, size: int) -> bytes | None:
    """A small JPEG, without the original's metadata; None where it cannot be decoded."""
    try:
        small = read_image(data)
    except DataError:
        return None
    small.thumbnail((size, size))
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=85)
    return buffer.getvalue()
