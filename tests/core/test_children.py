"""Child processes: nothing beside the data is imported by them, and they end with their parent."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cleanpairs
from cleanpairs.core import children
from tests.helpers import calls_of

PACKAGE = Path(cleanpairs.__file__).resolve().parent
OPTIONAL = {"cupy", "ray", "faiss", "datasets", "sentencepiece", "sitecustomize", "usercustomize"}


def names() -> list[str]:
    """Of every module that anything here may import: the standard library's, those loaded now, and optional ones."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    found = loaded | sys.stdlib_module_names | OPTIONAL
    return sorted(name for name in found if name.isidentifier() and name not in ("cleanpairs", "__main__"))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file or a package of each name, which says so when it is run."""
    folder, marker = tmp_path / "downloads", tmp_path / "run"
    folder.mkdir()
    for number, name in enumerate(names()):
        package = number % 2 or name == "multiprocessing"
        path = folder / name / "__init__.py" if package else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(marker)!r}, 'a').write({name + ' '!r})\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "")  # Python reads it as the working directory
    return marker


@pytest.mark.parametrize("first", ["", None, "lib/.."])
def test_a_child_imports_nothing_from_the_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, first: str | None
) -> None:
    """Whatever has put it on this process's own path."""
    assert len(names()) > 300
    Path("lib").mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()) if first is None else first, *sys.path])
    code = "import json, decimal, colorsys, multiprocessing.pool, numpy, cleanpairs.data.decoding, sys; "
    code += "print(json.dumps(sys.path))"
    with children.start(code, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        path = json.loads(child.communicate(timeout=900)[0])
    assert not hostile.exists(), hostile.read_text()
    assert str(PACKAGE.parent) in [str(Path(p).resolve()) for p in path]
    assert not {"", ".", str(Path.cwd())} & set(path)


def test_a_child_imports_this_package_and_no_other_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a source checkout, beside a copy that is installed. Ctrl-C does not end it."""
    (tmp_path / "cleanpairs").mkdir()
    (tmp_path / "cleanpairs" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(PACKAGE.parent), str(tmp_path), *sys.path])
    monkeypatch.chdir(PACKAGE.parent)
    code = "import cleanpairs, os, signal; os.kill(os.getpid(), signal.SIGINT); print(cleanpairs.__file__)"
    with children.start(code, stdout=subprocess.PIPE) as child:
        assert Path(child.communicate(timeout=900)[0].decode().strip()).resolve().parent == PACKAGE


def test_every_child_is_started_by_one_function() -> None:
    """Nobody else starts Python, or anything: the sweep over the package's syntax trees."""
    starts = "Popen run_path check_output check_call system popen get_context fork spawnv posix_spawn execv execve"
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name, _ in calls_of(path)
        if name.split(".")[-1] in [*starts.split(), "ProcessPoolExecutor", "Process"]
        or name in ("subprocess.run", "subprocess.call")
    }
    assert found == {("core/children.py", "subprocess.Popen")}


# -- the end ----------------------------------------------------------------------------------------------------------

PARENT = """
import subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from cleanpairs.core import children
started = children.start(sys.argv[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(started.pid, started.stdout.readline().decode().strip(), flush=True)
threading.Event().wait()
"""
BUSY = "print('ready', flush=True)\nwhile True: pass"  # it hears no pipe


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    argv = [sys.executable, "-c", PARENT, str(PACKAGE.parent), BUSY]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        pid, ready = parent.stdout.readline().split()
        parent.kill()
    assert ready == "ready"
    until = time.monotonic() + 600
    while alive(int(pid)):
        if time.monotonic() > until:
            os.kill(int(pid), signal.SIGKILL)
            pytest.fail("it is still there")
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
