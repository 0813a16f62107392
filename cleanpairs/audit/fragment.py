"""The sheet to label in, as a piece of a page: what the audit's own page and the report show."""

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from cleanpairs.audit.labels import KEY_LENGTH
from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import DataError
from cleanpairs.data.display import visible
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import ImageSource, Pairs

CAPTION_LENGTH = 2_000  # characters: a spreadsheet's cell holds 32,767, a person's patience less
READ_AT_ONCE = 32


@dataclass(frozen=True)
class SheetFragment:
    """``html`` of ``pairs`` cards, escaped; ``style`` and ``script`` that its page has to let in by their hashes."""

    html: str
    style: str
    script: str
    pairs: int


def sheet_fragment(
    sample: AuditSample,
    pairs: Pairs,
    jpegs: Sequence[bytes | None] | None = None,
    *,
    size: int = 240,
    whole: bool = False,
) -> SheetFragment:
    """Cards with a picture, a caption and three buttons each, in the sample's order, without scores; labels that there
    are, are pressed already.

    ``jpegs``: n thumbnails or None; made here, of at most ``size`` pixels on the longest side, when not given;
    ``whole``: the page holds nothing else: keys act without a card in focus.
    Raises DataError: the sample names pairs beyond those given.
    """
    check_fits(sample, pairs)
    small = list(thumbnails(pairs.images, pairs.image_index[sample.pair_id], size)) if jpegs is None else jpegs
    rows: list[dict[str, Any]] = [
        {
            "pair_id": i,
            "key": visible(pairs.keys[i], KEY_LENGTH),
            "caption": visible(pairs.captions[i], CAPTION_LENGTH),
            "stratum": sample.stratum_name(h),
            "matched": shown_label(label),
            "image": data_address(jpeg),
        }
        for i, h, label, jpeg in zip(
            sample.pair_id.tolist(), sample.stratum.tolist(), sample.matched.tolist(), small, strict=True
        )
    ]
    digest = hashlib.sha256(repr([(r["pair_id"], r["key"], r["stratum"]) for r in rows]).encode()).hexdigest()[:16]
    style, script = asset("sheet.css"), asset("label.js")
    html = page(
        "sheet.html",
        style=style,
        script=script,
        rows=rows,
        whole=whole,
        storage=f"cleanpairs-audit-{digest}",  # what is labelled but not saved is found again by this name
        without="the data holds vectors: look the picture up by its key"
        if pairs.images.kind != "bytes"
        else "the picture cannot be read",
    )
    return SheetFragment(html, style, script, len(rows))


def page(template: str, *, style: str, script: str, folder: str = "cleanpairs.audit", **values: Any) -> str:
    """A page of ``template`` in a ``folder``, whose content security policy lets in this style and script by their
    hashes: they are ours and have no markup to escape.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(*folder.split(".")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    hashes = dict(zip(("style_hash", "script_hash"), digests, strict=True))
    environment.filters |= values.pop("filters", {})
    return environment.get_template(template).render(style=style, script=script, **hashes, **values)


def asset(name: str) -> str:
    """Text of a file that lies beside this module."""
    return resources.files("cleanpairs.audit").joinpath(name).read_text(encoding="utf-8")


def check_fits(sample: AuditSample, pairs: Pairs) -> None:
    """DataError where a sample is of other pairs."""
    if len(sample) and sample.pair_id.max() >= len(pairs):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the data has {len(pairs)}")


def shown_label(label: float) -> str | None:
    """``"1"``, ``"0"``, or None where there is none."""
    return None if np.isnan(label) else str(int(label))


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
