"""Pages and notebooks take fewer or smaller pictures, or fewer epochs, than they show: every block and cell does run.

The tutorial takes all pictures: it shows a noise rate, which is undetermined for a thousand of them.
"""

import re
import shlex
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from cleanpairs import Auto, datasets

ROWS = 600
EPOCHS = {"label_epochs": 2, "epochs": 3, "image_size": 96}  # of auto: one for the threshold after those for labels

# What makes `clipart_path` name the first rows alone, here or in the kernel of a notebook.
FEWER = """
from pathlib import Path
from cleanpairs import datasets
datasets.clipart_path = lambda split="train", folder=Path({folder!r}): folder / f"{{split}}.parquet"
"""


def fewer_repairs(source: str) -> str:
    """The code, with two repairs dropped by hand where twenty are."""
    return re.sub(r"\[(:?)20\]", r"[\g<1>2]", source)


@pytest.fixture(scope="session")
def fewer_pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Code after which the clip art has :data:`ROWS` pairs for training, and a hundred in each other split."""
    folder = tmp_path_factory.mktemp("clipart")
    for split in ("train", "val", "test"):
        rows = ROWS if split == "train" else 100
        pq.write_table(pq.read_table(datasets.clipart_path(split)).slice(0, rows), folder / f"{split}.parquet")
    return FEWER.format(folder=str(folder))


@pytest.fixture
def run(output_of: Callable[..., str]) -> Callable[[str], str]:
    """Runs a line of a page, which begins with ``cleanpairs``; what it prints."""
    return lambda line: output_of(*shlex.split(line)[1:])


@pytest.fixture
def fewer_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in EPOCHS.items():
        monkeypatch.setitem(Auto.__init__.__kwdefaults__, name, number)


@pytest.fixture
def with_fewer_pictures(fewer_pictures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "clipart_path", datasets.clipart_path)  # which is put back
    exec(fewer_pictures, {})
