"""``cleanpairs inspect``: what it says about good data, bad data and hostile data."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs.data import Pairs
from cleanpairs.data.inspection import inspect_pairs, size_of
from tests.helpers import embedding_folder, picture

from .conftest import Command


@pytest.fixture
def command(in_process: Command) -> Command:
    """Calls ``cleanpairs inspect`` in this process: exit code, output, errors."""
    return functools.partial(in_process, "inspect")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten rows: two cut images, one without image, two empty captions, one row that repeats another, some scores."""
    images: list[bytes | None] = [picture(i, size=(8 + i, 6)) for i in range(10)]
    images[3], images[4], images[5] = picture(3, size=(8, 6))[:55], picture(4, size=(8, 6))[:40], None
    images[7] = images[6]
    captions: list[str | None] = [f"caption {i}" for i in range(10)]
    captions[8], captions[9], captions[7] = " ", None, "CAPTION 6"
    table = {
        "uid": [f"k{i}" for i in range(10)],
        "jpg": images,
        "text": captions,
        "clip_l14_similarity_score": pa.array([i / 10 if i else None for i in range(10)], pa.float64()),
        "true_mismatch": [i == 1 for i in range(10)],
        "extra": list(range(10)),
    }
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def test_json_has_all_of_it(command: Command, data: Path) -> None:
    code, out, _ = command(data, "--json", "--rows", 2)
    seen = json.loads(out)
    assert code == 0 and len(out.splitlines()) == 1
    assert seen["reader"] == "parquet" and seen["files"] == [str(data)] and seen["bytes"] == data.stat().st_size
    roles = {column["name"]: column["role"] for column in seen["columns"]}
    assert roles == {
        "uid": "key", "jpg": "image", "text": "text", "clip_l14_similarity_score": "precomputed score",
        "true_mismatch": "truth", "extra": None,
    }  # fmt: skip
    assert seen["columns"][1]["type"] == "binary"
    assert [seen[k] for k in ("rows", "pairs", "images", "duplicate_pairs", "corrupted")] == [10, 10, 10, 1, 1]
    assert seen["distinct_images"] == 9 and seen["distinct_captions"] == 8  # 6 and 7 alike; " " and none are one text
    score = seen["precomputed_scores"]["clip_l14_similarity_score"]
    assert score["known"] == 9 and score["quantiles"]["0.5"] == pytest.approx(0.5)
    assert score["quantiles"]["0.0"] == pytest.approx(0.1) and score["quantiles"]["1.0"] == pytest.approx(0.9)
    assert [row["key"] for row in seen["first"]] == ["k0", "k1"] and seen["first"][0]["image"].startswith("PNG 8x6, ")
    reasons = [(r["pairs"], r["pair_id"]) for r in seen["reasons"]]
    assert seen["quarantined"] == 3 and reasons == [(1, 5), (1, 8), (1, 9)]
    decoded = seen["decoded"]
    assert (decoded["images"], decoded["of"]) == (7, 7) and sum(r["pairs"] for r in decoded["failures"]) == 2
    assert {r["key"] for r in decoded["failures"]} <= {"k3", "k4"}
    assert decoded["width"] == [8, 10, 14] and decoded["height"] == [6, 6, 6]


def test_for_a_person(command: Command, data: Path) -> None:
    code, out, _ = command(data)
    assert code == 0
    for words in (
        "text                       string  <- captions",
        "pairs        10  (3 quarantined, 1 repeat another)",
        "truth        1 pair wrong",
        "precomputed score  clip_l14_similarity_score  (9 known)",
        "quarantined  3 of 10 pairs",
        "decoded      7 of 7 images (all): 2 failures",
    ):
        assert words in out, words


@pytest.mark.parametrize(("way", "words"), [("none", "none: not asked for"), ("all", "7 of 7 images (all)")])
def test_decoding_is_chosen(command: Command, data: Path, way: str, words: str) -> None:
    assert words in command(data, "--decode", way)[1]


def test_a_sample_says_that_it_is_one() -> None:
    n = 1200
    images = [picture(i % 50) if i != 600 else b"nothing" for i in range(n)]
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(n)], images=images)
    decoded = inspect_pairs(pairs)["decoded"]
    assert decoded is not None and (decoded["images"], decoded["of"]) == (1000, n)
    every = inspect_pairs(pairs, decode="all")["decoded"]
    assert every is not None and every["images"] == n and [r["pair_id"] for r in every["failures"]] == [600]


def test_captions_cannot_steer_the_terminal(command: Command, tmp_path: Path) -> None:
    captions = ["\x1b[31mred\x1b[0m", "turn \u202e round", "two\nlines", "日本語 " * 60, "bell\a"]
    table = pa.table({"key": [c[:9] for c in captions], "image": [picture(i) for i in range(5)], "caption": captions})
    pq.write_table(table.append_column("\x1b]0;title\a", pa.array(range(5))), tmp_path / "in.parquet")
    code, out, _ = command(tmp_path / "in.parquet")
    assert code == 0 and not set(out) & {"\x1b", "\u202e", "\a"}
    assert "\\x1b[31mred" in out and "two\\nlines" in out
    assert max(sum(2 if ord(c) > 0x2E80 else 1 for c in line) for line in out.splitlines()) <= 100


def test_vectors_only(command: Command, tmp_path: Path) -> None:
    vectors = np.ones((3, 4), np.float16)
    embedding_folder(tmp_path, vectors, vectors, pa.table({"caption": list("abc")}))
    code, out, _ = command(tmp_path)
    assert code == 0 and "reader       clip-retrieval" in out
    assert "vectors      1 x 4 float16 an image" in out and "4 float16 a caption" in out
    assert "none: there are no encoded images to decode" in out and "(vectors 1 x 4 float16)" in out


def test_arrays_are_files_and_nothing_else(command: Command, tmp_path: Path) -> None:
    for name in ("image", "text"):
        np.save(tmp_path / f"{name}.npy", np.eye(3, dtype=np.float32))
    code, out, _ = command(tmp_path / "image.npy", "--column", f"text-vectors={tmp_path / 'text.npy'}")
    assert code == 0 and out.count("\nfiles ") == 1 and "files        2 files" in out
    assert "--set reader=" not in out  # Parquet takes any file, and would fail on this one


def test_what_is_not_recognised(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of no use")
    code, _, err = command(tmp_path)
    assert code == 3 and "without any known input: no *.parquet, no *.tar" in err
    np.save(tmp_path / "image.npy", np.eye(3, dtype=np.float32))
    assert f"{{split}}_caps.txt; arrays of vectors are named themselves: '{tmp_path}/*.npy'" in command(tmp_path)[2]
    (tmp_path / "image.npy").unlink()
    (tmp_path / "a.PNG").write_bytes(b"")
    assert "its *.png have no captions: name them in a captions.csv (file_name,caption)" in command(tmp_path)[2]
    assert command(tmp_path / "nothing")[0] == 3
    assert "neither a regular file nor a directory" in command("/dev/null")[2]
    assert "has no name" in command("")[2]
    code, _, err = command("https://example.org/a.parquet")
    assert code == 2 and "--allow-urls" in err


def test_size_of_goes_and_comes_as_bytes() -> None:
    assert size_of(Image.new("RGB", (70_000, 3))).view(np.uint32).tolist() == [70_000, 3]
