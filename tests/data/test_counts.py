"""Whatever lies in an input, each of its rows is a pair or is set aside with a reason: none is lost, none is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs.data import Pairs, iter_tables, load_pairs
from tests.helpers import embedding_folder, picture, research, write_table, write_tar

FAULTS = ("no image", "no caption", "empty image", "blank caption", "not UTF-8", "NUL")
Row = tuple[str, bytes | None, bytes | None]  # what is wrong, image, caption


def row(number: int, fault: str) -> Row:
    image = {"no image": None, "empty image": b""}.get(fault, picture(number))
    captions = {"no caption": None, "blank caption": b" \n", "not UTF-8": b"\xff\xfa", "NUL": b"a\0b"}
    return fault, image, captions.get(fault, f"caption {number}".encode())


def as_tar(root: Path, rows: list[Row]) -> Path:
    """Of a failed download nothing is in the tar, and a row in the Parquet file beside it."""
    members = list[tuple[str, bytes | None]]()
    for i, (_, image, caption) in enumerate(rows):
        members += [(f"{i:04d}.png", image), (f"{i:04d}.txt", caption)]
    write_tar(root / "0.tar", [(name, content) for name, content in members if content is not None])
    pq.write_table(pa.table({"key": [f"{i:04d}" for i in range(len(rows))]}), root / "0.parquet")
    return root


def as_files(root: Path, rows: list[Row]) -> Path:
    for i, (_, image, caption) in enumerate(rows):
        folder = root / f"part{i % 3}"
        folder.mkdir(exist_ok=True)
        for ending, content in (("png", image), (("txt", "caption", "text")[i % 3], caption)):
            if content is not None:
                (folder / f"{i:04d}.{ending}").write_bytes(content)
    return root


def as_downloads(root: Path, rows: list[Row]) -> Path:
    (root / "00000").mkdir()
    for i, (_, image, _) in enumerate(rows):
        if image is not None:
            (root / "00000" / f"{i:09d}.png").write_bytes(image)
    table = {"key": [f"{i:09d}" for i in range(len(rows))], "url": ["u"] * len(rows), "caption": texts(rows)}
    status = ["success" if image is not None else "failed_to_download" for _, image, _ in rows]
    pq.write_table(pa.table(table | {"status": status}), root / "00000.parquet")
    return root


def texts(rows: list[Row]) -> pa.Array:
    """Of Arrow's strings any bytes can be the value."""
    return pa.array([caption for _, _, caption in rows], pa.binary()).cast(pa.string(), safe=False)


def as_parquet(root: Path, rows: list[Row]) -> Path:
    (root / "data").mkdir()
    for k in range(2):
        part, images = rows[k::2], pa.array([image for _, image, _ in rows[k::2]], pa.binary())
        pq.write_table(pa.table({"image": images, "caption": texts(part)}), root / "data" / f"{k}.parquet")
    return root


def as_datasets(root: Path, rows: list[Row]) -> Path:
    captions = [None if caption is None else caption.decode("utf-8", "replace") for _, _, caption in rows]
    kinds = datasets.Features({"image": datasets.Image(decode=False), "caption": datasets.Value("string")})
    images = [None if image is None else {"bytes": image, "path": None} for _, image, _ in rows]
    datasets.Dataset.from_dict({"image": images, "caption": captions}, kinds).save_to_disk(root / "saved")
    return root / "saved"


def vectors(rows: list[Row]) -> np.ndarray:
    found = np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32)
    for i, (_, image, _) in enumerate(rows):
        if not image:
            found[i] = np.nan if image is None else 0
    return found


def as_arrays(root: Path, rows: list[Row]) -> Path:
    np.save(root / "image.npy", vectors(rows))
    pq.write_table(pa.table({"caption": texts(rows)}), root / "rows.parquet")
    return root / "image.npy"


def as_research(root: Path, rows: list[Row]) -> Path:
    lines = [(caption or b"").decode("utf-8", "replace").strip() for _, _, caption in rows]
    return research(root, vectors(rows), lines)


def as_csv(root: Path, rows: list[Row]) -> Path:
    with open(root / "in.csv", "wb") as file:
        file.write(b"image,caption\n")
        for i, (_, image, caption) in enumerate(rows):
            (root / f"{i}.png").write_bytes(image or b"")
            file.write((b"" if image is None else f"{i}.png".encode()) + b',"' + (caption or b"") + b'"\n')
    return root / "in.csv"


def as_paths(root: Path, rows: list[Row]) -> Path:
    """Parquet that names the images of a CSV."""
    names = pa.array([None if image is None else f"{i}.png" for i, (_, image, _) in enumerate(rows)], pa.string())
    return write_table(as_csv(root, rows).with_suffix(".parquet"), {"image": names, "caption": texts(rows)})


def as_coco(root: Path, rows: list[Row]) -> Path:
    as_csv(root, rows)  # with the images
    images = [{"id": i, "file_name": None if image is None else f"{i}.png"} for i, (_, image, _) in enumerate(rows)]
    told = [{"image_id": i, "caption": c.decode("utf-8", "replace")} for i, (*_, c) in enumerate(rows) if c is not None]
    (root / "in.json").write_text(json.dumps({"images": images, "annotations": told}))
    return root / "in.json"


def as_embeddings(root: Path, rows: list[Row]) -> Path:
    return embedding_folder(root / "e", vectors(rows), None, pa.table({"caption": texts(rows)}))


READ = {as_arrays: {"captions": "rows.parquet"}}
NOTHING = {write: {"not UTF-8"} for write in (as_datasets, as_research, as_coco)}  # what the format cannot hold
WRITERS = [*NOTHING, as_tar, as_files, as_downloads, as_parquet, as_arrays, as_csv, as_embeddings]
EVERY = pytest.mark.parametrize("write", [*WRITERS, as_paths], ids=lambda f: f.__name__)


def read(write: Callable[[Path, list[Row]], Path], rows: list[Row], root: Path) -> Pairs:
    options: dict[str, Any] = {name: root / file for name, file in READ.get(write, {}).items()}
    pairs = load_pairs(write(root, rows), **options)
    assert len(pairs) == pairs.source.n_rows == len(rows) == sum(map(len, iter_tables(pairs.source)))
    return pairs


@EVERY
@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_rows(write: Callable[[Path, list[Row]], Path], n: int, tmp_path: Path) -> None:
    if n or write not in (as_files, as_downloads):  # without an image such a folder is no input
        pairs = read(write, [row(i, "") for i in range(n)], tmp_path)
        assert len(pairs.images) == n and not pairs.reasons


@EVERY
@settings(max_examples=15, deadline=None)
@given(faults=st.lists(st.sampled_from(["", "", *FAULTS]), min_size=1, max_size=9))
def test_every_row_is_a_pair_or_has_a_reason(write: Any, faults: list[str], tmp_path_factory: Any) -> None:
    rows = [row(i, fault) for i, fault in enumerate(["", *faults])]
    pairs = read(write, rows, tmp_path_factory.mktemp("input"))
    wrong = [i for i, (fault, _, _) in enumerate(rows) if fault and fault not in NOTHING.get(write, ())]
    assert len(pairs.reasons) == len(wrong) and all(pairs.reasons.values())
    good = [f"caption {i}" for i, (fault, _, _) in enumerate(rows) if not fault]
    assert set(good) <= {pairs.captions[i] for i in range(len(rows)) if i not in pairs.reasons}
