"""Every shipped recipe: its name, its header, its settings, and that it steps at a size that takes a moment."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs.core.recipe import Recipe, find_recipes, recipe_header
from cleanpairs.core.registry import METHODS
from tests.helpers import corpus

SHIPPED = find_recipes()
SMALL: dict[str, Any] = {
    "dim": 16, "dim_word": 8, "dim_sim": 4, "epochs": 2, "refine_epochs": (1,), "warmup": 1, "freeze": 1, "start": 1,
    "lr_update": 1, "batch_size": 16, "eval_group_size": 16, "memory": 64, "neighbours": 4,
    "classes": 8, "meta_batch": 8,
    "meta_every": 1, "kept": 2, "device": "cpu",
}  # fmt: skip


def shrunk(name: str, **changes: Any) -> Any:
    """The recipe's estimator with its sizes made small; what is no size stays as the recipe has it."""
    recipe = Recipe.resolve(name)
    estimator = recipe.estimator()
    known = inspect.signature(type(estimator)).parameters
    return estimator.set_params(**{k: v for k, v in {**SMALL, **changes}.items() if k in known})


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_name_header_and_settings(name: str) -> None:
    recipe, header = Recipe.resolve(name), recipe_header(SHIPPED[name])
    assert name.startswith(f"{recipe.method}-")
    if SHIPPED[name].parent.name == "papers":
        assert list(header) == ["command", "expected"] and "not run here" in header["expected"]
    else:
        keys = ["command", "hardware", "minutes", "expected", "date"]
        lines = SHIPPED[name].read_text(encoding="utf-8").splitlines()
        assert list(header) == keys and [line.split(":")[0] for line in lines[:5]] == [f"# {key}" for key in keys]
        assert max(len(line) for line in lines) <= 120
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", header["date"])
        assert header["minutes"] == "not measured" or 0 < float(header["minutes"]) < 2
    assert header["command"] == "cleanpairs demo" or f"--recipe {name}" in header["command"]
    estimator = recipe.estimator()
    missing = set(METHODS[recipe.method].needs) - set(recipe.params)
    assert all(f"--set {parameter}=" in header["command"] for parameter in missing), f"{name} needs {missing}"
    estimator.set_params(device="cpu", **dict.fromkeys(missing, "named.parquet")).validate()
    if estimator.needs_training:
        assert getattr(estimator, "warmup", 0) < estimator.epochs
        assert (estimator.lr_update or 0) <= estimator.epochs


PAPERS = sorted(name for name, path in SHIPPED.items() if path.parent.name == "papers" and "-flickr30k" in name)


@pytest.mark.parametrize("name", [name for name in PAPERS if name.split("-")[0] not in ("infonce", "triplet")])
def test_the_recipes_of_the_papers_are_their_presets(name: str) -> None:
    recipe = Recipe.resolve(name)
    changes = {key: recipe.params[key] for key in {"pc2": ["dim"], "mscn": ["meta"]}.get(recipe.method, ())}
    assert recipe.estimator().get_params() == METHODS.load(recipe.method).paper(**changes).get_params()


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("crcl-coco", {"refine_epochs": (4, 4, 4), "epochs": 22, "lr_update": 12}),
        ("crcl-cc152k", {"refine_epochs": (7, 7, 7), "epochs": 32, "lr_update": 17}),
        ("l2rm-coco", {"warmup": 10, "epochs": 30, "lr_update": 10, "transport_reg": 0.07}),
        ("ncr-coco", {"warmup": 10, "epochs": 30, "lr_update": 10}),
        ("ncr-cc152k", {"warmup": 10, "epochs": 50, "lr_update": 30}),
        ("pc2-coco", {"warmup": 10, "epochs": 60, "lr_update": 30}),
        ("repair-cc152k", {"warmup": 5, "epochs": 20, "lr_update": 10, "replace_after": 10}),
        ("in2r-coco", {"warmup": 5, "epochs": 45, "neighbours": 5, "memory": 448_000}),
    ],
)
def test_a_recipe_has_the_papers_schedule_for_its_corpus(name: str, schedule: dict[str, Any]) -> None:
    own = Recipe.resolve(name).estimator().get_params()
    assert {key: own[key] for key in schedule} == schedule


def test_what_the_papers_print() -> None:
    told = {"crcl": (481.1, 511.7), "repair": (492.8, 515.0), "pc2": (493.8, 518.2), "l2rm": (479.8, 509.4)}
    for method, printed in told.items():
        for name, rsum in zip(("flickr30k", "coco"), printed, strict=True):
            expected = recipe_header(SHIPPED[f"{method}-{name}"])["expected"]
            assert f"paper: rSum {rsum} at 40 % noise" in expected


# Of a paper's recipes one: those for other corpora have another schedule.
STEPPED = [name for name in sorted(SHIPPED) if name in PAPERS or name.endswith("-clipart")]


@pytest.mark.parametrize("name", STEPPED)
def test_it_steps(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {}
    if Recipe.resolve(name).method == "mscn":
        meta = corpus(12, seed=3)
        features = meta.images.array()
        assert features is not None
        np.save(tmp_path / "train_ims.npy", features)
        (tmp_path / "train_caps.txt").write_text("\n".join(meta.captions) + "\n", encoding="utf-8")
        changes["meta"] = str(tmp_path)
    if Recipe.resolve(name).params.get("encoder"):  # a CLIP, which is not here: from the vectors
        changes |= {"encoder": None, "tune": "head"}
    model = shrunk(name, **changes)
    pairs = corpus(40, wrong=12)
    model.fit(pairs)
    y = model.correspondence_
    assert y.shape == (40,)
    assert np.isfinite(y).all() and y.min() >= 0 and y.max() <= 1
    assert np.isfinite(model.score_pairs(corpus(2, seed=5))).all()
    assert len(model.history_) == SMALL["epochs"] + sum(getattr(model, "refine_epochs", ()))
