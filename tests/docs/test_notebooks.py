"""Every notebook runs from top to bottom, and lies in the repository with its outputs (`make notebooks`)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from .conftest import EPOCHS, fewer_repairs

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


PICTURES = {  # that each one draws at least
    "compare_methods": 2,  # four histograms in one, the worst pairs
    "quickstart": 4,  # histogram, repairs, worst pairs, search
    "review_and_repair": 3,  # histogram beside the training, worst pairs, borderline pairs
}


# A file of some machine, a complaint, a time: no reader's business, and another one in every run.
UNWANTED = re.compile(
    r"/(home|root|tmp|usr|opt|work|var|mnt|Users|private)/|site-packages|[A-Z]:\\|Warning|Traceback"
    r"|\bError\b|\d(ms|it/s|s/it)\b|\d:\d\d\b|\b\d+(\.\d+)? (s|seconds|minutes)\b"
)


def texts(outputs: list[Any]) -> Iterator[str]:
    for output in outputs:
        yield output.get("text", "")
        yield from (data for kind, data in output.get("data", {}).items() if kind.startswith("text/"))


def pictures(outputs: list[Any]) -> list[str]:
    return [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_stored_as_it_ran(path: Path) -> None:
    assert {p.stem for p in NOTEBOOKS} >= set(PICTURES)
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebooks`"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert [text for text in texts(outputs) if UNWANTED.search(text)] == []
    printing = [cell for cell in cells if "print(" in cell.source or "plt.show()" in cell.source]
    assert all(cell.outputs for cell in printing) and len(pictures(outputs)) >= PICTURES.get(path.stem, 0)
    assert all(len(picture) < 120_000 for picture in pictures(outputs)) and path.stat().st_size < 400_000
    assert not [cell for cell in cells if "execution" in cell.metadata]
    assert "version" not in notebook.metadata.language_info


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelManager]:
    """One for all: a kernel imports for as long as a short notebook takes."""
    manager = KernelManager()
    manager.start_kernel(env=os.environ | {"CLEANPAIRS_CACHE": str(tmp_path_factory.mktemp("cache"))})
    yield manager
    manager.shutdown_kernel(now=True)


# Each in a folder and a namespace of its own, with few epochs, and no sentence encoder (as in tests/conftest.py).
ALONE = """
%reset -f
import os
os.chdir({folder!r})
from cleanpairs import CRCL, RCL, Auto, InfoNCE
from cleanpairs.encoders import sentences
Auto.__init__.__kwdefaults__.update({epochs})
for method in (CRCL, RCL, InfoNCE):
    method.__init__.__kwdefaults__["image_size"] = 96
sentences.PACKAGE = "not_installed"
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs(path: Path, tmp_path: Path, fewer_pictures: str, kernel: KernelManager) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # with fewer epochs, and fewer pictures where these are encoded
        source = fewer_repairs(cell.source).replace("arange(1000)", "arange(200)")
        cell.source = re.sub(r"\bepochs=\d+", "epochs=2", source)
    for first in (fewer_pictures, ALONE.format(folder=str(tmp_path), epochs=EPOCHS)):
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    runner = NotebookClient(notebook, km=kernel, timeout=None)
    try:
        runner.execute()
    finally:
        if runner.kc is not None:
            runner.kc.stop_channels()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert len(pictures(outputs)) >= PICTURES.get(path.stem, 0)
