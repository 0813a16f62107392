"""Restore: the input's table comes back from an export, whatever was done to it, or nothing is written."""

import json
import shutil
from functools import partial
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
from cleanpairs.export import diff_export, export_pairs, restore, restore_export
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.verification import verify_path
from tests import helpers
from tests.helpers import assert_raises, edit_exported, picture, plan_of, vector_column, write_pictures, write_table

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


def strict_inside() -> dict[str, Any]:
    """Parts that may not be null, at every depth; a struct that holds them is null in some rows."""
    image = pa.struct([pa.field("bytes", pa.binary(), False), pa.field("path", pa.string())])
    number = pa.field("item", pa.float32(), nullable=False)
    images = [{"bytes": picture(i), "path": None} for i in range(N)]
    return {
        "image": pa.array(images, image),
        "image_features": pa.array([[i, 1, 2] for i in range(N)], pa.list_(number, 3)),
        "text_features": pa.array([[i, 1] for i in range(N)], pa.list_(number)),
        "others": pa.array([[images[i]] * (i % 3) for i in range(N)], pa.list_(pa.field("item", image, False))),
        "maybe": pa.array([None if i % 2 else images[i] for i in range(N)], image),
    }


NOT_NULL = pa.schema([
    pa.field("caption", pa.large_string(), nullable=False, metadata={"unit": "words"}),
    pa.field("image", pa.large_binary(), nullable=False), pa.field("site", pa.int32(), nullable=False),
], metadata={"made": "by hand"})  # fmt: skip
BYTES = pa.array([b"\xff\xfe" if i % 5 == 1 else b"text %d" % i for i in range(N)])  # not all UTF-8
WRONG = [None if i == 2 else i % 3 == 0 for i in range(N)]
VECTORS = vector_column(np.arange(N * 12, dtype=np.float32).reshape(N * 3, 4))
OF_ODD_TYPES: dict[str, Any] = {
    "when": pa.array(np.arange(N), pa.timestamp("ns", "UTC")), "price": pa.array([None] * N, pa.decimal128(7, 2)),
    "none": pa.nulls(N), "tags": pa.array([[("a", i)] for i in range(N)], pa.map_(pa.string(), pa.int32())),
    "half": pa.array(np.arange(N, dtype=np.float16)), "fixed": pa.array([b"abc"] * N, pa.binary(3)),
    "source": pa.array([f"s{i % 3}" for i in range(N)]).dictionary_encode(),
    "nested": [{"a": [i, None], "b": None if i % 2 else {"c": "x"}} for i in range(N)],
    "uuid": pa.array([bytes([i]) * 16 for i in range(N)], pa.binary(16)).cast(pa.uuid()),
    "json": pa.array(["[]"] * N).cast(pa.json_()), "view": pa.array(["text"] * N).cast(pa.string_view()),
}  # fmt: skip
INPUTS: dict[str, Any] = {
    "strings": {},
    "missing": {
        "caption": [None if i == 3 else "" if i == 5 else f"text {i}" for i in range(N)],
        "image": [None if i == 4 else b"no image" if i == 6 else picture(i) for i in range(N)],
    },
    "not utf-8": {"caption": pa.Array.from_buffers(pa.string(), N, BYTES.buffers())},
    "lists": {"caption": lists()},
    "lists of two, and their truth": {
        "caption": pa.array([[f"{i} a", f"{i} b"] for i in range(N)], pa.list_(pa.string(), 2)),
        "true_mismatch": [[False, True]] * N, "true_key": [[f"k{i}", "k0"] for i in range(N)],
    },
    "truth": {"true_mismatch": WRONG, "true_key": [f"k{(i + 1) % N}" if w else None for i, w in enumerate(WRONG)]},
    "vectors": {"image_features": VECTORS[:N]},
    "regions": {"image_features": pa.FixedSizeListArray.from_arrays(VECTORS, 3)},
    "names that give way": {"action": ["a"] * N, "action_input": [1] * N, "source_key": ["b"] * N},
    "names of the ledger": {"row": [5] * N, "original_row": ["a"] * N, "out_row": [None] * N},
    "odd types": OF_ODD_TYPES,
    "odd types inside": {k: pa.ListArray.from_arrays(range(N + 1), OF_ODD_TYPES[k]) for k in ("uuid", "json", "view")},
    "not null": pa.table(columns(N)).select(NOT_NULL.names).cast(NOT_NULL),
    "not null inside": strict_inside(),
}  # fmt: skip


def comes_back(folder: Path, data: Path, seed: int, explode: bool, limit: int | None = None) -> None:
    """Export a random plan, restore, compare; a clean sheet of a folder."""
    shutil.rmtree(folder / "work", ignore_errors=True)
    pairs, out, to = load_pairs(data, limit=limit), folder / "work" / "out.parquet", folder / "work" / "back.parquet"
    summary = export_pairs(pairs, random_plan(pairs, seed), out, explode=explode)
    counts, wanted = restore_export(out, to), pq.read_table(data).slice(0, limit)
    back = pq.read_table(to, page_checksum_verification=True)
    assert back.schema.equals(wanted.schema, check_metadata=True)
    assert decoded(back).equals(decoded(wanted), check_metadata=True)
    assert counts.rows == counts.unchanged + counts.undone + counts.returned == wanted.num_rows
    assert counts.columns == wanted.num_columns
    cleaned = pq.read_schema(out)
    assert all(cleaned.field(field.name).metadata == (field.metadata or None) for field in wanted.schema)
    assert (counts.unchanged == wanted.num_rows) == (summary.kept == summary.pairs)


def decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries, whose order is the file's affair, and without runs."""
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) or pa.types.is_run_end_encoded(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
    return table


@pytest.mark.parametrize("kind", INPUTS)
def test_the_input_comes_back(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "BATCH_ROWS", 5)  # the two streams fall out of step, and batches are cut
    made = INPUTS[kind]
    table = made if isinstance(made, pa.Table) else pa.table(columns(N) | made)
    path = write_table(tmp_path / "in.parquet", table, row_group_size=6)
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
    for of in ("caption", "caption,site"):
        pairs = load_pairs(table := pa.table(columns(N)), text_column=of)
        summary = export_pairs(pairs, random_plan(pairs, 1), tmp_path / f"{of}.parquet")
        assert restored(summary.files["out"]).equals(table) and ("only 'joined_caption'" in str(summary)) == ("," in of)


def test_only_what_is_needed_is_kept(tmp_path: Path) -> None:
    pairs = load_pairs(write_table(tmp_path / "in.parquet", columns(6)))
    actions = ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"]
    export_pairs(pairs, plan_of(pairs, actions, [None, 0, 5, None, None, None]), tmp_path / "out.parquet")
    lines = pq.read_table(tmp_path / "out.parquet.ledger.parquet").to_pylist()
    names = ["key", "image", "caption", "site"]
    assert [line["original_columns"] for line in lines] == [None, ["caption"], ["image"], names, None, None]
    empty = dict.fromkeys(names)
    assert lines[0]["original_row"] is None and lines[1]["original_row"] == empty | {"caption": "text 1"}
    assert lines[2]["original_row"] == empty | {"image": picture(2)}
    assert lines[3]["original_row"] == {"key": "k3", "image": picture(3), "caption": "text 3", "site": 3}


def test_memory_is_that_of_some_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, default, out, back = np.random.default_rng(0), pa.default_memory_pool(), tmp_path / "out", tmp_path / "back.pq"
    table = pa.table({"image": [rng.bytes(200_000) for _ in range(150)], "caption": [f"text {i}" for i in range(150)]})
    write_table(tmp_path / "in.parquet", table, row_group_size=5, compression="none")
    monkeypatch.setattr(parquet_io, "BATCH_BYTES", 2**20)
    monkeypatch.setattr(data_writing.ParquetSink, "group_bytes", 2**20)
    pairs = load_pairs(tmp_path / "in.parquet")
    plan = plan_of(pairs, ["keep", "drop"] * 75, [None] * 150)
    for work in (partial(export_pairs, pairs, plan, out, format="parquet"), partial(restore_export, out, back)):
        counting = pa.proxy_memory_pool(default)
        pa.set_memory_pool(counting)
        try:
            work()
        finally:
            pa.set_memory_pool(default)
        assert 0 < (counting.max_memory() or 0) < 14 * 2**20 < table.nbytes / 2  # of batches and row groups of 1 MiB
    assert pq.read_table(back).equals(table)


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


def test_an_export_edited_since_and_one_of_another_name_are_not_undone(exported: Path, tmp_path: Path) -> None:
    back, copy = tmp_path / "back.parquet", tmp_path / "copy.parquet"
    for end in (".ledger.parquet", ".manifest.json", ""):
        shutil.copy(f"{exported}{end}", f"{copy}{end}")
    write_table(copy, pq.read_table(copy).slice(1))
    assert_raises(DataError, r"describes out\.parquet, and not copy\.parquet", restore_export, copy, back)
    assert "and not copy.parquet" in str(verify_path(copy))
    for end in (".ledger.parquet", ""):
        file = write_table(Path(f"{exported}{end}"), pq.read_table(f"{exported}{end}").slice(1))
        assert_raises(DataError, f"{file} .*edited after the export", restore_export, exported, back)
        shutil.copy(f"{copy}{end}", file)
    assert not back.exists()


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


@pytest.mark.parametrize(("change", "message"), [
    (None, "lacks 'cleanpairs.ledger'"),
    ({"version": 9}, "version 9"),
    ("{", "damaged"),
    ({"rows": N + 1}, "damaged"),
    ("rows", r"out\.parquet\.ledger\.parquet .* 'original_columns' .*version 1"),  # an older one
])  # fmt: skip
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
    captions, b = write_folder(tmp_path), tmp_path / "b.parquet"
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


def write_folder(folder: Path, column: str = "id") -> Path:
    """A CSV of four images, one of which is missing. Its path."""
    write_pictures(folder, [f"{i}.png" for i in range(4)])
    lines = [f"file_name,caption,{column}", "0.png,text 0,a", "1.png,text 1", "none.png,text 2,c", "3.png,text 3,d"]
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder / "captions.csv"


def write_arrow(path: Path, **more: Any) -> None:
    table = pa.table(columns(N, **more))
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


@pytest.mark.parametrize("kind", ["folder", "joined", "vectors", "arrow"])
def test_what_was_no_parquet_comes_back_as_the_table_that_was_read(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "in"
    if kind in ("folder", "joined"):
        write_folder(data, "id" if kind == "folder" else "tag")
    elif kind == "vectors":
        vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
        helpers.embedding_folder(data, vectors, None, pa.table({"caption": [f"text {i}" for i in range(4)]}))
    else:
        runs = pc.run_end_encode(pa.array(["a"] * 4 + ["b"] * (N - 4)))
        write_arrow(data := tmp_path / "in.arrow", year=OF_ODD_TYPES["source"], runs=runs)
    pairs = load_pairs(data, text_column="caption,tag" if kind == "joined" else None)
    wanted = pa.Table.from_batches(iter_tables(load_pairs(data).source))
    for seed in (1, 2):
        out = tmp_path / str(seed) / "out.parquet"
        export_pairs(pairs, random_plan(pairs, seed), out, explode=seed == 2)
        assert decoded(restored(out)).equals(decoded(wanted))


def test_a_type_that_parquet_has_not_is_refused_by_name(tmp_path: Path) -> None:
    write_arrow(tmp_path / "in.arrow", odd=pa.array([(1, 2, 3)] * N, pa.month_day_nano_interval()))
    pairs = load_pairs(tmp_path / "in.arrow")
    words = r"column 'odd' is month_day_nano_interval.*leave it out of the input"
    assert_raises(ConfigError, words, export_pairs, pairs, random_plan(pairs, 1), tmp_path / "out.parquet")


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
    lines = restore._lines

    def exported_again(ledger: Path) -> Any:
        export_pairs(pairs, random_plan(pairs, 3), exported, overwrite=True)
        return lines(ledger)

    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(restore, "_lines", exported_again)
        assert_raises(DataError, "again meanwhile", restore_export, exported, tmp_path / "back.parquet", overwrite=True)
