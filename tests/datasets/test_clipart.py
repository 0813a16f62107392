"""The shipped clip art is the one that its notice describes. `tools/build_clipart.py` checks what it holds."""

import hashlib

import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError
from cleanpairs.datasets import CLIPART_SPLITS, clipart_path, load_clipart
from tests.helpers import assert_raises


@pytest.mark.parametrize("split", CLIPART_SPLITS)
def test_files_are_those_of_the_notice(split: str) -> None:
    path = clipart_path(split)
    notice = (path.parent / "NOTICE.md").read_text(encoding="utf-8")
    assert hashlib.sha256(path.read_bytes()).hexdigest() in notice and "public domain" in notice
    table = pq.read_table(path, columns=["key", "caption"])
    assert len(table) == {"train": 1870, "val": 200, "test": 500}[split] == len(set(table["caption"].to_pylist()))


def test_the_pairs_have_vectors_of_nine_regions_and_an_unknown_split_names_those_there_are() -> None:
    pairs = load_clipart("val")
    assert pairs.images.kind == "features" and pairs.images.array().shape == (200, 9, 256)
    assert not pairs.reasons and len(set(pairs.image_group.tolist())) == 200
    assert_raises(ConfigError, "'train', 'val', 'test', got 'dev'", load_clipart, "dev")
