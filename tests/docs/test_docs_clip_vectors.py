"""docs/clip_vectors.md: every command and every line of Python in it runs, on vectors of a hundred pairs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cleanpairs.cli import cli
from tests.helpers import embedding_folder

PAGE = Path(__file__).parents[2] / "docs" / "clip_vectors.md"
BENCH = "--seeds 1 --set crcl.epochs=1 --set crcl.refine_epochs=[]"
SHORT = {"fit": "--set epochs=2 --set label_epochs=2", "bench": BENCH}
N, D = 110, 8


def files(folder: Path) -> None:
    """What the page's commands name; a part of it in the store that stands for S3."""
    rng = np.random.default_rng(0)
    image = rng.normal(size=(N, D)).astype(np.float32)
    text = (image + 0.3 * rng.normal(size=(N, D))).astype(np.float32)
    rows = pa.table({"uid": [f"{i:032x}" for i in range(N)], "caption": [f"caption {i}" for i in range(N)]})
    kind = pa.list_(pa.float32(), D)
    whole = rows.append_column("image_emb", pa.array(list(image), kind))
    pq.write_table(whole.append_column("text_emb", pa.array(list(text), kind)), folder / "data.parquet")
    pq.write_table(rows, folder / "rows.parquet")
    np.save(folder / "image.npy", image)
    np.save(folder / "text.npy", text)
    for part, (first, last) in enumerate([(0, 40), (40, N)]):
        np.save(folder / f"image_{part}.npy", image[first:last])
        np.save(folder / f"text_{part}.npy", text[first:last])
    embedding_folder(folder / "embeddings", image, text, rows, cuts=(40,))
    fsspec.filesystem("memory").put(f"{folder}/embeddings/", "/bucket/", recursive=True)


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^    cleanpairs (.*)$", page, flags=re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        words = shlex.split(command.replace("s3://", "memory://"))
        result = CliRunner().invoke(cli, words + shlex.split(SHORT.get(words[0], "")))
        assert result.exit_code == 0, (command, result.output, result.exception)
        if words[0] == "fit":
            assert "of the data, both sides" in result.output, command
    kept = pq.read_table("clean.parquet").to_pylist()
    ids = {f"{a:016x}{b:016x}" for a, b in np.load("ids.npy").tolist()}
    assert ids == {row["uid"] for row in kept if row["action"] == "keep"} and len(ids) > N / 2
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block.replace("Auto()", "Auto(epochs=2, label_epochs=2)"), str(PAGE), "exec"), {})
