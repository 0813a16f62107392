"""docs/tutorial.md, block by block: what it runs runs, and what it shows is what is printed, but for the figures."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.test_both_vectors import N, arrays, table
from tests.helpers import embedding_folder

from .conftest import fewer_repairs

PAGES = Path(__file__).parents[2] / "docs"


def blocks(text: str, *kinds: str) -> list[tuple[str, str]]:
    """Kind and text of the blocks of these kinds, in their order."""
    return re.findall(rf"```({'|'.join(kinds)})\n(.*?)```", text, flags=re.DOTALL)


def shape(line: str) -> str:
    """A line without its figures, which differ between machines, and without what is drawn of them."""
    return re.sub(r"\s+", " ", re.sub(r"[\d,.]*\d|█+|\*", "#", line)).strip().rstrip("# ")


# Names, captions and reasons follow from the figures: which pairs come first is another matter on another machine.
OF_THE_DATA = re.compile(r"^(@|- |\+ |\(JPEG|dropped:|its |no candidate|[a-z ]+(, [a-z ]+)+$)")


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_epochs")
def test_every_block_runs(tmp_path: Path, monkeypatch: Any, capfd: Any, run: Callable[..., str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    found = blocks((PAGES / "tutorial.md").read_text(encoding="utf-8"), "python", "sh", "text")
    assert [kind for kind, _ in found].count("sh") == 5
    printed, compared = list[str](), 0
    for kind, block in found:
        if kind == "python":
            exec(compile(block, "tutorial.md", "exec"), {})
            printed = capfd.readouterr().out.splitlines()
        elif kind == "sh":
            printed = [line for command in block.strip().splitlines() for line in run(command).splitlines()]
        else:
            seen = {shape(line) for line in printed}
            for line in map(str.strip, block.splitlines()):
                if line and line != "..." and not OF_THE_DATA.match(line):
                    assert shape(line) in seen, line
                    compared += 1
    assert compared > 40
    assert len(printed) == 5 and all(re.match(r"0\.\d{3}  \d{4}\.jpg  .", line) for line in printed)  # the worst five
    clean = pq.read_table("clean.parquet")
    assert 1_000 < len(clean) < 1_870
    assert set(clean["action"].to_pylist()) <= {"keep", "rematch_text", "rematch_image"}
    assert Path("report.html").stat().st_size > 10_000


# -- The walk-through of docs/repair.md, block by block: review, edit, apply, undo ------------------------------------


@pytest.mark.usefixtures("with_fewer_pictures", "fewer_epochs")
def test_the_walkthrough_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]) -> None:
    page = (PAGES / "repair.md").read_text(encoding="utf-8")
    found = blocks(page.split("## Walk-through")[1].split("\n## ")[0], "python", "sh")
    assert [kind for kind, _ in found] == ["python", "sh", "python", "sh"]
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    for kind, block in found:
        if kind == "python":
            exec(compile(fewer_repairs(block), "repair.md", "exec"), {})
        else:
            printed += map(run, block.strip().splitlines())
    before, after = pq.read_table("noisy.parquet"), pq.read_table("original.parquet")
    assert after.equals(before, check_metadata=True)
    clean = pq.read_table("clean.parquet")
    assert "a drawing that somebody looked at" in clean["caption"].to_pylist() and len(clean) < len(before)
    actions = clean["action"].to_pylist()
    assert actions.count("recaption") == 1 and actions.count("rematch_text") > 0
    assert "new caption" in printed[-2]


# -- docs/clip_vectors.md: every command and every line of Python in it runs, on vectors of a hundred pairs -----------


BENCH = "--seeds 1 --set crcl.epochs=1 --set crcl.refine_epochs=[]"
SHORT = {"fit": "--set epochs=2 --set label_epochs=2", "bench": BENCH}


def files(folder: Path) -> None:
    """What the page's commands name; a part of it in the store that stands for S3."""
    image, text = arrays(folder)
    whole = table(caption=[f"caption {i}" for i in range(N)])
    rows = whole.select(["uid", "caption"])
    pq.write_table(whole, folder / "data.parquet")
    pq.write_table(rows, folder / "rows.parquet")
    embedding_folder(folder / "embeddings", image, text, rows, cuts=(40,))
    fsspec.filesystem("memory").put(f"{folder}/", "/bucket/", recursive=True)


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    page = (PAGES / "clip_vectors.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (cleanpairs (\w+).*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 10
    for line, name in commands:
        out = run(f"{line.replace('s3://', 'memory://')} {SHORT.get(name, '')}")
        assert name != "fit" or "of the data, both sides" in out, line
    kept = pq.read_table("clean.parquet").to_pylist()
    ids = {f"{a:016x}{b:016x}" for a, b in np.load("ids.npy").tolist()}
    assert ids == {row["uid"] for row in kept if row["action"] == "keep"} and len(ids) > N / 2
    for _, block in blocks(page, "python"):
        exec(compile(block.replace("Auto()", "Auto(epochs=2, label_epochs=2)"), "clip_vectors.md", "exec"), {})
