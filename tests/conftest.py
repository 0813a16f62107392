"""What every test gets: a cache directory of its own; no sentence encoder and no decoding process, unless asked for."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"  # the last bit of a sum depends on the number of threads
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # no test depends on a clock

# What takes longest goes first, so that no process is left with it at the end (`make test` runs several).
FIRST = ("faults/test_suite", "commands/test_demo", "docs/test_docs_tutorial", "docs/test_notebooks", "test_contracts")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((k for k, name in enumerate(FIRST) if f"tests/{name}.py" in item.nodeid), len(FIRST))

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory; nothing is left in the user's, and nothing is found there."""
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process of the test, unless the module says ``DECODING = True``: starting another takes a second."""
    if not getattr(request.module, "DECODING", False):
        monkeypatch.setenv("CLEANPAIRS_DECODE_WORKERS", "0")


@pytest.fixture(autouse=True, scope="module")
def sentence_encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """As where its weights are not installed, unless the module says ``SENTENCES = True``: encoding takes its time."""
    from cleanpairs.estimators import encoders

    if getattr(request.module, "SENTENCES", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cleanpairs.encoders.sentences.PACKAGE", "not_installed")
        encoders._shipped.cache_clear()
        yield
    encoders._shipped.cache_clear()


def code_of(*argv: Any) -> int:
    """The exit code of ``cleanpairs``, called in this process, in the working directory."""
    from cleanpairs.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cleanpairs", *map(str, argv)])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
    return 0


class Done(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


def assert_refused(done: Done, code: int, *words: str) -> None:
    """The command ended with this code, and says these words on standard error."""
    assert done.code == code and all(word in done.err for word in words), done


@pytest.fixture
def in_process(capfd: pytest.CaptureFixture[str]) -> Command:
    """Calls ``cleanpairs`` in this process, in the working directory; no traceback."""

    def call(*argv: Any) -> Done:
        code = code_of(*argv)
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return Done(code, out, err)

    return call


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Command:
    """``in_process``, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return in_process


@pytest.fixture
def output_of(in_process: Command) -> Callable[..., str]:
    """What ``in_process`` prints; the command must succeed."""

    def call(*argv: Any) -> str:
        code, out, err = in_process(*argv)
        assert code == 0, (argv, err)
        return out

    return call


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The browser of this machine, without a window; the test is skipped where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).resolve().parents[1] / "tools"), *sys.path])
        from chromium import start
    browser = start(tmp_path_factory.mktemp("profile"))
    if browser is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium); the page is not rendered")
    yield browser
    browser.close()
