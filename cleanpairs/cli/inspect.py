"""``cleanpairs inspect``."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import LIMIT, column_options, option, pick_columns
from cleanpairs.cli.paths import PathsCommand
from cleanpairs.cli.terminal import cut, plural, print_result, safe
from cleanpairs.core.registry import READERS

FILES = 3  # that are named
REASONS = 10  # kinds of reasons that are shown
ROLES = {
    "text": "captions",
    "image": "images",
    "key": "keys",
    "features": "vectors",
    "text_features": "captions' vectors",
}
QUANTILES = ("least", "5 %", "25 %", "median", "75 %", "95 %", "most")  # cleanpairs.data.inspection.QUANTILES in words


@click.command(cls=PathsCommand)
@click.argument("data", type=click.Path())
@option("--rows", click.IntRange(min=0), "Pairs to show.", default=5, metavar="N")
@option(
    "--decode",
    ["all", "sample", "none"],
    "Images to decode, to see whether they can be; a sample is 1,000.",
    default="sample",
)
@option("--filters", None, "Count what `fit --drop` would set aside, filter by filter.")
@LIMIT
@column_options
def inspect(data: str, rows: int, decode: str, filters: bool, limit: int | None, **options: Any) -> None:
    """What DATA is recognised as, its columns, counts, first pairs, and what in it cannot be used.

    DATA is what `fit` takes: Parquet, a directory of `datasets`, WebDataset tars, a folder with a CSV, embeddings of
    clip-retrieval, COCO's captions, the research layout, hf://owner/name, or a URL with --allow-urls.
    """
    from cleanpairs.data import load_pairs
    from cleanpairs.data.inspection import inspect_pairs
    from cleanpairs.data.readers import fitting

    pairs = load_pairs(data, limit=limit, **pick_columns(options))
    found = inspect_pairs(pairs, rows=rows, decode=decode, filters="all" if filters else None)
    others = [name for name in fitting(data) if name != found["reader"] and (name != "parquet" or Path(data).is_dir())]
    found["other_readers"] = others
    width = max(shutil.get_terminal_size((100, 24)).columns, 60)
    print_result(found, "\n".join(_lines(found, decode, width)))


def _lines(found: dict[str, Any], decode: str, width: int) -> Iterator[str]:
    yield f"reader       {found['reader']}: {READERS.entry(found['reader']).summary}"
    if found["other_readers"]:
        yield f"             --reader takes it as {' or '.join(found['other_readers'])} instead"
    yield f"files        {plural(len(found['files']), 'file')}, {_bytes(found['bytes'])}"
    for path in found["files"][:FILES]:
        yield cut(f"             {safe(path)}", "", width)
    if len(found["files"]) > FILES:
        yield f"             ... and {len(found['files']) - FILES:,} more"
    if found["image_root"] is not None:
        yield cut(f"images in    {safe(found['image_root'])}", "", width)
    for name, value in found["options"].items():
        if name != "files":  # how many arrays of each side: for the reader, not for eyes
            yield cut(f"{name:<13}{safe(value)}", "", width)
    yield "\ncolumns"
    wide = max([len(safe(c["name"])) for c in found["columns"]] + [1])
    for column in found["columns"]:
        role = f"  <- {ROLES.get(column['role'], column['role'])}" if column["role"] else ""
        yield cut(f"  {safe(column['name']):<{min(wide, 40)}}  {safe(column['type'])}", role, width)
    yield f"\nrows         {found['rows']:,}"
    repeat = f"{found['duplicate_pairs']:,} repeat another"
    yield f"pairs        {found['pairs']:,}  ({found['quarantined']:,} quarantined, {repeat})"
    yield f"images       {found['images']:,}  ({found['distinct_images']:,} distinct)"
    yield f"captions     {found['pairs']:,}  ({found['distinct_captions']:,} distinct)"
    if found["vectors"] is not None:
        yield f"vectors      {found['vectors']} an image"
    if found["text_vectors"] is not None:
        yield f"             {found['text_vectors']} a caption"
    if found["corrupted"] is not None:
        yield f"truth        {plural(found['corrupted'], 'pair')} wrong, by the column true_mismatch"
    for name, score in found["precomputed_scores"].items():
        yield from _score(name, score, width)
    if found["first"]:
        yield "\nfirst pairs"
    for row in found["first"]:
        yield cut(f"  {safe(row['key'])}", f"  ({safe(row['image'])})", width)
        yield cut(f"    {safe(row['caption']) or '(no caption)'}", "", width)
        if row["reason"] is not None:
            yield f"    quarantined: {safe(row['reason'])}"
    if found["reasons"]:
        yield f"\nquarantined  {found['quarantined']:,} of {plural(found['pairs'], 'pair')}, for example"
        yield from _reasons(found["reasons"])
    if found["filters"] is not None:
        yield "\nfilters      what `fit --drop NAME,...` sets aside; those with * always are"
    for f in found["filters"] or ():
        example = "" if f["key"] is None else f"  (pair {f['pair_id']}, key {safe(f['key'])[:30]})"
        many = ", more than half: what the corpus is like, not set aside" if f["too_many"] else ""
        yield f"  {f['filter'] + ('*' if f['always'] else ''):<18}{f['pairs']:>9,}  {f['reason']}{many}{example}"
    yield ""
    yield from _decoding(found, decode)


def _score(name: str, score: dict[str, Any], width: int) -> Iterator[str]:
    yield cut(f"precomputed score  {safe(name)}", f"  ({score['known']:,} known)", width)
    if score["known"]:
        shown = zip(QUANTILES, score["quantiles"].values(), strict=True)
        yield "             " + "  ".join(f"{label} {value:.3f}" for label, value in shown)


def _reasons(reasons: list[dict[str, Any]]) -> Iterator[str]:
    for reason in reasons[:REASONS]:
        first = f"(pair {reason['pair_id']}, key {safe(reason['key'])[:30]})"
        yield f"  {reason['pairs']:>7,} x  {safe(reason['reason'])}  {first}"
    if len(reasons) > REASONS:
        yield f"  ... and {len(reasons) - REASONS:,} more kinds"


def _decoding(found: dict[str, Any], decode: str) -> Iterator[str]:
    done = found["decoded"]
    if done is None:
        why = "not asked for" if decode == "none" else "there are no encoded images to decode"
        yield f"decoded      none: {why}"
        return
    failed = sum(reason["pairs"] for reason in done["failures"])
    which = "all" if done["images"] == done["of"] else "a sample"
    more = "" if done["images"] == done["of"] else "; --decode all takes every one"
    yield f"decoded      {done['images']:,} of {done['of']:,} images ({which}{more}): {plural(failed, 'failure')}"
    if done["width"] is not None and done["height"] is not None:
        sides = [f"{name} {low:,} to {high:,} (median {mid:,})" for name, (low, mid, high) in
                 (("width", done["width"]), ("height", done["height"]))]  # fmt: skip
        yield f"             {', '.join(sides)}"
    yield from _reasons(done["failures"])


def _bytes(n: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:,.{unit != 'bytes':d}f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"
