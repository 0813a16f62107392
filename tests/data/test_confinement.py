"""An image column that names files reads those under its root, and nothing else: no other file, no network."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import load_pairs
from cleanpairs.core.errors import DataError
from cleanpairs.data.images import resolve_path
from tests.helpers import picture

URLS = [
    "http://127.0.0.1/x.png", "http://localhost:8000/x.png", "http://169.254.169.254/latest/meta-data/",
    "http://[::1]/x.png", "http://10.0.0.1/x.png", "https://example.org/x.png", "ftp://a/b.png",
    "s3://bucket/x.png",
]  # fmt: skip

LEAVING = [
    "../outside.png", "leaving.png", "up/outside.png", "/etc/passwd", "a/../../outside.png", "a\0b", "/x/leaving.png",
    "/x/../../outside.png", "../outside", "outside.png|x/../../outside.png",
]  # fmt: skip
FILES = ["file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd", "file://a/etc/pass%77d", "file:../outside.png"]
CIRCLES = ["circle", "circle/good.png", "there", "there/../back/good.png"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one image, a link that stays and one that leaves, links in circles, and an image outside."""
    (tmp_path / "outside.png").write_bytes(picture(0))
    root = tmp_path / "root"
    root.mkdir()
    (root / "good.png").write_bytes(picture(0))
    (root / "within.png").symlink_to("good.png")
    (root / "leaving.png").symlink_to("../outside.png")
    (root / "up").symlink_to("..")
    (root / "circle").symlink_to("circle")
    (root / "there").symlink_to("back")
    (root / "back").symlink_to("there")
    return root


def test_urls_and_paths_that_leave_the_root_are_refused(root: Path) -> None:
    leaves = r"leaves the image root|cannot be followed"
    for path, words in [*((url, "URL") for url in URLS), *((path, leaves) for path in (*LEAVING, *FILES))]:
        with pytest.raises(DataError, match=words):
            resolve_path(path, root)
    for path in CIRCLES:  # Python up to 3.12 raises, later ones give the path back
        with suppress(DataError):
            assert not resolve_path(path, root).exists()


def test_no_row_reaches_the_network_or_another_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connects(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connects)
    monkeypatch.setattr(socket, "getaddrinfo", connects)
    os.mkfifo(root / "pipe")
    hostile = [*URLS, *FILES, *LEAVING, "pipe", "C:\\..\\outside.png", "missing.png", *CIRCLES, "x" * 5000, "up", None]
    names = ["good.png", str(root / "within.png"), *hostile]
    table = pa.table({"image": names, "caption": ["a caption"] * len(names)})
    pq.write_table(table, root.parent / "d.parquet")
    pairs = load_pairs(root.parent / "d.parquet", image_root=str(root))
    assert sorted(pairs.reasons) == list(range(2, len(hostile) + 2))
    assert all("image" in reason for reason in pairs.reasons.values())
    found = pairs.images.read(range(len(pairs.images)))
    assert [data is not None for data in found] == [True, True, *[False] * len(hostile)]
