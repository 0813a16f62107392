"""Written Parquet: checksums, bounded row groups, the image feature, no partial file that passes for whole."""

import io
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs import load_pairs
from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.data import ParquetSink, table_reader, writing

FLAT = pa.schema([("a", pa.int64()), ("text", pa.string())], metadata={"note": "kept"})


def rows(first: int, n: int) -> pa.RecordBatch:
    numbers = range(first, first + n)
    return pa.RecordBatch.from_pydict({"a": numbers, "text": [f"row {i}" for i in numbers]}, schema=FLAT)


def test_rows_come_back_and_are_counted_and_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.parquet"
    for most, wanted in ((None, [105]), (40, [40, 40, 25])):
        if most is not None:
            monkeypatch.setattr(writing.ParquetSink, "group_rows", most)
        with ParquetSink(path, FLAT) as sink:
            for first in range(0, 100, 10):
                sink.write(rows(first, 10))
            sink.write(pa.Table.from_batches([rows(100, 5)]))
        table, meta = pq.read_table(path, page_checksum_verification=True), pq.read_metadata(path)
        assert sink.rows == 105 and table["a"].to_pylist() == list(range(105))
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == wanted
        assert meta.row_group(0).column(0).compression == "ZSTD"
    assert pq.read_schema(path).metadata[b"note"] == b"kept"


def test_row_groups_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.ParquetSink, "group_bytes", 1000)
    path = tmp_path / "out.parquet"
    for step in (500, 20):  # all at once, as a frame comes, and in parts
        with ParquetSink(path, FLAT) as sink:
            for first in range(0, 500, step):
                sink.write(rows(first, step))
        file = pq.ParquetFile(path)
        sizes = [file.read_row_group(i).nbytes for i in range(file.num_row_groups)]
        assert max(sizes) <= 1100 and file.num_row_groups <= 25
        assert file.read()["a"].to_pylist() == list(range(500))
    with ParquetSink(path, pa.schema([("blob", pa.binary())])) as sink:
        sink.write(pa.table({"blob": [bytes(5000)] * 3}))  # a row is never cut
    assert pq.read_metadata(path).num_row_groups == 3


FULL_DISK = """
import resource, sys
import numpy as np, pyarrow as pa
from cleanpairs.core.errors import OutputError
from cleanpairs.data import ParquetSink

resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))  # a real error of a real write
table = pa.table({"score": np.random.default_rng(0).random(500_000)})
try:
    with ParquetSink(sys.argv[1], table.schema) as sink:
        sink.write(table)
except OutputError as error:
    print("refused:", error)
"""


def test_a_column_of_numbers_that_the_disk_does_not_hold_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "out.parquet")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("refused:"), done.stderr[-500:]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nowhere.*cannot be written"):
        ParquetSink(tmp_path / "nowhere" / "out.parquet", FLAT)


def test_the_first_error_is_the_one_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def close(self) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="the real reason"), ParquetSink(tmp_path / "out.parquet", FLAT) as sink:  # noqa: PT012
        sink._writer.close()
        sink._writer = Broken()
        raise DataError("the real reason")


@pytest.mark.parametrize("path_type", [pa.string(), pa.null()])
def test_images_and_other_features_open_in_datasets(tmp_path: Path, path_type: pa.DataType) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (5, 4), "red").save(stream, "PNG")
    noted = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "gone": datasets.Value("string")})
    info = {b"huggingface": writing.json.dumps({"info": {"features": noted.to_dict()}}).encode()}
    image = pa.struct([("bytes", pa.binary()), ("path", path_type)])
    schema = pa.schema([("image", image), ("caption", pa.string()), ("label", pa.int64())], metadata=info)
    row = {"image": {"bytes": stream.getvalue(), "path": None}, "caption": "a", "label": 1}
    path = tmp_path / "out.parquet"
    with ParquetSink(path, schema) as sink:
        sink.write(pa.RecordBatch.from_pylist([row], schema=schema))
    loaded = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["image"].size == (5, 4) and loaded.features["label"].names == ["no", "yes"]
    for metadata in ({b"huggingface": b"{not json"}, {b"note": b"kept"}):
        found = writing.with_image_feature(schema.with_metadata(metadata)).metadata
        assert b"Image" in found[b"huggingface"] and found.get(b"note") == metadata.get(b"note")
    assert writing.with_image_feature(FLAT) is FLAT
    with ParquetSink(path, schema.with_metadata({"note": "kept"}), image_feature=False) as sink:
        sink.write(pa.RecordBatch.from_pylist([row], schema=schema))
    assert b"huggingface" not in pq.read_schema(path).metadata


def test_floats_have_no_dictionary_and_what_repeats_has(tmp_path: Path) -> None:
    for rows in (0, 1, 1000):
        columns = {
            "x": pa.array(np.random.default_rng(0).random(rows).astype(np.float32)),
            "text": pa.array([f"a{k % 3}" for k in range(rows)]),
            "n": pa.array(np.arange(rows) % 5),
            "part": pa.array([{"y": 0.5, "name": "b"}] * rows, pa.struct({"y": pa.float64(), "name": pa.string()})),
            "v": pa.array([[1.0, 2.0]] * rows, pa.list_(pa.float32(), 2)),
        }
        table = pa.table(columns)
        with ParquetSink(tmp_path / "t.parquet", table.schema) as sink:
            sink.write(table)
        assert pq.read_table(tmp_path / "t.parquet").equals(table)
        group = pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0) if rows else None
        for column in (group.column(k) for k in range(group.num_columns if group else 0)):
            assert column.has_dictionary_page is (column.path_in_schema in ("text", "n"))
            assert column.compression == "ZSTD"


# -- Rows converted a column at a time are the rows converted one by one; vectors of captions beside thos --


@pytest.mark.parametrize("large", [False, True])
def test_vectors_of_captions_keep_their_faults(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "IN_MEMORY", 0 if large else 1 << 20)
    zeros = [0.0] * 1000  # of all five more than a page, below which there is no file
    texts = [[1.0, 2.0, *zeros], None, [3.0], [np.inf, 1.0, *zeros], [4.0, 5.0, *zeros]]
    table = pa.table(
        {
            "caption": ["a", "b", "c", "d", "e"],
            "image_features": pa.array(np.eye(5, dtype=np.float32).tolist(), pa.list_(pa.float32(), 5)),
            "text_features": pa.array(texts, pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    pairs = load_pairs(tmp_path / "data.parquet")
    assert pairs.source.columns["text_features"] == "text_features"
    assert isinstance(pairs.text_vectors, np.memmap) == large and pairs.text_vectors is not None
    np.testing.assert_array_equal(pairs.text_vectors[:, :2], [[1, 2], [0, 0], [0, 0], [0, 0], [4, 5]])
    missing, short = "there is no text vector", "its text vector has 1 values, not 1002"
    assert pairs.reasons == {1: missing, 2: short, 3: "its text vector is not finite"}
    pq.write_table(table.set_column(0, "caption", pa.array([["a", "b"]] * 5)), tmp_path / "lists.parquet")
    several = load_pairs(tmp_path / "lists.parquet")  # one vector a row is not one a caption
    assert several.text_vectors is None and not several.reasons and len(several) == 10
