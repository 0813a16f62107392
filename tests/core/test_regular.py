"""Only regular files are opened, whatever lies where one is expected."""

import ast
import os
import socket
from pathlib import Path

import pytest

import cleanpairs
from cleanpairs.core import DataError, open_regular, read_json, sha256_of
from cleanpairs.core.regular import check_regular, read_text
from tests.helpers import assert_raises, calls_of

PACKAGE = Path(cleanpairs.__file__).parent

# Modules that read files of their own making, or of this package.
OWN = {
    "__init__.py", "cli/terminal.py", "commands/demo.py", "commands/score.py", "core/regular.py", "data/decoding.py",
    "data/formats/in_place.py", "data/formats/remote.py", "data/writing.py", "encoders/efficientnet_lite.py",
    "engine/queries.py", "export/writing.py", "ops/search.py", "report/page.py",
}  # fmt: skip


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    os.mkfifo("FIFO")
    Path("device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for what in ("FIFO", "device", "socket"):
        for read in (check_regular, open_regular, read_text, read_json, sha256_of):
            assert_raises(DataError, f"{what} is a {what}, not a regular file", read, Path(what))
            assert_raises(OSError, "not a regular file", read, Path(what))  # said wherever an unreadable file is


def test_regular_files_are_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "\u00e9"}', encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "a.json")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert read_json(tmp_path / "link") == {"a": "\u00e9"}
    with open_regular(tmp_path / "link") as file:
        assert file.name == str(tmp_path / "link") and len(file.read()) == 11
    assert_raises(IsADirectoryError, ".", open_regular, tmp_path)
    assert_raises(FileNotFoundError, ".", open_regular, tmp_path / "none")
    assert_raises(OSError, "symbolic links", open_regular, tmp_path / "loop")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "\xff", "{"])
def test_json_that_cannot_be_read_is_a_value_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    assert_raises(ValueError, r".", read_json, tmp_path / "a.json")


def reads(called: str, call: ast.Call) -> bool:
    """Whether it opens a path to read it."""
    mode = [m.value for m in [*call.args[:2], *(k.value for k in call.keywords)] if isinstance(m, ast.Constant)]
    if called == "open":
        return not any(m in ("w", "wb", "a", "ab") for m in mode)
    opened = called.endswith(".open") and ("rb" in mode or "r" in mode)
    return opened or called.endswith((".read_text", ".read_bytes"))


def test_paths_of_others_are_opened_by_the_one_function() -> None:
    found = [
        f"{name}:{call.lineno}"
        for module in sorted(PACKAGE.rglob("*.py"))
        if (name := module.relative_to(PACKAGE).as_posix()) not in OWN
        for called, call in calls_of(module)
        if reads(called, call)
    ]
    assert found == []
