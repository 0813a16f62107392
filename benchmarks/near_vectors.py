"""At how many bits vectors of an image and of its copies are near duplicates, beside the rule for pixels.

    OMP_NUM_THREADS=1 python benchmarks/near_vectors.py DATA_DIR > benchmarks/results/near_vectors.csv

DATA_DIR holds ``webcaptions.parquet``. Its first 300 images are scaled to two thirds, stored in a low quality, and
cropped by 3 % of each side. ``fashion_test.parquet`` holds 2,000 pictures of products on white, many of which are
alike. The vectors are those of the frozen EfficientNet-Lite.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from cleanpairs import Pairs
from cleanpairs.data.duplicates import VectorSigns, group_near_duplicates, near_vector_groups
from cleanpairs.features.images import image_matrix


def copy_of(data: bytes, kind: int) -> bytes:
    """An image that is scaled (0), stored in a low quality (1) or cropped (2)."""
    image, out = Image.open(io.BytesIO(data)).convert("RGB"), io.BytesIO()
    w, h = image.size
    if kind == 0:
        image = image.resize((w * 2 // 3, h * 2 // 3))
    if kind == 2:
        image = image.crop((w * 3 // 100, h * 3 // 100, w - w * 3 // 100, h - h * 3 // 100))
    image.save(out, "JPEG", quality=40 if kind == 1 else 85)
    return out.getvalue()


def images_of(file: Path) -> list[bytes]:
    """The images of a file of DATA_DIR."""
    column = pq.read_table(file, columns=["image"])["image"].to_pylist()
    return [x["bytes"] if isinstance(x, dict) else x for x in column]


def rules_of(images: list[bytes]) -> dict[str, np.ndarray]:
    """Rule -> the groups of images by it."""
    pairs = Pairs.from_arrays([f"image {i}" for i in range(len(images))], images=images)
    vectors = np.asarray(image_matrix(pairs, "efficientnet_lite0").array)
    signs = VectorSigns(vectors)(vectors)
    rules = {f"{bits} bits of 256": near_vector_groups(signs, bits) for bits in (20, 24, 28, 32, 36, 40, 48)}
    return rules | {"pixels": group_near_duplicates(pairs).pair_image_group}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    images = images_of(data / "webcaptions.parquet")[:300]
    n = len(images)
    images += [copy_of(data, kind) for kind in range(3) for data in images]
    web, products = (rules_of(each) for each in (images, images_of(data / "fashion_test.parquet")))
    print("# OMP_NUM_THREADS=1 python benchmarks/near_vectors.py DATA_DIR > benchmarks/results/near_vectors.csv")
    copies = ",".join(f"share of {kind} copies found" for kind in ("scaled", "low-quality", "cropped"))
    print(f"near duplicates by,{copies},different images linked,different products linked,most in one group")
    for name, group in web.items():
        found = [f"{(group[:n] == group[n * k : n * (k + 1)]).mean():.3f}".lstrip("0") for k in (1, 2, 3)]
        size = np.unique(products[name], return_counts=True)[1]
        print(name, *found, n - len(np.unique(group[:n])), size.sum() - len(size), size.max(), sep=",")


if __name__ == "__main__":
    main()
