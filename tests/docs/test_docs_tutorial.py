"""docs/tutorial.md, block by block: what it runs runs, and what it shows is what is printed, but for the figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def shape(line: str) -> str:
    """A line without its figures, which differ between machines, and without what is drawn of them."""
    return re.sub(r"\s+", " ", re.sub(r"[\d,.]*\d|█+|\*", "#", line)).strip().rstrip("# ")


# Names, captions and reasons follow from the figures: which pairs come first is another matter on another machine.
OF_THE_DATA = re.compile(r"^(@|- |\+ |\(JPEG|dropped:|its |no candidate|[a-z ]+(, [a-z ]+)+$)")


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_epochs")
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], run: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    blocks = re.findall(r"```(python|sh|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [kind for kind, _ in blocks].count("sh") == 5
    printed: list[str] = []
    compared = 0
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, str(PAGE), "exec"), {})
            printed = capfd.readouterr().out.splitlines()
            continue
        if kind == "text":
            seen = {shape(line) for line in printed}
            for line in map(str.strip, block.splitlines()):
                if line and line != "..." and not OF_THE_DATA.match(line):
                    assert shape(line) in seen, line
                    compared += 1
            continue
        printed = []
        for line in block.strip().splitlines():
            printed += run(line).splitlines()
    assert compared > 40
    assert len(printed) == 5 and all(re.match(r"0\.\d{3}  \d{4}\.jpg  .", line) for line in printed)  # the worst five
    clean = pq.read_table("clean.parquet")
    assert 1_000 < len(clean) < 1_870
    assert set(clean["action"].to_pylist()) <= {"keep", "rematch_text", "rematch_image"}
    assert Path("report.html").stat().st_size > 10_000
