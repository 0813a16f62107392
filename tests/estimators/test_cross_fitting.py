"""Cross-fitting: no pair is judged by a model that has seen its image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs import CRCL, InfoNCE, Pairs
from cleanpairs.core.errors import RefusedError
from cleanpairs.estimators import cross_fitting

WORDS = [f"w{k}" for k in range(24)]
SMALL: dict[str, Any] = {
    "backbone": "mlp", "dim": 32, "dim_word": 16, "batch_size": 16, "eval_group_size": 32, "lr": 5e-3, "tau": 0.1,
    "epochs": 8, "image_drop": 0.0, "text_drop": 0.1, "device": "cpu",
}  # fmt: skip


def corpus(n: int = 160, wrong: int = 40, per_image: int = 1, seed: int = 0) -> Pairs:
    """Captions of three words; an image is the sum of its words' vectors, with ``per_image`` captions."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(99).normal(size=(len(WORDS), 16))
    chosen = [rng.choice(len(WORDS), 3, replace=False) for _ in range(n // per_image)]
    captions = [" ".join(WORDS[k] for k in rng.permutation(row)) for row in chosen for _ in range(per_image)]
    captions[:wrong] = captions[1:wrong] + captions[:1] if wrong else []
    features = np.array([vectors[row].sum(0) for row in chosen], np.float32)
    return Pairs.from_arrays(captions, features=features, image_index=np.repeat(np.arange(len(chosen)), per_image))


def test_the_label_is_the_mean_of_both() -> None:
    pairs = corpus()
    plain, crossed = InfoNCE(**SMALL).fit(pairs), InfoNCE(**SMALL, cross_fit=3).fit(pairs)
    unseen = cross_fitting.out_of_fold_scores(InfoNCE(**SMALL), pairs, np.arange(160), 3)
    np.testing.assert_allclose(crossed.correspondence_, (plain.correspondence_ + unseen) / 2, atol=1e-6)
    assert np.ptp(unseen) > 0.1 and unseen.min() >= 0 and unseen.max() <= 1


def test_no_fold_knows_an_image_that_it_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    judged: list[int] = []
    fit, score = InfoNCE.fit, InfoNCE.score_pairs

    def fitting(self: Any, pairs: Pairs, *args: Any, **kw: Any) -> Any:
        seen.append(set(pairs.pair_image_group.tolist()))
        return fit(self, pairs, *args, **kw)

    def scoring(self: Any, pairs: Pairs) -> np.ndarray:
        assert not seen[-1] & set(pairs.pair_image_group.tolist())
        judged.extend(pairs.row.tolist())
        return score(self, pairs)

    monkeypatch.setattr(InfoNCE, "fit", fitting)
    monkeypatch.setattr(InfoNCE, "score_pairs", scoring)
    pairs = corpus(60, 0, per_image=5)
    cross_fitting.out_of_fold_scores(InfoNCE(**{**SMALL, "epochs": 1}), pairs, np.arange(2, 60), 4)
    assert len(seen) == 4 and sorted(judged) == list(range(2, 60))


def test_a_wrong_pair_that_was_learnt_by_heart_is_found_by_the_others() -> None:
    """A plain model trained long enough believes everything; one that has not seen the pair does not."""
    from sklearn.metrics import roc_auc_score

    pairs, settings = corpus(200, 60), {**SMALL, "epochs": 40}
    by_heart = InfoNCE(**settings).fit(pairs).correspondence_
    crossed = InfoNCE(**settings, cross_fit=4).fit(pairs).correspondence_
    truth = np.arange(200) >= 60
    assert roc_auc_score(truth, crossed) > roc_auc_score(truth, by_heart)


def test_cut_and_resumed_it_is_the_same(tmp_path: Path) -> None:
    pairs, settings = corpus(60, 15), {**SMALL, "epochs": 2, "refine_epochs": (1,), "cross_fit": 2}
    whole = CRCL(**settings).fit(pairs, run_dir=tmp_path / "whole")
    resumed = CRCL(**settings).fit(pairs, run_dir=tmp_path / "whole", resume=True)
    np.testing.assert_array_equal(resumed.correspondence_, whole.correspondence_)
    assert {p.name for p in (tmp_path / "whole").iterdir()} >= {"checkpoints", "fold-1", "fold-2"}


def test_quarantined_pairs_take_no_part() -> None:
    pairs = corpus(60, 15)
    pairs.reasons[7] = "broken"
    model = InfoNCE(**{**SMALL, "epochs": 1}, cross_fit=2).fit(pairs)
    assert np.flatnonzero(np.isnan(model.correspondence_)).tolist() == [7]


def test_more_folds_than_images_are_refused() -> None:
    with pytest.raises(RefusedError, match="cross_fit=5 needs 5 different images, found 2"):
        InfoNCE(**{**SMALL, "epochs": 1, "batch_size": 2}, cross_fit=5).fit(corpus(4, 0, per_image=2))


def test_taking_pairs() -> None:
    pairs = corpus(20, 5, per_image=5)
    pairs.reasons[3] = "broken"
    some = pairs.take(np.array([9, 3, 12]))
    assert some.captions == [pairs.captions[i] for i in (9, 3, 12)]
    assert some.image_index.tolist() == [1, 0, 2] and some.reasons == {1: "broken"} and some.row.tolist() == [9, 3, 12]
    assert some.source.fingerprint != pairs.take(np.array([9, 3])).source.fingerprint
    assert len(pairs.take(np.zeros(0, np.int64))) == 0
    for row in (-1, 20):
        with pytest.raises(Exception, match=r"0 \.\. 19"):
            pairs.take(np.array([row]))
