"""Recipes: precedence, typing, and errors that name the file, the key and the nearest known key."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cleanpairs.core import METHODS, ConfigError
from cleanpairs.core import recipe as recipe_module
from cleanpairs.core.recipe import DataOptions, OutputOptions, Recipe, find_recipes, recipe_header
from tests.helpers import TINY, assert_raises, corpus, meta_set

BOMB = "method: {name: lemon, k: [&0 [x]" + "".join(f", &{i + 1} [*{i}, *{i}]" for i in range(40)) + "]}"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_recipe_is_the_default_method_with_its_defaults() -> None:
    assert Recipe.resolve() == Recipe("auto", {}, DataOptions(), OutputOptions())
    assert Recipe.resolve().estimator().get_params() == METHODS.load("auto")().get_params()


def test_sections_reach_their_places(tmp_path: Path) -> None:
    text = "method: {name: crcl, threshold: auto, refine_epochs: [4, 5]}\nbackbone: {name: mlp, dim: 16}\n"
    text += "train: {epochs: 7, seed: 5}\ndata: {val: dev.parquet, limit: 10}\noutput: {out: runs/x, overwrite: true}\n"
    params = {"threshold": "auto", "refine_epochs": (4, 5), "backbone": "mlp", "dim": 16, "epochs": 7}
    data, output = DataOptions(val="dev.parquet", limit=10), OutputOptions(out="runs/x", overwrite=True)
    assert Recipe.resolve(written(tmp_path, text)) == Recipe("crcl", params | {"random_state": 5}, data, output)
    short = written(tmp_path, "method: crcl\nbackbone: mlp\ntrain:\n")  # and an empty section
    assert Recipe.resolve(short) == Recipe("crcl", {"backbone": "mlp"})
    assert Recipe.resolve(written(tmp_path, "")) == Recipe()


def test_later_wins_recipe_then_set_then_option(tmp_path: Path) -> None:
    path = written(tmp_path, "train: {epochs: 1, lr: 0.5, seed: 1}\noutput: {quiet: true}\n")
    sets = ["epochs=2", "train.lr=5e-4", "method.name=crcl"]
    options = {"epochs": 9, "seed": None, "method": None, "quiet": False, "val": Path("a/b")}
    found = Recipe.resolve(path, overrides=sets, options=options)
    assert found.method == "crcl" and found.params == {"epochs": 9, "lr": 5e-4, "random_state": 1}
    assert found.output.quiet is False and found.data.val == "a/b"


def test_values_are_typed_as_people_write_them() -> None:
    told = {"5e-4": 5e-4, "1E3": 1e3, "-2e-1": -0.2, ".5e1": 5.0, "0.5": 0.5, "auto": "auto", "null": None}
    for text, value in (told | {"None": None}).items():
        found = Recipe.resolve(overrides=[f"threshold={text}"]).params["threshold"]
        assert found == value and type(found) is type(value)
    assert Recipe.resolve(overrides=["data.train=a=b.parquet"]).data.train == "a=b.parquet"


@pytest.mark.parametrize(("text", "message"), [
    ("trian: {}", "unknown section 'trian'; did you mean 'train'"),
    ("train: {epoch: 3}", "unknown key 'train.epoch'; did you mean 'epochs'?"),
    ("method: {name: crlc}", "unknown method 'crlc'; did you mean 'crcl'"),
    ("train: {epochs: 3, epochs: 4}", "given twice"),
    ("train: {epochs: 3}\nmethod: {epochs: 4}", "set twice"),
    ("train: {lr: -1}\nmethod: {name: crcl}", "lr of crcl must be a number > 0, found -1"),
    ("data: {limit: true}", "limit of data must be a whole number >= 0 or None"),
    ("train: {epochs: [", "line 1"),
    ("x: !!python/object/apply:os.getcwd []", "not readable as YAML"),
    ("train: {\udcff: 1}", "not UTF-8"),
    pytest.param(BOMB, "too large with its aliases written out", id="aliases"),
    pytest.param("#" * ((1 << 20) + 1), "larger than 1,048,576 bytes", id="large"),
])  # fmt: skip
def test_bad_recipes_are_config_errors_that_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    named = "" if "crlc" in text else f"{re.escape(str(path))}.*"
    assert_raises(ConfigError, named + re.escape(message), Recipe.resolve, path)


def test_bad_overrides_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("epochs", "=3", ".epochs=3", "trian.epochs=3", "epoch=3", "epochs=[", "train.val=3"):
        assert_raises(ConfigError, ".", Recipe.resolve, overrides=[text])
    path = written(tmp_path, "train: {epochs: 4}")
    monkeypatch.setattr(recipe_module, "find_recipes", lambda: {"crcl-toy": path})
    assert Recipe.resolve("crcl-toy").params == {"epochs": 4}
    assert_raises(ConfigError, "is no file", Recipe.resolve, tmp_path / "absent.yaml")
    assert_raises(ConfigError, "no recipe 'crcl-toi'.* did you mean 'crcl-toy'", Recipe.resolve, "crcl-toi")


def test_resolved_yaml_has_every_setting_and_resolves_to_the_same(tmp_path: Path) -> None:
    given = ["method.name=crcl", "lr=5e-4", "dim=16", "val=é=1.parquet", "refine_epochs=[]", "quiet=true"]
    r = Recipe.resolve(overrides=given)
    path = written(tmp_path, r.to_yaml())
    again = Recipe.resolve(path)
    assert again.estimator().get_params() == r.estimator().get_params()
    assert (again.method, again.data, again.output) == (r.method, r.data, r.output)
    assert again.to_yaml() == r.to_yaml()
    sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert sections["backbone"]["dim"] == 16 and set(again.params) == set(r.estimator().get_params())


def test_text_stays_text_in_the_resolved_yaml(tmp_path: Path) -> None:
    for text in ("1e3", "5E-4", "no", "null", "None", "3", "0x1", "a: b", "# c", "- d", " e ", "é\u202e", "~", ""):
        r = Recipe.resolve(options={"val": text})
        assert Recipe.resolve(written(tmp_path, r.to_yaml())).data.val == text


def test_keys_belong_to_one_place_for_every_method() -> None:
    options = {f.name for cls in (DataOptions, OutputOptions) for f in fields(cls)}
    for entry in METHODS.values():
        params = set(inspect.signature(METHODS.load(entry.name)).parameters)
        assert not params & (options | {"seed"}) and "random_state" in params
        assert Recipe(entry.name).to_yaml()


# -- Every shipped recipe: its name, its header, its settings, and that it steps at a size that takes a moment --------


SHIPPED = find_recipes()


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_name_header_and_settings(name: str) -> None:
    recipe, header = Recipe.resolve(name), recipe_header(SHIPPED[name])
    assert name.startswith(f"{recipe.method}-")
    assert header["command"] == "cleanpairs demo" or f"--recipe {name}" in header["command"]
    estimator = recipe.estimator()
    missing = set(METHODS[recipe.method].needs) - set(recipe.params)
    assert all(f"--set {parameter}=" in header["command"] for parameter in missing), f"{name} needs {missing}"
    estimator.set_params(device="cpu", **dict.fromkeys(missing, "named.parquet")).validate()
    if estimator.needs_training:
        assert getattr(estimator, "warmup", 0) < estimator.epochs >= (estimator.lr_update or 0)


PAPERS = sorted(name for name, path in SHIPPED.items() if path.parent.name == "papers" and "-flickr30k" in name)


@pytest.mark.parametrize("name", [name for name in PAPERS if name.split("-")[0] not in ("infonce", "triplet")])
def test_the_recipes_of_the_papers_are_their_presets(name: str) -> None:
    recipe = Recipe.resolve(name)
    changes = {key: recipe.params[key] for key in {"pc2": ["dim"], "mscn": ["meta"]}.get(recipe.method, ())}
    assert recipe.estimator().get_params() == METHODS.load(recipe.method).paper(**changes).get_params()


SCHEDULES: dict[str, dict[str, Any]] = {
    "crcl-coco": {"refine_epochs": (4, 4, 4), "epochs": 22, "lr_update": 12},
    "crcl-cc152k": {"refine_epochs": (7, 7, 7), "epochs": 32, "lr_update": 17},
    "l2rm-coco": {"warmup": 10, "epochs": 30, "lr_update": 10, "transport_reg": 0.07},
    "ncr-coco": {"warmup": 10, "epochs": 30, "lr_update": 10},
    "ncr-cc152k": {"warmup": 10, "epochs": 50, "lr_update": 30},
    "pc2-coco": {"warmup": 10, "epochs": 60, "lr_update": 30},
    "repair-cc152k": {"warmup": 5, "epochs": 20, "lr_update": 10, "replace_after": 10},
    "in2r-coco": {"warmup": 5, "epochs": 45, "neighbours": 5, "memory": 448_000},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_recipe_has_the_papers_schedule_for_its_corpus(name: str) -> None:
    own = Recipe.resolve(name).estimator().get_params()
    assert {key: own[key] for key in SCHEDULES[name]} == SCHEDULES[name]


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.endswith("-clipart") or name == "npc-coco"])
def test_it_steps(name: str) -> None:
    """The recipe's estimator with its sizes made small; what is no size stays as the recipe has it."""
    model = Recipe.resolve(name).estimator()
    changes = TINY | {"meta": meta_set(), "dim_sim": 4, "lr_update": 1, "meta_batch": 8, "meta_every": 1, "kept": 2}
    if getattr(model, "encoder", None):  # a CLIP, which is not here: from the vectors
        changes |= {"encoder": None, "tune": "head"}
    known = model.get_params().keys() - {"lr", "tau", "random_state"}
    model.set_params(**{k: v for k, v in changes.items() if k in known}).fit(corpus(40, wrong=12))
    y = model.correspondence_
    assert y.shape == (40,) and np.isfinite(y).all() and y.min() >= 0 and y.max() <= 1
    assert np.isfinite(model.score_pairs(corpus(2, seed=5))).all()
    assert len(model.history_) == TINY["epochs"] + sum(getattr(model, "refine_epochs", ()))
