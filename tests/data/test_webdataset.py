"""WebDataset tars: as the webdataset package and img2dataset write them, and what is wrong with some."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from cleanpairs.data.formats.file_names import expand_braces


def picture(number: int, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (number * 37 % 256, number * 91 % 256, number % 256)).save(stream, kind)
    return stream.getvalue()


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def sample(key: str, number: int, caption: str | None = None, **fields: Any) -> list[tuple[str, bytes]]:
    text = f"caption {number}" if caption is None else caption
    record = {"key": key, "url": f"https://example.org/{number}.jpg", "caption": text, **fields}
    return [
        (f"{key}.jpg", picture(number)), (f"{key}.json", json.dumps(record).encode()), (f"{key}.txt", text.encode())
    ]  # fmt: skip


def write_img2dataset(folder: Path, shards: int = 2, rows: int = 4, sidecar: bool = True) -> Path:
    """The layout that img2dataset documents; in each shard the second download failed."""
    folder.mkdir()
    for shard in range(shards):
        keys = [f"{shard:05d}{i:04d}" for i in range(rows)]
        number = [shard * rows + i for i in range(rows)]
        done = [i for i in range(rows) if i != 1]
        members = [m for i in done for m in sample(keys[i], number[i], similarity=number[i] / 100)]
        write_tar(folder / f"{shard:05d}.tar", members)
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"count": rows, "successes": rows - 1}))
        table = {
            "similarity": pa.array([n / 100 for n in number], pa.float64()),
            "url": [f"https://example.org/{n}.jpg" for n in number],
            "key": keys,
            "caption": [f"caption {n}" for n in number],
            "status": ["failed_to_download" if i == 1 else "success" for i in range(rows)],
            "error_message": pa.array(["HTTP Error 404" if i == 1 else None for i in range(rows)], pa.string()),
            "width": pa.array([None if i == 1 else 8 for i in range(rows)], pa.int32()),
        }
        if sidecar:
            pq.write_table(pa.table(table), folder / f"{shard:05d}.parquet")
    return folder


def test_what_img2dataset_writes(tmp_path: Path) -> None:
    folder = write_img2dataset(tmp_path / "shards")
    pairs = load_pairs(folder)
    done = [0, 2, 3, 4, 6, 7]
    assert pairs.source.kind == "webdataset" and pairs.reasons == {}
    assert pairs.captions == [f"caption {n}" for n in done]
    assert pairs.keys == ["000000000", "000000002", "000000003", "000010000", "000010002", "000010003"]
    np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.array(done, np.float32) / 100)
    assert pairs.images.read([5, 0, 5]) == [picture(7), picture(0), picture(7)]
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == [picture(n) for n in done]
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table["status"].to_pylist() == ["success"] * 6 and table["width"].to_pylist() == [8] * 6
    assert table["image"].to_pylist()[1] == {"bytes": picture(2), "path": "000000002.jpg"}
    assert table.schema.field("width").type == pa.int32()


def test_without_the_sidecar_the_json_tells(tmp_path: Path) -> None:
    folder = write_img2dataset(tmp_path / "shards", sidecar=False)
    pairs = load_pairs(folder)
    np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.array([0, 2, 3, 4, 6, 7], np.float32) / 100)
    table = pa.Table.from_batches(iter_tables(pairs.source))
    assert table["url"][1].as_py() == "https://example.org/2.jpg"
    assert json.loads(table["json"][1].as_py())["key"] == "000000002"
    assert load_pairs(folder, text_column="url").captions[1] == "https://example.org/2.jpg"


def test_what_the_webdataset_package_writes(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for i in range(3):
            sink.write({"__key__": f"part/sample{i}", "png": picture(i, "PNG"), "txt": f"caption {i}", "cls": i})
    pairs = load_pairs(tmp_path / "a.tar")
    assert pairs.keys == [f"part/sample{i}" for i in range(3)] and pairs.captions == [f"caption {i}" for i in range(3)]
    assert pairs.images.read([0, 1, 2]) == [picture(i, "PNG") for i in range(3)]


def test_what_shard_writer_writes_is_read_by_braces_and_by_glob(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "%05d.tar"), maxcount=2, verbose=0) as sink:
        for i in range(5):
            sink.write({"__key__": f"{i:06d}", "jpg": picture(i), "json": {"caption": f"caption {i}", "clip_score": i}})
    expected = [f"caption {i}" for i in range(5)]
    for data in (tmp_path, tmp_path / "{00000..00002}.tar", tmp_path / "*.tar", tmp_path / "{00000,00001,00002}.tar"):
        pairs = load_pairs(data)
        assert pairs.captions == expected and pairs.precomputed_scores["clip_score"].tolist() == [0, 1, 2, 3, 4]
    assert load_pairs(tmp_path / "{00001..00002}.tar").captions == expected[2:]
    assert load_pairs(tmp_path, limit=3).captions == expected[:3]
    with pytest.raises(DataError, match=r"00003\.tar \(of .*00000\.\.00003"):
        load_pairs(tmp_path / "{00000..00003}.tar")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{08..10}b", ["a08b", "a09b", "a10b"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{x}", ["{x}"]),
        ("{3..1}", []),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_that_mean_too_much() -> None:
    with pytest.raises(DataError, match="1,000,000"):
        expand_braces("{0..9999}{0..9999}.tar")


def test_samples_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    members = [
        *sample("0", 0),
        ("1.jpg", picture(1)),  # no text
        ("2.txt", b"no picture"),
        ("3.jpg", picture(3)), ("3.txt", b"\xff\xfe not text"),
        ("4.jpg", b""), ("4.txt", b"empty picture"),
        ("5.txt", b"behind the others"), ("6.jpg", picture(6)), ("6.txt", b" "), ("5.jpg", picture(5)),
        ("7.jpg", picture(7)), ("7.txt", b"x" * 300_000),
        ("8.jpg", picture(8)), ("8.json", b'{"caption": "caf\xe9"}'),
        ("9.jpg", picture(9)), ("9.json", json.dumps({"caption": "sixteen bits"}).encode("utf-16")),
        ("README", b"of no sample"), (".hidden.txt", b"of no sample"),
    ]  # fmt: skip
    pairs = load_pairs(write_tar(tmp_path / "a.tar", members))
    assert pairs.keys == list("0123456789") and pairs.captions[9] == "sixteen bits"
    assert pairs.reasons == {
        1: "there is no caption",
        2: "the sample '2' has no image (it has: txt)",
        3: "the caption is not UTF-8",
        4: "the image has zero bytes",
        6: "the caption is empty",
        7: "the caption is longer than 65536 bytes",
        8: "there is no caption",
    }
    assert pairs.captions[5] == "behind the others" and pairs.images.read([5]) == [picture(5)]
    assert pairs.images.read([2, 4]) == [None, None]


def test_names_are_never_paths(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = write_tar(tmp_path / "a.tar", [("../../evil.jpg", picture(0)), ("../../evil.txt", b"a")])
    with tarfile.open(path, "a") as tar:
        tar.addfile(link)
    before = sorted(tmp_path.iterdir())
    pairs = load_pairs(path)
    assert len(pairs) == 1 and pairs.images.read([0]) == [picture(0)]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_tar_cut_short_is_named(tmp_path: Path, keep: float) -> None:
    path = write_tar(tmp_path / "a.tar", [m for i in range(20) for m in sample(str(i), i)])
    whole = path.read_bytes()
    end = 512 * 3 * 20 * 2  # headers and contents: every member takes two blocks
    path.write_bytes(whole[: int(end * keep)])
    with pytest.raises(DataError, match=r"a\.tar"):
        load_pairs(path)


def test_a_tar_that_ends_between_two_members_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"a"), ("1.txt", b"b")])
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(DataError, match="cut short: it ends at byte 1024"):
        load_pairs(path)


def test_a_damaged_header_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"a"), ("1.txt", b"b")])
    content = bytearray(path.read_bytes())
    content[1024 + 150] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged: there is no member at byte 1024"):
        load_pairs(path)


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0\.TXT' more than once"):
        load_pairs(write_tar(tmp_path / "a.tar", [("0.txt", b"a"), ("0.TXT", b"b"), ("0.txt", b"c")]))


def test_what_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"<html>" * 200)
    with pytest.raises(DataError, match=r"a\.tar cannot be read as a tar"):
        load_pairs(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("0.txt"))
    with pytest.raises(DataError, match="compressed; unpack it"):
        load_pairs(tmp_path / "b.tar.gz")
    with pytest.raises(DataError, match="no such input"):
        load_pairs(tmp_path / "c.tar")


def test_a_sidecar_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    folder = write_img2dataset(tmp_path / "shards", shards=1)
    table = pq.read_table(folder / "00000.parquet")
    pq.write_table(pa.concat_tables([table, table]), folder / "00000.parquet")
    with pytest.raises(DataError, match=r"00000\.parquet has a key more than once"):
        load_pairs(folder)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_samples(tmp_path: Path, n: int) -> None:
    path = write_tar(tmp_path / "a.tar", [m for i in range(n) for m in sample(str(i), i)])
    pairs = load_pairs(path)
    assert len(pairs) == len(pairs.images) == n
    tables = list(iter_tables(pairs.source))
    assert sum(map(len, tables)) == n and tables[0].schema.names[:3] == ["key", "image", "caption"]


def test_random_bytes_never_crash(tmp_path: Path) -> None:
    whole = bytearray(write_tar(tmp_path / "a.tar", [m for i in range(4) for m in sample(str(i), i)]).read_bytes())
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for k in range(300):
        content = bytearray(whole)
        for at in rng.integers(0, 512 * 24, k % 3).tolist():
            content[at] = int(rng.integers(256))
        path = tmp_path / f"{k}.tar"
        path.write_bytes(content)
        try:
            pairs = load_pairs(path)
            pairs.images.read(range(len(pairs)))
            outcomes["read"] += 1
        except DataError:
            outcomes["refused"] += 1
    assert sum(outcomes.values()) == 300 and min(outcomes.values()) > 50
