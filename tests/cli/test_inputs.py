"""Every kind of input, made of the clip art by the conventions of the tool that it comes from: inspect, fit, export."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.registry import READERS
from cleanpairs.datasets import clipart_path
from tests.data.test_counts import WRITERS as OTHERS
from tests.data.test_counts import Row, texts

N = 40
FIT = (
    "--set image_size=32 --epochs 1 --batch-size 16 --device cpu --seed 1 --quiet --set dim=16 --method crcl "
    "--set dim_word=8 --set refine_epochs=[1] --set freeze=1 --set eval_group_size=8 --set threshold=0.3 "
    "--set require_dependence=false --backbone mlp"
).split()


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table({"image": [{"bytes": image, "path": None} for _, image, _ in rows], "caption": texts(rows)})


def as_lance(root: Path, rows: list[Row]) -> Path:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(table_of(rows), root / "in.lance")
    return root / "in.lance"


def as_url(root: Path, rows: list[Row]) -> str:
    sink = io.BytesIO()
    pq.write_table(table_of(rows), sink)
    fsspec.filesystem("memory").pipe(f"/{root.name}/in.parquet", sink.getvalue())
    return f"memory://{root.name}/in.parquet"


KINDS = {
    "as_tar": "webdataset", "as_files": "images", "as_downloads": "images", "as_parquet": "parquet",
    "as_datasets": "datasets", "as_arrays": "npy", "as_research": "precomp", "as_csv": "folder", "as_coco": "coco",
    "as_embeddings": "clip-retrieval", "as_lance": "lance", "as_url": "parquet",
}  # fmt: skip
WRITERS = [*OTHERS, as_lance, as_url]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__.removeprefix("as_"))
def test_inspect_fit_and_export(write: Any, tmp_path: Path, monkeypatch: Any, output_of: Callable[..., str]) -> None:
    table, root, name = pq.read_table(clipart_path("val")).slice(0, N), tmp_path / "given", write.__name__
    rows = [("", row["image"]["bytes"], row["caption"].encode()) for row in table.to_pylist()]
    for folder in (root, tmp_path / "work"):
        folder.mkdir()
    monkeypatch.chdir(tmp_path / "work")
    datasets.disable_progress_bars()
    more = {"as_url": ["--allow-urls"], "as_arrays": ["--column", f"captions={root}/rows.parquet"]}
    data = [write(root, rows), *more.get(name, [])]
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}

    seen = json.loads(output_of("inspect", *data, "--json"))
    assert (seen["reader"], seen["pairs"], seen["quarantined"]) == (KINDS[name], N, 0)
    of_vectors = KINDS[name] in ("precomp", "clip-retrieval", "npy")
    assert (seen["decoded"] is None) == of_vectors and (of_vectors or seen["decoded"]["failures"] == [])

    output_of("fit", *data, *FIT, "--out", "run")
    output_of("export", "run", "--repaired", "out.parquet", "--ledger", "ledger.parquet")
    out, ledger = pq.read_table("out.parquet"), pq.read_table("ledger.parquet")
    manifest = json.loads(Path("out.parquet.manifest.json").read_text())
    counts, inputs = manifest["counts"], manifest["input"]["paths"]
    assert all(path == data[0] if name == "as_url" else Path(path).exists() for path in inputs)
    assert len(ledger) == N == sum(v for k, v in counts.items() if k != "pairs")
    assert len(out) == ledger["out_row"].length() - ledger["out_row"].null_count > 0
    if not of_vectors:
        image = next((f.name for f in out.schema if pa.types.is_struct(f.type)), None)
        if image is not None:  # else the input had bytes alone
            assert json.loads(out.schema.metadata[b"huggingface"])["info"]["features"][image]["_type"] == "Image"
        found = pc.struct_field(out[image], "bytes") if image else out["image"]
        of_caption = {(caption or b"").decode(): content for _, content, caption in rows}
        kept = {row["out_row"]: row["original_caption"] for row in ledger.to_pylist() if row["action"] == "keep"}
        assert kept and all(found[at].as_py() == of_caption[text] for at, text in kept.items())
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before  # the input is as it was


def test_every_reader_is_tried_above() -> None:
    assert set(KINDS.values()) == set(READERS) and set(KINDS) == {write.__name__ for write in WRITERS}
