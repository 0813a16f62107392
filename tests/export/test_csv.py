"""An export as CSV: of a folder with a CSV what is kept and what is dropped, by file name."""

import csv
import io
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cleanpairs import export_pairs, load_pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.table_reader import IMAGE_TYPE
from cleanpairs.export.writing import Export, ExportSettings
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, picture, write_pictures, write_table


def test_a_folder_is_exported_as_it_came(make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", [f"{i} ä.png" for i in range(7)])
    captions = ["plain", 'with "quotes", and a comma', "in two\nlines", "d", "", "f", "g"]
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["file_name", "caption", "weight"]])
        csv.writer(file).writerows([f"{i} ä.png", text, f"{i}.10"] for i, text in enumerate(captions))
    pairs = load_pairs(folder)
    out, gone = tmp_path / "kept.csv", tmp_path / "gone.csv"
    plan = make_plan(pairs, mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = export_pairs(pairs, plan, out, dropped=gone)
    assert str(summary).endswith(f"images are paths: read them with --image-root {folder}")
    assert (summary.format, summary.rows) == ("csv", len(pairs) - summary.dropped - summary.quarantined)
    kept, dropped = (list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))) for path in (out, gone))
    names = [row["file_name"] for row in kept]
    assert names == [f"{i} ä.png" for i in (0, 1, 3, 5, 6)]  # row 2 has the image of the next one
    assert [row["caption"] for row in kept][:2] == ["plain", captions[2]] and kept[0]["weight"] == "0.10"
    assert [(row["file_name"], row["action"]) for row in dropped] == [("3 ä.png", "drop"), ("4 ä.png", "quarantine")]
    limit = csv.field_size_limit()
    assert verify_path(out).ok and csv.field_size_limit() == limit  # which is the whole process's
    out.rename(folder / "kept.csv")
    again = load_pairs(folder / "kept.csv")
    assert again.captions == [row["caption"] for row in kept] and again.images.read([0]) == pairs.images.read([0])


def test_names_of_images_that_are_no_files_are_warned_of(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    images = pa.array([{"bytes": picture(i), "path": f"{i}.png"} for i in range(3)], IMAGE_TYPE)
    pairs = make_pairs(3, image=images)
    with pytest.warns(UserWarning, match="names images that are inside the input"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "kept.csv")


@pytest.mark.parametrize("struct", [False, True])
@pytest.mark.parametrize("name", ["parquet", "datasets", "csv", "webdataset", "uids"])
def test_where_lone_paths_lead_is_said(name: str, struct: bool, make_plan: Any, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "in", ["a b.png"])
    images = pa.array([{"bytes": None, "path": "a b.png"}], IMAGE_TYPE) if struct else pa.array(["a b.png"])
    table = pa.table({"image_path": images, "caption": ["a"], "uid": ["0" * 32]})
    pairs = load_pairs(write_table(folder / "in.parquet", table))
    for out in (tmp_path / "out dir" / "out", folder / "out"):
        summary = export_pairs(pairs, make_plan(pairs), out.with_suffix(".csv" if name == "csv" else ""), format=name)
        wanted = folder if name in ("parquet", "datasets", "csv") and out.parent != folder else None
        assert summary.image_root == wanted and ("--image-root" in str(summary)) == (wanted is not None)


def test_text_of_any_kind(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    raw = pa.array([b"=1+1", b"\xff", b"-2", b"c"], pa.binary())
    note = pa.Array.from_buffers(pa.string(), 4, raw.buffers())  # not all of it is UTF-8
    pairs = make_pairs(4, struct=True, caption=note, source=pa.array(["=1"] * 4).dictionary_encode())
    out, gone = tmp_path / "kept.csv", tmp_path / "gone.csv"
    export_pairs(pairs, make_plan(pairs, ["keep", "quarantine", "drop", "keep"]), out, dropped=gone)
    rows = (csv.DictReader(path.read_text().splitlines()) for path in (out, gone))
    kept, dropped = ([(row["caption"], row["source"]) for row in some] for some in rows)
    assert kept == [("=1+1", "=1"), ("c", "=1")]
    assert dropped == [("\ufffd", "'=1"), ("'-2", "'=1")]  # no formula for the spreadsheets of people


def test_what_a_csv_cannot_hold(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    for how, words in (
        ({}, r"column 'image' of type binary: write Parquet \(cut.parquet\)$"),
        ({"struct": True, "lists": True}, "column 'caption' of type list.*--captions split"),
    ):
        pairs = make_pairs(3, **how)
        assert_raises(ConfigError, words, export_pairs, pairs, make_plan(pairs), tmp_path / "cut.csv")
        if not how:
            with pytest.raises(ConfigError, match=words):  # before there is a plan, which takes its time
                Export(pairs.source, tmp_path / "out.parquet", ExportSettings(dropped=tmp_path / "cut.csv"))
    with pytest.raises(ConfigError, match=r"column 'all_captions' of type list.*\(out\.parquet\)$"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out.csv", explode=True, all_captions=True)
    pairs = make_pairs(3, struct=True)
    export_pairs(pairs, make_plan(pairs), tmp_path / "tars", format="webdataset")
    packed = load_pairs(tmp_path / "tars")
    with pytest.raises(ConfigError, match=r"images are in tars.*--format webdataset"):
        export_pairs(packed, make_plan(packed), tmp_path / "out.csv")
    pairs = make_pairs(3, image=pa.array([{"bytes": picture(0), "path": None}] * 3, IMAGE_TYPE))
    with pytest.raises(DataError, match=r"image of row 0 of out\.csv has no file name"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out.csv")
