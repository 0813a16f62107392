"""Every notebook runs from top to bottom."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from .conftest import EPOCHS, fewer_repairs

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


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
