"""A digest that is remembered is that of the file as it is."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from cleanpairs.data import source
from cleanpairs.data.source import digest_of


def _old(path: Path, seconds: float = 10.0) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def _sha(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(source, "LARGE", 1)
    monkeypatch.setattr(source, "SETTLED", -10.0)  # what was made just now may be remembered, but for those that say so
    path = tmp_path / "rows"
    path.write_bytes(b"abc" * 1000)
    return path


def test_it_is_read_once_while_it_is_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = _sha(file)
    assert digest_of(file) == wanted
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert digest_of(file) == digest_of(os.path.relpath(file)) == wanted


@pytest.mark.parametrize("change", ["in place", "replaced", "longer"])
@pytest.mark.parametrize("put_back", [False, True])
def test_a_change_is_seen(change: str, put_back: bool, file: Path, tmp_path: Path) -> None:
    digest_of(file)
    before = file.stat()
    time.sleep(0.02)
    if change == "in place":
        with file.open("r+b") as f:
            f.write(b"x")
    else:
        (tmp_path / "other").write_bytes(b"xyz" * (1000 + (change == "longer")))
        (tmp_path / "other").rename(file)
    if put_back:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(file) == _sha(file)


def test_what_was_changed_just_now_and_what_is_small_is_not_remembered(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LARGE", 64 * 2**20), ("SETTLED", 2.0)):
        with monkeypatch.context() as patch:
            patch.setattr(source, name, value)
            assert digest_of(file) == _sha(file)
            _old(file)  # the time of its change is not to be set
            assert digest_of(file) == _sha(file)
    assert not (tmp_path / "cache").exists()


def test_without_a_place_for_notes_it_is_hashed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert digest_of(file) == _sha(file)
    with pytest.raises(FileNotFoundError):
        digest_of(tmp_path / "gone")
