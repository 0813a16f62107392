"""The plots of a fit: what is on the axes, where they are drawn, what is refused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from cleanpairs import CRCL, Pairs
from cleanpairs.core.errors import ConfigError, DataError, NotFittedError
from cleanpairs.report import plot_pairs, plot_scores
from cleanpairs.report.plots import drawn
from tests.helpers import assert_raises, picture


@pytest.fixture(autouse=True)
def no_screen() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_bars_hold_every_scored_pair_once_and_the_line_is_the_threshold() -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(2_000) < 0.4
    y = np.where(wrong, rng.beta(0.5, 9, 2_000), rng.beta(6, 2, 2_000))
    gaps = [np.nan, np.nan]
    ax, split = plot_scores([*y, *gaps], 0.25), plot_scores([*y, *gaps], 0.25, truth=np.array([*wrong, True, False]))
    assert sum(p.get_height() for p in ax.patches) == sum(p.get_height() for p in split.patches) == len(y)
    assert 0.25 in [line.get_xdata()[0] for line in ax.lines]
    some = plot_scores(y, 0.25, truth=np.ma.array(wrong, mask=np.arange(len(y)) >= 7))
    assert sum(p.get_height() for p in some.patches) == 7  # the truth of the others is unknown
    assert_raises(DataError, "the truth is about", plot_scores, [0.1, 0.2], 0.5, truth=np.array([True]))
    for few in ([], [0.5], [np.nan], [0.0, 1.0], np.zeros(100)):
        ax = plot_scores(few, 0.5)
        assert ax.get_xlim() == (0, 1)
        ax.figure.canvas.draw()


def test_charts_of_several_threads_are_alike_and_leave_the_settings_of_matplotlib() -> None:
    before = dict(plt.rcParams)
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda _: drawn(lambda ax: plot_scores([0.1, 0.9], 0.5, ax=ax)), range(16)))) == 1
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(("which", "ids"), [("worst", [1, 3, 0]), ("best", [4, 2, 0]), ("borderline", [0, 2, 3])])
def test_which_pairs(which: str, ids: list[int]) -> None:
    y = np.array([0.5, 0.0, 0.6, 0.3, 1.0, np.nan])
    pairs = Pairs.from_arrays([f"pair {i}" for i in range(6)], features=np.eye(6))
    axes = plot_pairs(pairs, y, 0.5, which=which, count=3)
    assert [ax.get_xlabel() for ax in axes] == [f"pair {i}" for i in ids]
    assert len(axes[0].images) == 0 and axes[0].texts[0].get_text() == "no image"
    assert len(plot_pairs(pairs, y, 0.5, which="random", count=99)) == 5


def test_pairs_are_drawn_with_caption_and_score() -> None:
    captions = [f"caption {i} for 5$ or $x^2" for i in range(6)]
    pairs = Pairs.from_arrays(captions, images=[picture(i) for i in range(6)])
    y = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.3])
    axes = plot_pairs(pairs, y, 0.5, count=5)
    assert all(len(ax.images) == 1 for ax in axes)
    axes[0].figure.canvas.draw()  # dollar signs are no formula
    for which, shown in (([4, 0], ["caption 4", "caption 0"]), (y > 0.75, ["caption 0", "caption 2"])):
        assert [ax.get_xlabel()[:9] for ax in plot_pairs(pairs, y, 0.5, which=which)] == shown
    for error, words, scores, asked in (
        (DataError, "they are bool", y, {"which": [True]}), (DataError, "about 2 pairs", y[:2], {}),
        (ConfigError, "one of worst, borderline", y, {"which": "ugliest"}),
        (ConfigError, "count of plot_pairs must be a whole number", y, {"count": -1}),
        (ConfigError, "0 to 5, found 6", y, {"which": [6]}),
    ):  # fmt: skip
        assert_raises(error, words, plot_pairs, pairs, scores, 0.5, **asked)
    assert len(plot_pairs(pairs, np.full(6, np.nan), 0.5)) == 0


def test_an_estimator_plots_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = Pairs.from_arrays([f"word{i % 4} thing" for i in range(24)], features=rng.normal(size=(24, 8)))
    model = CRCL(backbone="mlp", epochs=1, refine_epochs=(), batch_size=8, dim=8, dim_word=8)
    for plot in (model.plot_scores, model.plot_training, lambda: model.plot_pairs(pairs)):
        assert_raises(NotFittedError, "call fit", plot)
    model.fit(pairs)
    ax = Figure().subplots()
    assert model.plot_scores(ax=ax) is ax and model.plot_training().get_xlabel() == "epoch"
    assert len(model.plot_pairs(pairs, "best", count=3)) == 3
    loaded = type(model).from_pretrained(model.save_pretrained(tmp_path / "model"))
    for plot in (loaded.plot_scores, loaded.plot_training):  # they need the scores of the fit
        assert_raises(NotFittedError, "a loaded model holds no scores", plot)
    assert len([a.get_title(loc="left") for a in model.plot_pairs(pairs.select([3, 5]), [1])]) == 1
