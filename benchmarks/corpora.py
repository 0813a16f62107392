"""The corpora of the tables, out of the user's own download: the same rows, in the same order.

    python benchmarks/corpora.py photos FLICKR8K OUT       # Flickr8k (Hodosh et al. 2013)
    python benchmarks/corpora.py fashion FASHION OUT       # Fashion Product Images (Small)
    python benchmarks/corpora.py stamps STAMPS OUT         # Debian's tuxpaint-stamps-default, 2022.06.04-1
    python benchmarks/corpora.py emoji EMOJI OUT           # npm's emoji-datasource-google, 16.0.0

FLICKR8K holds the photographs (``Flicker8k_Dataset`` or ``Images``) and their captions (``Flickr8k.token.txt`` or
``captions.txt``); FASHION holds ``styles.csv`` and ``images``; STAMPS is ``usr/share/tuxpaint/stamps`` of the package
(``dpkg-deb -x`` unpacks it), EMOJI the folder ``package`` that ``npm pack`` packs, with ``emoji.json`` and ``img``. OUT
gets NAME_train, NAME_val and NAME_test.parquet, NAME the corpus or its smaller version, photos1 (each photograph's
first caption) or titles2000 (the first 2,000 to train with), which ``benchmarks/rows.py`` and
``cleanpairs bench`` take. Keys of the rows are in ``benchmarks/keys``, with a SHA-256 of their captions: where it
differs, the download has other captions, and that is said.

Photographs become 224x224 pixels, both sides scaled, JPEG of quality 95; product pictures are kept as they are; stamps
and emoji are laid on white, stamps in 224x224 pixels. Another version of Pillow gives other bytes, so figures may
differ from the tables' in the last digit.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

KEYS = Path(__file__).parent / "keys"
SPLITS = ("train", "val", "test")
SIDE, QUALITY = 224, 95


def photos(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Key -> row of Flickr8k."""
    captions: dict[str, list[str]] = {}
    token, table = folder / "Flickr8k.token.txt", folder / "captions.txt"
    if token.exists():
        lines = [line.partition("\t")[::2] for line in token.read_text(encoding="utf-8").splitlines()]
    elif table.exists():
        lines = [line.partition(",")[::2] for line in table.read_text(encoding="utf-8").splitlines()[1:]]
        lines = [(name, text.strip('"').replace('""', '"')) for name, text in lines]
    else:
        sys.exit(f"{folder}: neither Flickr8k.token.txt nor captions.txt is there")
    for name, text in lines:
        captions.setdefault(name.partition(".")[0], []).append(text.strip())
    names = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images")
    images = next((folder / name for name in names if (folder / name).exists()), folder)

    def row(key: str) -> dict[str, Any]:
        out = io.BytesIO()
        with Image.open(images / f"{key}.jpg") as image:
            image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(out, "JPEG", quality=QUALITY)
        return {"key": key, "image": {"bytes": out.getvalue(), "path": None}, "captions": captions[key]}

    return row


def fashion(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Key -> row of Fashion Product Images."""
    with (folder / "styles.csv").open(encoding="utf-8", newline="") as lines:
        items = {item["id"]: item for item in csv.DictReader(lines, restkey="rest")}

    def row(key: str) -> dict[str, Any]:
        item = items[key]
        kinds = [item[k] for k in ("masterCategory", "subCategory", "articleType", "baseColour", "usage")]
        return {
            "key": key,
            "image": {"bytes": (folder / "images" / f"{key}.jpg").read_bytes(), "path": None},
            "text": ",".join([item["productDisplayName"], *item.get("rest", [])]),  # titles with commas stand bare
            "attributes": " - ".join(kinds),
            "category": item["masterCategory"],
        }

    return row


def on_white(file: Path, side: int | None = None) -> dict[str, Any]:
    """PNG of a picture that may be transparent, ``side`` pixels wide and high."""
    out = io.BytesIO()
    with Image.open(file) as image:
        drawn = image.convert("RGBA")
    drawn = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    (drawn.resize((side, side), Image.Resampling.BICUBIC) if side else drawn).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def stamps(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Key, the path without its ending, -> row of Tux Paint's stamps: drawings and photographs of things."""

    def row(key: str) -> dict[str, Any]:
        caption = (folder / f"{key}.txt").read_text(encoding="utf-8").splitlines()[0].strip()
        return {"key": key, "image": on_white(folder / f"{key}.png", SIDE), "text": caption}

    return row


def emoji(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Key, the code points, -> row of emoji and their names."""
    items = {item["image"].partition(".")[0]: item for item in json.loads((folder / "emoji.json").read_text("utf-8"))}

    def row(key: str) -> dict[str, Any]:
        image = on_white(folder / "img/google/64" / items[key]["image"])
        return {"key": key, "image": image, "text": items[key]["name"].lower()}

    return row


CORPORA = {"photos": photos, "fashion": fashion, "stamps": stamps, "emoji": emoji}
TITLES = 2000


def versions(corpus: str, split: str, rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Name -> rows, of the corpus and of its smaller version."""
    found = {f"{corpus}_{split}": rows}
    if corpus == "photos":
        found[f"photos1_{split}"] = [{**row, "captions": row["captions"][:1]} for row in rows]
    if corpus == "fashion":
        found[f"titles{TITLES}_{split}"] = rows[:TITLES] if split == "train" else rows
    return found


def digest_of(rows: list[dict[str, Any]]) -> str:
    """SHA-256 of the captions."""
    texts = [caption for row in rows for caption in row.get("captions", [row.get("text")])]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=list(CORPORA))
    parser.add_argument("download", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    row_of, missing = CORPORA[args.corpus](args.download), []
    args.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        digest, *keys = (KEYS / f"{args.corpus}_{split}.txt").read_text(encoding="ascii").split()
        rows = []
        for key in keys:
            try:
                rows.append(row_of(key))
            except (KeyError, FileNotFoundError):
                missing.append(key)
        image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        schema = pa.Table.from_pylist(rows[:1]).schema if rows else sys.exit(f"{args.download}: no row of {split}")
        schema = schema.set(schema.get_field_index("image"), pa.field("image", image))
        file = args.out / f"{args.corpus}_{split}.parquet"
        for name, some in versions(args.corpus, split, rows).items():
            pq.write_table(pa.Table.from_pylist(some, schema), args.out / f"{name}.parquet")
        same = "the captions of the tables" if digest_of(rows) == digest else "NOT the captions of the tables"
        print(f"{file}: {len(rows)} of {len(keys)} rows, {same}")
    if missing:
        sys.exit(f"{len(missing)} keys are not in {args.download}, the first: {', '.join(missing[:5])}")


if __name__ == "__main__":
    main()
