"""Random tables with vectors, dictionaries, lists, nulls and odd row groups, whose every output is compared by values.

A table is known by its number. It is read, exported in every format by a plan made at random, and restored; what must
come out is worked out here row by row, by Python's own lists, not by what the package has for it.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import tarfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.commands.export import export_plan
from cleanpairs.core.errors import CleanpairsError, ConfigError
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.export import export_pairs, restore_export
from cleanpairs.export.layout import IMAGE_ROLES, TEXT_ROLES
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan
from cleanpairs.verification import verify_path
from faults.figures import Figure
from faults.forked import in_child, run_command

__all__ = ["FORMATS", "Tables", "make_plan", "make_table", "png", "try_fits", "try_table", "try_tables"]

FORMATS = {"parquet": "out.parquet", "webdataset": "tars", "datasets": "stored", "uids": "uids.npy"}
WRITTEN = ("keep", "rematch_text", "rematch_image", "recaption")
SCALARS = (
    pa.float32(), pa.float16(), pa.int8(), pa.uint64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(3),
    pa.bool_(), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.decimal128(12, 2), pa.date32(), pa.time64("us"),
    pa.duration("ms"), pa.null(), pa.string_view(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
)  # fmt: skip


ODD_KEYS = (
    "__{}", "__", ".{}", "{}.jpg", "../{}", "/{}", "a/b {}", "{}/", "é{}", "🙂{}", " {} ", "-{}", "'{}\"", "{}\n",
    "\x1b{}", "{}" + "x" * 300, "a", "", "=1+{}", "{}\\", "\u202e{}", "CON{}", "\x00{}", "a.b.{}.c",
)  # fmt: skip


@dataclass
class Tables:
    """``tried``: tables; ``outputs``: files compared; ``values``: cells of them; ``problems``: what differed."""

    tried: int = 0
    outputs: int = 0
    values: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def try_tables(numbers: range, folder: Path) -> list[Figure]:
    """The tables of these numbers, each in a clean ``folder``; their outputs, and the values of these."""
    found = Tables()
    for number in numbers:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        found.tried += 1
        try:
            try_table(number, folder, found)
        except Exception as error:
            where = next(f for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename.endswith(".py"))
            found.problems.append(f"table {number}: {type(error).__name__} at {where.name}:{where.lineno}: {error}")
    name = (
        "random tables with vectors, lists, dictionaries and nulls: read, exported in four formats, streamed, restored"
    )
    return [
        Figure(name, found.tried, found.problems), Figure("… outputs of these", found.outputs, ()),
        Figure("… values of these, compared with the input", found.values, ()),
    ]  # fmt: skip


FITTED = (
    "fit in.parquet --method infonce --out run --epochs 1 --batch-size 64 --device cpu --quiet --set dim=4 "
    "--set image_size=32",
    "score run in.parquet --out scores.parquet",
    "rematch run --out plan.parquet --threshold 0.5 --set min_repair_score=0",
    "export --plan plan.parquet --repaired out.parquet --dropped gone.parquet",
    "restore out.parquet --out back.parquet",
    "verify out.parquet --quiet",
)


def try_fits(numbers: range, folder: Path) -> list[Figure]:
    """The tables of these numbers through the commands, each in a clean ``folder``, and what comes out of the last."""
    problems, whole, values = [], 0, 0
    for number in numbers:
        in_child(_lay, number, str(folder))
        for told in FITTED:
            done = run_command(told.split(), folder)
            if done.code:
                break
        if done.code not in ((3, 7) if told == FITTED[0] else (0,)):
            problems.append(f"table {number}: {told.split()[0]} ends with {done.code}: {(done.err or done.out)[-300:]}")
        elif done.code == 0:
            wrong, compared = in_child(_wrong_fitted, number, str(folder))
            problems += [f"table {number}, fitted: {what}" for what in wrong]
            whole, values = whole + 1, values + compared
    return [
        Figure(
            "random tables with vectors, lists and dictionaries: fit, score, rematch, export, restore",
            len(numbers),
            problems,
        ),
        Figure("… of these fitted: the others are too small, or all alike", whole, ()),
        Figure("… values of their outputs, compared with the input", values, ()),
    ]


def _lay(number: int, folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir()
    table, group = make_table(number)
    pq.write_table(table, f"{folder}/in.parquet", row_group_size=group)


def _wrong_fitted(number: int, folder: str) -> tuple[list[str], int]:
    path, table, tally = Path(folder), make_table(number)[0], Tables()
    pairs, plan = load_pairs(path / "in.parquet"), RepairPlan.load(path / "plan.parquet")
    wanted = expected_rows(table, pairs, plan, explode=False)
    problems = [] if pq.read_table(path / "scores.parquet")["key"].to_pylist() == pairs.keys else ["other keys scored"]
    for line in plan.table.to_pylist():
        i, donor = line["pair_id"], line["donor_pair_id"]
        donor_values = {"rematch_text": donor, "keep": i, "rematch_image": i}.get(line["action"])
        if (line["key"], line["original_caption"]) != (pairs.keys[i], pairs.captions[i]):
            problems.append(f"pair {i} of the plan is another")
        if donor_values is not None and line["caption"] != pairs.captions[donor_values]:
            problems.append(f"pair {i} of the plan has another caption than pair {donor_values}")
    for name, rows in (("out", wanted["out"]), ("gone", wanted["dropped"]), ("back", table.to_pylist())):
        found = pq.read_table(path / f"{name}.parquet").to_pylist()
        problems += [f"{name}: {what}" for what in differences(found, rows, tally)]
    return problems, tally.values


# -- a table ----------------------------------------------------------------------------------------------------------


def random_type(rng: np.random.Generator, depth: int) -> pa.DataType:
    """A type of at most ``depth`` lists, structs and maps."""
    if depth == 0 or rng.random() < 0.35:
        return SCALARS[rng.integers(len(SCALARS))]
    inner = random_type(rng, depth - 1)
    kinds = [
        pa.list_(inner, int(rng.integers(1, 4))), pa.list_(pa.list_(pa.float32(), 3), int(rng.integers(1, 4))),
        pa.list_(inner), pa.large_list(inner), pa.struct([("a", inner), ("b", random_type(rng, depth - 1))]),
        pa.map_(pa.string(), inner), pa.list_view(pa.int32()), pa.large_list_view(pa.int32()),
    ]  # fmt: skip
    return kinds[rng.integers(len(kinds))]


def random_array(rng: np.random.Generator, kind: pa.DataType, n: int, nulls: bool) -> pa.Array:
    """(n,) values of any type, with nulls among them at every depth; strings where pyarrow has no such Parquet."""
    try:
        array = pa.array([_value(rng, kind, nulls) for _ in range(n)], _plain(kind))
        array = array.cast(kind) if pa.types.is_dictionary(kind) else array
        array.validate(full=True)
        pq.write_table(pa.table({"x": array}), pa.BufferOutputStream(), row_group_size=max(1, n // 2))
    except pa.ArrowException:
        return random_array(rng, pa.string(), n, nulls)
    return array


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _value(rng: np.random.Generator, kind: pa.DataType, nulls: bool) -> Any:
    if pa.types.is_null(kind) or (nulls and rng.random() < 0.2):
        return None
    number = int(rng.integers(100))
    if pa.types.is_fixed_size_list(kind):
        return [_value(rng, kind.value_type, nulls) for _ in range(kind.list_size)]
    if pa.types.is_map(kind):
        return [(f"key {k}", _value(rng, kind.item_type, nulls)) for k in range(rng.integers(3))]
    if pa.types.is_struct(kind):
        return {part.name: _value(rng, part.type, nulls) for part in kind}
    if hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        return [_value(rng, kind.value_type, nulls) for _ in range(rng.integers(4))]
    for is_one, value in (
        (pa.types.is_boolean, number % 2 == 0),
        (pa.types.is_floating, float(number) if number else math.nan),
        (pa.types.is_decimal, Decimal(number)),
        (pa.types.is_date, datetime.fromtimestamp(number * 86400, UTC).date()),
        (pa.types.is_fixed_size_binary, b"%03d" % number),
        (pa.types.is_binary, b"%d" % number * (number % 9)),
        (pa.types.is_binary_view, b"%d" % number * (number % 9)),
        (pa.types.is_large_binary, b"%d" % number),
        (pa.types.is_integer, number),
        (pa.types.is_temporal, number),
    ):
        if is_one(kind):
            return value
    return f"word {number} ü" * (number % 3)


@cache
def png(number: int) -> bytes:
    """A small image of its own."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (number % 256, number // 256, 7)).save(stream, "PNG")
    return stream.getvalue()


def make_table(number: int) -> tuple[pa.Table, int]:
    """The table of a number, and the rows of its row groups."""
    rng = np.random.default_rng([17, number])
    n = int(rng.choice([1, 2, *rng.integers(3, 60, 4), *rng.integers(128, 420, 3)]))
    R, D = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    real = [pa.float32(), pa.float16(), pa.float64()][rng.integers(3)]
    nested = [pa.list_(pa.list_(real, D), R), pa.list_(pa.list_(real), R), pa.list_(real, D),
              pa.list_(real), pa.large_list(pa.list_(real, D)), pa.list_(pa.list_(real))]  # fmt: skip
    holed = [bool(x) for x in rng.random(8) < 0.4]
    vectors = rng.normal(size=(n, R, D)).astype(np.float16)
    shape = nested[min(rng.integers(9), 5) if rng.random() < 0.5 else 0]  # our own layout more often than the others
    deep = "list" in str(shape.value_type)
    cells: list[Any] = (vectors if deep else vectors[:, 0]).astype(float).tolist()
    columns: dict[str, pa.Array] = {}
    if rng.random() < 0.8:
        cells = [None if holed[0] and rng.random() < 0.1 else cell for cell in cells]
        columns["image_features"] = pa.array(cells, shape)
    if rng.random() < 0.6 or not columns:
        images: list[Any] = [None if holed[1] and rng.random() < 0.1 else png(i) for i in range(n)]
        kinds = [pa.binary(), pa.large_binary(), pa.binary_view()]
        which = rng.integers(4)
        if which < 3:
            columns["image"] = pa.array(images, kinds[which])
        else:
            cells = [None if b is None else {"bytes": b, "path": f"{i}.png"} for i, b in enumerate(images)]
            columns["image"] = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    texts: list[Any] = [f"text {i} of {rng.integers(n)} é" for i in range(n)]
    texts = [None if holed[2] and rng.random() < 0.1 else text for text in texts]
    which = int(rng.integers(9))
    if which < 6:
        kinds = [pa.string(), pa.string(), pa.large_string(), pa.string_view()]
        kinds += [pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int16(), pa.large_string())]
        columns["caption"] = pa.array(texts, _plain(kinds[which])).cast(kinds[which])
        if rng.random() < 0.4:
            columns["text_features"] = pa.array(
                rng.normal(size=(n, 3)).astype(np.float32).tolist(), pa.list_(pa.float32(), 3)
            )
    else:
        lists = [[f"{i} {j}" for j in range(2 if which == 8 else rng.integers(4))] for i in range(n)]
        kinds = [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.string(), 2)]
        columns["caption"] = pa.array(lists, kinds[which - 6])
    if rng.random() < 0.4:
        score = rng.random(n).astype(np.float32).tolist()
        if which < 6 or rng.random() < 0.5:
            columns["similarity"] = pa.array(score, [pa.float32(), pa.float64()][rng.integers(2)])
        else:
            columns["similarity"] = pa.array([[s] * len(c or ()) for s, c in zip(score, lists, strict=True)])
    if rng.random() < 0.7:
        kind = [pa.string(), pa.large_string(), pa.int64(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())][
            rng.integers(5)
        ]
        odd = ODD_KEYS[rng.integers(len(ODD_KEYS))] if rng.random() < 0.5 else "k{}"
        keys: list[Any] = [
            None if holed[3] and rng.random() < 0.1 else i if pa.types.is_integer(kind) else odd.format(i)
            for i in range(n)
        ]
        columns["key"] = pa.array(keys, _plain(kind)).cast(kind)
    columns["uid"] = pa.array([f"{i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for i in range(n)])
    for k in range(rng.integers(1, 4)):
        columns[f"extra {k}"] = random_array(rng, random_type(rng, 3), n, holed[4 + k])
    if rng.random() < 0.7:  # what makes the reader cut batches where row groups end
        columns["site"] = pa.array([f"s{i % 5}" for i in range(n)]).dictionary_encode()
    if rng.random() < 0.2:
        columns["action"] = pa.array([f"own {i}" for i in range(n)])  # gives way to an added column
    names = list(columns)
    rng.shuffle(names)
    return pa.table({name: columns[name] for name in names}), int(
        rng.integers(1, n + 1) if n < 60 else rng.integers(30, n + 1)
    )


def make_plan(pairs: Pairs, number: int) -> RepairPlan:
    """Some of every action; what cannot be repaired is dropped."""
    rng, n = np.random.default_rng([18, number]), len(pairs)
    actions = rng.choice(
        ["keep", "rematch_text", "rematch_image", "recaption", "drop"], n, p=[0.5, 0.15, 0.15, 0.05, 0.15]
    )
    lines = []
    for i, (action, donor) in enumerate(zip(actions.tolist(), rng.integers(0, n, n).tolist(), strict=True)):
        if i in pairs.reasons:
            action = "quarantine"
        elif action.startswith("rematch") and (donor in pairs.reasons or donor == i):
            action = "drop"
        donor_values = action.startswith("rematch")
        caption = {"rematch_text": pairs.captions[donor], "recaption": f"written {i}"}.get(action, pairs.captions[i])
        lines.append({
            "pair_id": i, "key": pairs.keys[i], "action": action, "original_caption": pairs.captions[i],
            "correspondence": None if action == "quarantine" else float(np.float32(rng.random())),
            "donor_pair_id": donor if donor_values else None, "donor_key": pairs.keys[donor] if donor_values else None,
            "caption": None if action in ("drop", "quarantine") else caption,
            "repair_score": float(np.float32(rng.random())) if donor_values else None,
            "donor_use": 1 if donor_values else None,
            "reason": None if action == "keep" else f"because {i}",
        })  # fmt: skip
    source = pairs.source
    settings = {"data": source.paths[0], "columns": {}}
    return RepairPlan(pa.Table.from_pylist(lines, PLAN_SCHEMA), 0.1, 0.5, source.fingerprint, settings=settings)


# -- what must come out -----------------------------------------------------------------------------------------------


def expected_rows(
    table: pa.Table, pairs: Pairs, plan: RepairPlan, explode: bool, uids: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """The rows of the cleaned and of the dropped file, by Python alone."""
    rows, columns = table.to_pylist(), pairs.source.columns
    explicit = pairs.source.explicit_lists
    together = explicit and not explode
    text, vector_of_text = columns["text"], columns.get("text_features")
    images = [columns[role] for role in ("image", "features") if role in columns]
    scores = [name for role, name in columns.items() if role.startswith("score:")]
    names = [*("correspondence", "action", "original_caption", "source_key", "repair_score")]
    renamed = {name: f"{name}_input" for name in table.column_names if name in names}
    out: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    row_of: list[int] = []
    for line in plan.table.to_pylist():
        i, action = line["pair_id"], line["action"]
        row, place = int(pairs.row[i]), int(pairs.position[i])
        if (uids and action in WRITTEN[1:]) or (together and action == "rematch_image"):
            action = "drop"
        new, donor = (
            dict(rows[row]),
            None if line["donor_pair_id"] is None else rows[int(pairs.row[line["donor_pair_id"]])],
        )
        own = {
            name: _nth(new[name], place) if explicit and isinstance(new[name], list) else new[name] for name in scores
        }
        if explicit:
            new |= own
        if action not in WRITTEN:
            new[text] = line["original_caption"] if explicit else new[text]
            moved = {
                f"{name}_input" if name in ("pair_id", "correspondence", "action", "reason") else name: value
                for name, value in new.items()
            }
            dropped.append(moved | {"pair_id": i, "correspondence": line["correspondence"], "action": action})
            continue
        if action in ("rematch_text", "recaption") or explicit:
            new[text] = line["caption"]
        if action in ("rematch_text", "recaption") and vector_of_text:
            new[vector_of_text] = donor[vector_of_text] if donor else None
        if action == "rematch_image":
            assert donor is not None
            new |= {name: donor[name] for name in images}
        if action != "keep":
            new |= dict.fromkeys(scores)
        new = {renamed.get(name, name): value for name, value in new.items()}
        replaced = action in ("rematch_text", "recaption")
        added = {
            "correspondence": line["correspondence"], "action": action, "source_key": line["donor_key"],
            "original_caption": line["original_caption"] if replaced else None, "repair_score": line["repair_score"],
        }  # fmt: skip
        if together and row_of and row_of[-1] == row:
            for name in (text, *added):
                out[-1][name].append(new[name] if name == text else added[name])
            for name in scores:
                out[-1][name].append(new[name])
            continue
        row_of.append(row)
        out.append({**new, **added})
        if together:
            out[-1] |= {name: [out[-1][name]] for name in (text, *added, *scores)}
    if together:  # a score of the whole row is null once any of its captions is another, else it stays as it is
        for row, made in zip(row_of, out, strict=True):
            for name in scores:
                cell, same = rows[row][name], all(a == "keep" for a in made["action"])
                if not isinstance(cell, list):
                    made[name] = cell if same else None
                elif same and len(made[text]) == len(rows[row][text] or [None]):
                    made[name] = cell
    return {"out": out, "dropped": dropped}


def _nth(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def differences(
    found: list[dict[str, Any]], wanted: list[dict[str, Any]], tally: Tables, leave: tuple[str, ...] = ()
) -> Iterator[str]:
    """Where rows differ; of the rows wanted every value is asked for."""
    if len(found) != len(wanted):
        yield f"{len(found)} rows, not {len(wanted)}"
        return
    for i, (have, want) in enumerate(zip(found, wanted, strict=True)):
        for name in want.keys() - set(leave):
            tally.values += 1
            if name not in have or not _same(have[name], want[name]):
                yield f"row {i}, {name!r}: {str(have.get(name, 'missing'))[:80]}, not {str(want[name])[:80]}"
                return


# -- through every command --------------------------------------------------------------------------------------------


def try_table(number: int, folder: Path, tally: Tables) -> None:
    """Read, export in every format, restore and verify one table."""
    table, group = make_table(number)
    path = folder / "in.parquet"
    pq.write_table(table, path, row_group_size=group)
    pairs = load_pairs(path)
    plan = make_plan(pairs, number)
    tally.problems += [f"table {number}, read: {what}" for what in _wrong_pairs(table, pairs)]
    explode = number % 2 == 0
    for format, name in FORMATS.items():
        out, gone = folder / name, folder / f"{format}.dropped.parquet"
        try:
            export_pairs(
                pairs,
                plan,
                out,
                dropped=gone,
                explode=explode,
                format=format,
                **({"shard_size": 50} if format == "webdataset" else {}),
            )
        except ConfigError:  # a format that cannot hold this table says so
            tally.refused += 1
            continue
        except CleanpairsError as error:  # a missing image in a tar, a uid of several captions
            if not ("cannot be written" in str(error) or "more than once" in str(error)):
                raise
            tally.refused += 1
            continue
        wanted = expected_rows(table, pairs, plan, explode, uids=format == "uids")
        if format == "uids":  # which has neither images nor vectors of what is dropped
            unread = {pairs.source.columns.get(role) for role in (*IMAGE_ROLES, *TEXT_ROLES)}
            for row in wanted["dropped"]:
                for name in unread & row.keys():
                    del row[name]
        wrong_cells = [*_wrong_output(format, out, pairs, wanted["out"], tally)]
        wrong_cells += [f"dropped: {w}" for w in differences(pq.read_table(gone).to_pylist(), wanted["dropped"], tally)]
        if format in ("parquet", "datasets"):
            restore_export(out, folder / f"{format}.back.parquet")
            wrong_cells += [f"restored: {w}" for w in _wrong_restored(folder / f"{format}.back.parquet", table, tally)]
        tally.outputs += 2
        found = verify_path(out)
        wrong_cells += [f"verify: {what}" for what in (*map(str, found.problems), *found.notes)]
        tally.problems += [f"table {number}, {format}: {what}" for what in wrong_cells]
    if not pairs.source.explicit_lists:
        plan.save(folder / "plan.parquet")
        out = folder / "streamed.parquet"
        export_plan(folder / "plan.parquet", out, dropped=folder / "streamed.dropped.parquet")
        for file, whole in (
            (out, "out.parquet"),
            (folder / "streamed.dropped.parquet", "parquet.dropped.parquet"),
            (Path(f"{out}.ledger.parquet"), "out.parquet.ledger.parquet"),
        ):
            have, want = pq.read_table(file).to_pylist(), pq.read_table(folder / whole).to_pylist()
            tally.problems += [f"table {number}, streamed {file.name}: {w}" for w in differences(have, want, tally)]
            tally.outputs += 1


def _wrong_pairs(table: pa.Table, pairs: Pairs) -> Iterator[str]:
    """What is read is what score and rematch see: captions, keys, vectors."""
    rows, columns = table.to_pylist(), pairs.source.columns
    array = pairs.images.array() if "features" in columns else None
    for i in range(len(pairs)):
        row = rows[int(pairs.row[i])]
        text = row[columns["text"]]
        text = text[int(pairs.position[i])] if isinstance(text, list) and text else text
        if i not in pairs.reasons and pairs.captions[i] != text:
            yield f"pair {i}: the caption {pairs.captions[i]!r}, not {text!r}"
        key = row[columns["key"]] if "key" in columns else pairs.row[i]
        if pairs.keys[i] != (f"row {pairs.row[i]}" if key is None else str(key)):
            yield f"pair {i}: the key {pairs.keys[i]!r}, not {key!r}"
        if array is not None and i not in pairs.reasons:
            wanted = np.array(row[columns["features"]], array.dtype).reshape(array.shape[1:])
            if not np.array_equal(array[int(pairs.row[i])], wanted):
                yield f"pair {i}: other vectors"


def _wrong_output(format: str, out: Path, pairs: Pairs, wanted: list[dict[str, Any]], tally: Tables) -> Iterator[str]:
    if format == "uids":
        found = sorted(f"{int(a):016x}{int(b):016x}" for a, b in np.load(out))
        if found != sorted(row["uid"] for row in wanted):
            yield "other uids"
    elif format == "parquet":
        yield from differences(pq.read_table(out).to_pylist(), wanted, tally)
    elif format == "datasets":
        from datasets import load_from_disk

        yield from differences(
            load_from_disk(str(out)).with_format("arrow")[:].to_pylist() if wanted else [],
            _stored(wanted, pairs),
            tally,
        )
    else:
        yield from _wrong_tars(out, pairs, wanted, tally)


def _stored(rows: list[dict[str, Any]], pairs: Pairs) -> list[dict[str, Any]]:
    """As `datasets` keeps an image: a struct."""
    name = pairs.source.columns.get("image", "")
    return [
        row | ({name: {"bytes": row[name], "path": None}} if isinstance(row.get(name), bytes) else {}) for row in rows
    ]


def _wrong_tars(out: Path, pairs: Pairs, wanted: list[dict[str, Any]], tally: Tables) -> Iterator[str]:
    columns = pairs.source.columns
    beside = [row for file in sorted(out.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    moved = [{"key_input" if name == "key" else name: value for name, value in row.items()} for row in wanted]
    yield from differences(beside, moved, tally, leave=(columns["image"],))
    members = {}
    for file in sorted(out.glob("*.tar")):
        with tarfile.open(file) as tar:
            members |= {(file.stem, *member.name.rsplit(".", 1)): tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    samples = [(stem, key) for stem, key, suffix in members if suffix == "txt"]
    for (stem, key), row, line in zip(samples, wanted, beside, strict=True):
        image = row[columns["image"]]
        tally.values += 3
        if line["key"] != key or members[stem, key, "txt"].decode() != row[columns["text"]]:
            yield f"sample {key}: another caption"
        if members[stem, key, "png"] != (image["bytes"] if isinstance(image, dict) else image):
            yield f"sample {key}: another image"
        if json.loads(members[stem, key, "json"])["key"] != key:
            yield f"sample {key}: another key"
    again = load_pairs(out)
    if again.captions != [row[columns["text"]] for row in wanted]:
        yield f"{len(again)} samples are read back, or others, of {len(wanted)}"


def _wrong_restored(path: Path, table: pa.Table, tally: Tables) -> Iterator[str]:
    tally.outputs += 1
    yield from differences(pq.read_table(path).to_pylist(), table.to_pylist(), tally)
