"""WebDataset: read by ``webdataset`` and by ``datasets``, the same bytes twice, keys that are safe names."""

import json
import tarfile
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.data import load_pairs
from cleanpairs.export import export_pairs
from tests.helpers import assert_raises, write_pictures, write_table

# webdataset leaves the tars that it read to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def samples(folder: Path) -> list[dict[str, Any]]:
    return list(webdataset.WebDataset([str(p) for p in sorted(folder.glob("*.tar"))], shardshuffle=False))


def test_webdataset_reads_what_was_written(make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    pairs = make_pairs(7, struct=True)
    originals = pairs.images.read(range(7))
    out = tmp_path / "shards"
    summary = export_pairs(pairs, make_plan(pairs, mixed), out, format="webdataset", shard_size=4)
    assert (summary.rows, summary.kept, summary.dropped, summary.format) == (6, 4, 1, "webdataset")
    names = "00000.parquet 00000.tar 00001.parquet 00001.tar README.md".split()
    assert sorted(p.name for p in out.iterdir()) == names
    read = samples(out)
    assert [s["__key__"] for s in read] == ["k0", "k1", "k2", "k4", "k5", "k6"]
    assert [s["txt"].decode() for s in read] == ["text 0", "text 2", "text 2", "text 4", "text 5", "text 6"]
    assert [s["png"] for s in read] == [originals[i] for i in (0, 1, 3, 4, 5, 6)]
    told = [json.loads(s["json"]) for s in read]
    names = "key_input action original_caption source_key repair_score".split()
    assert [told[1][name] for name in names] == ["k1", "rematch_text", "text 1", "k2", 0.75]
    assert pa.concat_tables(pq.read_table(out / f"0000{i}.parquet") for i in range(2)).to_pylist() == told
    assert len(pq.read_table(out / "00000.parquet")) == 4 and len(pq.read_table(out / "00001.parquet")) == 2


def test_the_same_pairs_give_the_same_bytes(make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    pairs = make_pairs(7)
    for name in "ab":
        export_pairs(pairs, make_plan(pairs, mixed), tmp_path / name / "out", format="webdataset")
    for file in sorted((tmp_path / "a" / "out").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / "out" / file.name).read_bytes()
    with tarfile.open(tmp_path / "a" / "out" / "00000.tar") as tar:
        for member in tar:
            assert not any((member.mtime, member.uid, member.gid, member.uname, member.gname))
            assert member.mode == 0o644


def test_keys_are_safe_names_and_new_in_their_shard(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    """Also those like a writer's notes."""
    keys = ["../../etc/passwd", "a.b", "a_b", "A_B", "猫", "", "x" * 300, "a.b-2", "ok", "猫.jpg", "狗.jpg", "鸟.jpg"]
    keys += ["__url__", "//a", "__", "_a", "__a", "a", "..__b"]
    pairs, out = make_pairs(len(keys), key=pa.array(keys)), tmp_path / "shards"
    export_pairs(pairs, make_plan(pairs), out, format="webdataset")
    found = [s["__key__"] for s in samples(out)]
    assert found[:7] == ["_etc_passwd", "a_b", "a_b-2", "A_B-3", "000000004", "000000005", "x" * 80]
    assert found[7:12] == ["a_b-2-2", "ok", "_jpg", "_jpg-2", "_jpg-3"]
    told = pq.read_table(out / "00000.parquet")
    assert told["key"].to_pylist() == found and told["key_input"].to_pylist() == keys
    with tarfile.open(out / "00000.tar") as tar:
        names = tar.getnames()
        assert len({n.lower() for n in names}) == len(names) == 3 * len(keys)
        assert all(m.isfile() and (tmp_path / m.name).resolve().parent == tmp_path for m in tar.getmembers())
    assert load_pairs(out).captions == pairs.captions


def test_values_that_json_does_not_have(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(
        1, odd=pa.array(['{"a": 1}']).cast(pa.json_()),
        nan=pa.array([float("nan")]), blob=pa.array([b"\x00\xff"]), day=pa.array([date(2024, 2, 29)]),
        price=pa.array([Decimal("1.50")]), nested=pa.array([[{"a": [1, None]}]]),
        text=pa.array(["\u2028 <script> \U0001f600"]), year=pa.array([10**16], pa.timestamp("ms")),
    )  # fmt: skip
    out = tmp_path / "shards"
    export_pairs(pairs, make_plan(pairs), out, format="webdataset")
    told = json.loads(samples(out)[0]["json"])
    assert told["nan"] is told["year"] is None
    assert [told[name] for name in ("blob", "day", "price", "odd")] == ["AP8=", "2024-02-29", "1.50", '{"a": 1}']
    assert told["nested"] == [{"a": [1, None]}] and told["text"] == "\u2028 <script> \U0001f600"
    assert pq.read_table(out / "00000.parquet")["blob"].to_pylist() == [b"\x00\xff"]


@pytest.mark.parametrize("kind", ["webp", "avif"])
def test_images_of_paths_are_embedded_or_missed_by_name(tmp_path: Path, make_plan: Any, kind: str) -> None:
    """Vectors stay beside them."""
    folder, names = tmp_path / "data", [f"{i}.{kind}" for i in range(3)]
    write_pictures(folder / "img", names, kind)
    features = pa.array([[0.5, float(i)] for i in range(3)], pa.list_(pa.float32()))
    table = {"image": [f"img/{name}" for name in names], "caption": list("abc"), "image_features": features}
    pairs = load_pairs(write_table(folder / "in.parquet", table))
    out = tmp_path / "shards"
    export_pairs(pairs, make_plan(pairs), out, format="webdataset")
    read = samples(out)
    assert [s[kind] for s in read] == [(folder / "img" / name).read_bytes() for name in names]
    assert [s["__key__"] for s in read] == ["000000000", "000000001", "000000002"]
    assert "image_features" not in json.loads(read[0]["json"])
    assert pq.read_table(out / "00000.parquet")["image_features"].to_pylist()[2] == [0.5, 2.0]
    (folder / "img" / names[1]).unlink()
    pairs, again = load_pairs(folder / "in.parquet"), tmp_path / "again"
    words = f"000000001.*{names[1]}.*missing.*Parquet"
    assert_raises(DataError, words, export_pairs, pairs, make_plan(pairs), again, format="webdataset")
    assert not again.exists()


def test_inputs_that_have_no_samples(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(2, lists=True)
    with pytest.raises(ConfigError, match="--captions split"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out", format="webdataset")
    assert export_pairs(pairs, make_plan(pairs), tmp_path / "out", format="webdataset", explode=True).rows == 4
    assert [s["__key__"] for s in samples(tmp_path / "out")] == ["k0", "k0-2", "k1", "k1-2"]
    np.save(tmp_path / "train_ims.npy", np.ones((2, 3, 4), np.float32) * np.arange(2)[:, None, None])
    (tmp_path / "train_caps.txt").write_text("a cat\na dog\n")
    vectors = load_pairs(tmp_path)
    with pytest.raises(ConfigError, match="only their features"):
        export_pairs(vectors, make_plan(vectors), tmp_path / "shards", format="webdataset")


def test_a_lost_sample_is_noticed(make_pairs: Any, make_plan: Any, tmp_path: Path, monkeypatch: Any) -> None:
    pairs, whole = make_pairs(3), tarfile.TarFile.addfile

    def lossy(tar: tarfile.TarFile, info: tarfile.TarInfo, *content: Any) -> None:
        if info.name != "k1.txt":
            whole(tar, info, *content)

    monkeypatch.setattr(tarfile.TarFile, "addfile", lossy)
    with pytest.raises(CleanpairsError, match="2 samples, its Parquet file 3"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "shards", format="webdataset")
    assert not (tmp_path / "shards").exists()
