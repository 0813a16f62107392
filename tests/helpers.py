"""What tests of many directories write again and again: pictures, unit vectors, a corpus of words, plans by hand."""

import ast
import atexit
import csv
import functools
import inspect
import io
import itertools
import json
import os
import pickle
import shutil
import signal
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs import Pairs, load_pairs
from cleanpairs.core import DataError, sha256_of
from cleanpairs.core.recipe import Recipe
from cleanpairs.data import ParquetSink
from cleanpairs.engine import Partition
from cleanpairs.engine.work import carry_out
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan

# Sizes of a method that trains in a moment.
TINY = {
    "dim": 16, "dim_word": 8, "epochs": 2, "refine_epochs": (1,), "batch_size": 16, "eval_group_size": 16, "lr": 1e-2,
    "tau": 0.1, "freeze": 1, "warmup": 1, "start": 1, "memory": 64, "neighbours": 4, "classes": 8, "device": "cpu",
    "random_state": 1,
}  # fmt: skip
WORDS = [f"word{k}" for k in range(24)]


def sized(method: Any, **settings: Any) -> Any:
    """A method with those of the settings that it knows."""
    known = inspect.signature(method).parameters
    return method(**{name: value for name, value in settings.items() if name in known})


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file: several tests sweep all files of the package."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def calls_of(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call in a file with the dotted name of what is called: of ``a.b().c()`` that is ``.c``."""
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            called, parts = node.func, list[str]()
            while isinstance(called, ast.Attribute):
                parts.append(called.attr)
                called = called.value
            found.append((".".join([called.id if isinstance(called, ast.Name) else "", *reversed(parts)]), node))
    return found


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """An image as a file of it holds it."""
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def picture(number: int, form: str = "PNG", size: tuple[int, int] = (8, 8)) -> bytes:
    """An encoded image of one colour, another one for each of 65,536 numbers."""
    return encoded(Image.new("RGB", size, (number * 37 % 256, number * 91 % 256, number // 256)), form)


def write_pictures(folder: Path, names: Iterable[str], form: str = "PNG") -> Path:
    """Pictures of the numbers 0, 1 and so on, by these names, in a folder that is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(number, form))
    return folder


def unit(x: np.ndarray) -> np.ndarray:
    """Rows as unit vectors, float32."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), np.float32)


def cone(
    n: int, wrong: float, *, dim: int = 64, spread: float = 0.7, hubs: float = 0.0, seed: int = 0
) -> tuple[np.ndarray, ...]:
    """Vectors in a cone with topics, captions of which some rotate, the captions' numbers, and which are wrong."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, dim)) * np.exp(-np.arange(dim) / 20) * 2
    z += rng.normal(size=(20, dim))[rng.integers(0, 20, n)]
    images, texts = (z + spread * rng.normal(size=z.shape) + shift for shift in (0.8, -0.8))
    images = unit(images) + hubs * rng.exponential(size=(n, 1)) * unit(texts).mean(axis=0)
    at = np.arange(n)
    moved = rng.permutation(n)[: round(wrong * n)]
    at[moved] = np.roll(moved, 1)
    return unit(images), unit(texts)[at], at, at != np.arange(n)


def distinct(images: np.ndarray, texts: np.ndarray) -> VectorPairs:
    """Pairs of which no image and no caption counts as another one's duplicate."""
    return VectorPairs(images, texts, np.arange(len(images)), np.arange(len(images)))


def sentences(n: int, seed: int = 0, words: Sequence[str] = WORDS) -> tuple[list[str], np.ndarray]:
    """Captions of three words, and the sum of the words' vectors (n, 16)."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(99).normal(size=(len(words), 16))
    chosen = [rng.choice(len(words), 3, replace=False) for _ in range(n)]
    captions = [" ".join(words[k] for k in row) for row in chosen]
    return captions, np.array([vectors[row].sum(0) for row in chosen], np.float32).reshape(n, 16)


def reloaded(model: Any, folder: Path, pairs: Any) -> Any:
    """The model from disk, which scores the pairs as it did."""
    again = type(model).from_pretrained(model.save_pretrained(folder / "model", overwrite=True))
    np.testing.assert_array_equal(again.score_pairs(pairs), model.score_pairs(pairs))
    return again


def corpus(n: int = 60, wrong: int = 0, seed: int = 0) -> Pairs:
    """Pairs of :func:`sentences`; the first ``wrong`` captions, an even number, are reversed: no displaced block."""
    captions, features = sentences(n, seed)
    return Pairs.from_arrays(captions[:wrong][::-1] + captions[wrong:], features=features)


@functools.cache
def meta_set() -> str:
    """A clean corpus in the research layout, by its path: it must survive in a saved model."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pairs = corpus(40, seed=11)
    return str(research(folder, pairs.images.array(), pairs.captions))


def write_table(path: Path, columns: Any, **options: Any) -> Path:
    """Parquet of a table, or of these columns."""
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def vector_column(x: np.ndarray) -> pa.Array:
    """Rows (n, d), as Parquet has them."""
    return pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])


def write_corpus(path: Path, n: int, wrong: int = 0, seed: int = 0, *, truth: bool = False, **more: Any) -> Path:
    """Parquet of :func:`corpus`, with the columns key, image_features, caption, ``more``, and the ``truth``."""
    captions, features = sentences(n, seed)
    keys = [f"k{i}" for i in range(n)]
    mixed, true_key = (texts[:wrong][::-1] + texts[wrong:] for texts in (captions, keys))
    columns = {"key": keys, "image_features": vector_column(features), "caption": mixed}
    known = {"true_key": true_key, "true_mismatch": [i < wrong for i in range(n)]} if truth else {}
    return write_table(path, columns | known | more)


def research(folder: Path, images: np.ndarray, captions: Iterable[str], split: str = "train") -> Path:
    """A folder in the research layout: an array of the images' vectors, and a line a caption."""
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{split}_ims.npy", images)
    (folder / f"{split}_caps.txt").write_text("".join(f"{c}\n" for c in captions), encoding="utf-8")
    return folder


def assert_raises(kind: Any, words: str, call: Callable[..., Any], /, *given: Any, **named: Any) -> None:
    """The call itself raises an error of this kind, whose message these words match, a pattern."""
    with pytest.raises(kind, match=words):
        call(*given, **named)


def assert_not_loaded(words: str, data: Any, **options: Any) -> None:
    """The data is refused with a :class:`DataError`, whose message these words match, a pattern."""
    assert_raises(DataError, words, load_pairs, data, **options)


def fit_beside(data: Path, *overrides: str, streamed_from: int = 50_000, **options: Any) -> dict[str, Any]:
    """Fit to the data, into the directory ``run`` beside it. Returns the result."""
    from cleanpairs.commands.fit import fit_run

    recipe = Recipe.resolve(None, overrides=list(overrides), options={"train": str(data), **options})
    return fit_run(recipe, out=data.parent / "run", latest=False, streamed_from=streamed_from)


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar with files of these names and contents."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def csv_rows(path: str | Path, **how: Any) -> list[dict[str, str]]:
    """The rows of a CSV file as a spreadsheet reads it, with its byte order mark."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, **how))


def write_csv_rows(path: Path, rows: list[dict[str, str]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    """A CSV file of rows, as a spreadsheet saves it."""
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def edit_exported(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Edit a Parquet file of an export and its entry in the manifest: what is left to notice is what it says."""
    table = change(pq.read_table(path))
    with ParquetSink(path, table.schema, image_feature=False) as sink:
        sink.write(table)
    manifest = next(path.parent.glob("*.manifest.json"))
    noted = json.loads(manifest.read_text())
    noted["files"][path.name] |= {"bytes": path.stat().st_size, "sha256": sha256_of(path), "rows": len(table)}
    manifest.write_text(json.dumps(noted))


def embedding_folder(
    folder: Path,
    images: np.ndarray,
    texts: np.ndarray | None,
    table: pa.Table,
    cuts: Sequence[int] = (),
    **options: Any,
) -> Path:
    """A folder as clip-retrieval leaves one: vectors of images and of captions, and the table, in parts cut there."""
    edges = [0, *cuts, len(table)]
    for name in ("img_emb", "metadata", *(() if texts is None else ("text_emb",))):
        (folder / name).mkdir(parents=True)
    for part, (first, last) in enumerate(itertools.pairwise(edges)):
        np.save(folder / "img_emb" / f"img_emb_{part}.npy", images[first:last])
        if texts is not None:
            np.save(folder / "text_emb" / f"text_emb_{part}.npy", texts[first:last])
        pq.write_table(table[first:last], folder / "metadata" / f"metadata_{part}.parquet", **options)
    return folder


class StopAt:
    """Counts the steps of a training as its ``on_step``, and sends this process a signal after so many."""

    def __init__(self, step: int | None = None, number: int = signal.SIGINT) -> None:
        self.step, self.number, self.seen = step, number, 0

    def __call__(self, done: int, total: int, loss: float) -> None:
        self.seen += 1
        if self.seen == self.step:
            os.kill(os.getpid(), self.number)


class Handler(BaseHTTPRequestHandler):
    """What answers a request to a server of :func:`serving`; nothing is logged."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *about: Any) -> None:
        pass


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """The address of a server in a thread, whose requests the class answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class InParts:
    """An engine of partitions one by one, in reverse, pickled as for other processes; that numbered ``stops`` fails."""

    remote = True

    def __init__(self, stops: int = -1) -> None:
        self.stops, self.done = stops, 0

    def run(self, work: Any, partitions: Sequence[Partition], folder: Path) -> Iterator[Any]:
        for partition in reversed(partitions):
            if partition.number == self.stops:
                raise DataError("stopped")
            yield carry_out(pickle.loads(pickle.dumps(work)), partition, folder)
            self.done += 1


def plan_of(
    pairs: Pairs, actions: Iterable[str] | None = None, donors: Sequence[int | None] | None = None, *,
    threshold: float = 0.1, settings: dict[str, Any] | None = None, **columns: Any,
) -> RepairPlan:  # fmt: skip
    """A plan by hand: quarantined pairs stay so; a rematched one takes the part of its donor, by default the next pair.

    ``columns``: in place of what the columns of these names hold.
    """
    n = len(pairs)
    partners = [(i + 1) % n for i in range(n)] if donors is None else donors
    wanted = zip(actions or ["keep"] * n, partners, strict=True)
    chosen = ["drop" if d in pairs.reasons and a.startswith("rematch") else a for a, d in wanted]
    chosen = ["quarantine" if i in pairs.reasons else a for i, a in enumerate(chosen)]
    given = [d if a.startswith("rematch") else None for a, d in zip(chosen, partners, strict=True)]
    texts = [pairs.captions[i if a == "rematch_image" or given[i] is None else given[i]] for i, a in enumerate(chosen)]
    kept = ("keep", "rematch_text", "rematch_image")
    captions = [texts[i] if a in kept else f"new {i}" if a == "recaption" else None for i, a in enumerate(chosen)]
    found = {
        "pair_id": range(n),
        "key": pairs.keys,
        "action": chosen,
        "correspondence": [None if a == "quarantine" else 0.5 for a in chosen],
        "donor_pair_id": given,
        "donor_key": [None if d is None else pairs.keys[d] for d in given],
        "caption": captions,
        "original_caption": pairs.captions,
        "repair_score": [None if d is None else 0.75 for d in given],
        "donor_use": [None if d is None else 1 for d in given],
        "reason": [None if a == "keep" else f"because {a}" for a in chosen],
        **columns,
    }
    table = pa.table({f.name: pa.array(list(found.get(f.name, [None] * n)), f.type) for f in PLAN_SCHEMA})
    return RepairPlan(table, threshold, 0.5, pairs.source.fingerprint, settings or {})
