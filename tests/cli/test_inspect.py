"""``cleanpairs inspect``: what it says about good data, bad data and hostile data."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.inspection import inspect_pairs
from tests.conftest import Command, assert_refused
from tests.helpers import assert_raises, picture, research, write_pictures, write_table, write_tar


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
    captions = [*(f"caption {i}" for i in range(7)), "CAPTION 6", " ", None]
    scores = pa.array([None, *np.arange(1, 10) / 10], pa.float64())
    wrong = [i == 1 for i in range(10)]
    table = {"uid": [f"k{i}" for i in range(10)], "jpg": images, "text": captions}
    table |= {"clip_l14_similarity_score": scores, "true_mismatch": wrong, "extra": list(range(10))}
    return write_table(tmp_path / "in.parquet", table)


def test_json_has_all_of_it(output_of: Any, data: Path) -> None:
    (line,) = output_of("inspect", data, "--json", "--rows", 2).splitlines()
    seen = json.loads(line)
    assert seen["reader"] == "parquet" and seen["files"] == [str(data)] and seen["bytes"] == data.stat().st_size
    roles = ["key", "image", "text", "precomputed score", "truth", None]
    assert [column["role"] for column in seen["columns"]] == roles and seen["columns"][1]["type"] == "binary"
    counts = ("rows", "pairs", "images", "duplicate_pairs", "corrupted", "unusable_images")
    assert [seen[k] for k in counts] == [10, 10, 10, 1, 1, 1]
    assert seen["distinct_images"] == 8 and seen["distinct_captions"] == 8  # 6 and 7 alike; " " and none are one text
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


def test_a_sample_says_that_it_is_one() -> None:
    images = [picture(i % 50) if i != 600 else b"nothing" for i in range(1200)]
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(1200)], images=images)
    decoded, every = inspect_pairs(pairs)["decoded"], inspect_pairs(pairs, decode="all")["decoded"]
    assert (decoded["images"], decoded["of"]) == (1000, 1200)
    assert every["images"] == 1200 and [r["pair_id"] for r in every["failures"]] == [600]


def test_captions_cannot_steer_the_terminal(output_of: Any, tmp_path: Path) -> None:
    captions = ["\x1b[31mred\x1b[0m", "turn \u202e round", "two\nlines", "日本語 " * 60, "bell\a"]
    table = pa.table({"key": [c[:9] for c in captions], "image": [picture(i) for i in range(5)], "caption": captions})
    table = table.append_column("\x1b]0;title\a", pa.array(range(5)))
    out = output_of("inspect", write_table(tmp_path / "in.parquet", table))
    assert not set(out) & {"\x1b", "\u202e", "\a"}
    assert "\\x1b[31mred" in out and "two\\nlines" in out


def test_files_beside_parquet_or_tars_are_named_as_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": ["a dog"], "features": [[1.0, 2.0]]}), tmp_path / "a.parquet")
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "a.tar", [("0.png", picture(0)), ("0.txt", b"a dog")])
    for folder, kind in ((tmp_path, "Parquet"), (tmp_path / "tars", "tars")):
        load_pairs(folder)
        for name in ("b.csv", "c.jsonl"):
            (folder / name).write_text("")
        with pytest.warns(UserWarning, match=rf"b\.csv, c\.jsonl not read beside {kind}"):
            load_pairs(folder)


def test_what_is_not_recognised(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of no use")
    assert_refused(command(tmp_path), 3, "without any known input: no *.parquet, no *.tar", "see docs/inputs.md")
    assert command(tmp_path / "nothing")[0] == 3
    assert "neither a regular file nor a directory" in command("/dev/null")[2]
    assert "has no name" in command("")[2]
    assert_refused(command("https://example.org/a.parquet"), 2, "--allow-urls")


# -- What new users bring: several layouts in one folder, paths of Windows, URLs, other encodings, no header ----------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with 0.jpg to 3.jpg."""
    return write_pictures(tmp_path / "data", [f"{i}.jpg" for i in range(4)], "JPEG")


def test_the_research_layout_is_one_whatever_lies_beside_it(command: Command, output_of: Any, folder: Path) -> None:
    research(folder, np.eye(4, dtype=np.float32), "abcd")
    (folder / "notes.jsonl").write_text('{"image": "0.jpg", "caption": "a dog"}\n')
    out = output_of("inspect", folder)
    assert "reader       precomp" in out and "or as folder, by --set reader=NAME" in out
    assert "reader       folder" in command(folder, "--set", "reader=folder")[1]
    assert_refused(command(folder, "--set", "reader=coco"), 2, "'coco' is not one for", "precomp, folder would be")


def test_paths_of_windows(folder: Path) -> None:
    images = [r"C:\photos\0.jpg", r"data\1.jpg", r"..\x\9.jpg", r"..\secret.jpg"]
    (folder.parent / "secret.jpg").write_bytes(picture(0, "JPEG"))
    frame = pd.DataFrame({"image": images, "caption": list("abcd")})
    frame.to_csv(folder / "in.csv", index=False)
    frame.to_parquet(folder.parent / "in.parquet")
    for data, root in ((folder / "in.csv", {}), (folder.parent / "in.parquet", {"image_root": folder})):
        pairs = load_pairs(data, **root)
        assert list(pairs.reasons) == [2, 3] and "a Windows path, and no end of it" in pairs.reasons[2]
        assert pairs.images.read(range(4)) == [picture(0, "JPEG"), picture(1, "JPEG"), None, None]


def test_several_images_in_a_cell(folder: Path) -> None:
    pd.DataFrame({"image": ["1.jpg|2.jpg", "3.jpg | 9.jpg"], "caption": list("ab")}).to_csv(folder / "in.csv")
    pairs = load_pairs(folder / "in.csv")
    assert not pairs.reasons and pairs.images.read([0, 1]) == [picture(1, "JPEG"), picture(3, "JPEG")]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_captions_of_several_columns(folder: Path, kind: str) -> None:
    """Joined columns hold texts, and a name may hold a comma."""
    frame = pd.DataFrame({"image": ["0.jpg", "1.jpg"], "title": ["Red", "Blue"], "description": ["A dress", None]})
    frame = frame.assign(**{"title,long": ["A red dress", "A blue one"], "colours": [["red"], ["blue", "sky"]]})
    getattr(frame, f"to_{kind}")(path := folder / f"in.{kind}", index=False)
    if kind == "parquet":
        words = r"in\.parquet, column 'colours' of type list.* cannot be joined"
        assert_raises(DataError, words, load_pairs, path, text_column="title,colours")
    pairs = load_pairs(path, text_column="title,description")
    assert pairs.captions == ["Red. A dress", "Blue"]
    assert pairs.keys == load_pairs(path, text_column="title").keys == [n + ".jpg" * (kind == "csv") for n in "01"]
    assert pairs.images.read([0, 1]) == [picture(0, "JPEG"), picture(1, "JPEG")] and not pairs.reasons
    assert load_pairs(path, text_column="title, description").source.fingerprint == pairs.source.fingerprint
    (folder / "0.jpg").write_bytes(picture(7, "JPEG"))  # a copy of the table does not hide it
    assert load_pairs(path, text_column="title,description").images.read([0]) == [picture(7, "JPEG")]
    assert load_pairs(path, text_column="title,long").captions == ["A red dress", "A blue one"]
    assert_raises(DataError, "has no column 'colour'", load_pairs, path, text_column="title,colour")


def test_a_row_that_is_unusable_stays_so_where_columns_are_joined(folder: Path) -> None:
    path, joined = folder / "in.csv", {"text_column": "title,description"}
    rows = ["0.jpg,Red,A dress", "1.jpg,Blue,A coat, long", "2.jpg,Green", "3.jpg,,A hat", "/mnt/0.jpg,Grey,A sock"]
    path.write_text("\n".join(["image,title,description", *rows, "1.jpg,,"]))
    pairs = load_pairs(path, **joined)
    assert pairs.reasons == {
        1: "line 3 has 4 fields, the header 3", 2: "line 4 has 2 fields, the header 3",
        4: "'/mnt/0.jpg' and '0.jpg' end in the name of one file", 5: "there is no caption",
    }  # fmt: skip
    assert pairs.captions[3] == "A hat" and load_pairs(path, limit=2, **joined).reasons.keys() == {1}
    assert {c["name"] for c in inspect_pairs(pairs)["columns"]} == {"image", "title", "description", "caption", "key"}
    rows = [{"image": f"{i}.jpg", "title": t, "description": "d"} for i, t in enumerate(["Red", {"de": "Blau"}])]
    (folder / "in.json").write_text(json.dumps(rows))
    assert load_pairs(folder / "in.json", **joined).reasons == {1: "the caption is an object ('de'), not text"}


def test_images_that_are_urls(command: Command, folder: Path) -> None:
    for column in ("url", "URL", "image_url"):
        pq.write_table(pa.table({column: ["https://example.org/0.jpg"], "TEXT": ["a"]}), folder / "in.parquet")
        done = command(folder / "in.parquet")
        assert_refused(done, 3, "img2dataset --url_list", f"--url_col {column} --caption_col TEXT", "--save_")


def test_other_encodings(command: Command, folder: Path) -> None:
    lines = ["image,caption", *(f"{i}.jpg,一条狗在雪地里奔跑，旁边有一个孩子 {i}" for i in range(4))]
    for encoding, named in (("utf-16", None), ("gb18030", "gb18030")):  # UTF-16 has a mark
        (folder / "in.csv").write_bytes("\n".join(lines).encode(encoding))
        pairs = load_pairs(folder / "in.csv", encoding=named)
        assert pairs.captions[3].endswith("孩子 3") and not pairs.reasons
    _, out, err = command(folder / "in.csv")
    assert "--set encoding=gb" in out + err
    for unknown in ("klingon", "base64", "undefined"):
        assert_raises(ConfigError, f"unknown encoding: {unknown}", load_pairs, folder / "in.csv", encoding=unknown)


def test_a_file_that_is_not_in_the_encoding_that_was_named(folder: Path) -> None:
    whole = "image,caption\n0.jpg,a dog\n".encode("utf-16")
    for content, line in ((whole[2:], 1), (whole * 1000 + b"\n", r"\d+ or soon after"), (whole[:-1], r"\d+.*")):
        (folder / "in.csv").write_bytes(content)
        with pytest.raises(DataError, match=rf"in\.csv, line {line}, is not utf-16 \(.*\); it may be .*"):
            load_pairs(folder / "in.csv", encoding="utf-16")
    (folder / "in.csv").unlink()
    (folder / "0.txt").write_bytes("a dog".encode("utf-16")[:-1])
    assert re.search(r"0\.txt is not utf-16 \(.*\); it may be ", load_pairs(folder, encoding="utf-16").reasons[0])


def test_a_backbone_is_refused_where_vectors_take_its_place(in_process: Command, folder: Path) -> None:
    vectors, run = pa.array(np.eye(32, dtype=np.float32).tolist(), pa.list_(pa.float32(), 32)), folder.parent / "run"
    table = {"image_emb": vectors, "text_emb": vectors, "caption": [f"caption {i}" for i in range(32)]}
    pq.write_table(pa.table(table), folder.parent / "in.parquet")
    for named in (("--backbone", "mlp"), ("--set", "backbone=mlp")):
        done = in_process("fit", folder.parent / "in.parquet", "--out", run, "--epochs", 1, "--quiet", *named)
        assert_refused(done, 2, "--backbone mlp would train nothing")
    assert not run.exists()


def test_what_is_no_data_says_what_would_be(in_process: Command, folder: Path) -> None:
    for name in ("0.jpg", "a.xlsx", "empty.bin", "a.csv.xz", "a.json.gz"):
        (folder / name).write_bytes(b"PK" * (name != "empty.bin"))
        packed, other = ("is packed: unpack it", "as .gz or .zst"), ("is no Parquet, CSV, TSV", "docs/inputs.md")
        assert_refused(in_process("inspect", folder / name), 3, *(packed if name.endswith("z") else other))
    (folder / "in.csv").write_text("0.jpg,a dog\n1.jpg,a cat\n")
    assert_refused(in_process("inspect", folder / "in.csv"), 3, "line 1 is a pair already", "file_name,caption")
    for name in ("1.jsonl", "2.jsonl"):
        (folder / name).write_text('{"image": "0.jpg", "caption": "a cat"}\n')
    assert_refused(in_process("inspect", folder / "*.jsonl"), 3, "names 2 tables of text: give one file")


def test_where_a_run_may_not_lie(in_process: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        (folder / f"{i}.txt").write_text(f"caption {i}")
    monkeypatch.chdir(folder)
    assert_refused(in_process("fit", "."), 5, "--out DIR, outside of the data")
    (folder.parent / "notes").mkdir()
    (folder.parent / "notes" / "a.txt").write_text("mine")
    code, _, err = in_process("fit", folder, "--out", folder.parent / "notes")
    assert code == 5 and "is no run directory" in err and "--overwrite" not in err
    (killed := folder.parent / "killed").mkdir()
    assert_refused(in_process("fit", "--resume", "--out", killed), 2, "killed as it began", "the whole command again")
    for name in ("/", "//", "", ".", "a/..", "-", folder):
        assert_refused(in_process("demo", "--out", name), 2, "no name of an output")
    assert_refused(in_process("fit", folder, "--out", "s3://a/run"), 2, "an output cannot be a URL")


def test_the_data_is_no_validation_and_data_without_a_pair_is_named(in_process: Command, folder: Path) -> None:
    run = folder.parent / "run"
    (folder / "in.csv").write_text("image,caption\n")
    assert_refused(in_process("fit", folder / "in.csv", "--out", run), 3, "in.csv holds no pair")
    for split, n in (("train", 4), ("dev", 2)):
        research(folder, np.eye(4, dtype=np.float32)[:n], "a" * n, split)
    assert_refused(in_process("fit", folder, "--val", folder, "--out", run), 2, "is the training data", "the dev split")


def test_validation_pairs_are_read_as_the_data_is(output_of: Any, folder: Path, monkeypatch: Any) -> None:
    """The run of a fit with relative paths is good in other directories."""
    (folder / "tables").mkdir()
    monkeypatch.chdir(folder)
    train, val = Path("tables/train.csv"), Path("tables/val.tsv")
    rows = [f"{i % 4}.jpg,一条狗在雪地里 {i}" for i in range(32)]
    train.write_bytes("\n".join(["file,words,name", *(f"{row},{i}" for i, row in enumerate(rows))]).encode("gb18030"))
    val.write_bytes("\n".join(["file,words", *rows[:4]]).replace(",", "\t").encode("gb18030"))
    small = "--set epochs=1 --set dim=8 --set dim_word=8 --set image_size=32 --set backbone=mlp --json "
    small += "--image-root . --column image=file --column text=words --column key=name "
    options = [*f"infonce {small} --set data.encoding=gb18030 --set data.reader=folder --val".split(), val, "--out"]
    found = json.loads(output_of("fit", train, "--set", "require_dependence=false", "--method", *options, "../run"))
    assert found["val_rsum"] > 0 and found["val_seen"] == "an image of the training data is in 4 of 4 validation pairs"
    found = json.loads(output_of("bench", train, "--noise", 1, "--seeds", 1, "--methods", *options, "../bench"))
    assert found["rows"][0]["val_rsum"] > 0 and "an image of the training data is in 4 of 4 val pairs" in found["notes"]
    monkeypatch.chdir("..")
    assert "32 pairs in" in output_of("export", "run", "--out", "out.parquet")
