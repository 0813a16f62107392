"""Arrays in memory and in files, and what is worked through in blocks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cleanpairs.core.errors import OutputError
from cleanpairs.ops import scratch
from cleanpairs.ops import sparse_transport as transport
from cleanpairs.ops.scratch import MEMORY, Buckets, Scratch, is_mapped, release
from cleanpairs.ops.sparse_transport import _Kernel, sparse_transport
from cleanpairs.repair import edge_pairs
from cleanpairs.repair.candidates import Edges, Members
from cleanpairs.repair.edge_pairs import bucket_bounds, pair_edges


def resident() -> int:
    """Bytes of this process that are mapped from files."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssFile")).split()[1])


def test_mapped_arrays_keep_what_is_written_and_take_no_memory(tmp_path: Path) -> None:
    array = Scratch(tmp_path).empty((1 << 22,), np.float64)  # 32 MiB
    assert is_mapped(array) and not is_mapped(MEMORY.empty(4096, np.float64))
    before = resident()
    array[:] = 3.0
    touched = resident()
    release(array[17:])
    assert touched - before > 30 * 2**20 and resident() - before < 8 * 2**20
    assert (array == 3.0).all()
    assert not list(tmp_path.iterdir())  # no name: nothing is left by a kill


def test_entries_are_picked_in_any_order_a_few_pages_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(array: np.ndarray) -> None:
        seen.append(resident())
        release(array)

    monkeypatch.setattr(scratch, "release", noted)
    monkeypatch.setattr(scratch, "_STRETCH", 1 << 18)
    array, rng = Scratch(tmp_path).empty((1 << 23,), np.float64), np.random.default_rng(0)
    at = np.append(rng.integers(0, 1 << 18, 1 << 14), rng.integers(0, 1 << 23, 1 << 11))  # most of them near the first
    array[:] = np.arange(len(array))
    release(array)
    before = resident()
    np.testing.assert_array_equal(scratch.picked(array, at), at)
    np.testing.assert_array_equal(scratch.picked(np.arange(1 << 23), at), at)
    assert len(seen) == 32 and max(seen) - before < 8 * 2**20  # of 64
    assert not len(scratch.picked(array, at[:0]))


def test_the_kernel_of_a_transport_lies_where_the_costs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value, column = (Scratch(tmp_path).empty(8192, kind) for kind in (np.float64, np.int32))
    monkeypatch.setattr(transport, "_BLOCK", 1024)
    kernel = _Kernel(np.asarray(value), column, np.arange(0, 8193, 8), 8)
    assert all(
        np.shares_memory(part.data, value) and np.shares_memory(part.indices, column) for _, part in kernel.parts
    )


def test_values_of_a_copy_on_write_map_are_not_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[:] = 1
    release(array)
    assert (array == 1).all()


def test_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"4\.0 GiB .* No space left on device.*TMPDIR"):
        Scratch(tmp_path).empty(1 << 30, np.float32)


@pytest.mark.parametrize("on_disk", [False, True])
def test_buckets_keep_the_order_within(tmp_path: Path, on_disk: bool) -> None:
    rng = np.random.default_rng(0)
    bucket, value = rng.integers(0, 5, 3000), rng.normal(size=3000)
    bucket[bucket == 3] = 2  # one that is empty
    buckets = Buckets(Scratch(tmp_path) if on_disk else MEMORY, np.bincount(bucket, minlength=5), {"value": np.float64})
    for start in range(0, 3000, 700):
        buckets.add(bucket[start : start + 700], value=value[start : start + 700])
    for b in range(len(buckets)):
        np.testing.assert_array_equal(buckets.part(b)["value"], value[bucket == b])


def test_bounds_of_buckets() -> None:
    per_value = np.array([3, 0, 5, 1, 9, 2])
    bucket_of, counts = bucket_bounds(per_value, 6)
    assert (np.diff(bucket_of) >= 0).all() and counts.sum() == per_value.sum()
    for b, count in enumerate(counts):
        assert per_value[bucket_of == b].sum() == count < 6 + per_value.max()
    assert [len(x) for x in bucket_bounds(np.zeros(0, np.int64), 6)] == [0, 0]


@pytest.mark.parametrize("E", [0, 1, 2, 4000])
@pytest.mark.parametrize("on_disk", [False, True])
def test_pairs_of_edges_are_numbered_as_unique_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, E: int, on_disk: bool
) -> None:
    monkeypatch.setattr(edge_pairs, "BUCKET", 300)
    rng = np.random.default_rng(E)
    n = 60
    edges = Edges(
        row=rng.integers(0, 30, E).astype(np.int32),
        is_image=rng.random(E) < 0.5,
        trusted=rng.random(E) < 0.4,
        donor_group=rng.integers(0, 50, E).astype(np.int32),
        similarity=rng.normal(size=E).astype(np.float32),
        mismatched=np.arange(30, dtype=np.int32),
        shown=rng.integers(0, n, 50).astype(np.int32),
        image_group=np.unique(rng.integers(0, 25, n), return_inverse=True)[1],
        text_group=np.unique(rng.integers(0, 25, n), return_inverse=True)[1],
        members=Members(np.zeros(0, np.int64), np.zeros(1, np.int64)),
    )
    asked: list[int] = []

    def judge(image: np.ndarray, text: np.ndarray, cosine: np.ndarray | None) -> np.ndarray:
        asked.append(len(image))
        assert cosine is not None and cosine.shape == image.shape
        return (edges.image_group[image] * 100 + edges.text_group[text]).astype(np.float32)

    found = pair_edges(edges, judge, scratch=Scratch(tmp_path) if on_disk else MEMORY)
    image, text = edges.shown_by(slice(None))
    key = edges.image_group[image] * edges.n_text + edges.text_group[text]
    values, number = np.unique(key, return_inverse=True)
    np.testing.assert_array_equal(found.number, number)
    assert found.count == len(values) == sum(asked)
    np.testing.assert_array_equal(found.score, (key // edges.n_text) * 100 + key % edges.n_text)
    free = np.unique(number[~edges.trusted])
    graph = found.graph
    np.testing.assert_array_equal(graph.number, free)
    np.testing.assert_array_equal(graph.image_group[graph.row], values[free] // edges.n_text)
    np.testing.assert_array_equal(graph.text_group[graph.column], values[free] % edges.n_text)
    if len(free):
        lead = [np.flatnonzero((number == f) & ~edges.trusted)[0] for f in free]
        np.testing.assert_array_equal(graph.similarity, edges.similarity[lead])


def test_transport_is_the_same_in_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scratch = Scratch(tmp_path)
    row, column = np.nonzero(rng.random((300, 200)) < 0.2)
    cost = rng.random(len(row))
    arrays = [scratch.empty(len(row), kind) for kind in (np.int32, np.int32, np.float64)]
    for array, values in zip(arrays, (row, column, cost), strict=True):
        array[:] = values
    masses = np.ones(300), np.ones(200)
    expected = sparse_transport(row, column, cost, *masses, stay_cost=0.5, reg=0.1)
    found = sparse_transport(*arrays, *masses, stay_cost=0.5, reg=0.1)
    np.testing.assert_array_equal(found.mass, expected.mass)
    assert is_mapped(found.mass) and found.converged
