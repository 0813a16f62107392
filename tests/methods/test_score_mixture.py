"""Several columns of scores as one: what they agree on, or labels, weigh them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from cleanpairs import ClipScore, load_pairs
from cleanpairs.cli import cli
from cleanpairs.core.errors import ConfigError, DataError
from tests.helpers import assert_raises, picture, reloaded

NAMES = "clip_score,other,judge,aesthetic"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """1,000 pairs, 30 % of them wrong, and three scores of rising noise, and one that knows nothing."""
    rng, n = np.random.default_rng(0), 1000
    wrong = rng.random(n) < 0.3
    scores = {
        name: rng.normal(size=n) * noise - 2.0 * wrong for name, noise in zip(NAMES.split(","), (1, 1, 2), strict=False)
    }
    scores["clip_score"] = np.tanh(scores["clip_score"] / 4)
    scores["judge"] = np.round(np.exp(scores["judge"]), 1)  # skewed, with ties
    scores["aesthetic"] = rng.integers(1, 10, n)
    known = [None if k >= 200 else int(not w) for k, w in enumerate(wrong)]
    table = {"caption": [f"text {k}" for k in range(n)], "image": [picture(k % 200, size=(8, 8)) for k in range(n)]}
    path = tmp_path_factory.mktemp("scores") / "scores.parquet"
    pq.write_table(pa.table({**table, **scores, "human": pa.array(known, pa.float32())}), path)
    return path, wrong


@pytest.mark.parametrize("labels", [None, "human"])
def test_they_are_better_together(data: tuple[Path, np.ndarray], tmp_path: Path, labels: str | None) -> None:
    path, wrong = data
    pairs = load_pairs(path, score_columns="other,judge,aesthetic,human")
    model = ClipScore(score_column=NAMES, label_column=labels).fit(pairs)
    alone = [roc_auc_score(~wrong, pairs.precomputed_scores[name]) for name in NAMES.split(",")]
    assert roc_auc_score(~wrong, model.correspondence_) > max(alone) + 0.02
    told = model._captions or ""
    weight = {name: float(share) for name, share in (part.split() for part in told.split(": ")[1].split(", "))}
    assert weight["clip_score"] > weight["judge"] > abs(weight["aesthetic"]) and abs(weight["aesthetic"]) < 0.1
    assert (labels or "what they agree on") in told
    if labels:
        assert np.mean(model.correspondence_ < model.threshold_) == pytest.approx(0.3, abs=0.06)
    reloaded(model, tmp_path, pairs)


def test_a_command_takes_them_and_prints_the_weights(data: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    argv = [
        "fit", str(data[0]), "--method", "clip-score", "--set", "score_column=other,judge", "--out",
        str(tmp_path / "run"),
    ]  # fmt: skip
    done = CliRunner().invoke(cli, [*argv, "--column", "score=other", "--column", "score=judge"])
    assert done.exit_code == 0 and "weighed by what they agree on: other 0.50, judge 0.50" in done.output


def test_what_cannot_be(data: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    path, _ = data
    few = load_pairs(path, score_columns="other,human", limit=79)
    for settings, error, words in (
        ({"score_column": "clip_score,other"}, DataError, "by 80 pairs or more, and 79"),
        ({"score_column": "clip_score,judge"}, DataError, "no scores 'judge'.*--column score=judge"),
        ({"score_column": "other", "label_column": "human"}, ConfigError, "weighs several scores"),
    ):
        assert_raises(error, words, ClipScore(**settings).fit, few)
    with pytest.raises(DataError, match=r"'caption' of .* is string; a score must be a number"):
        load_pairs(path, score_columns="caption")
    labelled = load_pairs(path, score_columns="other,judge,human", limit=100)
    labelled.precomputed_scores["human"][15:] = np.nan
    with pytest.raises(DataError, match="by 10 matched and 10 mismatched pairs or more"):
        ClipScore(score_column="other,judge", label_column="human").fit(labelled)
