"""A small input with images, and plans by hand for it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import Pairs, RepairPlan, load_pairs, restore_export
from cleanpairs.data.table_reader import IMAGE_TYPE
from tests.helpers import picture, plan_of, write_table


def named(stem: str, format: str) -> str:
    """The name of an output of this format."""
    return stem + {"parquet": ".parquet", "uids": ".npy", "csv": ".csv"}.get(format, "")


def columns(n: int, **more: Any) -> dict[str, Any]:
    return {
        "key": [f"k{i}" for i in range(n)], "image": [picture(i) for i in range(n)],
        "caption": [f"text {i}" for i in range(n)], "site": list(range(n)),
    } | more  # fmt: skip


def restored(out: Path, **options: Any) -> pa.Table:
    """The table that comes back from an export."""
    return pq.read_table(restore_export(out, out.with_name("again.parquet"), overwrite=True, **options).path)


@pytest.fixture
def make_pairs(tmp_path: Path) -> Callable[..., Pairs]:
    """``make_pairs(n, struct=, lists=, **columns)``: n rows of key, uid, image, caption."""

    def make(n: int, struct: bool = False, lists: bool = False, **more: Any) -> Pairs:
        images = [picture(i, size=(8, 6)) for i in range(n)]
        parts = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
        captions = [[f"text {i}", f"other {i}"] if lists else f"text {i}" for i in range(n)]
        columns = {
            "key": pa.array([f"k{i}" for i in range(n)], pa.string()),
            "uid": pa.array([f"{i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for i in range(n)], pa.string()),
            "image": pa.array(parts, IMAGE_TYPE) if struct else pa.array(images, pa.binary()),
            "caption": pa.array(captions, pa.list_(pa.string()) if lists else pa.string()),
        }
        (tmp_path / "data").mkdir(exist_ok=True)
        return load_pairs(write_table(tmp_path / "data" / "in.parquet", columns | more))

    return make


@pytest.fixture
def make_plan() -> Callable[..., RepairPlan]:
    """``make_plan(pairs, actions)``: a rematched pair takes the part of the next one, a recaptioned one is new."""

    def make(pairs: Pairs, actions: Sequence[str] | None = None) -> RepairPlan:
        return plan_of(pairs, actions, threshold=0.25, settings={"strategy": "ot", "data": "/secret/in.parquet"})

    return make


@pytest.fixture
def mixed() -> list[str]:
    """Actions of seven pairs: every kind."""
    return ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep", "keep"]
