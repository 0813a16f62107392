"""What every method, objective and backbone owes its users. A registered one is tested by being registered."""

import copy
import inspect
import itertools
import json
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from cleanpairs import Pairs
from cleanpairs.core import BACKBONES, METHODS, check_choice, check_whole
from cleanpairs.core.errors import ConfigError, DataError, NotFittedError, OutputExistsError, RefusedError
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.tokenizer import Tokenizer, pack
from cleanpairs.methods.crcl import ActiveComplementaryLoss
from cleanpairs.methods.decl import EvidentialLoss
from cleanpairs.methods.rcl import ComplementaryLoss
from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE, TripletLoss
from tests.helpers import TINY, WORDS, StopAt, assert_raises, corpus, meta_set, sized

FITTED = {"epochs": 8}  # enough to know something about pairs never seen


def suited(method: Any, pairs: Pairs) -> Pairs:
    """The pairs, with vectors of their captions where a method trains nothing: the sums of the words' vectors."""
    if method.needs_training:
        return pairs
    table = dict(zip(WORDS, np.random.default_rng(99).normal(size=(len(WORDS), 16)), strict=True))
    texts = [sum((table[w] for w in c.split() if w in table), np.ones(16)) for c in pairs.captions]
    return replace(pairs, text_vectors=np.array(texts, np.float32).reshape(len(pairs), 16))


def tiny(method: type, **changes: Any) -> Any:
    """A method at a size that trains in a moment."""
    return sized(method, **{"meta": meta_set(), **TINY, **changes})


@pytest.fixture(params=list(METHODS), scope="module")  # all tests of a method in one process, which fits it once
def method(request: pytest.FixtureRequest) -> type:
    loaded: type = METHODS.load(request.param)
    assert loaded.method_name == request.param  # type: ignore[attr-defined]
    return loaded


@pytest.fixture(scope="module")
def trained(method: Any) -> Any:
    if not method.needs_training:
        pytest.skip("it trains nothing")
    return method


@pytest.fixture(scope="module")
def fitted(method: Any) -> tuple[Pairs, Any]:
    """Pairs of which one is set aside, and the method fitted on them."""
    pairs = suited(method, corpus(160))
    pairs.reasons[7] = "set aside by the test"
    return pairs, tiny(method, **FITTED).fit(pairs)


@pytest.fixture(scope="module")
def alone(method: Any) -> tuple[Pairs, Any]:
    """Pairs, and the method fitted on them by itself."""
    pairs = suited(method, corpus(32))
    return pairs, tiny(method).fit(pairs)


# -- methods: the constructor ---------------------------------------------------------------------------------------


def test_the_constructor_only_stores_by_keyword_with_a_default_and_describes_each(method: Any) -> None:
    odd = object()
    for name, parameter in inspect.signature(method).parameters.items():
        assert getattr(method(**{name: odd}), name) is odd  # not checked, not copied, not converted
        assert parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
        assert f"\n{name} : " in inspect.cleandoc(method.__doc__)
    if method.method_name in ("auto", "crcl", "l2rm", "pc2", "repair"):  # in the source, where editors read it
        source = Path(inspect.getfile(method)).read_text(encoding="utf-8")  # else: python tools/parameter_docs.py
        assert textwrap.indent(method.__doc__.strip(), "    ").strip() in source


def test_params_clone_repr(method: Any) -> None:
    model = tiny(method)
    copied = clone(model)
    assert copied is not model and copied.get_params() == model.get_params()
    assert set(model.get_params()) == set(inspect.signature(method).parameters)
    assert copied.set_params(eval_group_size=9) is copied
    assert (copied.eval_group_size, model.eval_group_size) == (9, TINY["eval_group_size"])
    assert_raises(ValueError, "nonsense", model.set_params, nonsense=1)
    assert repr(model).startswith(method.__name__ + "(") and "eval_group_size=16" in repr(model)
    assert eval(repr(model), {method.__name__: method}).get_params() == model.get_params()


def test_before_fit_everything_says_so(method: Any, tmp_path: Path) -> None:
    model, pairs = tiny(method), suited(method, corpus(4))
    assert not [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]
    for call in (model.score_pairs, model.predict, model.rematch, model.encode_images, model.evaluate):
        assert_raises(NotFittedError, method.__name__, call, pairs)
    assert_raises(NotFittedError, method.__name__, model.encode_texts, ["a"])
    assert_raises(NotFittedError, method.__name__, model.save_pretrained, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


BAD: dict[str, list[Any]] = {  # of parameters that say nothing of their range
    "drop": ["blanc", 3], "backbone": ["vse_inv", 5], "image_encoder": ["efficient"], "image_transform": [3],
    "encoder": ["", 3], "model": ["", 3], "tune": ["some", "blocks:0", None, "lora"], "text_encoder": ["", 3],
    "refine_epochs": [(0,), (2, "a"), 3, (True,)], "meta": [None], "random_state": [-1, 0.5],
    "label_epochs": [0, "always", 1.5],
    "revision": [5], "score_column": [["a", "b"], 5], "label_column": [5],
}  # fmt: skip


def bad_values(method: Any, name: str) -> list[Any]:
    """Values of a parameter that are out of the range which its field declares."""
    if name in BAD:
        return BAD[name]
    fields = [vars(base).get("__dataclass_fields__", {}).get(name) for base in method.__mro__]
    checks = [field.metadata["check"] for field in fields if field is not None and "check" in field.metadata]
    if not checks:
        assert isinstance(getattr(method(), name), bool), f"{name} says nothing of its range: add bad values to BAD"
        return ["yes", 1]
    kind, limits = checks[0].func, checks[0].keywords
    if kind is check_choice:
        return ["nonsense", 3]
    if kind is check_whole:
        return [limits["least"] - 1, limits["least"] + 0.5, "a", *([limits["most"] + 1] if "most" in limits else [])]
    ends = {"above": 0, "below": 0, "least": -1e-3, "most": 1e-3}
    return ["a", float("nan"), float("inf"), *(limits[end] + step for end, step in ends.items() if end in limits)]


def test_a_bad_parameter_is_named_before_any_work(method: Any) -> None:
    for name in inspect.signature(method).parameters:
        for value in bad_values(method, name):
            with pytest.raises(ConfigError) as caught:
                tiny(method, **{name: value}).fit(object())  # which is not looked at
            message = str(caught.value)
            assert name.replace("_", " ") in message.replace("_", " "), (name, value, message)
            assert repr(value) in message or str(value) in message, (name, value, message)


# -- methods: fit and what follows ----------------------------------------------------------------------------------


def test_fitted_state_which_a_plan_does_not_change(method: Any, fitted: tuple[Pairs, Any]) -> None:
    pairs, model = fitted
    y = model.correspondence_
    assert y.shape == (len(pairs),) and y.dtype == np.float32 and np.flatnonzero(np.isnan(y)).tolist() == [7]
    known = y[np.isfinite(y)]
    assert ((known >= 0) & (known <= 1)).all() and len(set(known.tolist())) > 10 and 0 <= model.threshold_ <= 1
    assert np.isnan(model.noise_rate_) or 0 <= model.noise_rate_ <= 1
    assert model.quarantined_ == {7: "set aside by the test"}
    assert [line["epoch"] for line in model.history_][-1:] == [FITTED["epochs"]] * method.needs_training
    assert model.random_state == TINY["random_state"] == model.random_state_
    before = copy.deepcopy((y, pairs.images.array(), pairs.captions))
    plan = model.rematch(pairs, threshold=0.5)
    assert len(plan.to_pandas()) == len(pairs) and str(plan.summary())
    np.testing.assert_array_equal(model.correspondence_, before[0])
    np.testing.assert_array_equal(pairs.images.array(), before[1])
    assert pairs.captions == before[2]


def test_scores_and_vectors_of_another_size_are_refused(method: Any, fitted: tuple[Pairs, Any]) -> None:
    pairs, model = fitted
    scores = model.score_pairs(pairs)
    assert scores.shape == (len(pairs),) and scores.dtype == np.float32
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7] and ((scores >= 0) & (scores <= 1)).sum() == len(pairs) - 1
    some = np.array([30, 2, 45])
    np.testing.assert_allclose(model.score_pairs(pairs.select(some)), scores[some], rtol=1e-4)
    new = corpus(20, seed=5)
    wrong = suited(method, new.with_captions(new.captions[1:] + new.captions[:1]))
    new = suited(method, new)
    assert model.score_pairs(new).mean() > 1.5 * model.score_pairs(wrong).mean()  # unseen pairs
    texts = None if method.needs_training else np.ones((2, 5), np.float32)
    other = Pairs.from_arrays(["a", "b"], features=np.zeros((2, 5), np.float32), text_vectors=texts)
    for call in (model.score_pairs, model.rematch, model.evaluate, model.encode_images):
        assert_raises(DataError, r"16.*5", call, other)


def test_encodings_are_unit_vectors(trained: Any, fitted: tuple[Pairs, Any]) -> None:
    pairs, model = fitted
    z_image, z_text = model.encode_images(pairs), model.encode_texts(pairs.captions)
    dim, vectors = model.model_.dim, pairs.images.array()
    assert dim in (16, 32, 32 + 39)  # one network, two side by side, or two and a regression
    assert z_image.shape == z_text.shape == (len(pairs), dim)
    np.testing.assert_allclose(np.linalg.norm([z_image, z_text], axis=2), 1, rtol=1e-4)
    for given in (vectors, vectors[:, 0], vectors.astype(">f4")):
        np.testing.assert_array_equal(model.encode_images(given), z_image)
    assert model.encode_texts([]).shape == (0, dim)
    assert_raises(ConfigError, "list", model.encode_texts, "a single caption is not a list of captions")
    assert_raises(DataError, "caption 1 is 5, and captions are text", model.encode_texts, ["a", 5])
    np.testing.assert_array_equal(model.encode_texts([float("nan")]), model.encode_texts([""]))
    assert 0 <= model.evaluate(pairs).rsum <= 600


def test_saved_and_loaded_it_is_the_same(method: Any, fitted: tuple[Pairs, Any], tmp_path: Path) -> None:
    (pairs, model), drawn = fitted, torch.get_rng_state()
    path = model.save_pretrained(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), drawn)
    files = [".json", ".json", ".safetensors", ".safetensors"][:: 1 if method.needs_training else 2]
    assert sorted(p.suffix for p in path.iterdir()) == files
    loaded = method.from_pretrained(path)
    for some in (pairs.select([3, 1, 4]), pairs):
        np.testing.assert_array_equal(loaded.score_pairs(some), model.score_pairs(some))
    assert loaded.get_params() == model.get_params() and loaded.threshold_ == model.threshold_
    assert loaded.evaluate(pairs) == model.evaluate(pairs)
    with pytest.warns(UserWarning, match="no scores of its fit") if method.needs_training else nullcontext():
        assert len(loaded.rematch(pairs).table) == len(pairs)
    assert not method.needs_training or not loaded.model_.training
    assert_raises(OutputExistsError, path.name, model.save_pretrained, path)
    assert loaded.save_pretrained(path, overwrite=True) == path
    assert [p for p in tmp_path.iterdir() if p.name != "cache"] == [path]
    told = json.loads((config := path / "config.json").read_text())  # of a machine with a GPU: it is of use elsewhere
    told["parameters"]["device"] = "cuda"
    config.write_text(json.dumps(told))
    there = method.from_pretrained(path).score_pairs(pairs)
    np.testing.assert_allclose(there, model.score_pairs(pairs), rtol=1e-3, atol=1e-5)


def test_numpy_numbers_are_numbers_and_half_precision_trains(trained: Any, tmp_path: Path) -> None:
    """As a parameter search hands them over."""
    pairs, given = corpus(24), {"epochs": np.int64(2), "lr": np.float64(5e-3), "random_state": np.int64(3)}
    given |= {"max_length" if trained.method_name in ("npc", "mscn") else "micro_batch": np.int64(9)}
    model = tiny(trained, precision="bf16", **given).fit(pairs, run_dir=tmp_path)
    tiny(trained, precision="bf16", **{k: v.item() for k, v in given.items()}).fit(pairs, run_dir=tmp_path, resume=True)
    assert np.isfinite(model.correspondence_).all() and np.isfinite(model.score_pairs(pairs)).all()
    assert all(p.dtype == torch.float32 for p in model.model_.parameters())
    loaded = trained.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert loaded.epochs == 2 and loaded.lr == 5e-3


def test_same_seed_same_result(method: Any, alone: tuple[Pairs, Any]) -> None:
    pairs, model = alone
    again, other = tiny(method), tiny(method, random_state=2).fit(pairs)
    flags = again.fit_predict(pairs)
    assert flags.dtype == bool and (flags == (model.correspondence_ < model.threshold_)).all()
    np.testing.assert_array_equal(flags, model.predict(pairs))
    np.testing.assert_array_equal(again.correspondence_, model.correspondence_)
    np.testing.assert_array_equal(again.score_pairs(pairs), model.score_pairs(pairs))
    assert not method.needs_training or not np.array_equal(other.score_pairs(pairs), model.score_pairs(pairs))


def test_a_fit_leaves_its_callers_torch_as_it_was(method: Any, alone: tuple[Pairs, Any]) -> None:
    pairs, wanted = alone
    with ExitStack() as modes:
        modes.enter_context(torch.random.fork_rng(devices=[]))
        modes.callback(torch.set_default_dtype, torch.get_default_dtype())
        for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
            modes.enter_context(mode)
        torch.set_default_dtype(torch.float64)
        torch.default_generator.manual_seed(99)
        drawn = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
        found = tiny(method).fit(pairs)
        assert torch.equal(torch.get_rng_state(), drawn[0])
        assert (torch.get_default_dtype(), torch.is_grad_enabled()) == drawn[1:]
    np.testing.assert_array_equal(found.correspondence_, wanted.correspondence_)


def test_fits_and_scores_in_threads_are_as_alone(method: Any, alone: tuple[Pairs, Any], tmp_path: Path) -> None:
    pairs, model = alone
    others = suited(method, corpus(30, seed=3))
    saved = model.save_pretrained(tmp_path / "model")

    def loaded(_: int) -> Any:
        model = method.from_pretrained(saved)
        return model.score_pairs(others), model.rematch(others).table

    with ThreadPoolExecutor(3) as threads:
        fits = [threads.submit(lambda: tiny(method).fit(pairs).correspondence_) for _ in range(2)]
        beside = list(threads.map(loaded, range(3)))
    for fit in fits:
        np.testing.assert_array_equal(fit.result(), model.correspondence_)
    scores, plan = loaded(0)
    assert all(np.array_equal(found, scores) and made.equals(plan) for found, made in beside)


def test_a_failed_refit_leaves_nothing_half_fitted(trained: Any, fitted: tuple[Pairs, Any]) -> None:
    model = copy.deepcopy(fitted[1])
    with pytest.raises(KeyboardInterrupt):
        model.fit(corpus(24, seed=3), on_step=StopAt(1))
    assert_raises(NotFittedError, trained.__name__, model.encode_texts, ["word1"])


# -- methods: odd input ---------------------------------------------------------------------------------------------


def test_few_pairs(method: Any, fitted: tuple[Pairs, Any], tmp_path: Path) -> None:
    for n, error, words in ((0, DataError, "no pair"), (1, RefusedError, "at least 2")):
        assert_raises(error, words, tiny(method).fit, suited(method, corpus(n)))
    pairs = suited(method, corpus(2))
    model = tiny(method).fit(pairs)
    loaded = method.from_pretrained(model.save_pretrained(tmp_path / "m"))
    assert np.isfinite(model.correspondence_).all() and np.isfinite(loaded.score_pairs(pairs)).all()
    assert np.isnan(model.noise_rate_) and np.isnan(loaded.noise_rate_) and len(model.rematch(pairs).to_pandas()) == 2
    none, model = suited(method, corpus(0)), fitted[1]
    assert len(model.score_pairs(none)) == len(model.predict(none)) == len(model.rematch(none).table) == 0
    assert np.isfinite(model.score_pairs(suited(method, corpus(1, seed=8)))).all()
    assert_raises(DataError, "val holds no usable pair", tiny(method).fit, suited(method, corpus(40)), val=none)
    assert_raises(DataError, "at least one", model.evaluate, none)


@pytest.mark.parametrize("constant", ["captions", "vectors", "both", "both, duplicates are negatives"])
def test_rows_that_are_alike(method: Any, constant: str) -> None:
    """Where duplicates are negatives, the probability of a pair depends on how many are in its group: there is one."""
    captions, features = corpus(40).captions, corpus(40).images.array()
    if constant != "vectors":
        captions = ["one word"] * 40
    if constant != "captions":
        features = np.ones((40, 16), np.float32)
    settings = {"require_dependence": False, "eval_group_size": 40, "exclude_duplicates": "negatives" not in constant}
    pairs = suited(method, Pairs.from_arrays(captions, features=features))
    model = tiny(method, epochs=3, **settings).fit(pairs)
    assert np.isfinite(model.correspondence_).all() and np.isfinite(model.score_pairs(pairs)).all()
    if "both" in constant:
        assert np.ptp(model.correspondence_) < 1e-3  # nobody is singled out
    assert np.isnan(model.noise_rate_) or model.noise_rate_ < (1e-9 if "both" in constant else 0.05)


def test_more_than_a_fifth_bad_is_refused(method: Any) -> None:
    pairs = corpus(20)
    features = pairs.images.array().copy()  # type: ignore[union-attr]
    features[:4] = np.nan
    model = tiny(method).fit(suited(method, Pairs.from_arrays(pairs.captions, features=features)))
    assert np.isnan(model.correspondence_[:4]).all() and np.isfinite(model.correspondence_[4:]).all()
    features[4] = np.inf
    worse = suited(method, Pairs.from_arrays(pairs.captions, features=features))
    assert_raises(DataError, r"5 of 20.*20 %.*pair 0.*finite", tiny(method).fit, worse)


def test_five_captions_an_image(method: Any) -> None:
    base = corpus(8)
    captions = [" ".join(np.random.default_rng(k).permutation(c.split())) for c in base.captions for k in range(5)]
    one, at = base.images.array(), np.repeat(np.arange(8), 5)
    more = np.concatenate([one, 9 * one + 5])  # no pair shows the others
    pairs, same = (suited(method, Pairs.from_arrays(captions, features=x, image_index=at)) for x in (one, more))
    model = tiny(method).fit(pairs)
    np.testing.assert_array_equal(tiny(method).fit(same).score_pairs(pairs), model.score_pairs(pairs))
    assert np.isfinite(model.correspondence_).tolist() == [True] * 40 and 0 <= model.evaluate(pairs).rsum <= 600


def test_a_resumed_fit_is_the_same(trained: Any, tmp_path: Path) -> None:
    """It is cut behind the split, in the middle of an epoch."""
    pairs, counted, short = corpus(40), StopAt(), tiny(trained, epochs=4, label_epochs=2)
    whole = clone(short).fit(pairs, on_step=counted)
    with pytest.raises(KeyboardInterrupt):
        clone(short).fit(pairs, run_dir=tmp_path, on_step=StopAt(counted.seen // 2 + 2))
    resumed = clone(short).fit(pairs, run_dir=tmp_path, resume=True)
    for line in (*whole.history_, *resumed.history_):
        line["seconds"] = line["pairs_per_second"] = 0
    np.testing.assert_equal(*((m.correspondence_, m.score_pairs(pairs), m.history_) for m in (resumed, whole)))
    for other, given in ((clone(short).set_params(lr=1e-3), pairs), (clone(short), corpus(40, seed=2))):
        assert_raises(DataError, "other data or settings", other.fit, given, run_dir=tmp_path, resume=True)
    assert_raises(ConfigError, "needs the run_dir", clone(short).fit, pairs, resume=True)


# -- objectives -----------------------------------------------------------------------------------------------------


@pytest.fixture(
    params=[ActiveComplementaryLoss, InfoNCELoss, TripletLoss, InfoNCEWithRCE, ComplementaryLoss, EvidentialLoss]
)
def objective(request: pytest.FixtureRequest) -> Any:
    return request.param(tau=0.1)


def test_objective_forward_and_backward(objective: Any) -> None:
    g = torch.Generator().manual_seed(9)
    drawn = [torch.rand(n, n, generator=g) * 2 - 1 for n in (1, 2, 9)]
    alike = [torch.full((n, n), value) for n, value in ((0, 0.0), (1, 0.0), (2, 0.0), (4, 0.0), (4, 1.0), (16, 20.0))]
    for S in (*drawn, *alike, 20 * torch.eye(4), -20 * torch.eye(4), torch.eye(4).flip(0)):
        n = len(S)
        for label, excluded in itertools.product((0.0, 0.5, 1.0), (None, ~torch.eye(n, dtype=torch.bool))):
            x = S.clone().requires_grad_()
            loss = objective(x, torch.full((n,), label), excluded)
            assert loss.shape == (n,) and loss.dtype == S.dtype
            loss.sum().backward()
            assert bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
            assert x.grad is not None and bool(torch.isfinite(x.grad).all())
            assert S is not drawn[2] or label == 0 or excluded is not None or bool((x.grad != 0).any())


# -- backbones ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=list(BACKBONES))
def backbone(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return BACKBONES.load(request.param)(len(WORDS) + 1, 6, dim=16, dim_word=8)


def batch_of(model: Any, n: int) -> tuple[torch.Tensor, Any]:
    images = torch.randn(n, 3, 6, generator=torch.Generator().manual_seed(n))
    table = Tokenizer(WORDS).encode([" ".join(WORDS[k : k + 1 + k % 3]) for k in range(n)])
    return images, pack(table, np.arange(n))[0]


@pytest.mark.parametrize("n", [2, 5])
def test_backbone_forward_and_backward(backbone: Any, n: int) -> None:
    images, tokens = batch_of(backbone, n)
    backbone.train()
    image_state, text_state = backbone(images, None, tokens)
    assert isinstance(image_state, Local) == isinstance(text_state, Local) == backbone.local
    S = backbone.similarity(image_state, text_state)
    assert S.shape == (n, n)
    (S.diagonal().sum() - S.sum() / n).backward()
    without = [name for name, p in backbone.named_parameters() if p.grad is None]
    assert all("pool" in name for name in without), without  # one-word captions and one region need no pooling
    assert all(bool(torch.isfinite(p.grad).all()) for p in backbone.parameters() if p.grad is not None)


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 2, 5])
def test_backbone_in_evaluation(backbone: Any, n: int) -> None:
    images, tokens = batch_of(backbone.eval(), n)
    states = backbone.encode_images(images), backbone.encode_texts(tokens)
    for z in map(backbone.vector, states):
        assert z.shape == (n, backbone.dim)
        torch.testing.assert_close(z.norm(dim=1), torch.ones(n), atol=1e-5, rtol=0)
    alone, beside = backbone.vector(backbone.encode_images(images[:1])), backbone.vector(states[0])
    torch.testing.assert_close(alone[0], beside[0], atol=1e-5, rtol=0)
    S, paired = backbone.similarity(*states), backbone.paired_similarity(*states)
    assert bool((S.abs() <= 1 + 1e-5).all())
    torch.testing.assert_close(paired, S.diagonal(), atol=1e-5, rtol=0)


IN_GROUPS = {"dim_sim": 4, "batch_size": 12, "eval_group_size": 12, "lr": 5e-3}


@pytest.mark.parametrize(
    ("method_name", "name"),
    [*(("infonce", name) for name in BACKBONES), ("repair", "sgr"), ("pc2", "saf"), ("l2rm", "sgraf"), ("l2rm", "mlp")],
)
def test_methods_work_with_every_backbone(method_name: str, name: str, tmp_path: Path) -> None:
    """One network and two, with and without a head: scores, plans, figures, and the same from disk."""
    method = METHODS.load(method_name)
    pairs = corpus(32, wrong=8)
    model = tiny(method, backbone=name, **IN_GROUPS).fit(pairs, val=corpus(12))
    assert np.isfinite(model.correspondence_).all() and 0 <= model.evaluate(pairs).rsum <= 600
    loaded = method.from_pretrained(model.save_pretrained(tmp_path / "model"))
    np.testing.assert_allclose(loaded.score_pairs(pairs), model.score_pairs(pairs), rtol=1e-5, atol=1e-7)
    assert loaded.evaluate(pairs) == model.evaluate(pairs)
    plans = [m.rematch(pairs, correspondence=model.correspondence_, threshold=0.6).to_pandas() for m in (model, loaded)]
    assert len(plans[0]) == 32 and plans[0]["action"].tolist() == plans[1]["action"].tolist()


def test_dropout_is_of_the_heads_of_mlp() -> None:
    """In both heads as set; other backbones have none there."""

    def rates(name: str, **settings: Any) -> list[float]:
        model = tiny(METHODS.load(name), epochs=1, **settings).fit(corpus(24))
        return [layer.p for layer in model.model_.modules() if isinstance(layer, torch.nn.Dropout)]

    assert rates("infonce", backbone="mlp") == [0.4, 0.4] and set(rates("auto", backbone="mlp")) == {0.4}
    assert rates("infonce", backbone="mlp", dropout=0.25) == [0.25, 0.25]
    assert rates("infonce", backbone="vse_inf", dropout=0.25) == rates("infonce", backbone="vse_inf")


@pytest.mark.gpu
@pytest.mark.parametrize("backbone_name", ["mlp", "vse_inf", "sgraf"])
def test_methods_train_on_the_gpu(trained: Any, backbone_name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What is trained there scores the same here; bf16 is the default there, so full precision is asked for."""
    pairs = corpus(48, wrong=8)
    there = {"backbone": backbone_name, "device": "cuda", "precision": "fp32"}
    model = tiny(trained, **there, **IN_GROUPS).fit(pairs, val=corpus(12))
    assert next(model.model_.parameters()).device.type == "cuda" and np.isfinite(model.correspondence_).all()
    assert len(model.rematch(pairs, threshold=0.6).to_pandas()) == 48
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    here = trained.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert next(here.model_.parameters()).device.type == "cpu"
    here_scores = here.score_pairs(pairs)
    monkeypatch.undo()
    np.testing.assert_allclose(here_scores, model.score_pairs(pairs), atol=1e-3)


@torch.no_grad()
def test_backbone_ignores_the_regions_that_are_left_out_and_standardises_its_input(backbone: Any) -> None:
    def vector(*given: torch.Tensor) -> torch.Tensor:
        return backbone.vector(backbone.encode_images(*given))

    images, _ = batch_of(backbone.eval(), 5)
    keep = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.bool)
    z = vector(images, keep)
    torch.testing.assert_close(vector(torch.where(keep[..., None], images, 1e3), keep), z)
    torch.testing.assert_close(z[2], vector(images[2:3, 2:])[0])  # one region left: that region
    torch.testing.assert_close(z[0], vector(images[:1])[0])
    before, mean, std = vector(images), torch.randn(6), torch.rand(6) + 0.5
    backbone.fit_input(mean, std)
    torch.testing.assert_close(vector(images * std + mean), before, atol=1e-5, rtol=1e-4)
    backbone.fit_input(mean, std * (varies := torch.tensor([1, 1, 0, 1, 1, 1])))
    torch.testing.assert_close(vector(images), vector(torch.where(varies > 0, images, mean)))  # nothing is known of it
