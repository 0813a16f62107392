"""A fit on more vectors than are compared with each other: the same run, from a sample and a stream."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from cleanpairs.commands import fit_stream
from cleanpairs.commands.export import export_run
from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.fit_stream import StreamedFit
from cleanpairs.commands.run import Run
from cleanpairs.commands.score import ScoreWork, score_stream
from cleanpairs.core.errors import DataError
from cleanpairs.core.recipe import Recipe
from cleanpairs.engine.local import LocalEngine
from cleanpairs.repair.settings import RepairSettings
from tests.conftest import Command
from tests.helpers import assert_raises, cone, csv_rows, embedding_folder

N, D = 3000, 48


def embeddings(folder: Path, n: int = N, *, spoilt: bool = False, displaced: range = range(0)) -> np.ndarray:
    """A folder of clip-retrieval in three shards, of whose captions three tenths rotate; whose caption each row has."""
    images, texts, at, _ = cone(n, 0.3, dim=D)
    at[displaced], texts[displaced] = np.roll(at[displaced], 1), np.roll(texts[displaced], 1, axis=0)
    if spoilt:
        images[7], images[n // 2], texts[at == n - 100] = 0, np.nan, np.inf
    captions = [f"a caption, the {i}th" if i else "1234" for i in at]  # one without a letter, which no stream filters
    table = pa.table({"uid": [f"{i:032x}" for i in range(n)], "caption": captions})
    embedding_folder(folder, images.astype(np.float16), texts.astype(np.float16), table, cuts=(n // 3, n * 2 // 3))
    return at


def fit(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, streamed_from: int, **options: Any) -> dict[str, Any]:
    monkeypatch.setattr(StreamedFit, "sample", streamed_from // 3)
    monkeypatch.setattr(ScoreWork, "partition_rows", streamed_from // 6)
    recipe = Recipe.resolve(None, overrides=[], options={"train": str(data), "device": "cpu", "seed": 0})
    return fit_run(recipe, out=out, latest=False, streamed_from=streamed_from, **options)


def test_a_part_that_changes_while_it_is_read_ends_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings(data := tmp_path / "data", 300)
    part = data / "img_emb" / "img_emb_2.npy"

    def changed(*args: Any, **kwargs: Any) -> Any:
        np.save(part, np.load(part)[:, ::-1])
        return score_stream(*args, **kwargs)

    monkeypatch.setattr(fit_stream, "score_stream", changed)
    assert_raises(DataError, "has changed since it was read", fit, data, tmp_path / "run", monkeypatch, 300)
    assert not (tmp_path / "run").exists()


def test_a_sample_and_a_stream_leave_the_run_of_a_whole_fit(tmp_path: Path, monkeypatch: Any, command: Command) -> None:
    """Spoilt rows are quarantined with their numbers, nothing is lost, and uids are kept and dropped by the scores."""
    wrong = embeddings(tmp_path / "data", spoilt=True) != np.arange(N)
    found = fit(tmp_path / "data", tmp_path / "run", monkeypatch, N)
    scores = (run := Run.open(tmp_path / "run")).scores()
    known = np.isfinite(scores.correspondence)
    assert sorted(scores.reasons) == np.flatnonzero(~known).tolist() == [7, 1500, 2900][: len(scores.reasons)]
    assert "not finite" in scores.reasons[1500] and found["quarantined"] == 3 and found["pairs"] == N
    assert roc_auc_score(~wrong[known], scores.correspondence[known]) > 0.98 and abs(found["noise_rate"] - 0.3) < 0.03
    low, high = found["noise_rate_interval"]
    assert low < found["noise_rate"] < high and sum(found["histogram"]) == N - 3
    whole = fit(tmp_path / "data", tmp_path / "whole", monkeypatch, N + 1)
    assert abs(found["noise_rate"] - whole["noise_rate"]) < 0.02
    issues, listed = (tmp_path / "run" / "issues.csv").read_text().splitlines(), command("worst", run.path).out
    assert len(issues) == 201 and "a caption, the" in issues[1]
    assert listed.count("not looked for") == 4 and list(found["issues"]) == ["doubtful", "displaced rows"]
    summary = export_run(run, tmp_path / "ids.npy", RepairSettings())
    ids = np.load(tmp_path / "ids.npy")
    kept = np.flatnonzero(np.nan_to_num(scores.correspondence) >= run.info["result"]["threshold"])
    assert ids["f1"].tolist() == kept.tolist() and summary.kept == len(kept) and summary.quarantined == 3
    assert command("score", run.path, tmp_path / "data", "--out", tmp_path / "again.parquet").code == 0
    np.testing.assert_array_equal(pq.read_table(tmp_path / "again.parquet")["correspondence"], scores.correspondence)
    assert f"pair 7, key {7:032x})" in command("inspect", tmp_path / "data").out
    monkeypatch.setenv("CLEANPAIRS_MAX_BAD_SHARE", "0")  # the first pair of the sample is another one of the data
    message = r"^unusable pairs: \d of 1000 of a sample, more than 0 % .*; the first: its"
    assert_raises(DataError, message, fit, tmp_path / "data", tmp_path / "bad", monkeypatch, N)


def test_displaced_rows_are_found_in_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the ends of shards and of parts. What is exported has their captions in place. One issue is of the block."""
    n, block = 1800, range(550, 750)
    at = embeddings(tmp_path / "data", n, spoilt=True, displaced=block)
    found = fit(tmp_path / "data", tmp_path / "run", monkeypatch, n)
    (told,) = found["displaced"]
    assert told["why"].endswith("the caption of each image stands 1 row down.") and abs(told["pair_id"] - 550) < 5
    issues = csv_rows(tmp_path / "run" / "issues.csv")
    assert [row["why"] for row in issues if row["issue"] == "displaced rows"] == [told["why"]]
    doubtful = [int(row["pair_id"]) for row in issues if row["issue"] == "doubtful"]
    assert len(doubtful) == 200 and not set(doubtful) & set(range(555, 745))
    moves = (run := Run.open(tmp_path / "run")).scores().moves
    own = at[moves["donor"]] == moves["pair"]
    assert own.mean() > 0.97 and own.sum() > 0.97 * (at == np.arange(n) - 1)[block].sum()
    for dedup in (False, True):  # a list of uids holds no repair, so none is sought
        summary = export_run(run, tmp_path / f"{dedup}.npy", RepairSettings(dedup=dedup))
        assert summary.dropped == found["flagged"] and not (run.path / "plan.parquet").exists()
    monkeypatch.setattr("cleanpairs.commands.export.scratch_directory", None)  # the run keeps this plan
    summary = export_run(run, tmp_path / "clean.parquet", RepairSettings())
    assert summary.rematched_text >= len(moves) and summary.quarantined == found["quarantined"] == 3


def test_a_fit_that_was_killed_while_it_scored_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings(tmp_path / "data", 600)
    whole = fit(tmp_path / "data", tmp_path / "whole", monkeypatch, 600)
    begun, run = list[int](), LocalEngine.run

    def killed(self: LocalEngine, work: Any, partitions: Any, folder: Path) -> Any:
        for finished in run(self, work, partitions, folder):
            begun.append(finished.number)
            yield finished
            if len(begun) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "run", killed)
    assert_raises(KeyboardInterrupt, "^$", fit, tmp_path / "data", tmp_path / "run", monkeypatch, 600)
    assert_raises(DataError, "did not finish", (left := Run(tmp_path / "run")).model)  # its end would change it
    assert left.info["status"] == "interrupted" and left.has_checkpoint()
    again = fit(tmp_path / "data", tmp_path / "run", monkeypatch, 600, resume=True)
    assert begun == [0, 1, 2] and again == whole | {"run": again["run"]}
    tables = [pq.read_table(tmp_path / name / "scores.parquet") for name in ("whole", "run")]
    assert tables[0].equals(tables[1]) and not (tmp_path / "run" / "scores.parquet.parts").exists()
