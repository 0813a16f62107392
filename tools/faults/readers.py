"""Random inputs of every reader, written as people write them: which rows come back, with which captions and vectors.

Each trial writes some rows in one format, with faults at random places, and knows what must come back. Wrong is: an
exception that is no error of cleanpairs, another caption or vector than was written, a row that is neither a pair nor
set aside, a good row that is set aside, or a bad one that is not.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from cleanpairs.core.errors import CleanpairsError
from cleanpairs.data import Pairs, load_pairs
from faults.figures import Figure

__all__ = ["try_readers"]

ROWS = 16
WORDS = "a red bike, rides “home” l'été 東京 tower; 3/4 off #sale it's 5\" wide | naïve — ok 100% \\n e-mail@x".split()
Row = tuple[str, list[str] | None]  # its name; its captions, None where it cannot be used
Written = tuple[Path, list[Row]]


def picture(rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def sentence(rng: np.random.Generator, i: int) -> str:
    return " ".join([f"row{i}", *rng.choice(WORDS, rng.integers(2, 6))])


def images(folder: Path, rng: np.random.Generator) -> list[str]:
    names = [f"{i:03}{rng.choice(['', ' b', '.c', 'é', '-D'])}.png" for i in range(ROWS)]
    for name in names:
        (folder / name).write_bytes(picture(rng))
    return names


def delimited(folder: Path, rng: np.random.Generator) -> Written:
    """A CSV or TSV: quotes, captions with line breaks in a CSV, empty ones, images that are missing."""
    names, tab = images(folder, rng), bool(rng.integers(2))
    rows: list[Row] = []
    lines = []
    for i, name in enumerate(names):
        text = sentence(rng, i)
        if not tab and rng.random() < 0.2:
            text += "\nsecond line"
        fault = rng.random()
        if fault < 0.1:
            text = rng.choice(["", "  "])
        if 0.1 <= fault < 0.2:
            (folder / name).unlink()
        lines.append([name, text])
        rows.append((name, None if fault < 0.2 else [text]))
    path = folder / ("pairs.tsv" if tab else "pairs.csv")
    with path.open("w", newline="", encoding=rng.choice(["utf-8", "utf-8-sig"])) as file:
        end = rng.choice(["\n", "\r\n"])
        if tab:  # as most tools write it: a quote is a character
            file.write(end.join("\t".join(line) for line in [["file_name", "caption"], *lines]) + end)
        else:
            csv.writer(file, lineterminator=end).writerows([["file_name", "caption"], *lines])
    return path, rows


def json_lines(folder: Path, rng: np.random.Generator) -> Written:
    """Captions that are texts, lists, empty lists, null, and objects."""
    names = images(folder, rng)
    rows: list[Row] = []
    lines = []
    for i, name in enumerate(names):
        text = sentence(rng, i)
        several = [f"{text} {k}" for k in range(rng.integers(1, 4))]
        kinds: list[tuple[Any, list[str] | None]] = [(text, [text]), (several, several), ([], None), (None, None)]
        value, wanted = kinds[int(rng.choice(4, p=[0.6, 0.2, 0.1, 0.1]))]
        lines.append({"file_name": name, "caption": value})
        rows.append((name, wanted))
    path = folder / "metadata.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=bool(rng.integers(2))) for line in lines), encoding="utf-8")
    return path, rows


def sidecars(folder: Path, rng: np.random.Generator) -> Written:
    """A folder of images with a text each; some texts and some images are missing, others are hidden."""
    rows: list[Row] = []
    for i, name in enumerate(images(folder, rng)):
        text, fault = sentence(rng, i), rng.random()
        if fault >= 0.15:
            (folder / name).with_suffix(".txt").write_text(text, encoding="utf-8")
        rows.append((name, None if fault < 0.15 else [text]))
    (folder / ".hidden.png").write_bytes(picture(rng))
    return folder, rows


def shard(folder: Path, rng: np.random.Generator) -> Written:
    """A tar of samples; the caption is a .txt or a field of the .json, or is missing; images are missing or cut."""
    path, rows = folder / "00000.tar", []
    with tarfile.open(path, "w") as tar:
        for i in range(ROWS):
            text, fault, key = sentence(rng, i), rng.random(), f"{i:05}"
            members = {"png": picture(rng)}
            if rng.random() < 0.5:
                members["txt"] = text.encode()
            else:
                members["json"] = json.dumps({"caption": text, "width": 9}).encode()
            if fault < 0.1:
                del members["png"]
            elif fault < 0.2:
                members = {"png": members["png"]}
            for suffix, content in members.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            rows.append((key, None if fault < 0.2 else [text]))
    return path, rows


def parquet(folder: Path, rng: np.random.Generator) -> Written:
    """Parquet with image bytes; captions are texts, or lists with nulls and empty lists."""
    lists = bool(rng.integers(2))
    rows: list[Row] = []
    captions: list[Any] = []
    for i in range(ROWS):
        text, fault = sentence(rng, i), rng.random()
        if lists:
            several = [f"{text} {k}" for k in range(rng.integers(1, 4))]
            captions.append(([] if rng.integers(2) else None) if fault < 0.1 else several)
            rows.append((f"k{i}", None if fault < 0.1 else several))
        else:
            captions.append(None if fault < 0.1 else text)
            rows.append((f"k{i}", None if fault < 0.1 else [text]))
    kind = pa.list_(pa.string()) if lists else pa.large_string() if rng.integers(2) else pa.string()
    table = pa.table({
        "key": [name for name, _ in rows], "caption": pa.array(captions, kind),
        "image": [picture(rng) for _ in rows],
    })  # fmt: skip
    pq.write_table(table, folder / "in.parquet", row_group_size=int(rng.integers(3, 20)))
    return folder / "in.parquet", rows


def vectors(folder: Path, rng: np.random.Generator) -> Written:
    """Parquet with vectors of both sides, some of which are zero, NaN or infinite."""
    sides = [rng.normal(size=(ROWS, 6)).astype(np.float32) for _ in range(2)]
    rows: list[Row] = []
    for i in range(ROWS):
        bad = rng.random() < 0.2
        if bad:
            vector = sides[rng.integers(2)][i]
            vector[...] = [0.0, np.nan, np.inf][rng.integers(3)]
        rows.append((f"k{i}", None if bad else [sentence(rng, i)]))
    columns = {
        name: pa.FixedSizeListArray.from_arrays(side.ravel(), 6)
        for name, side in zip(("image_features", "text_features"), sides, strict=True)
    }
    captions = [(wanted or ["some text"])[0] for _, wanted in rows]
    pq.write_table(pa.table({"key": [n for n, _ in rows], "caption": captions, **columns}), folder / "in.parquet")
    return folder / "in.parquet", rows


WRITERS: dict[str, Callable[[Path, np.random.Generator], Written]] = {
    "CSV and TSV": delimited, "JSON Lines": json_lines, "images with a text each": sidecars, "tars": shard,
    "Parquet": parquet, "vectors": vectors,
}  # fmt: skip


def differences(pairs: Pairs, rows: list[Row]) -> list[str]:
    """What is not as it was written; rows are told by the numbers in their captions, or by their place."""
    usable = [(int(row), caption) for p, (row, caption) in enumerate(zip(pairs.row, pairs.captions, strict=True))
              if p not in pairs.reasons]  # fmt: skip
    found: dict[str, list[str]] = {}
    for _, caption in usable:
        found.setdefault(caption.split()[0] if caption.split() else "", []).append(" ".join(caption.split()))
    problems = []
    for i, (name, wanted) in enumerate(rows):
        got = sorted(found.pop(f"row{i}", []))
        if got != sorted(" ".join(text.split()) for text in wanted or []):
            problems.append(f"{name}: {wanted} was read as {got}")
    problems += [f"a caption of no row: {texts}" for key, texts in found.items() if key.startswith("row")]
    seen = set(pairs.row.tolist())
    if len(seen) < len(rows):
        problems.append(f"{len(rows)} rows, of which {len(seen)} are pairs or set aside")
    return problems


def try_readers(numbers: range, folder: Path) -> list[Figure]:
    """Read the inputs of these numbers: kind by kind in turns, each by its own seed."""
    wrong: dict[str, list[str]] = {name: [] for name in WRITERS}
    tried = dict.fromkeys(WRITERS, 0)
    for number in numbers:
        name = list(WRITERS)[number % len(WRITERS)]
        at = folder / str(number)
        at.mkdir(parents=True)
        path, rows = WRITERS[name](at, np.random.default_rng([23, number]))
        tried[name] += 1
        try:
            problems = differences(load_pairs(path), rows)
        except CleanpairsError as error:
            problems = [f"refused: {error}"]
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        wrong[name] += [f"{number}: {problem}" for problem in problems[:1]]
    return [Figure(f"random inputs read as they were written: {name}", tried[name], wrong[name]) for name in WRITERS]
