"""A fitted estimator on disk: safetensors and JSON, so that loading one never runs code.

config.json          method, its parameters, the model's shape, threshold, encoder, versions
vocabulary.json      the tokens
model.safetensors    the weights
bank.safetensors     the trusted pairs that scores refer to
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cleanpairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.hub import without_hub
from cleanpairs.core.parameters import is_share
from cleanpairs.core.registry import BACKBONES, HEADS, METHODS, RENAMED
from cleanpairs.core.regular import check_regular, read_json
from cleanpairs.correspondence.calibration import Calibration
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.guard import MODEL_FILES
from cleanpairs.data.tensors import write_tensors
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.features import WordsAndSentences
from cleanpairs.scoring import Bank, Embeddings

if TYPE_CHECKING:  # estimators stand above: they are found by their registered name
    from cleanpairs.estimators import PairCleaner

__all__ = ["FORMAT", "load_calibration", "load_estimator", "save_estimator"]

FORMAT = 1
_SIDES = ("images", "texts")  # of the bank
_STATE = ("threshold_", "noise_rate_", "separated_", "image_encoder_", "image_size_", "tau_", "fingerprint_")


def save_estimator(estimator: PairCleaner, path: Path, *, overwrite: bool = False) -> Path:
    """Write the four files as the directory ``path``, atomically; see the module's head."""
    bank = estimator.bank_
    encoders = estimator.encoders_.to_dict()
    parameters = {name: _storable(value) for name, value in estimator.get_params().items()}
    # By their absolute paths; a module is none of text, and what was chosen for these data is no parameter.
    named = {role: network["name"] for role, network in encoders.items() if role != "image_encoder"}
    parameters |= {role: name for role, name in named.items() if parameters[role] not in (None, "auto")}
    name = getattr(_members(estimator.model_)[0], "registered", estimator.backbone)
    config = {
        "format": FORMAT,
        "cleanpairs": cleanpairs.__version__,
        "method": estimator.method_name,
        "parameters": parameters,
        "backbone": {"name": name, **estimator.model_.config},
        "encoders": encoders,
        "text_encoder": named.get("text_encoder", estimator.text_encoder_),
        "bank": {"tau": bank.tau, "group_size": bank.group_size},
        "state": {name: _plain(getattr(estimator, name)) for name in _STATE},
        "calibration": None if estimator.calibration_ is None else estimator.calibration_.to_dict(),
    }
    with staged_directory(path, overwrite=overwrite, ours=MODEL_FILES) as staging:
        folder = Path(staging)
        weights = dict(estimator.model_.state_dict())
        for k, head in enumerate(estimator.heads_):
            if estimator._head(_members(estimator.model_)[k]) is not None:
                weights |= {f"head.{k}.{name}": value for name, value in head.state_dict().items()}
        weights = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
        write_tensors(weights, folder / "model.safetensors")
        write_tensors(_bank_arrays(bank), folder / "bank.safetensors")
        (folder / "config.json").write_text(json.dumps(config, indent=2, default=_plain) + "\n", encoding="utf-8")
        words = getattr(estimator.tokenizer_, "words", estimator.tokenizer_)
        if isinstance(words, Tokenizer):
            vocabulary = json.dumps(words.to_dict(), ensure_ascii=False)
            (folder / "vocabulary.json").write_text(vocabulary + "\n", encoding="utf-8")
    return path


def _members(model: Any) -> list[Any]:
    """The networks of an ensemble, or the only one."""
    return list(model.members) if type(model) is Ensemble else [model]  # SGRAF is one network of two parts


def _bank_arrays(bank: Bank) -> dict[str, np.ndarray]:
    arrays = {"image_group": bank.image_group, "text_group": bank.text_group}
    for side in _SIDES:
        for name, array in vars(getattr(bank, side)).items():
            if array is not None:
                arrays[f"{side}.{name}"] = array
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _side(arrays: dict[str, np.ndarray], side: str) -> Embeddings:
    prefix = f"{side}."
    return Embeddings(**{name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)})


def _storable(value: Any) -> Any:
    """A parameter as it is kept: data in memory (a meta set) is not."""
    value = _plain(value)
    if isinstance(value, (list, tuple)):
        return [_storable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def parameters_of(config: dict[str, Any]) -> dict[str, Any]:
    """The constructor's parameters out of a ``config.json``. A GPU that it was trained on need not be here."""
    parameters = {RENAMED.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in config["parameters"].items()}
    return parameters | ({"device": "auto"} if parameters.get("device") == "cuda" else {})


def state_of(config: dict[str, Any]) -> dict[str, Any]:
    """What fitting found, out of a ``config.json``; ValueError where a rate or the threshold is none."""
    state = {name: config["state"][name] for name in _STATE}
    for name, other in (("threshold_", False), ("noise_rate_", state["noise_rate_"] is None)):
        if not (other or is_share(state[name])):
            raise ValueError(f"its {name.rstrip('_')} is {state[name]!r}, not a number in [0, 1]")
    return state


def load_estimator(path: Path, *, image_encoder: Any = None, image_transform: Any = None) -> PairCleaner:
    """The estimator that :func:`save_estimator` wrote. Nothing is fetched: a pretrained model that it names is here.

    Parameters
    ----------
    image_encoder, image_transform
        The torch module that it was fitted with, if it was, and its transform.

    Raises
    ------
    DataError
        Not such a directory, another format, or damaged files; the message names the file. Or a pretrained model that
        it was made with is gone, or another one now.
    ConfigError
        The module is missing, or another one.
    """
    with without_hub():
        return _load(path, image_encoder, image_transform)


def _load(path: Path, image_encoder: Any, image_transform: Any) -> PairCleaner:
    import torch
    from safetensors import SafetensorError
    from safetensors.numpy import load_file as load_arrays
    from safetensors.torch import load_file

    config = _json(path / "config.json")
    if config.get("format") != FORMAT:
        raise DataError(f"{path / 'config.json'} has format {config.get('format')!r}; this version reads {FORMAT}")
    file = path / "config.json"
    try:
        parameters = parameters_of(config)
        method = METHODS.load(config["method"])
        if "from_pretrained" in vars(method):  # it keeps other things than a trained dual encoder
            own: PairCleaner = method.from_pretrained(path)
            return own
        encoders: dict[str, Any] = config.get("encoders") or {}
        if "image_encoder" in encoders:
            parameters |= {"image_encoder": image_encoder, "image_transform": image_transform}
        estimator: PairCleaner = method(**parameters)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{file} does not hold a model of cleanpairs: {error}") from error
    if "image_encoder" in encoders and image_encoder is None:
        raise ConfigError(
            f"{path} was fitted with a torch module as image_encoder ({encoders['image_encoder']['name']}), which is "
            f"not saved: give it again, from_pretrained(path, image_encoder=module)"
        )
    estimator._load_encoders(config.get("text_encoder", estimator.text_encoder), encoders, path)
    try:
        backbone = dict(config["backbone"])
        with torch.random.fork_rng(devices=[]):  # weights that are drawn only to be replaced
            build = _builder_of(backbone.pop("name"), estimator)
            members = backbone.get("members")
            model = build(**backbone) if members is None else Ensemble([build(**member) for member in members])
        state = state_of(config)
        calibration = load_calibration(path)
        file = path / "model.safetensors"
        check_regular(file)
        weights = load_file(file)
        heads = [estimator._head(member) for member in _members(model)]
        for k, head in enumerate(heads):
            if head is not None:
                prefix = f"head.{k}."
                head.load_state_dict({n[len(prefix) :]: weights.pop(n) for n in list(weights) if n.startswith(prefix)})
        model.load_state_dict(weights)
        model.eval()
        file = path / "bank.safetensors"
        check_regular(file)
        arrays = load_arrays(file)
        device = estimator._device()
        bank = Bank(
            _side(arrays, "images"), _side(arrays, "texts"), arrays["image_group"], arrays["text_group"],
            config["bank"]["tau"], config["bank"]["group_size"], model.to(device), device,
        )  # fmt: skip
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise DataError(f"{file} does not hold a model of cleanpairs: {error}") from error
    estimator.model_, estimator.bank_ = model, bank
    estimator.heads_ = [None if head is None else head.to(device) for head in heads]
    estimator.tokenizer_ = _texts(estimator, members[0] if members else backbone, path)
    for name in _STATE:
        value = state[name]
        setattr(estimator, name, float("nan") if name == "noise_rate_" and value is None else value)
    estimator.calibration_ = calibration
    estimator.correspondence_ = np.empty(0, dtype=np.float32)
    estimator.quarantined_ = {}
    estimator.history_ = []
    return estimator


def load_calibration(path: Path) -> Calibration | None:
    """That of the model in ``path``, without the model; None where its method has none.

    Raises
    ------
    DataError
        Not such a directory, or damaged.
    """
    stored = _json(path / "config.json").get("calibration")
    try:
        return None if stored is None else Calibration.from_dict(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / 'config.json'} does not hold a calibration: {error}") from error


def _builder_of(name: str, estimator: PairCleaner) -> Any:
    """The maker of a model by its name: a backbone, or one on pretrained networks."""
    if name in HEADS:
        return partial(HEADS.load(name), estimator.encoders_.both) if name == "tuned_clip" else HEADS.load(name)
    return BACKBONES.load(name)


def _texts(estimator: PairCleaner, model: dict[str, Any], path: Path) -> Any:
    """What makes tables of captions: the vocabulary of ``path``, or a pretrained network."""
    pretrained = estimator.encoders_.texts(dim=model.get("dim_text") or model.get("dim_image"))
    if pretrained is not None and not model.get("dim_sentence"):
        return pretrained
    tokenizer = Tokenizer.from_dict(_json(path / "vocabulary.json"))
    if len(tokenizer) != model["vocabulary"]:
        raise DataError(
            f"{path / 'vocabulary.json'} makes {len(tokenizer)} tokens, and the model takes {model['vocabulary']}: the "
            f"files are not of one model"
        )
    return tokenizer if pretrained is None else WordsAndSentences(tokenizer, pretrained)


def _json(file: Path) -> dict[str, Any]:
    try:
        data = read_json(file)
    except FileNotFoundError as error:
        raise DataError(f"{file.parent} is not a model of cleanpairs: {file.name} is missing") from error
    except (ValueError, OSError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"{file} does not hold a JSON object")
    return data
