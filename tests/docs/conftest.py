"""Pages and notebooks run on fewer pictures, and train for fewer epochs, than they show: every block and cell does run.

The tutorial takes all pictures: it shows a noise rate, which is undetermined for a thousand of them.
"""

from __future__ import annotations

import inspect

import pyarrow.parquet as pq
import pytest

from cleanpairs import Auto, datasets
from cleanpairs.encoders import sentences

ROWS = 1_000
# One epoch after those of the labels: these, the noise rate and the threshold are as after all of them.
EPOCHS = inspect.signature(Auto).parameters["label_epochs"].default + 1

# What makes `clipart_path` name the first rows alone, and `Auto` train shortly, here or in the kernel of a notebook;
# and no sentence encoder, as in the tests (see tests/conftest.py).
FEWER = """
from pathlib import Path
from cleanpairs import Auto, datasets
from cleanpairs.encoders import sentences
sentences.PACKAGE = "not_installed"
datasets.clipart_path = lambda split="train", folder=Path({folder!r}): folder / f"{{split}}.parquet"
Auto.__init__.__kwdefaults__["epochs"] = {epochs}
"""


@pytest.fixture(scope="session")
def fewer_pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Code after which the clip art has at most :data:`ROWS` pairs a split."""
    folder = tmp_path_factory.mktemp("clipart")
    for split in ("train", "val", "test"):
        pq.write_table(pq.read_table(datasets.clipart_path(split)).slice(0, ROWS), folder / f"{split}.parquet")
    return FEWER.format(folder=str(folder), epochs=EPOCHS)


@pytest.fixture
def fewer_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Auto.__init__.__kwdefaults__, "epochs", EPOCHS)


@pytest.fixture
def with_fewer_pictures(fewer_pictures: str, fewer_epochs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((datasets, "clipart_path"), (sentences, "PACKAGE")):
        monkeypatch.setattr(module, name, getattr(module, name))  # which is put back
    exec(fewer_pictures, {})
