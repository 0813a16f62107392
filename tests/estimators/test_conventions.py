"""scikit-learn's conventions: flags, scores, seeds, a Pipeline, a GridSearchCV, the HTML."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, clone, is_classifier, is_outlier_detector, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.validation import check_is_fitted

from cleanpairs import Auto, ClipScore, InfoNCE, load_pairs
from cleanpairs.core.errors import ConfigError, DataError

SMALL: dict[str, Any] = {
    "backbone": "mlp", "dim": 16, "dim_word": 8, "batch_size": 16, "epochs": 3, "eval_group_size": 16, "device": "cpu",
    "require_evidence": False, "threshold": 0.5, "lr": 5e-3,
}  # fmt: skip


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(20, 8)).astype(np.float32)
    words = [rng.choice(20, 3, replace=False) for _ in range(48)]
    vectors = [table[row].sum(0) for row in words]
    return pd.DataFrame({"image_features": vectors, "caption": [" ".join(f"word{k}" for k in row) for row in words]})


def model(**more: Any) -> InfoNCE:
    known = InfoNCE().get_params()
    return InfoNCE(**{k: v for k, v in (SMALL | more).items() if k in known})


def test_flags_and_figures(frame: pd.DataFrame) -> None:
    fitted = model(random_state=0)
    flags = fitted.fit_predict(frame)
    assert flags.dtype == bool and (flags == (fitted.correspondence_ < fitted.threshold_)).all()
    decision = fitted.decision_function(frame)
    np.testing.assert_allclose(decision, fitted.threshold_ - fitted.score_pairs(frame), rtol=1e-6)
    assert (fitted.predict(frame) == (decision > 0)).all()
    wrong = np.arange(48) < 12
    moved = frame.assign(caption=np.r_[np.roll(frame.caption[:12], 1), frame.caption[12:]])
    assert fitted.score(moved, wrong) > 0.5  # AUROC
    assert 0 < fitted.score(frame) == fitted.evaluate(frame).rsum / 600 <= 1
    with pytest.raises(ConfigError, match="both matched and mismatched among 48"):
        fitted.score(frame, np.zeros(48, bool))
    assert "InfoNCE" in fitted._repr_html_() and not get_tags(fitted).target_tags.required


def test_seeds(frame: pd.DataFrame) -> None:
    by_generator = [model(random_state=np.random.default_rng(5)).fit(frame) for _ in range(2)]
    assert by_generator[0].random_state == by_generator[1].random_state
    np.testing.assert_array_equal(*(m.correspondence_ for m in by_generator))
    unseeded = model(random_state=None)
    assert clone(unseeded).random_state is None and isinstance(unseeded.fit(frame).random_state, int)


def test_in_a_pipeline_and_a_search(frame: pd.DataFrame) -> None:
    piped = Pipeline([("clean", model(random_state=0))]).fit(frame)
    assert piped.predict(frame).shape == (48,)
    found = GridSearchCV(model(random_state=0), {"dim": [8, 16]}, cv=2).fit(frame)
    assert found.best_params_["dim"] in (8, 16) and np.isfinite(found.cv_results_["mean_test_score"]).all()
    pairs = load_pairs(frame)
    again = GridSearchCV(model(random_state=0), {"dim": [8, 16]}, cv=2).fit(pairs)
    np.testing.assert_allclose(again.cv_results_["mean_test_score"], found.cv_results_["mean_test_score"], atol=1e-6)
    assert pairs[3].keys == [pairs.keys[3]] and pairs[-2:].keys == pairs.keys[-2:]
    expected = [found.cv_results_[f"split{k}_test_score"][0] for k in (0, 1)]
    for data in (frame.to_dict("records"), load_pairs(datasets.Dataset.from_pandas(frame))):
        np.testing.assert_allclose(cross_val_score(model(random_state=0, dim=8), data, cv=2), expected, atol=1e-6)


def test_what_is_not_fitted_or_has_no_truth_says_so(frame: pd.DataFrame) -> None:
    for method in ("predict", "decision_function", "transform", "score"):
        with pytest.raises(NotFittedError):
            getattr(model(), method)(frame)
    with pytest.raises(ConfigError, match="among 48 pairs; found 48 values, 0 of them mismatched"):
        model(random_state=0).fit(frame).score(frame, np.zeros(48))
    row = {"caption": "a cat", "image_features": [0.5] * 8}  # as Dataset.map gives it, without batched=True
    with pytest.raises(DataError, match="batched=True"):
        load_pairs(row)


@pytest.mark.parametrize("kind", [Auto, ClipScore])
def test_scikit_learn_takes_it_for_an_estimator(kind: type) -> None:
    estimator = kind(random_state=0)
    assert not isinstance(estimator, BaseEstimator)  # which takes as long to import as half of torch: see docs/log.md
    for check in (
        "no_attributes_set_in_init", "get_params_invariance", "parameters_default_constructible", "estimator_repr",
        "set_params", "estimator_cloneable", "valid_tag_types", "do_not_raise_errors_in_init_or_set_params",
        "mixin_order", "estimator_tags_renamed",
    ):  # fmt: skip
        getattr(estimator_checks, f"check_{check}")(kind.__name__, clone(estimator))
    assert not (is_classifier(estimator) or is_regressor(estimator) or is_outlier_detector(estimator))  # bool, not -1
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    piped = make_pipeline(estimator).set_params(**{f"{kind.__name__.lower()}__random_state": 3})
    assert piped[0].random_state == 3 and f"{kind.__name__}(random_state=3)" in repr(piped)
    for shown in (estimator, piped, GridSearchCV(estimator, {"random_state": [1]})):
        assert kind.__name__ in shown._repr_html_()
    with config_context(display="text"):
        assert estimator._repr_html_() is None  # IPython falls back to the text


def test_a_dataset_comes_back_with_its_scores(frame: pd.DataFrame) -> None:
    fitted, data = model(random_state=0).fit(frame), datasets.Dataset.from_pandas(frame)
    scored = fitted.transform(data)
    assert scored.column_names == [*data.column_names, "correspondence"] and len(scored) == 48
    np.testing.assert_allclose(np.asarray(scored["correspondence"]), fitted.score_pairs(data))
    np.testing.assert_allclose(fitted.transform(frame), fitted.score_pairs(frame))
