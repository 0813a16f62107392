"""Restore: the input's table comes back from an export, whatever was done to it, or nothing is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.data import Pairs, iter_tables, load_pairs, parquet_io
from cleanpairs.data import writing as data_writing
from cleanpairs.export import ExportSummary, diff_export, export_pairs, restore, restore_export
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, edit_exported, embedding_folder, plan_of, write_pictures, write_table
from tests.helpers import picture as png

from .conftest import columns, restored

N = 17


def random_plan(pairs: Pairs, seed: int) -> RepairPlan:
    rng, n = np.random.default_rng(seed), len(pairs)
    share = [0.4, 0.2, 0.2, 0.2] if seed else [1.0, 0, 0, 0]
    actions = rng.choice(["keep", "rematch_text", "rematch_image", "drop"], n, p=share if n > 1 else [0.5, 0, 0, 0.5])
    return plan_of(pairs, actions.tolist(), [int((i + rng.integers(1, max(n, 2))) % n) for i in range(n)])


def lists(n: int = N) -> list[list[str | None] | None]:
    made: list[list[str | None] | None] = [[f"text {i}.{j}" for j in range(i % 4)] for i in range(n)]
    return [None, ["", "a\0b", None], *made[2:]]


def as_datasets() -> pa.Table:
    features = {"image": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}
    images = pa.array([{"bytes": png(i), "path": f"{i}.png"} for i in range(N)])
    note = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return pa.table({"image": images, "caption": columns(N)["caption"]}).replace_schema_metadata(note)


def as_pandas() -> pa.Table:
    import pandas as pd

    frame = pd.DataFrame({"caption": pd.Categorical([f"text {i % 5}" for i in range(N)]), "image": columns(N)["image"]})
    return pa.Table.from_pandas(frame.set_index(np.arange(N) + 100))


def with_features(regions: int = 1) -> pa.Table:
    kind: Any = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(N * 4 * regions, dtype=np.float32)), 4)
    if regions > 1:
        kind = pa.FixedSizeListArray.from_arrays(kind, regions)
    return pa.table(columns(N) | {"image_features": kind})


def with_missing() -> pa.Table:
    captions = [None if i == 3 else "" if i == 5 else f"text {i}" for i in range(N)]
    images = [None if i == 4 else b"no image" if i == 6 else png(i) for i in range(N)]
    return pa.table(columns(N, caption=captions, image=images))


def not_utf8() -> pa.Table:
    raw = pa.array([b"\xff\xfe" if i % 5 == 1 else b"text %d" % i for i in range(N)], pa.binary())
    return pa.table(columns(N)).set_column(2, "caption", pa.Array.from_buffers(pa.string(), N, raw.buffers()))


def many_types() -> pa.Table:
    return pa.table(
        columns(N)
        | {
            "when": pa.array(np.arange(N), pa.timestamp("ns", "UTC")),
            "price": pa.array([None] * N, pa.decimal128(7, 2)),
            "none": pa.nulls(N),
            "tags": pa.array([[("a", i)] for i in range(N)], pa.map_(pa.string(), pa.int32())),
            "half": pa.array(np.arange(N, dtype=np.float16)),
            "source": pa.array([f"s{i % 3}" for i in range(N)]).dictionary_encode(),
            "nested": [{"a": [i, None], "b": None if i % 2 else {"c": "x"}} for i in range(N)],
            "fixed": pa.array([b"abc"] * N, pa.binary(3)),
        }
    )


def views_and_extensions() -> pa.Table:
    text, uuid = [f"text {i}" for i in range(N)], pa.array([bytes([i]) * 16 for i in range(N)], pa.binary(16))
    kinds = {"uuid": uuid.cast(pa.uuid()), "json": pa.array(["[]"] * N).cast(pa.json_()), "view": pa.array(text)}
    kinds["view"] = kinds["view"].cast(pa.string_view())
    inside = {f"{name} inside": pa.ListArray.from_arrays(range(N + 1), column) for name, column in kinds.items()}
    return pa.table(columns(N, **kinds, **inside))


def strict() -> pa.Table:
    schema = pa.schema([
        pa.field("caption", pa.large_string(), nullable=False, metadata={"unit": "words"}),
        pa.field("image", pa.large_binary(), nullable=False),
        pa.field("id", pa.int32(), nullable=False),
    ], metadata={"made": "by hand"})  # fmt: skip
    made = columns(N)
    return pa.table({"caption": made["caption"], "image": made["image"], "id": list(range(N))}, schema=schema)


def strict_inside() -> pa.Table:
    """Parts that may not be null, at every depth; a struct that holds them is null in some rows."""
    image = pa.struct([pa.field("bytes", pa.binary(), False), pa.field("path", pa.string())])
    number = pa.field("item", pa.float32(), nullable=False)
    twice = pa.StructArray.from_arrays(
        [pa.array(range(N)), pa.array(range(N))], fields=[pa.field("x", pa.int64(), False), pa.field("x", pa.int64())]
    )
    images = [{"bytes": png(i), "path": None} for i in range(N)]
    made = columns(N, image=pa.array(images, image)) | {
        "image_features": pa.array([[i, 1, 2] for i in range(N)], pa.list_(number, 3)),
        "text_features": pa.array([[i, 1] for i in range(N)], pa.list_(number)),
        "others": pa.array([[images[i]] * (i % 3) for i in range(N)], pa.list_(pa.field("item", image, False))),
        "by name": pa.array([[("a", images[i])] for i in range(N)], pa.map_(pa.string(), image)),
        "maybe": pa.array([None if i % 2 else images[i] for i in range(N)], image),
        "twice": twice,
    }
    return pa.table(made)


def with_truth() -> pa.Table:
    wrong = [None if i == 2 else i % 3 == 0 for i in range(N)]
    keys = [f"k{(i + 1) % N}" if w else None for i, w in enumerate(wrong)]
    return pa.table(columns(N, true_mismatch=wrong, true_key=keys))


def truth_of_lists() -> pa.Table:
    captions = [[f"{i} a", f"{i} b"] for i in range(N)]
    truth = {"true_mismatch": [[False, True]] * N, "true_key": [[f"k{i}", "k0"] for i in range(N)]}
    return pa.table(columns(N, caption=captions, **truth))


INPUTS: dict[str, Callable[[], pa.Table]] = {
    "strings": lambda: pa.table(columns(N)),
    "duplicates": lambda: pa.table(columns(N, caption=["same"] * N, image=[png(1)] * N, key=["k"] * N)),
    "one row": lambda: pa.table(columns(1)),
    "missing": with_missing,
    "not utf-8": not_utf8,
    "lists": lambda: pa.table(columns(N, caption=lists())),
    "large lists": lambda: pa.table(columns(N, caption=pa.array(lists(), pa.large_list(pa.string())))),
    "lists of two": lambda: pa.table(
        columns(N, caption=pa.array([[f"{i} a", f"{i} b"] for i in range(N)], pa.list_(pa.string(), 2)))
    ),
    "vectors": with_features,
    "regions": lambda: with_features(3),
    "datasets": as_datasets,
    "pandas": as_pandas,
    "names that give way": lambda: pa.table(columns(N, action=["a"] * N, action_input=[1] * N, source_key=["b"] * N)),
    "names of the ledger": lambda: pa.table(columns(N, row=[5] * N, original_row=["a"] * N, out_row=[None] * N)),
    "many types": many_types,
    "views and extensions": views_and_extensions,
    "not null": strict,
    "not null inside": strict_inside,
    "truth": with_truth,
    "truth of lists": truth_of_lists,
}


def comes_back(folder: Path, data: Any, seed: int, explode: bool, **read: Any) -> ExportSummary:
    """Export a random plan, restore, compare; a clean sheet of a folder."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    pairs = load_pairs(data, **read)
    summary = export_pairs(pairs, random_plan(pairs, seed), folder / "work" / "out.parquet", explode=explode)
    counts = restore_export(folder / "work" / "out.parquet", folder / "work" / "back.parquet")
    back = pq.read_table(folder / "work" / "back.parquet", page_checksum_verification=True)
    files = [data] if Path(data).is_file() else sorted(Path(data).parent.glob(Path(data).name))
    tables = [pq.read_table(file) for file in files]
    wanted = pa.concat_tables([t.select(tables[0].column_names) for t in tables]).slice(0, read.get("limit"))
    assert back.schema.equals(wanted.schema, check_metadata=True)
    assert plain(back).equals(plain(wanted), check_metadata=True)
    assert counts.rows == counts.unchanged + counts.undone + counts.returned == wanted.num_rows
    assert counts.columns == wanted.num_columns
    cleaned = pq.read_schema(folder / "work" / "out.parquet")
    assert all(cleaned.field(field.name).metadata == (field.metadata or None) for field in wanted.schema)
    assert (counts.unchanged == wanted.num_rows) == (summary.kept == summary.pairs)
    return summary


def plain(table: pa.Table) -> pa.Table:
    """With dictionaries decoded: their order is the file's affair."""
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
    return table


@pytest.mark.parametrize("kind", INPUTS)
def test_the_input_comes_back(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "BATCH_ROWS", 5)  # the two streams fall out of step, and batches are cut
    path = write_table(tmp_path / "in.parquet", INPUTS[kind](), row_group_size=6)
    for seed in (0, 1) if kind in ("strings", "lists") else (1,):  # nothing is changed by the first
        comes_back(tmp_path, path, seed, False)
    if "lists" in kind:
        comes_back(tmp_path, path, 1, True)


def test_nothing_written_and_nothing_there(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    for n in (0, 1, 2):
        pairs = load_pairs(write_table(path, pa.table(columns(n), schema=pa.table(columns(1)).schema)))
        out = tmp_path / str(n) / "out.parquet"
        export_pairs(pairs, plan_of(pairs, ["drop"] * n, [None] * n), out)
        summary = restore_export(out, out.with_name("back.parquet"))
        assert (summary.rows, summary.returned) == (n, n)
        assert pq.read_table(out.with_name("back.parquet")).equals(pq.read_table(path), check_metadata=True)


@pytest.mark.parametrize("odd", ["runs", "months"])
def test_what_arrow_has_and_parquet_has_not(tmp_path: Path, odd: str) -> None:
    values = pa.array(["a"] * 4 + ["b"] * (N - 4))
    runs, months = pc.run_end_encode(values), pa.array([(1, 2, 3)] * N, pa.month_day_nano_interval())
    table = pa.table(columns(N, odd=runs if odd == "runs" else months))
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
        file.write_table(table)
    pairs, out = load_pairs(tmp_path / "in.arrow"), tmp_path / "out.parquet"
    if odd == "months":
        with pytest.raises(ConfigError, match=r"column 'odd' is month_day_nano_interval.*leave it out of the input"):
            export_pairs(pairs, random_plan(pairs, 1), out)
        return
    export_pairs(pairs, random_plan(pairs, 1), out)
    assert restored(out)["odd"].to_pylist() == values.to_pylist()


def test_several_files_come_back_as_one(tmp_path: Path) -> None:
    table = pa.table(columns(12))
    strict_site = table.schema.set(3, pa.field("site", pa.int64(), nullable=False))
    pq.write_table(table.slice(0, 5).cast(strict_site), tmp_path / "a.parquet")
    pq.write_table(table.slice(5, 0), tmp_path / "b.parquet")
    mixed = table.slice(5).select(["site", "caption", "key", "image"])  # another order
    pq.write_table(mixed.set_column(0, "site", pa.array([None] * 7, pa.int64())), tmp_path / "c.parquet")
    for explode in (False, True):
        pairs = load_pairs(str(tmp_path / "[abc].parquet"))
        folder = tmp_path / f"work{explode}"
        export_pairs(pairs, random_plan(pairs, 1), folder / "out.parquet", explode=explode)
        back = restored(folder / "out.parquet")
        assert back.schema.equals(table.schema)  # a null in one file: the column takes nulls
        assert back.equals(table.set_column(3, "site", pa.array([*range(5), *[None] * 7], pa.int64())))


def test_the_rows_that_were_read_an_export_and_a_table_in_memory_come_back(exported: Path, tmp_path: Path) -> None:
    comes_back(tmp_path, tmp_path / "in.parquet", 1, False, limit=9)
    comes_back(tmp_path, exported, 2, False)
    pairs = load_pairs(table := pa.table(columns(N)))
    export_pairs(pairs, random_plan(pairs, 1), tmp_path / "memory.parquet")
    assert restored(tmp_path / "memory.parquet").equals(table)


def test_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    pairs = load_pairs(write_table(tmp_path / "in.parquet", columns(6)))
    actions = ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"]
    export_pairs(pairs, plan_of(pairs, actions, [None, 0, 5, None, None, None]), tmp_path / "out.parquet")
    lines = pq.read_table(tmp_path / "out.parquet.ledger.parquet").to_pylist()
    names = ["key", "image", "caption", "site"]
    assert [line["original_columns"] for line in lines] == [None, ["caption"], ["image"], names, None, None]
    empty = dict.fromkeys(names)
    assert lines[0]["original_row"] is None
    assert lines[1]["original_row"] == empty | {"caption": "text 1"}
    assert lines[2]["original_row"] == empty | {"image": png(2)}
    assert lines[3]["original_row"] == {"key": "k3", "image": png(3), "caption": "text 3", "site": 3}


def test_a_row_of_many_captions_is_kept_once(tmp_path: Path) -> None:
    captions = [[f"{i}.{j}" for j in range(400)] for i in range(3)]
    pairs = load_pairs(write_table(tmp_path / "in.parquet", {"image": [png(i) for i in range(3)], "caption": captions}))
    export_pairs(pairs, plan_of(pairs, ["drop"] * 1200, [None] * 1200), tmp_path / "out.parquet")
    ledger = pq.read_table(tmp_path / "out.parquet.ledger.parquet")
    assert len(ledger) == 1200 and ledger["original_columns"].null_count == 1197


def test_memory_is_that_of_some_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"image": [rng.bytes(200_000) for _ in range(150)], "caption": [f"text {i}" for i in range(150)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=5, compression="none")
    monkeypatch.setattr(parquet_io, "BATCH_BYTES", 2**20)
    monkeypatch.setattr(data_writing.ParquetSink, "group_bytes", 2**20)
    pairs = load_pairs(tmp_path / "in.parquet")
    plan = plan_of(pairs, ["keep", "drop"] * 75, [None] * 150)
    default = pa.default_memory_pool()
    peaks = []
    for work in (
        lambda: export_pairs(pairs, plan, tmp_path / "out.parquet"),
        lambda: restore_export(tmp_path / "out.parquet", tmp_path / "back.parquet"),
    ):
        counting = pa.proxy_memory_pool(default)
        pa.set_memory_pool(counting)
        try:
            work()
        finally:
            pa.set_memory_pool(default)
        peaks.append(counting.max_memory() or 0)
    assert 0 < max(peaks) < 14 * 2**20 < table.nbytes / 2, peaks  # of batches and row groups of 1 MiB
    assert pq.read_table(tmp_path / "back.parquet").equals(table)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """``out.parquet`` beside ``in.parquet``."""
    pairs = load_pairs(write_table(tmp_path / "in.parquet", columns(N)))
    export_pairs(pairs, random_plan(pairs, 1), tmp_path / "out.parquet", dropped=tmp_path / "gone" / "out.parquet")
    return tmp_path / "out.parquet"


def test_the_files_may_be_moved_together_and_the_ledger_apart(exported: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for name in ("out.parquet", "out.parquet.manifest.json", "out.parquet.ledger.parquet"):
        (tmp_path / name).rename(there / name)
    restore_export(there / "out.parquet", tmp_path / "back.parquet")
    (there / "out.parquet.ledger.parquet").rename(tmp_path / "elsewhere.parquet")
    assert_raises(DataError, r"no ledger .*--ledger", restore_export, there / "out.parquet", tmp_path / "b.parquet")
    restore_export(there / "out.parquet", tmp_path / "b.parquet", ledger=tmp_path / "elsewhere.parquet")
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "back.parquet").read_bytes()
    pairs, out = load_pairs(tmp_path / "in.parquet"), tmp_path / "a" / "o.parquet"
    export_pairs(pairs, random_plan(pairs, 1), out, ledger=tmp_path / "b" / "o.parquet")
    assert len(restored(out)) == N  # a ledger of one name in another folder is found


def test_an_export_under_another_name_is_not_taken_for_the_first(exported: Path, tmp_path: Path) -> None:
    for end in ("", ".manifest.json", ".ledger.parquet"):
        (tmp_path / f"copy.parquet{end}").write_bytes((tmp_path / f"out.parquet{end}").read_bytes())
    pq.write_table(pq.read_table(exported).slice(1), tmp_path / "copy.parquet")
    with pytest.raises(DataError, match=r"describes out\.parquet, and not copy\.parquet"):
        restore_export(tmp_path / "copy.parquet", tmp_path / "back.parquet")
    assert "and not copy.parquet" in str(verify_path(tmp_path / "copy.parquet"))


@pytest.mark.parametrize("name", ["out.parquet", "out.parquet.ledger.parquet"])
def test_a_file_edited_since_is_not_undone(exported: Path, tmp_path: Path, name: str) -> None:
    file = write_table(tmp_path / name, pq.read_table(tmp_path / name).slice(1))
    with pytest.raises(DataError, match="edited after the export") as caught:
        restore_export(exported, tmp_path / "back.parquet")
    assert str(file) in str(caught.value) and not (tmp_path / "back.parquet").exists()


def test_what_cannot_be_opened(exported: Path, tmp_path: Path) -> None:
    back, manifest = tmp_path / "back.parquet", tmp_path / "out.parquet.manifest.json"
    assert_raises(DataError, "there is no file", restore_export, tmp_path / "nothing.parquet", back)
    assert_raises(DataError, r"in\.parquet\.manifest\.json", restore_export, tmp_path / "in.parquet", back)
    whole = manifest.read_text()
    for text in ("", "[]", '{"files": 3}', '{"files": {"a": 3}}', whole.replace('"role"', '"part"')):
        manifest.write_text(text)
        assert_raises(DataError, "cannot be read as the manifest", restore_export, exported, back)
    manifest.write_text(whole)
    other = tmp_path / "back.csv"
    assert_raises(ConfigError, r"restore writes Parquet, and .*back.csv", restore_export, exported, other)
    assert not other.exists() and not back.exists() and restore_export(exported, back).rows == N


ROWS = ["original_row", "original_columns"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "lacks 'cleanpairs.ledger'"),
        ({"version": 9}, "version 9"),
        ("{", "damaged"),
        ({"schema": "AAAA"}, "damaged"),
        ({"rows": 3}, "damaged"),
        ({"rows": N + 1}, "damaged"),
        ("rows", r"out\.parquet\.ledger\.parquet .* 'original_columns' .*version 1"),  # an older one
    ],
)
def test_a_ledger_without_its_note_is_refused(exported: Path, tmp_path: Path, change: Any, message: str) -> None:
    def annotated(table: pa.Table) -> pa.Table:
        note = json.loads(table.schema.metadata[b"cleanpairs.ledger"])
        new = json.dumps(note | change) if isinstance(change, dict) else change
        return table.replace_schema_metadata(None if new is None else {"cleanpairs.ledger": new})

    edited = annotated if change != "rows" else lambda table: table.drop_columns(ROWS)
    edit_exported(Path(f"{exported}.ledger.parquet"), edited)
    assert_raises(DataError, message, restore_export, exported, tmp_path / "back.parquet")
    assert not (tmp_path / "back.parquet").exists()


def test_the_export_and_what_exists_are_not_written_over(exported: Path, tmp_path: Path) -> None:
    before = (tmp_path / "in.parquet").read_bytes()
    assert_raises(OutputExistsError, "--overwrite", restore_export, exported, tmp_path / "in.parquet")
    assert (tmp_path / "in.parquet").read_bytes() == before
    for name in ("out.parquet", "out.parquet.ledger.parquet", "out.parquet.manifest.json"):
        assert_raises(OutputExistsError, "input", restore_export, exported, tmp_path / name, overwrite=True)
    table = pq.read_table(tmp_path / "in.parquet")
    restore_export(exported, tmp_path / "in.parquet", overwrite=True)
    assert pq.read_table(tmp_path / "in.parquet").equals(table, check_metadata=True)


def test_an_input_of_more_rows_than_were_read_is_not_written_over(tmp_path: Path) -> None:
    table = pa.table(columns(N))
    for name, rows in (("a.parquet", table.slice(0, 9)), ("b.parquet", table.slice(9))):
        pq.write_table(rows, tmp_path / name)
    captions, b = write_folder(tmp_path) / "captions.csv", tmp_path / "b.parquet"
    for name, data, read, to in (
        ("limit", b, {"limit": 3}, b),
        ("two", tmp_path / "[ab].parquet", {}, b),
        ("joined", captions, {"text_column": "caption,id"}, captions),
    ):
        held, pairs = to.read_bytes(), load_pairs(str(data), **read)
        export_pairs(pairs, plan_of(pairs), tmp_path / name / "out.parquet")
        with pytest.raises(OutputExistsError, match=rf"{to.name} is an input of the export, .* name another output"):
            restore_export(tmp_path / name / "out.parquet", to, overwrite=True)
        assert to.read_bytes() == held


def write_folder(folder: Path) -> Path:
    lines = ["file_name,caption,id", "0.png,text 0,a", "1.png,text 1", "none.png,text 2,c", "3.png,text 3,d"]
    (folder / "captions.csv").write_text("\n".join(lines))
    return write_pictures(folder, [f"{i}.png" for i in range(4)])


def write_vectors(folder: Path) -> Path:
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    return embedding_folder(folder, vectors, None, pa.table({"caption": [f"text {i}" for i in range(4)]}))


def write_arrow(folder: Path) -> Path:
    table = pa.table(columns(N, year=pa.array([1990 + i % 3 for i in range(N)]).dictionary_encode()))
    with pa.ipc.new_file(folder / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    return folder / "in.arrow"


@pytest.mark.parametrize("write", [write_folder, write_vectors, write_arrow])
def test_what_was_no_parquet_comes_back_as_the_table_that_was_read(tmp_path: Path, write: Any) -> None:
    (tmp_path / "in").mkdir()
    pairs = load_pairs(write(tmp_path / "in"))
    wanted = pa.Table.from_batches(iter_tables(pairs.source))
    for seed in (1, 2):
        out = tmp_path / str(seed) / "out.parquet"
        export_pairs(pairs, random_plan(pairs, seed), out, explode=seed == 2)
        assert plain(restored(out)).equals(plain(wanted))


def test_a_mixture_of_two_exports_is_never_undone(exported: Path, tmp_path: Path) -> None:
    """A kill between the renames of an export leaves one: the ledger is renamed first, the cleaned file last."""
    pairs = load_pairs(tmp_path / "in.parquet")
    new = tmp_path / "new" / exported.name
    export_pairs(pairs, random_plan(pairs, 2), new)
    for name in (f"{new.name}.ledger.parquet", f"{new.name}.manifest.json"):
        shutil.copy(new.with_name(name), tmp_path)
        assert_raises(DataError, "cut short", restore_export, exported, tmp_path / "back.parquet")
        assert not (tmp_path / "back.parquet").exists()
        assert_raises(DataError, "cut short", diff_export, exported)
    export_pairs(pairs, random_plan(pairs, 2), exported, overwrite=True)
    assert restore_export(exported, tmp_path / "back.parquet").rows == N
