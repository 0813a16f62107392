"""Exports that list what is kept as it was: a CSV of file names, and uids as DataComp's resharder reads them."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import diff_export, export_pairs, load_pairs, restore_export
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.table_reader import IMAGE_TYPE
from cleanpairs.ops.columns import with_columns
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, picture, write_pictures


@pytest.mark.filterwarnings("error")
def test_a_folder_is_exported_as_it_came(make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", [f"{i} ä.png" for i in range(7)])
    captions = ["plain", 'with "quotes", and a comma', "in two\nlines", "d", "", "f", "g"]
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["file_name", "caption", "weight"]])
        csv.writer(file).writerows([f"{i} ä.png", text, f"{i}.10"] for i, text in enumerate(captions))
    pairs = load_pairs(folder)
    out, gone = tmp_path / "kept.csv", tmp_path / "gone.csv"
    summary = export_pairs(pairs, make_plan(pairs, mixed), out, dropped=gone)
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
    with pytest.raises(ConfigError, match=r"column 'all_captions' of type list.*\(out\.parquet\)$"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out.csv", explode=True, all_captions=True)
    pairs = make_pairs(3, struct=True)
    with pytest.warns(UserWarning, match="names images that are inside the input"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "kept.csv")
    export_pairs(pairs, make_plan(pairs), tmp_path / "tars", format="webdataset")
    packed = load_pairs(tmp_path / "tars")
    with pytest.raises(ConfigError, match=r"images are in tars.*--format webdataset"):
        export_pairs(packed, make_plan(packed), tmp_path / "out.csv")
    pairs = make_pairs(3, image=pa.array([{"bytes": picture(0), "path": None}] * 3, IMAGE_TYPE))
    with pytest.raises(DataError, match=r"image of row 0 of out\.csv has no file name"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out.csv")


def documented(uids: list[str]) -> np.ndarray:
    """As DataComp's README tells to make the list."""
    found = np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], np.dtype("u8,u8"))
    found.sort()
    return found


@pytest.mark.parametrize(("repeats", "times"), [(1, [1, 1, 1, 1]), (4, [4, 1, 2, 3])])
def test_only_what_was_kept_as_it_was(
    make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path, repeats: int, times: list[int]
) -> None:
    pairs, out = make_pairs(7), tmp_path / "kept.npy"
    uids = pq.read_table(pairs.source.paths[0])["uid"].to_pylist()
    plan = make_plan(pairs, mixed)
    y = pa.array([1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.8], pa.float32())
    plan = replace(plan, table=with_columns(plan.table, {"correspondence": y}), settings={"repeats": repeats})
    summary = export_pairs(pairs, plan, out)
    assert (summary.rows, summary.kept, summary.dropped, summary.repaired) == (4, 4, 3, 0)
    found = np.load(out, allow_pickle=False)
    assert found.dtype == np.dtype("u8,u8")
    assert np.array_equal(found, documented(np.repeat([uids[i] for i in (0, 4, 5, 6)], times).tolist()))
    assert verify_path(out).ok and "\n4 uids out: " in str(summary)
    if repeats > 1:
        assert_raises(ConfigError, "repeats=4", export_pairs, pairs, plan, tmp_path / "out.parquet")
    ledger = pq.read_table(tmp_path / "kept.npy.ledger.parquet").to_pylist()
    assert ledger[1]["action"] == "drop" and "list of uids" in ledger[1]["reason"] and ledger[1]["out_row"] is None
    assert json.loads((tmp_path / "kept.npy.manifest.json").read_text())["format"] == "uids"
    assert diff_export(out).counts["drop"] == 3
    assert_raises(ConfigError, "uids", restore_export, out, tmp_path / "back.parquet")


def test_what_gives_no_list(make_plan: Any, tmp_path: Path) -> None:
    uids = [c * 32 for c in "abc"]
    for columns, error, words in (
        ({"uid": ["0" * 32, "0" * 31, None]}, DataError, f"'{'0' * 31}' is not 32 hex.*: write Parquet"),
        ({"uid": ["a" * 32, "B" * 32, "A" * 32]}, DataError, rf"than once \(1, as {'a' * 32}\), .*: write Parquet"),
        ({"uid": uids, "text": [["a", "b"]] * 3}, ConfigError, "several captions: write Parquet"),
        ({"uids": uids}, ConfigError, r"none; did you mean 'uids'\? Name its ids 'uid' and fit again"),
    ):
        pairs = load_pairs({"text": list("abc"), "features": np.eye(3).tolist()} | columns)
        assert_raises(error, words, export_pairs, pairs, make_plan(pairs), tmp_path / "kept.npy")
    assert not list(tmp_path.glob("kept.npy*"))
