"""``cleanpairs score`` in partitions: killed half-way it goes on; engines by name; what cannot be is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import InfoNCE

from .conftest import Command


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with data.parquet, of 90 rows, and a run."""
    folder, rng = tmp_path_factory.mktemp("score"), np.random.default_rng(0)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=90 * 6).astype(np.float32)), 6)
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (90, 3))]
    pq.write_table(pa.table({"caption": captions, "image_features": flat}), folder / "data.parquet", row_group_size=10)
    model = InfoNCE(dim=8, dim_word=4, epochs=1, batch_size=8, device="cpu", require_dependence=False)
    model.fit(folder / "data.parquet").save_pretrained(folder / "run" / "model")
    (folder / "run" / "run.json").write_text('{"status": "complete"}')
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--engine", "spark"], 2, "unknown engine 'spark' (known: local, ray)"),
        (["--workers", "0"], 2, "x>=1"),
        (["--engine", "local=auto"], 2, "use 'ray'"),
    ],
)
def test_engines_that_cannot_be(here: Path, in_process: Command, options: list[str], code: int, says: str) -> None:
    done = in_process("score", "run", "data.parquet", "--out", "scores.parquet", *options)
    assert done.code == code and says in done.err
    assert not (here / "scores.parquet").exists()


@pytest.mark.parametrize(("words", "code"), [("w0 w1 w2", 0), ("w0 w1 two new", 0), ("一条 狗 跑", 7)])
def test_captions_of_other_words_are_warned_of_or_refused(
    here: Path, in_process: Command, words: str, code: int
) -> None:
    table = pq.read_table("data.parquet")
    pq.write_table(table.set_column(0, "caption", [[words] * 90]), "other.parquet")
    done = in_process("score", "run", "other.parquet", "--out", "scores.parquet")
    assert done.code == code
    assert ("warning: the model does not know 50% of the words" in done.err) == (words == "w0 w1 two new")
    if code:
        assert "100% of the words of other.parquet are unknown" in done.err and not Path("scores.parquet").exists()
        again = in_process("score", "run", "other.parquet", "--out", "scores.parquet", "--set", "max_unknown=1")
        assert again.code == 0


def test_a_run_without_a_model_says_so(here: Path, in_process: Command) -> None:
    (here / "run" / "model").rename(here / "elsewhere")
    done = in_process("score", "run", "data.parquet", "--out", "scores.parquet")
    assert done.code == 3 and "the run did not finish" in done.err


def test_a_threshold_that_does_not_hold_for_other_pairs_is_told(here: Path, in_process: Command) -> None:
    for flagged, told in ((0, True), (90, False)):
        result = {"pairs": 90, "flagged": flagged}
        (here / "run" / "run.json").write_text(json.dumps({"status": "complete", "result": result}))
        config = json.loads((here / "run" / "model" / "config.json").read_text())
        config["state"]["threshold_"] = 1.0  # of a model that knows its own pairs by heart
        (here / "run" / "model" / "config.json").write_text(json.dumps(config))
        code, _, err = in_process("score", "run", "data.parquet", "--out", "scores.parquet", "--overwrite")
        assert code == 0
        assert ("100% of these pairs are below the threshold, and 0% of those" in err) == told and told == bool(err)
