"""A damaged model directory is refused by name; nothing in one can run."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import CRCL, InfoNCE, Pairs
from cleanpairs.core.errors import DataError
from cleanpairs.estimators.persistence import load_estimator
from tests.helpers import assert_raises

FILES = ("config.json", "vocabulary.json", "model.safetensors", "bank.safetensors")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    pairs = Pairs.from_arrays([f"a b{i}" for i in range(12)], features=rng.normal(size=(12, 4)).astype(np.float32))
    model = InfoNCE(dim=8, dim_word=4, epochs=1, batch_size=6, eval_group_size=6, device="cpu").fit(pairs)
    return model.save_pretrained(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit(copy: Path, name: str = "config.json", **changes: Any) -> None:
    """Let a JSON file of the model say something else."""
    (copy / name).write_text(json.dumps({**json.loads((copy / name).read_text()), **changes}))


def test_it_holds_four_files_that_cannot_run_and_is_loaded_without_a_draw(saved: Path) -> None:
    assert sorted(p.name for p in saved.iterdir()) == sorted(FILES)
    for name in ("config.json", "vocabulary.json"):
        json.loads((saved / name).read_text(), parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    state = torch.get_rng_state()
    model = load_estimator(saved)
    assert torch.equal(torch.get_rng_state(), state)
    features = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    with pytest.warns(UserWarning, match="does not know 100 % of the words"):
        model.score_pairs(Pairs.from_arrays(["新 款"] * 4, features=features))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score_pairs(Pairs.from_arrays(["a b1"] * 4, features=features))


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage", "directory"])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named(copy: Path, name: str, damage: str) -> None:
    file = copy / name
    whole = file.read_bytes()
    file.unlink()
    if damage == "directory":
        file.mkdir()
    elif damage != "missing":
        file.write_bytes({"empty": b"", "truncated": whole[: len(whole) // 2], "garbage": b"\x80\x04N."}[damage])
    assert_raises(DataError, name.replace(".", r"\."), load_estimator, copy)


GONE = object()
NO_NUMBER = (float("nan"), float("inf"), -0.1, 1.5, "0.5")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("format", (99, None)), ("method", ("os.system", 3, GONE)), ("parameters", ({"nonsense": 1}, None, GONE)),
        ("backbone", ({"name": "vse_inf"}, [], GONE)), ("bank", ({}, GONE)), ("state", (None, [], GONE)),
        ("threshold_", (*NO_NUMBER, None)), ("noise_rate_", NO_NUMBER),
        ("noise_rate_bound_", NO_NUMBER), ("noise_rate_interval_", ([-0.1, 0.5], [0.1, "x"])),
    ],
)  # fmt: skip
def test_a_config_that_makes_no_model(copy: Path, key: str, values: tuple[object, ...]) -> None:
    """Below NaN is nothing: every pair would pass."""
    whole, within = json.loads((copy / "config.json").read_text()), key.endswith("_")
    for value in values:
        changed = {k: v for k, v in {**(whole["state"] if within else whole), key: value}.items() if v is not GONE}
        (copy / "config.json").write_text(json.dumps({**whole, "state": changed} if within else changed))
        assert_raises(DataError, f"its {key.rstrip('_')} is" if within else "model", load_estimator, copy)


def test_another_method_is_said_and_a_run_directory_is_its_model(saved: Path, tmp_path: Path) -> None:
    assert_raises(DataError, "holds InfoNCE, not CRCL", CRCL.from_pretrained, saved)
    for nothing in (tmp_path / "nowhere", tmp_path):
        assert_raises(DataError, r"config\.json is missing", load_estimator, nothing)
    (tmp_path / "file").write_text("x")
    assert_raises(DataError, "file", load_estimator, tmp_path / "file")
    (tmp_path / "run.json").write_text("{}")
    assert_raises(DataError, r"is no model of cleanpairs: config\.json is missing", InfoNCE.from_pretrained, tmp_path)
    shutil.copytree(saved, tmp_path / "model")
    assert InfoNCE.from_pretrained(tmp_path).threshold_ == InfoNCE.from_pretrained(saved).threshold_


def test_files_of_two_models_and_a_model_of_another_version_are_refused(copy: Path) -> None:
    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(InfoNCE, "_restore", lambda *_: edit(copy, bank={"tau": 0.5, "group_size": 5}))
        assert_raises(DataError, "replaced by another model while it was read", load_estimator, copy)
    words, parameters = (json.loads((copy / f"{name}.json").read_text()) for name in ("vocabulary", "config"))
    edit(copy, "vocabulary.json", vocabulary=[*words["vocabulary"], "more"])
    assert_raises(DataError, "not of one model", load_estimator, copy)
    edit(copy, parameters=parameters["parameters"] | {"cross_fit": 0}, cleanpairs="0.0.9")  # one that is gone
    told = r"written by cleanpairs 0\.0\.9, whose InfoNCE has settings .*: cross_fit; fit again"
    assert_raises(DataError, told, load_estimator, copy)
    edit(copy, format=1)
    told = r"of cleanpairs 0\.0\.9, of the format 1; this version reads 5: fit again"
    assert_raises(DataError, told, load_estimator, copy)
