"""scikit-learn's conventions: flags, scores, seeds, a Pipeline, a GridSearchCV."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone, is_classifier, is_outlier_detector, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from cleanpairs import CRCL, Auto, ClipScore, InfoNCE, Pairs, PairScorer, detection, load_pairs, write_report
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.data.filters import filter_reasons
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.export import export_pairs
from cleanpairs.features import ImageMatrix
from tests.helpers import assert_raises, sentences, sized

SMALL: dict[str, Any] = {"backbone": "mlp", "dim": 16, "dim_word": 8, "batch_size": 16, "epochs": 3, "device": "cpu"}
SMALL |= {"eval_group_size": 16, "require_dependence": False, "threshold": 0.5, "lr": 5e-3}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    captions, features = sentences(48)
    return pd.DataFrame({"image_features": list(features), "caption": captions})


def model(**more: Any) -> InfoNCE:
    return sized(InfoNCE, **SMALL | more)


@pytest.fixture(scope="module")
def fitted(frame: pd.DataFrame) -> InfoNCE:
    """For tests that leave it as it is."""
    return model(random_state=0).fit(frame)


def test_seeds_are_drawn_anew_by_each_fit_and_change_no_parameter(frame: pd.DataFrame) -> None:
    generator = np.random.default_rng(5)
    fitted = [model(random_state=g).fit(frame) for g in (generator, np.random.default_rng(5), None)]
    assert fitted[0].random_state is generator and fitted[2].random_state is None
    assert fitted[0].random_state_ == fitted[1].random_state_ and isinstance(fitted[2].random_state_, int)
    np.testing.assert_array_equal(fitted[0].correspondence_, fitted[1].correspondence_)
    assert fitted[2].fit(frame).random_state is None


def test_no_image_is_no_vector_and_a_gpu_that_is_not_there_is_named(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = frame.assign(text_features=frame["image_features"])
    for fitted in (model().fit(frame), ClipScore(device="cpu", require_dependence=False).fit(given)):
        assert fitted.encode_images(np.empty((0, 16), np.float32)).shape == (0, 16)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_raises(ConfigError, "'cuda' is not available", model(device="cuda").validate)


def test_all_pairs_of_a_failed_image_are_set_aside_and_what_was_known_of_them_stays() -> None:
    pairs = Pairs.from_arrays(["a"] * 200, features=np.ones((40, 2), "f"), image_index=np.repeat(np.arange(40), 5))
    pairs.reasons[4] = "known already"
    missing = ImageMatrix(np.ones((40, 1, 2)), {k: f"no image {k}" for k in range(30)}, "pretrained", None)
    wanted = {i: "known already" if i == 4 else f"no image {i // 5}" for i in range(150)}
    assert model()._quarantine(pairs, missing) == wanted


def test_a_fit_goes_on_with_nothing_of_another_version_or_method_or_other_pairs_for_validation(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network of another version or method may have other shapes."""

    class Other(InfoNCE):
        method_name = "other"

    pairs, fitted = load_pairs(frame), model(random_state=0)
    val, told = pairs.select(range(24)), r"other data or settings.*another version of cleanpairs.*--overwrite"
    fitted.fit(pairs, val=val, run_dir=tmp_path)
    fitted.fit(pairs, val=val, run_dir=tmp_path, resume=True)
    for method, others in (
        (Other(**fitted.get_params()), val),
        (model(random_state=0), None),
        (model(random_state=0), pairs.select(range(24, 48))),
    ):
        assert_raises(DataError, told, method.fit, pairs, val=others, run_dir=tmp_path, resume=True)
    monkeypatch.setattr("cleanpairs.__version__", "0.0.9")
    assert_raises(DataError, told, model(random_state=0).fit, pairs, val=val, run_dir=tmp_path, resume=True)


def test_in_a_pipeline_and_a_search(frame: pd.DataFrame) -> None:
    short = model(random_state=0, epochs=1)
    assert Pipeline([("clean", short)]).fit(frame).predict(frame).shape == (48,)
    rsum = {"cv": 2, "scoring": lambda fitted, pairs, y=None: fitted.evaluate(pairs).rsum}
    found = GridSearchCV(short, {"dim": [8, 16]}, **rsum).fit(frame)
    assert found.best_params_["dim"] in (8, 16) and np.isfinite(found.cv_results_["mean_test_score"]).all()
    pairs = load_pairs(frame)
    assert pairs[3].keys == [pairs.keys[3]] and pairs[-2:].keys == pairs.keys[-2:]
    expected = [found.cv_results_[f"split{k}_test_score"][0] for k in (0, 1)]
    for data in (pairs, frame.to_dict("records"), load_pairs(datasets.Dataset.from_pandas(frame))):
        np.testing.assert_allclose(cross_val_score(clone(short).set_params(dim=8), data, **rsum), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda fitted, frame: fitted.calibrate({0: "no"}), "answer about pair 0 is 'no'"),
        (lambda fitted, frame: fitted.calibrate([True, False]), "a CSV, not list"),
        (lambda fitted, frame: export_pairs(frame, "plan.parquet", "out.parquet"), "takes a RepairPlan, not str"),
        (lambda fitted, frame: detection(fitted.correspondence_, ["False"] * 48, 0.5), "truths .* <U5"),
        (lambda fitted, frame: detection(fitted.correspondence_, [True] * 48, "low"), "a number, found 'low'"),
        (lambda fitted, frame: model().fit(frame, load_pairs(frame)), r"no labels.* fit\(pairs, val="),
        (lambda fitted, frame: fitted.evaluate(frame, folds=2.5), "folds .* whole number >= 1"),
        (lambda fitted, frame: filter_reasons(frame, ["url"]), r"names of filters .* \['url'\]"),
        (lambda fitted, frame: fitted.encode_images(np.ones(16, np.float32)), r"\(m, R, D\), found \(16,\)"),
        (lambda fitted, frame: fitted.encode_images(np.zeros((2, 3, 8, 8))), "pixels must be uint8 .* found float64"),
        (lambda fitted, frame: fitted.rematch(frame, correspondence=np.full(48, 1.5)), "found 1.5 to 1.5"),
        (lambda fitted, frame: fitted.explainer(frame, correspondence=np.ones(50)), r"of 48 pairs .* found \(50,\)"),
        (lambda fitted, frame: model(random_state=np.random.RandomState(0)).fit(frame), "default_rng"),
        # as Dataset.map gives it, without batched=True
        (lambda fitted, frame: load_pairs({"caption": "a cat", "image_features": [0.5] * 8}), "batched=True"),
    ],
)
def test_what_nobody_can_mean_is_refused(frame: pd.DataFrame, fitted: InfoNCE, ask: Any, message: str) -> None:
    assert_raises(CleanpairsError, message, ask, fitted, frame)


def test_answers_leave_the_threshold_of_others_and_nobody_can_say_is_none(frame: pd.DataFrame, tmp_path: Path) -> None:
    fitted, other = model(random_state=0).fit(frame), frame.iloc[::-1]
    before, raw, rate = fitted.rematch(other).threshold, fitted.threshold_, fitted.noise_rate_
    fitted.calibrate({0: True, 1: np.bool_(False), 2: 1, 3: 0.0})
    sure = fitted.correspondence_.copy()
    assert sure[:4].tolist() == [1, 0, 1, 0] and 0 < sure[4] < 1
    fitted.fit(frame).calibrate({0: True, 1: False, 2: True, 3: False, 4: None, 5: np.nan, 6: pd.NA})
    np.testing.assert_array_equal(fitted.correspondence_, sure)
    fitted.fit(frame).calibrate(pd.Series({i: i % 3 > 0 for i in range(40)}))
    assert fitted.threshold_ != raw and fitted.rematch(frame).threshold == fitted.threshold_
    assert fitted.rematch(other).threshold == before
    saved = PairScorer.from_pretrained(fitted.save_pretrained(tmp_path / "model"))
    assert saved.threshold_ == raw and saved.noise_rate_ == pytest.approx(rate, nan_ok=True)
    assert saved.calibration_ is None  # that of the answers is of their pairs
    assert fitted.fit(frame).threshold_ == raw == fitted.rematch(frame).threshold


def test_what_takes_pairs_takes_a_frame(frame: pd.DataFrame, fitted: InfoNCE, tmp_path: Path) -> None:
    noise = inject_noise(frame, 0.5)
    assert apply_noise(frame, noise).captions == apply_noise(load_pairs(frame), noise).captions
    plan = fitted.rematch(frame)
    assert export_pairs(frame, plan, tmp_path / "out.parquet").pairs == 48
    about: dict[str, Any] = {"title": "A frame", "threshold": 0.5}
    why = pd.Series([f"reason {i}" for i in range(48)], index=range(48, 0, -1))
    for name, reasons in (("r", why), ("s", why.tolist())):
        write_report(tmp_path / f"{name}.html", scores=fitted, pairs=frame, plan=plan, why=reasons, **about)
    assert (tmp_path / "r.html").read_bytes() == (tmp_path / "s.html").read_bytes()
    about["pairs"] = frame[::-1]
    for parts in ({"scores": fitted}, {"scores": fitted.score_pairs(frame[::-1]), "plan": plan}):
        assert_raises(DataError, "other data", write_report, tmp_path / "others.html", **about, **parts)
    assert_raises(ConfigError, "not to DataFrame; load_pairs makes", plan.apply, frame)
    assert_raises(DataError, "as many truths", detection, fitted.correspondence_, np.ones(3, bool), 0.5)


def test_labels_that_never_moved_are_told(frame: pd.DataFrame) -> None:
    with pytest.warns(UserWarning, match="all pairs have the same correspondence; train more"):
        CRCL(**SMALL | {"threshold": None, "epochs": 1, "refine_epochs": [1], "lr": np.float32(1e-6)}).fit(frame)
    with pytest.warns(UserWarning, match="all pairs have the same correspondence$"):  # nothing was trained
        Auto(random_state=0).fit(Pairs.from_arrays(image_vectors=np.eye(80), text_vectors=np.eye(80)))


@pytest.mark.parametrize("kind", [Auto, ClipScore])
def test_scikit_learn_takes_it_for_an_estimator(kind: type) -> None:
    estimator = kind(random_state=0)
    assert not isinstance(estimator, BaseEstimator)  # which takes as long to import as half of torch: see dev/LOG.md
    for check in (
        "no_attributes_set_in_init", "get_params_invariance", "parameters_default_constructible", "estimator_repr",
        "set_params", "estimator_cloneable", "valid_tag_types", "do_not_raise_errors_in_init_or_set_params",
        "mixin_order", "estimator_tags_renamed",
    ):  # fmt: skip
        getattr(estimator_checks, f"check_{check}")(kind.__name__, clone(estimator))
    assert not (is_classifier(estimator) or is_regressor(estimator) or is_outlier_detector(estimator))  # bool, not -1
    assert_raises(NotFittedError, "not fitted", check_is_fitted, estimator)
    piped = make_pipeline(estimator).set_params(**{f"{kind.__name__.lower()}__random_state": 3})
    assert piped[0].random_state == 3 and f"{kind.__name__}(random_state=3)" in repr(piped)
