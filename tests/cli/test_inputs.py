"""Every kind of input, made of the clip art by the conventions of the tool that it comes from: inspect, fit, export."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from cleanpairs.core.registry import READERS
from cleanpairs.datasets import clipart_path
from tests.helpers import embedding_folder

from .conftest import Command

N = 40
FIT = (
    "--backbone mlp --set image_size=32 --epochs 1 --batch-size 16 --device cpu --seed 1 --quiet --set dim=16 "
    "--method crcl --set dim_word=8 --set refine_epochs=[1] --set freeze=1 --set eval_group_size=8 --set threshold=0.3"
).split()


def corpus() -> pa.Table:
    return pq.read_table(clipart_path("val")).slice(0, N)


def contents(table: pa.Table) -> list[bytes]:
    return [cell["bytes"] for cell in table["image"].to_pylist()]


def write_files(folder: Path, table: pa.Table) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(contents(table)):
        (folder / f"{i:04d}.jpg").write_bytes(content)
    return [f"{i:04d}.jpg" for i in range(len(table))]


def as_parquet(root: Path, table: pa.Table) -> list[str]:
    pq.write_table(table.drop_columns("image_features"), root / "in.parquet")
    return [str(root / "in.parquet")]


def as_lance(root: Path, table: pa.Table) -> list[str]:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(table.drop_columns("image_features"), root / "in.lance")
    return [str(root / "in.lance")]


def as_url(root: Path, table: pa.Table) -> list[str]:
    sink = io.BytesIO()
    pq.write_table(table.drop_columns("image_features"), sink)
    fsspec.filesystem("memory").pipe(f"/{root.name}/in.parquet", sink.getvalue())
    return [f"memory://{root.name}/in.parquet", "--allow-urls"]


def as_datasets(root: Path, table: pa.Table) -> list[str]:
    rows = {"image": table["image"].to_pylist(), "caption": table["caption"].to_pylist()}
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    made = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(root / "saved", num_proc=None)
    return [str(root / "saved")]


def as_img2dataset(root: Path, table: pa.Table) -> list[str]:
    captions, keys = table["caption"].to_pylist(), [f"{i:09d}" for i in range(N)]
    with tarfile.open(root / "00000.tar", "w") as tar:
        for i, content in enumerate(contents(table)):
            note = json.dumps({"key": keys[i], "caption": captions[i], "status": "success"}).encode()
            for ending, data in ("jpg", content), ("json", note), ("txt", captions[i].encode()):
                info = tarfile.TarInfo(f"{keys[i]}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    beside = {"url": keys, "caption": captions, "key": keys, "status": ["success"] * N, "similarity": np.arange(N) / N}
    pq.write_table(pa.table(beside), root / "00000.parquet")
    (root / "00000_stats.json").write_text("{}")
    return [str(root)]


def as_webdataset(root: Path, table: pa.Table) -> list[str]:
    with webdataset.ShardWriter(str(root / "shard-%06d.tar"), maxcount=15, verbose=0) as sink:
        for i, (content, caption) in enumerate(zip(contents(table), table["caption"].to_pylist(), strict=True)):
            sink.write({"__key__": f"sample{i:06d}", "jpg": content, "txt": caption})
    return [str(root / "shard-{000000..000002}.tar")]


def as_csv(root: Path, table: pa.Table) -> list[str]:
    frame = pd.DataFrame({"file_name": write_files(root / "data", table), "text": table["caption"].to_pylist()})
    frame.to_csv(root / "data" / "metadata.csv", index=False)
    return [str(root / "data")]


def as_images(root: Path, table: pa.Table) -> list[str]:
    for name, caption in zip(write_files(root / "data" / "some", table), table["caption"].to_pylist(), strict=True):
        (root / "data" / "some" / name).with_suffix(".caption").write_text(caption)
    return [str(root / "data")]


def as_jsonl(root: Path, table: pa.Table) -> list[str]:
    frame = pd.DataFrame({"picture": write_files(root / "images", table), "words": table["caption"].to_pylist()})
    frame.to_json(root / "pairs.jsonl", orient="records", lines=True)
    return [str(root / "pairs.jsonl"), "--column", "text=words", "--column", "image=picture"]


def as_coco(root: Path, table: pa.Table) -> list[str]:
    images = [{"id": i, "file_name": name} for i, name in enumerate(write_files(root / "val2017", table))]
    annotations = [{"id": i, "image_id": i, "caption": c} for i, c in enumerate(table["caption"].to_pylist())]
    (root / "captions_val2017.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return [str(root / "captions_val2017.json"), "--image-root", str(root / "val2017")]


def as_karpathy(root: Path, table: pa.Table) -> list[str]:
    names, captions = write_files(root / "flickr30k-images", table), table["caption"].to_pylist()
    images = [
        {"filename": n, "imgid": i, "split": "val", "sentences": [{"raw": c}]}
        for i, (n, c) in enumerate(zip(names, captions, strict=True))
    ]
    (root / "dataset_flickr30k.json").write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    root_of = str(root / "flickr30k-images")
    return [str(root / "dataset_flickr30k.json"), "--split", "val", "--image-root", root_of]


def as_embeddings(root: Path, table: pa.Table) -> list[str]:
    vectors = np.array(table["image_features"].to_pylist(), np.float16).mean(1)
    beside = pa.table({"image_path": [f"{i:09d}" for i in range(N)], "caption": table["caption"]})
    return [str(embedding_folder(root, vectors, vectors, beside, cuts=(25,)))]


def as_arrays(root: Path, table: pa.Table) -> list[str]:
    vectors = np.array(table["image_features"].to_pylist(), np.float16).mean(1)
    images, texts, captions = root / "images.npy", root / "texts.npy", root / "captions.txt"
    np.save(images, vectors)
    np.save(texts, vectors)
    captions.write_text("".join(f"{caption}\n" for caption in table["caption"].to_pylist()), encoding="utf-8")
    return [str(images), "--column", f"text-vectors={texts}", "--column", f"captions={captions}"]


def as_research(root: Path, table: pa.Table) -> list[str]:
    np.save(root / "train_ims.npy", np.array(table["image_features"].to_pylist(), np.float16))
    (root / "train_caps.txt").write_text("".join(c + "\n" for c in table["caption"].to_pylist()))
    return [str(root)]


def as_now(root: Path, table: pa.Table) -> list[str]:
    np.save(root / "train_ims.npy", np.array(table["image_features"].to_pylist(), np.float16))
    words = {w: i for i, w in enumerate(sorted({w for c in table["caption"].to_pylist() for w in c.split()}))}
    lines = [",".join(str(words[w]) for w in c.split()) for c in table["caption"].to_pylist()]
    (root / "train_caps_bert.txt").write_text("".join(line + "\n" for line in lines))
    return [str(root)]


KINDS: dict[Callable[[Path, pa.Table], list[str]], str] = {
    as_parquet: "parquet", as_lance: "lance", as_url: "parquet", as_datasets: "datasets", as_img2dataset: "webdataset",
    as_webdataset: "webdataset", as_images: "images", as_csv: "folder", as_jsonl: "folder", as_coco: "coco",
    as_karpathy: "coco", as_embeddings: "clip-retrieval", as_arrays: "npy", as_research: "precomp", as_now: "precomp",
}  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Callable[..., str]:
    """Calls ``cleanpairs`` in this process, in an empty working directory; it must succeed."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    datasets.disable_progress_bars()

    def call(*argv: Any) -> str:
        code, out, err = in_process(*argv)
        assert code == 0, err
        return out

    return call


@pytest.mark.parametrize("write", KINDS, ids=lambda write: write.__name__.removeprefix("as_"))
def test_inspect_fit_and_export(write: Any, tmp_path: Path, command: Callable[..., str]) -> None:
    table = corpus()
    root = tmp_path / "given"
    root.mkdir()
    data = write(root, table)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}

    seen = json.loads(command("inspect", *data, "--json"))
    assert (seen["reader"], seen["pairs"], seen["quarantined"]) == (KINDS[write], N, 0)
    vectors = KINDS[write] in ("precomp", "clip-retrieval", "npy")
    assert (seen["decoded"] is None) == vectors and (vectors or seen["decoded"]["failures"] == [])

    fit = (
        FIT[2:] if KINDS[write] in ("clip-retrieval", "npy") else FIT
    )  # vectors of both sides take the backbone's place
    command("fit", *data, *fit, "--out", "run")
    command("export", "run", "--repaired", "out.parquet", "--ledger", "ledger.parquet")
    out, ledger = pq.read_table("out.parquet"), pq.read_table("ledger.parquet")
    counts = json.loads(Path("out.parquet.manifest.json").read_text())["counts"]
    assert len(ledger) == N == sum(v for k, v in counts.items() if k != "pairs")
    kept = ledger.filter(pa.compute.is_valid(ledger["out_row"]))
    assert len(out) == len(kept) > 0
    if not vectors:
        image = next(f.name for f in out.schema if pa.types.is_struct(f.type))
        assert json.loads(out.schema.metadata[b"huggingface"])["info"]["features"][image]["_type"] == "Image"
        originals = contents(table)
        for row, at, action in zip(*(kept[c].to_pylist() for c in ("row", "out_row", "action")), strict=True):
            assert action == "rematch_image" or out[image][at].as_py()["bytes"] == originals[row]
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before  # the input is as it was


def test_every_reader_is_tried_above() -> None:
    assert set(KINDS.values()) == set(READERS)
