"""WebDataset tars: as the webdataset package and img2dataset write them, and what is wrong with some."""

import contextlib
import functools
import gzip
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from tests.helpers import assert_not_loaded, assert_raises, picture, write_table, write_tar

jpeg = functools.partial(picture, form="JPEG")


def sample(key: str, number: int, **fields: Any) -> list[tuple[str, bytes]]:
    text = f"caption {number}"
    record = json.dumps({"key": key, "url": f"https://example.org/{number}.jpg", "caption": text, **fields})
    return [(f"{key}.jpg", jpeg(number)), (f"{key}.json", record.encode()), (f"{key}.txt", text.encode())]


def write_img2dataset(folder: Path, shards: int = 2, kind: pa.DataType | None = None, below: str = "") -> Path:
    """The layout that img2dataset documents. In each shard the second download failed. Tars may hold a folder."""
    folder.mkdir()
    for shard in range(shards):
        keys, number = [f"{shard:05d}{i:04d}" for i in range(4)], [shard * 4 + i for i in range(4)]
        members = [m for i in (0, 2, 3) for m in sample(below + keys[i], number[i], similarity=number[i] / 100)]
        write_tar(folder / f"{shard:05d}.tar", members)
        (folder / f"{shard:05d}_stats.json").write_text(json.dumps({"count": 4, "successes": 3}))
        failed = [i == 1 for i in range(4)]
        write_table(folder / f"{shard:05d}.parquet", {
            "similarity": [n / 100 for n in number], "url": [f"https://example.org/{n}.jpg" for n in number],
            "key": pa.array(keys).cast(kind or pa.string()), "caption": [f"caption {n}" for n in number],
            "status": ["failed_to_download" if f else "success" for f in failed],
            "error_message": ["HTTP Error 404" if f else None for f in failed],
            "width": pa.array([None if f else 8 for f in failed], pa.int32()),
        })  # fmt: skip
    return folder


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64(), pa.large_string()])
def test_what_img2dataset_writes(kind: pa.DataType, tmp_path: Path) -> None:
    """Failed downloads follow the samples of their tar, and are set aside. A key may be a number in the sidecar."""
    pairs = load_pairs(folder := write_img2dataset(tmp_path / "shards", kind=kind))
    order = [0, 2, 3, 1, 4, 6, 7, 5]
    assert pairs.source.kind == "webdataset" and pairs.source.n_rows == 8
    assert pairs.reasons == dict.fromkeys([3, 7], "the download failed: HTTP Error 404")
    assert pairs.captions == [f"caption {n}" for n in order]
    assert [key.zfill(9) for key in pairs.keys] == [f"{n // 4:05d}{n % 4:04d}" for n in order]
    np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.array(order, np.float32) / 100)
    assert pairs.images.read([6, 0, 6, 7]) == [jpeg(7), jpeg(0), jpeg(7), None]
    held = [None if n in (1, 5) else jpeg(n) for n in order]
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == held
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table["status"].to_pylist() == ["success" if image else "failed_to_download" for image in held]
    assert table["image"].to_pylist()[1] == {"bytes": jpeg(2), "path": "000000002.jpg"}
    assert table.schema.field("width").type == pa.int32() and load_pairs(folder, limit=5).keys == pairs.keys[:5]
    scores = load_pairs(write_img2dataset(tmp_path / "tarred", kind=kind, below="0/")).precomputed_scores["similarity"]
    np.testing.assert_array_equal(scores, pairs.precomputed_scores["similarity"])


def test_a_sidecar_of_another_tar_or_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    folder = write_img2dataset(tmp_path / "shards", shards=1)
    table = pq.read_table(sidecar := folder / "00000.parquet")
    for other, words in (
        (pa.table({"key": ["a", "b"], "similarity": [0.5, 0.5]}), r"none of the keys of .*'a' there, '000000000' here"),
        (pa.concat_tables([table, table]), r"00000\.parquet has a key more than once"),
    ):
        write_table(sidecar, other)
        assert_not_loaded(words, folder)
    columns = {"jpg": [JPG, None, None, b""], "caption": list("abcd"), "key": list("0123")}  # images within
    columns |= {"status": ["success", "failed_to_download", None, "failed_to_resize"]}
    for more, why in (({}, "failed_to_download"), ({"error_message": [None, "Error 404", None, None]}, "Error 404")):
        reasons = load_pairs(write_table(tmp_path / "00000.parquet", columns | more)).reasons
        failed = "the download failed: "
        assert reasons == {1: failed + why, 2: "there is no image", 3: failed + "failed_to_resize"}


JPG, PNG = jpeg(0), picture(1)


@pytest.mark.parametrize(("members", "pairs", "reason"), [
    ({"a.JPG": JPG, "a.TXT": b"one"}, ["one"], ""),
    ({"i.1.jpg": JPG, "i.1.txt": b"one", "i.2.jpg": JPG, "i.2.json": b'{"text": "two"}'}, ["one", "two"], ""),
    ({"a.jpg": JPG, "a.PNG": PNG, "a.txt": b"one"}, [], "has several images"),
    ({"a.jpg": JPG, "a.en.txt": b"one", "a.de.txt": b"eins"}, [], "has several captions"),
    ({"a.jpg": JPG, "a.txt": b" \n", "a.json": b'{"caption": "one"}'}, ["one"], ""),
    ({"a.jpg": JPG, "a.json": b'{"caption": ["one", "two", 3]}'}, ["one", "two"], "is 3, not text"),
    ({"a.jpg": JPG, "a.json": b'{"caption": []}', "b.jpg": JPG, "b.json": b'{"text": "b"}'}, ["b"], "no caption"),
    ({"a.jpg": JPG, "a.json": b'{"caption": "caf\xe9"}'}, [], r"no caption \(the sample has: jpg, json\)"),
    ({"a.jpg": JPG, "a.txt": b"\xff\xfe not text"}, [], "not UTF-8"),
    ({"a.jpg": JPG, "a.txt": b"x" * 300_000}, [], "longer than 65536 bytes"),
    ({"a.txt": b"one", "b.jpg": JPG, "b.txt": b"two", "a.jpg": PNG, "README": b"of no sample"}, ["one", "two"], ""),
    ({"caf\u00e9.jpg": JPG, "cafe\u0301.txt": b"one"}, ["one"], ""),
    ({"__MACOSX/._a.jpg": b"", "x/._a.txt": b"", ".a.jpg": b"", "./a.jpg": JPG, "a.txt": b"one"}, ["one"], ""),
])  # fmt: skip
def test_what_a_sample_is_called(members: dict[str, bytes], pairs: list[str], reason: str, tmp_path: Path) -> None:
    found = load_pairs(write_tar(tmp_path / "a.tar", list(members.items())))
    assert [c for i, c in enumerate(found.captions) if i not in found.reasons] == pairs
    assert len(found) == len(pairs) + len(found.reasons)
    assert all(re.search(reason, why) for why in found.reasons.values()) and bool(reason) == bool(found.reasons)


def test_what_shard_writer_writes_is_read_by_braces_and_by_glob(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "%05d.tar"), maxcount=2, verbose=0) as sink:
        for i in range(5):
            sink.write({"__key__": f"{i:06d}", "jpg": jpeg(i), "json": {"caption": f"caption {i}", "clip_score": i}})
    expected = [f"caption {i}" for i in range(5)]
    for data in (tmp_path, tmp_path / "{00000..00002}.tar", tmp_path / "*.tar", tmp_path / "{00000,00001,00002}.tar"):
        pairs = load_pairs(data)
        assert pairs.captions == expected and pairs.precomputed_scores["clip_score"].tolist() == [0, 1, 2, 3, 4]
    (row, *_) = pa.Table.from_batches(iter_tables(pairs.source))["json"].to_pylist()
    assert json.loads(row) == {"caption": "caption 0", "clip_score": 0}
    assert load_pairs(tmp_path / "{00001..00002}.tar").captions == expected[2:]
    assert load_pairs(tmp_path, limit=3).captions == expected[:3]
    assert_not_loaded(r"00003\.tar \(of .*00000\.\.00003", tmp_path / "{00000..00003}.tar")
    assert_not_loaded("1,000,000", tmp_path / "{0..9999}{0..9999}.tar")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_to_another_member_is_that_member_and_names_are_never_paths(kind: bytes, tmp_path: Path) -> None:
    members = [("./x/0.jpg", JPG), ("./x/0.txt", b"a"), ("../../evil.jpg", PNG), ("../../evil.txt", b"c")]
    path = write_tar(tmp_path / "a.tar", [*members, ("./y/1.txt", b"b"), ("z.txt", b"d")])
    with tarfile.open(path, "a") as tar:
        within = f"{'.' if kind == tarfile.LNKTYPE else '..'}/x/0.jpg"
        for name, to in (("./y/1.jpg", within), ("z.jpg", "/etc/passwd")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, to
            tar.addfile(link)
    before = sorted(tmp_path.iterdir())
    pairs = load_pairs(path)
    assert [key.lstrip("./") for key in pairs.keys] == ["x/0", "evil", "y/1", "z"] and list(pairs.reasons) == [3]
    assert pairs.images.read([0, 1, 2, 3]) == [JPG, PNG, JPG, None] and sorted(tmp_path.iterdir()) == before


def test_a_tar_that_is_cut_short_or_damaged_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"a"), ("1.txt", b"b"), *sample("2", 2)])
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[1024 + 150] ^= 0xFF
    for content, words in (
        (whole[:1024], "cut short: it ends at byte 1024"), (whole[:700], r"a\.tar"), (whole[:3000], r"a\.tar"),
        (damaged, "damaged: there is no member at byte 1024"), (b"<html>" * 200, r"a\.tar cannot be read as a tar"),
        (gzip.compress(bytes(10_240)), "compressed; unpack it"),
    ):  # fmt: skip
        path.write_bytes(content)
        assert_not_loaded(words, path)
    assert_not_loaded("compressed; unpack it", path.rename(tmp_path / "b.tar.gz"))
    images = load_pairs(write_tar(path, sample("2", 2))).images
    path.unlink()
    assert_raises(DataError, r"a\.tar cannot be read", images.read, [0])


def test_random_bytes_never_crash(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [m for i in range(4) for m in sample(str(i), i)])
    whole, rng, read = path.read_bytes(), np.random.default_rng(0), 0
    for k in range(150):
        content = bytearray(whole)
        for at in rng.integers(0, 512 * 24, k % 3).tolist():
            content[at] = int(rng.integers(256))
        path.write_bytes(content)
        with contextlib.suppress(DataError):
            pairs = load_pairs(path)
            pairs.images.read(range(len(pairs)))
            read += 1
    assert 25 < read < 125


def test_lists_of_captions_in_the_json_and_names_that_occur_twice(tmp_path: Path) -> None:
    """A list behind the samples that are looked at has one reason. A similarity may be written as text."""
    told = [{"caption": "one", "similarity": "0.5"}] * 120 + [{"caption": ["two", "three"], "similarity": "high"}]
    members = [m for i, note in enumerate(told) for m in ((f"{i}.jpg", JPG), (f"{i}.json", json.dumps(note).encode()))]
    pairs = load_pairs(write_tar(tmp_path / "a.tar", members))
    assert len(pairs) == 121 and pairs.reasons == {120: "the caption is a list of 2, and others have one"}
    np.testing.assert_array_equal(pairs.precomputed_scores["similarity"], [0.5] * 120 + [np.nan])
    words = [("0.jpg", JPG), ("0.json", b'{"words": ["a", "b"]}'), ("1.jpg", JPG), ("1.json", b'{"words": "c"}')]
    assert load_pairs(write_tar(tmp_path / "b.tar", words), text_column="words").captions == ["a", "b", "c"]
    # whole samples of one key are two; where a file alone was appended, nobody knows with what it goes
    twice = [("0.jpg", JPG), ("0.txt", b"a"), ("1.jpg", JPG), ("1.txt", b"b"), ("0.JPG", PNG), ("0.TXT", b"c")]
    pairs = load_pairs(write_tar(tmp_path / "a.tar", twice))
    assert pairs.captions == ["a", "b", "c"] and not pairs.reasons and pairs.images.read([2, 0]) == [PNG, JPG]
    pairs = load_pairs(write_tar(tmp_path / "b.tar", twice[:5]))
    assert len(pairs) == 3 and pairs.reasons == dict.fromkeys([0, 2], "'0.jpg' occurs more than once in the tar")


@pytest.mark.parametrize("name", ["map", "size", "realsize", "major", "numblocks", "offset"])
def test_the_headers_of_sparse_files(name: str, tmp_path: Path) -> None:
    """A file with holes costs its sample, and a spoilt header is an error that names the tar."""
    for value in ("x", "1,2,3", "-1", "9" * 30):
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for own, content in sample("0", 0) + sample("1", 1):
                info = tarfile.TarInfo(own)
                info.size, info.pax_headers = len(content), {f"GNU.sparse.{name}": value} if own == "1.jpg" else {}
                tar.addfile(info, io.BytesIO(content))
        with contextlib.suppress(DataError):
            pairs = load_pairs(tmp_path / "a.tar")
            assert len(pairs) == 2 and 0 not in pairs.reasons
            assert 1 in pairs.reasons or pairs.images.read([1]) == [jpeg(1)]
