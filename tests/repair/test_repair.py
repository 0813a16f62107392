"""Repair plans: mismatched pairs get their own part back, and what must hold of every plan."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.data import Pairs
from cleanpairs.repair.copies import near_copies
from cleanpairs.repair.plan import RepairPlan, part_sources, truth_after
from cleanpairs.repair.plan_input import PlanInput
from cleanpairs.repair.planning import plan_repairs as plan_with
from cleanpairs.repair.planning import repair_probability
from cleanpairs.repair.settings import RepairSettings
from tests.helpers import assert_raises, unit


def plan_repairs(
    pairs: Pairs, correspondence: np.ndarray, z_image: np.ndarray, z_text: np.ndarray, function: Any, *,
    temperature: float = 0.07, evidence: Any = None, most_edges: int = 1 << 25, **changes: Any,
) -> RepairPlan:  # fmt: skip
    """What fits best, right or near, unless another setting is asked for. ``function``: of vectors and groups."""

    def bound(image_group: np.ndarray, text_group: np.ndarray, *rows: np.ndarray) -> Any:
        return lambda i, j, _: np.asarray(function(z_image[i], z_text[j], image_group[i], text_group[j]), np.float32)

    chosen = RepairSettings(**{"repairs": "plausible", **changes}).resolved(0.5)
    problem = PlanInput.of(pairs, correspondence, z_image, z_text, chosen)
    judge = repair_probability(problem, chosen, evidence, np.arange(len(pairs)))
    about = {"fingerprint": pairs.source.fingerprint, "temperature": temperature, "most_edges": most_edges}
    return plan_with(problem, bound, chosen, judge=judge, **about).plan()


def make_pairs(captions: list[str], z_image: np.ndarray, truth: np.ndarray | None = None, **more: Any) -> Pairs:
    pairs = Pairs.from_arrays(captions, features=z_image, keys=[f"k{i}" for i in range(len(captions))], **more)
    if truth is None:
        return pairs
    return replace(pairs, true_mismatch=truth != np.arange(len(truth)), true_key=[f"k{i}" for i in truth])


def scorer(z_image: np.ndarray, z_text: np.ndarray, image_group: np.ndarray, text_group: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-(np.einsum("ij,ij->i", z_image, z_text) - 0.4) / 0.1))).astype(np.float32)


class Corpus:
    """Image i and text i share a direction; the captions of a share of the pairs are permuted."""

    def __init__(self, n: int, share: float, seed: int = 0, dim: int = 32) -> None:
        rng = np.random.default_rng(seed)
        centre = rng.normal(size=(n, dim))
        self.z_image = unit(centre + 0.4 * rng.normal(size=(n, dim)))
        chosen = rng.choice(n, round(share * n), replace=False)
        self.truth = np.arange(n)
        self.truth[chosen] = rng.permutation(chosen)
        self.z_text = unit(centre + 0.4 * rng.normal(size=(n, dim)))[self.truth]
        self.wrong = self.truth != np.arange(n)
        self.correspondence = np.where(self.wrong, 0.02, 0.9).astype(np.float32)
        self.pairs = make_pairs([f"text {i}" for i in self.truth], self.z_image, truth=self.truth)

    def wrong_after(self, plan: RepairPlan) -> np.ndarray:
        """(N,) bool: which pairs are mismatched after it."""
        return truth_after(self.pairs, *part_sources(plan.table))["true_mismatch"]

    def plan(self, threshold: float = 0.1, **settings: Any) -> RepairPlan:
        z = (self.z_image, self.z_text)
        return plan_repairs(self.pairs, self.correspondence, *z, scorer, threshold=threshold, **settings)


def columns(plan: RepairPlan) -> dict[str, list]:
    return plan.table.to_pydict()


def check_invariants(plan: RepairPlan, pairs: Pairs, correspondence: np.ndarray, **limits: float) -> None:
    """What the module's docstring promises, recounted by hand."""
    rows = plan.table.to_pylist()
    assert [(r["pair_id"], r["key"]) for r in rows] == list(enumerate(pairs.keys))
    group_of = pairs.image_group[pairs.image_index]
    existing = {(group_of[i], pairs.text_group[i]) for i, r in enumerate(rows) if r["action"] != "quarantine"}
    made: list[tuple[int, int]] = []
    texts, images = Counter[int](), Counter[int]()
    for i, r in enumerate(rows):
        action, donor = r["action"], r["donor_pair_id"]
        if i in pairs.reasons or not np.isfinite(correspondence[i]):
            assert action == "quarantine" and r["correspondence"] is None and r["reason"]
            continue
        assert (action == "keep") == (correspondence[i] >= plan.threshold)
        if action in ("keep", "drop"):
            assert donor is None and r["repair_score"] is None
            assert r["caption"] == (pairs.captions[i] if action == "keep" else None)
            assert bool(r["reason"]) == (action == "drop")
            continue
        assert donor != i and r["donor_key"] == pairs.keys[donor] and rows[donor]["action"] != "quarantine"
        text, image = (donor, i) if action == "rematch_text" else (i, donor)
        texts[text] += 1
        images[image] += 1
        made.append((group_of[image], pairs.text_group[text]))
        assert r["caption"] == pairs.captions[text]
        assert r["caption"] != pairs.captions[i] if action == "rematch_text" else group_of[donor] != group_of[i]
        assert r["repair_score"] >= limits.get("least", 0.5)
        assert plan.settings["repairs"] != "probable" or r["margin"] > 0
    assert len(set(made)) == len(made) and not existing & set(made)
    assert max([*texts.values(), *images.values()], default=0) <= limits.get("max_reuse", 1)
    for r in rows:
        if r["action"].startswith("rematch"):
            assert r["donor_use"] == (texts if r["action"] == "rematch_text" else images)[r["donor_pair_id"]]
    counts = plan.summary()
    parts = (counts.kept, counts.rematched_text, counts.rematched_image, counts.dropped, counts.quarantined)
    assert sum(parts) == counts.pairs == len(pairs)


@pytest.mark.parametrize(("strategy", "targets"), [("ot", "both"), ("nearest", "both"), ("ot", "image")])
def test_mismatched_pairs_get_their_own_partner_back(strategy: str, targets: str) -> None:
    corpus = Corpus(300, 0.3)
    plan = corpus.plan(strategy=strategy, targets=targets)
    check_invariants(plan, corpus.pairs, corpus.correspondence)
    t, wrong = columns(plan), np.flatnonzero(corpus.wrong)
    image = targets == "image"
    name, own = ("donor_pair_id", corpus.truth) if image else ("caption", [f"text {i}" for i in range(300)])
    assert np.mean([t[name][i] == own[i] for i in wrong]) > 0.97
    texts = plan.summary().rematched_text
    assert texts == 0 if image else texts >= 0.97 * len(wrong)
    assert {t["action"][i] for i in np.flatnonzero(~corpus.wrong)} == {"keep"}


@pytest.mark.parametrize(("margin", "action"), [(0.0, "rematch_image"), (0.05, "rematch_text")])
def test_an_image_is_replaced_only_where_it_fits_better_by_a_margin(margin: float, action: str) -> None:
    # text 1 fits image 0 a little better than image 1 fits text 0
    z_image, z_text = np.eye(3, dtype=np.float32)[[0, 1]], unit(np.array([[0, 0.8, 0.6], [0.82, 0, 0.57]]))
    settings = {"threshold": 0.1, "strategy": "nearest", "image_margin": margin}
    plan = plan_repairs(make_pairs(["a", "b"], z_image), np.array([0.9, 0]), z_image, z_text, scorer, **settings)
    assert columns(plan)["action"] == ["keep", action]


def test_a_caption_gets_the_image_of_a_trusted_pair_where_no_caption_fits_its_own() -> None:
    # image 0 is kept with text a; row 1 holds noise beside text b, which is of image 0 as well
    z_image = np.eye(4, dtype=np.float32)[[0, 1]]
    z_text = unit(np.array([[1, 0, 0, 0.2], [1, 0, 0, -0.2]]))
    pairs = make_pairs(["a", "b"], z_image)
    plan = plan_repairs(pairs, np.array([0.9, 0.0]), z_image, z_text, scorer, threshold=0.1)
    t = columns(plan)
    assert t["action"] == ["keep", "rematch_image"] and t["donor_pair_id"] == [None, 0]
    assert t["caption"] == ["a", "b"] and t["reason"][1] == "trusted image"
    repaired = plan.apply(pairs)
    assert repaired.image_index.tolist() == [0, 0] and repaired.captions == ["a", "b"]


@pytest.mark.parametrize("twice", [False, True], ids=["one donor", "two of nearly the same words"])
def test_max_reuse(twice: bool) -> None:
    """Three mismatched images alike enough for one trusted caption."""
    z_image = unit(np.array([[1, 0, 0, 0], [1, 0.1, 0, 0], [1, 0, 0.1, 0], [0, 0, 0, 1], [0, 0, 0.1, 1]]))
    z_text = unit(np.array([[0, 0, 1, -1], [0, 1, 0, -1], [0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0.01]]))
    n = 4 + twice
    pairs = make_pairs(["x", "y", "z", "It fits.", "it fits"][:n], z_image[:n])
    correspondence = np.array([0, 0, 0, 1, 1.0])[:n]
    for reuse in (1, 2, 3):
        limits = {"threshold": 0.1, "max_reuse": reuse}
        plan = plan_repairs(pairs, correspondence, z_image[:n], z_text[:n], scorer, **limits)
        check_invariants(plan, pairs, correspondence, max_reuse=reuse)
        assert sum("fits" in (caption or "") for caption in columns(plan)["caption"][:3]) == reuse
        assert plan.summary().reasons == ({"better repairs use its candidates": 3 - reuse} if reuse < 3 else {})


def test_mismatched_donors_go_before_trusted_ones_unless_these_are_clearly_better() -> None:
    z_image = np.eye(3, dtype=np.float32)
    near, nearer = [0.8, 0, 0.6], [0.82, 0, np.sqrt(1 - 0.82**2)]
    z_text = unit(np.array([[0, 1, 0], near, nearer]))
    pairs = make_pairs(["wrong", "orphaned", "trusted"], z_image)
    for bonus, taken in ((0.05, "orphaned"), (0.0, "trusted")):
        settings = {"threshold": 0.1, "targets": "text", "strategy": "nearest", "mismatched_bonus": bonus}
        plan = plan_repairs(pairs, np.array([0, 0, 0.9]), z_image, z_text, scorer, **settings)
        assert columns(plan)["caption"][0] == taken


@pytest.mark.parametrize(
    ("take_from", "reasons"),
    [("mismatched", {"mismatched caption"}), ("trusted", {"pseudo-caption of a trusted pair", "trusted image"})],
)
def test_donors_come_from_the_named_pool(take_from: str, reasons: set[str]) -> None:
    corpus = Corpus(60, 0.3)
    plan = corpus.plan(take_from=take_from, min_repair_score=0.02)
    check_invariants(plan, corpus.pairs, corpus.correspondence, least=0.02)
    found = {row["reason"] for row in plan.table.to_pylist() if row["action"].startswith("re")}
    assert found and found <= reasons


@pytest.mark.parametrize("targets", ["text", "both"])
def test_several_donors_share_the_weight_of_a_pair(targets: str) -> None:
    corpus = Corpus(60, 0.4)
    plan, one = (corpus.plan(strategy="nearest", targets=targets, n_donors=n).table for n in (3, 1))
    assert plan.drop("captions").equals(one.drop("captions")) and one["captions"].null_count == 60
    trusted, rows = np.flatnonzero(~corpus.wrong), plan.to_pylist()
    for i, row in enumerate(rows):
        if row["action"] != "rematch_text":
            assert row["captions"] is None
            continue
        others = trusted[trusted != row["donor_pair_id"]]
        others = others[np.argsort(-corpus.z_text[others] @ corpus.z_image[i])][:2]
        donors = [row["donor_pair_id"], *others.tolist()]
        share = np.exp(corpus.z_text[donors] @ corpus.z_image[i] / 0.07)
        told = [(c["text"], c["source"]) for c in row["captions"]]
        assert told == [(corpus.pairs.captions[j], "rematched") for j in donors]
        weights = [c["weight"] for c in row["captions"]]
        assert weights == pytest.approx(row["repair_score"] * share / share.sum(), rel=1e-4)
    assert sum(row["captions"] is not None for row in rows) > 10


def test_as_good_as_the_present_partner_is_not_good_enough() -> None:
    corpus = Corpus(30, 0.3)
    z = corpus.z_image, corpus.z_text

    def judge(z_image: np.ndarray, z_text: np.ndarray, *groups: np.ndarray) -> np.ndarray:
        image, text = ((a[:, None] == b).all(-1).argmax(1) for a, b in ((z_image, z[0]), (z_text, z[1])))
        return np.where(image == text, 0.5, 0.5 + above).astype(np.float32)

    for above, repaired in ((0.0, False), (0.25, True)):
        limits = {"threshold": 0.1, "min_repair_score": 0.5 + above}
        plan = plan_repairs(corpus.pairs, corpus.correspondence, *z, judge, **limits)
        assert any(a.startswith("rematch") for a in columns(plan)["action"]) is repaired
        assert repaired or set(plan.summary().reasons) == {"no candidate scores higher than the present partner"}
    assert set(corpus.plan(min_repair_score=1.0).summary().reasons) == {"no candidate reaches the lowest repair score"}


def test_a_pair_at_the_threshold_is_kept_and_lends() -> None:
    plans = []
    for trusted in (0.5, 0.9):
        corpus = Corpus(60, 0.3)
        corpus.correspondence[:] = np.where(corpus.wrong, np.nextafter(np.float32(0.5), np.float32(0)), trusted)
        plan = corpus.plan(threshold=0.5, take_from="trusted", min_repair_score=0.1)
        assert [a == "keep" for a in columns(plan)["action"]] == (~corpus.wrong).tolist()
        plans.append(columns(plan)["donor_pair_id"])
    assert plans[0] == plans[1] and any(donor is not None for donor in plans[0])


def test_margin_is_over_the_best_other_caption() -> None:
    z_image = np.eye(3, dtype=np.float32)
    z_text = unit(np.array([[0, 1, 0], [1, 0, 0.1], [1, 0.9, 0]]))
    pairs = make_pairs(["wrong", "right", "second"], z_image)
    p = scorer(z_image[[0, 0]], z_text[1:], np.zeros(2), np.zeros(2))
    t = columns(plan_repairs(pairs, np.zeros(3), z_image, z_text, scorer, threshold=0.1, targets="text"))
    assert t["caption"][0] == "right" and t["repair_score"][0] == pytest.approx(p[0])
    assert t["margin"][0] == pytest.approx(p[0] - p[1], abs=1e-6)


def test_apply_keeps_what_it_should_and_truth_vectors_and_scores_follow() -> None:
    corpus = Corpus(100, 0.3)
    plan, at = corpus.plan(), np.arange(100)
    scores = {"clip": np.ones(100, np.float32)}
    given = replace(corpus.pairs, text_vectors=at[:, None].astype(np.float32), precomputed_scores=scores)
    repaired = plan.apply(given)
    t = columns(plan)
    left = [i for i, caption in enumerate(t["caption"]) if caption is not None]
    assert (repaired.captions, repaired.keys) == tuple([t[name][i] for i in left] for name in ("caption", "key"))
    assert len(set(zip(repaired.image_index.tolist(), repaired.text_group.tolist(), strict=True))) == len(repaired)
    right = [caption == f"text {i}" for i, caption in zip(repaired.image_index, repaired.captions, strict=True)]
    assert repaired.true_mismatch is not None
    np.testing.assert_array_equal(~repaired.true_mismatch, right)
    assert repaired.source.fingerprint != corpus.pairs.source.fingerprint
    text_from, image_from = (source[left] for source in part_sources(plan.table))
    changed = (text_from != at[left]) | (image_from != at[left])
    assert changed.any() and repaired.text_vectors is not None
    assert repaired.text_vectors[:, 0].tolist() == text_from.tolist()
    np.testing.assert_array_equal(np.isnan(repaired.precomputed_scores["clip"]), changed)


def test_settings_are_checked_and_other_data_wrong_shapes_and_non_finite_numbers_refused() -> None:
    bad = {"take_from": "all", "targets": "row", "threshold": 2.0, "candidates": 0, "max_reuse": 0, "strategy": "best"}
    for name, value in {**bad, "min_confidence": 1.5, "n_donors": 0}.items():
        assert_raises(ConfigError, name, Corpus(4, 0.5).plan, **{name: value})
    for changes in ({"repairs": "probable"}, {"repairs": "plausible", "targets": "image"}):
        assert_raises(ConfigError, r"--donors.*--repairs plausible", RepairSettings, n_donors=5, **changes)
    assert_raises(DataError, "41", Corpus(40, 0.3).plan().apply, Corpus(41, 0.3).pairs)
    corpus = Corpus(6, 1.0)
    given, told = (corpus.z_image, corpus.z_text), {"threshold": 0.1}
    with pytest.raises(RefusedError, match="non-finite scores"):
        plan_repairs(corpus.pairs, np.zeros(6), *given, lambda a, *_: np.full(len(a), np.nan), **told)
    corpus.z_image[2] = np.nan
    assert_raises(RefusedError, "1 images", corpus.plan)


# -- strategies -----------------------------------------------------------------------------------------------------


def test_the_transport_sees_through_a_hub() -> None:
    """A caption that is nearest to all images, and the only one for image 0. Greed gives it to somebody else."""
    n, axes = 12, np.eye(13)
    z_image = unit(axes[:n] + 1.2 * axes[n])
    z_image[0] = 0.8 * axes[0] + 0.6 * axes[n]
    z_image[-1] = unit(axes[n - 1 : n] - axes[n])[0]  # this row has the hub, and it does not fit
    own = unit(axes[:n] - 0.2 * axes[n])  # of each image; image 0 has the hub
    own[0], truth = axes[n], np.roll(np.arange(n), -1)
    assert ((z_image @ own.T).argmax(axis=1)[:-1] == 0).all()
    pairs = make_pairs([f"text {i}" for i in truth], z_image, truth=truth)
    for strategy, right in (("nearest", n - 2), ("ot", n)):
        how = {"threshold": 0.1, "targets": "text", "strategy": strategy}
        plan = plan_repairs(pairs, np.zeros(n), z_image, own[truth], scorer, **how)
        assert sum(c == f"text {i}" for i, c in enumerate(columns(plan)["caption"])) == right


class Sure:
    """Evidence that knows the truth of :class:`Corpus`, up to a probability."""

    judged = True

    def __init__(self, corpus: Corpus, right: float, wrong: float) -> None:
        self.corpus, self.right, self.wrong = corpus, right, wrong

    def probability(self, image_of: np.ndarray, text_of: np.ndarray) -> np.ndarray:
        return np.where(self.corpus.truth[text_of] == image_of, self.right, self.wrong).astype(np.float32)


def test_probable_repairs_are_the_likelier_right_ones_with_their_probability() -> None:
    corpus = Corpus(120, 0.4, dim=3)  # three dimensions: many candidates are alike
    plausible = corpus.plan()
    plan = corpus.plan(repairs="probable", evidence=Sure(corpus, 0.99, 0.3))
    check_invariants(plan, corpus.pairs, corpus.correspondence)
    table = columns(plan)
    right = [i for i, a in enumerate(table["action"]) if a.startswith("rematch")]
    assert right and all(table["confidence"][i] == pytest.approx(0.99) for i in right)
    assert not corpus.wrong_after(plan)[right].any()
    assert corpus.wrong_after(plausible)[[a.startswith("rematch") for a in columns(plausible)["action"]]].any()
    assert "its most probable candidate does not score highest" in table["reason"]
    assert plausible.summary() == plausible.summary() and plausible.summary().mean_confidence is None
    unlikely = corpus.plan(repairs="probable", evidence=Sure(corpus, 0.4, 0.3))
    assert unlikely.summary().repaired == 0
    assert "its best candidate is too likely to be wrong" in columns(unlikely)["reason"]


@pytest.mark.parametrize(("copies", "same"), [(0, ""), (2, ""), (3, ""), (3, "text")])
def test_a_caption_that_several_pairs_nearly_have_is_no_probable_repair(copies: int, same: str) -> None:
    corpus = Corpus(60, 0.3)
    row = columns(corpus.plan(repairs="probable", evidence=Sure(corpus, 0.99, 0.0)))["donor_pair_id"]
    mended = next(i for i, donor in enumerate(row) if donor is not None)
    captions = [f"the words of pair {i} alone are {i} and {i * i}" for i in range(60)]
    captions[row[mended]] = "I have just posted a picture at home"
    for k, i in enumerate(np.flatnonzero(~corpus.wrong)[:copies]):
        captions[i] = f"I have just posted a picture at home {'' if same else k}!"
    corpus.pairs = make_pairs(captions, corpus.z_image, truth=corpus.truth)
    table = columns(corpus.plan(repairs="probable", evidence=Sure(corpus, 0.99, 0.0)))
    refused = table["reason"][mended] == "the caption of its repair is nearly that of several other pairs"
    assert refused == (table["action"][mended] == "drop") == (copies > 2)
    assert columns(corpus.plan())["action"][mended] == "rematch_text"
    assert set(near_copies(lambda: [pa.record_batch({"caption": ["a b"] * 30_000})], np.arange(30_000))) == {29_999}


@pytest.mark.parametrize("right", [0.95, 0.7])
def test_what_is_kept_and_repaired_is_expected_hardly_dirtier_than_what_is_kept(right: float) -> None:
    corpus = Corpus(300, 0.5)
    plan = corpus.plan(repairs="probable", evidence=Sure(corpus, right, 0.0))
    table, kept = columns(plan), plan.summary().kept
    made = [c for c in table["confidence"] if c is not None]
    expected = (kept * 0.1 + sum(1 - c for c in made)) / (kept + len(made))  # the kept say .9
    assert expected <= 0.1 + 0.02 + 1e-6
    assert made and ("its repair would raise the share of mismatched pairs" in table["reason"]) == (right == 0.7)


@pytest.mark.parametrize("repairs", ["probable", "none"])
def test_nothing_is_repaired_where_it_cannot_be_judged_or_is_not_wanted(repairs: str) -> None:
    said = "do not show how likely a repair is right" if repairs == "probable" else "no repairs were asked for"
    summary = Corpus(40, 0.5).plan(repairs=repairs).summary()
    assert summary.repaired == 0 and summary.dropped == 40 - summary.kept > 0
    assert said in str(summary)
    assert ("nothing is repaired. --repairs plausible (repairs='plausible')" in str(summary)) == (repairs == "probable")


@pytest.mark.parametrize("strategy", ["half-replace", "pseudo-caption"])
def test_the_papers_strategies_take_from_trusted_pairs(strategy: str) -> None:
    corpus = Corpus(200, 0.4, dim=4)  # four dimensions: trusted pairs are near
    plan, z = corpus.plan(strategy=strategy), corpus.z_image
    check_invariants(plan, corpus.pairs, corpus.correspondence)
    given = {i: d for i, d in enumerate(columns(plan)["donor_pair_id"]) if d is not None}
    assert len(given) > 20 and (corpus.correspondence[list(given.values())] > 0.5).all()
    if strategy == "pseudo-caption":  # each got the caption of one of the most similar trusted images
        trusted = np.flatnonzero(~corpus.wrong)
        assert plan.summary().rematched_text == len(given)
        assert all(d in trusted[np.argsort(-(z[trusted] @ z[i]))[:41]] for i, d in given.items())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_invariants_on_random_corpora(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 14))
    m = data.draw(st.integers(1, 10))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    # few texts and few directions: duplicates, ties and shared images are the rule
    kinds = np.round(rng.normal(size=(4, 3)), 1) + 1e-3
    z_image, z_text = unit(kinds[rng.integers(0, 4, m)]), unit(kinds[rng.integers(0, 4, n)])
    words = rng.integers(0, data.draw(st.integers(1, 8)), n)
    pairs = make_pairs([f"t{w}" for w in words], z_image, image_index=rng.integers(0, m, n))
    groups, bad = rng.integers(0, m, m) * 7 - 3, np.flatnonzero(rng.random(n) < 0.1)
    pairs = replace(pairs, image_group=groups, reasons=dict.fromkeys(bad.tolist(), "bad"))
    z_text[list(pairs.reasons)] = np.nan
    correspondence = np.where(rng.random(n) < 0.1, np.nan, rng.random(n))
    reuse, least = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([0.0, 0.3, 0.5]))
    drawn = {
        "threshold": [0.0, 0.4, 1.0], "candidates": [1, 2, 5], "take_from": ["both", "mismatched", "trusted"],
        "targets": ["both", "text", "image"], "image_margin": [0.0, 0.05],
        "strategy": ["ot", "nearest", "half-replace", "pseudo-caption", "method"],
    }  # fmt: skip
    chosen = {name: data.draw(st.sampled_from(values)) for name, values in drawn.items()}
    limits = {"min_repair_score": least, "max_reuse": reuse}
    plan = plan_repairs(pairs, correspondence, z_image, z_text, scorer, **limits, **chosen)
    check_invariants(plan, pairs, correspondence, least=least, max_reuse=reuse)
    assert len(plan.apply(pairs)) == plan.summary().kept + plan.summary().repaired and str(plan.summary())
