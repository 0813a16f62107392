"""Lance datasets are read by row and in batches; a damaged one is named."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cleanpairs import load_pairs
from cleanpairs.core.errors import ConfigError
from tests.helpers import assert_not_loaded, assert_raises, picture

lance = pytest.importorskip("lance", reason="pylance is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 pairs in three fragments of two versions."""
    for k in range(3):
        images = [{"bytes": picture(i), "path": None} for i in range(4 * k, 4 * k + 4)]
        table = pa.table({"caption": [f"text {i}" for i in range(4 * k, 4 * k + 4)], "image": images})
        lance.write_dataset(table, tmp_path / "pairs.lance", mode="append" if k else "create")
    return tmp_path / "pairs.lance"


def test_rows_in_order_and_images_in_any(folder: Path) -> None:
    pairs = load_pairs(folder)
    assert pairs.captions == [f"text {i}" for i in range(12)] and pairs.source.kind == "lance"
    assert pairs.images.read([9, 0, 9]) == [picture(9), picture(0), picture(9)]
    assert load_pairs(folder, limit=5).captions == pairs.captions[:5]
    lance.dataset(folder).delete("caption = 'text 3'")
    assert len(load_pairs(folder)) == 11 and load_pairs(folder).source.fingerprint != pairs.source.fingerprint
    assert pairs.images.read([3, 11]) == [picture(3), picture(11)]  # as they were


def test_a_damaged_one_and_a_missing_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (folder / "data").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    assert_not_loaded(r"pairs\.lance cannot be read as Lance", folder)
    monkeypatch.setitem(sys.modules, "lance", None)
    assert_raises(ConfigError, r"cleanpairs\[lance\]", load_pairs, folder)
