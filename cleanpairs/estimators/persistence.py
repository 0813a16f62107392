"""A fitted scorer on disk: safetensors and JSON, so that loading one never runs code.

- ``config.json``: method, its settings, the model's shape, threshold, encoder, versions
- ``bank.safetensors``: the trusted pairs that scores refer to
- ``model.safetensors``: the weights, of a trained one
- ``vocabulary.json``: the tokens, of one that has learned words
"""

import inspect
import json
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cleanpairs
from cleanpairs.core import METHODS, CleanpairsError, DataError, is_share, jsonable
from cleanpairs.core.hub import without_hub
from cleanpairs.core.plain import part_of
from cleanpairs.core.regular import read_object
from cleanpairs.correspondence.calibration import Calibration
from cleanpairs.data.arrays import read_tensors, write_tensors
from cleanpairs.data.atomic import staged_directory

if TYPE_CHECKING:
    from cleanpairs.scoring import Bank

FORMAT = 5
MODEL_FILES = re.compile(r"config\.json|vocabulary\.json|(model|bank)\.safetensors")
_SIDES = ("images", "texts")  # of the bank
_RATES = "noise_rate_", "noise_rate_interval_", "noise_rate_bound_", "better_than_random_"  # NaN where unknown
_STATE = (
    "threshold_", *_RATES, "_image_encoder", "_image_size", "tau_", "_fingerprint", "random_state_",
    "_counts_similar",
)  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """What a kind of scorer keeps in addition to its settings, its bank and its threshold."""

    config: dict[str, Any]  # more of config.json
    parameters: dict[str, Any] = field(default_factory=dict)  # in place of those that it was made with
    arrays: dict[str, Any] = field(default_factory=dict)  # arrays and numbers besides the bank
    weights: dict[str, Any] | None = None  # name -> tensor
    vocabulary: dict[str, Any] | None = None  # of learned words


def versions() -> dict[str, str]:
    """Return package -> version of all that the numbers depend on."""
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "scikit-learn", "pillow")
    own = {"cleanpairs": cleanpairs.__version__, "python": platform.python_version()}
    return own | {name: version(name) for name in names}


def save_estimator(estimator: Any, path: Path, *, overwrite: bool = False) -> Path:
    """Write a fitted scorer as a directory, atomically. Its files are in the head of this module.

    Parameters
    ----------
    estimator : PairScorer
        Fitted.
    path : Path
        The directory.
    overwrite : bool
        Replace a model there.

    Returns
    -------
    Path
        The directory.
    """
    bank, own, calibration = estimator.bank_, estimator._stored(), estimator._without_answers("calibration_")
    parameters = {name: _storable(value) for name, value in estimator.get_params().items()}
    config = {
        "format": FORMAT,
        "cleanpairs": cleanpairs.__version__,
        "versions": estimator._versions or versions(),
        "method": estimator.method_name,
        "parameters": parameters | own.parameters,
        **own.config,
        "bank": {"tau": bank.tau, "group_size": bank.group_size},
        "state": {name: estimator._without_answers(name) for name in _STATE},
        "calibration": None if calibration is None else calibration.to_dict(),
    }
    with staged_directory(path, overwrite=overwrite, ours=MODEL_FILES) as staging:
        folder = Path(staging)
        if own.weights is not None:
            write_tensors(own.weights, folder / "model.safetensors")
        arrays = {"image_group": bank.image_group, "text_group": bank.text_group}
        for side in _SIDES:
            arrays |= {f"{side}.{name}": x for name, x in vars(getattr(bank, side)).items() if x is not None}
        arrays = {name: np.ascontiguousarray(array) for name, array in (arrays | own.arrays).items()}
        write_tensors(arrays, folder / "bank.safetensors")
        (folder / "config.json").write_text(json.dumps(jsonable(config), indent=2) + "\n", encoding="utf-8")
        if own.vocabulary is not None:
            vocabulary = json.dumps(jsonable(own.vocabulary), ensure_ascii=False)
            (folder / "vocabulary.json").write_text(vocabulary + "\n", encoding="utf-8")
    return path


def _storable(value: Any) -> Any:
    """Return a parameter as it is saved. Data in memory (a meta set) is not saved."""
    if isinstance(value, list | tuple):
        return [_storable(v) for v in value]
    storable = value is None or isinstance(value, bool | int | float | str | Path | np.generic)
    return jsonable(value) if storable else None


class Saved:
    """The directory of a saved scorer, which is read part by part.

    Parameters
    ----------
    path : Path
        The directory.

    Raises
    ------
    DataError
        It holds no scorer, or one of another format.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / "config.json"
        self.config = self.json("config.json")
        if self.config.get("format") != FORMAT:
            raise DataError(
                f"{self.file} is a model of cleanpairs {self.config.get('cleanpairs')}, of the format "
                f"{self.config.get('format')!r}; this version reads {FORMAT}: fit again"
            )

    def json(self, name: str) -> dict[str, Any]:
        """Read a file of JSON.

        Parameters
        ----------
        name : str
            Name of the file.

        Returns
        -------
        dict
            What it holds.

        Raises
        ------
        DataError
            It is missing, or not JSON.
        """
        return read_object(self.path / name, "model of cleanpairs")

    def parameters(self, method: type) -> dict[str, Any]:
        """Parameters of the constructor. A GPU that it was trained on need not be here.

        Parameters
        ----------
        method : type
            The class.

        Returns
        -------
        dict
            Name -> value.

        Raises
        ------
        DataError
            The class has other parameters now.
        """
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in self.config["parameters"].items()}
        if unknown := sorted(parameters.keys() - inspect.signature(method).parameters.keys()):
            raise DataError(
                f"{self.file} was written by cleanpairs {self.config.get('cleanpairs')}, whose {method.__name__} has "
                f"settings that the one of {cleanpairs.__version__} has not: {', '.join(unknown)}; fit again"
            )
        return parameters | ({"device": "auto"} if parameters.get("device") == "cuda" else {})

    def state(self) -> dict[str, Any]:
        """Return what fitting found. ValueError if a rate or the threshold is no share."""
        state = dict(self.config["state"])

        def share(name: str, value: Any) -> float:
            if not ((value is None and name in _RATES) or is_share(value)):
                raise ValueError(f"its {name.rstrip('_')} is {value!r}, not a number in [0, 1]")
            return float("nan") if value is None else value

        low, high = (share("noise_rate_interval_", end) for end in state["noise_rate_interval_"])
        single = {name: share(name, state[name]) for name in ("threshold_", *_RATES) if name != "noise_rate_interval_"}
        return {name: state[name] for name in _STATE} | single | {"noise_rate_interval_": (low, high)}

    def calibration(self) -> Calibration | None:
        """Return the calibration of its correspondence. None if its method has none."""
        stored = self.config.get("calibration")
        try:
            return None if stored is None else Calibration.from_dict(stored)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.file} does not hold a calibration: {error}") from error

    def tensors(self, name: str, framework: str = "np") -> dict[str, Any]:
        """Read a file of safetensors.

        Parameters
        ----------
        name : str
            Name of the file.
        framework : {"np", "pt"}
            Arrays, or tensors of torch.

        Returns
        -------
        dict
            Name -> array or tensor.
        """
        self.file = self.path / name
        return read_tensors(self.file, framework)[0]

    def bank(self, arrays: dict[str, np.ndarray], model: Any = None, device: str = "cpu") -> "Bank":
        """Return the bank of a saved scorer.

        Parameters
        ----------
        arrays : dict of array
            Arrays of its file.
        model : DualEncoder, optional
            The model of a backbone that compares more than vectors.
        device : str
            Where it compares.

        Returns
        -------
        Bank
            The trusted pairs.
        """
        from cleanpairs.scoring import Bank, Embeddings  # which import torch

        images, texts = (Embeddings(**part_of(arrays, f"{side}.")) for side in _SIDES)
        tau, group_size = (self.config["bank"][name] for name in ("tau", "group_size"))
        return Bank(images, texts, arrays["image_group"], arrays["text_group"], tau, group_size, model, device)


def load_estimator(path: Path, own: Any = None, *, image_encoder: Any = None, image_transform: Any = None) -> Any:
    """Load a scorer that :func:`save_estimator` wrote. Nothing is fetched.

    Parameters
    ----------
    path : Path
        The directory.
    own : type, optional
        The class of the saved method, where it may lack a line in the registry.
    image_encoder : torch.nn.Module, optional
        The module that it was fitted with, if it was.
    image_transform : callable, optional
        The transform of that module.

    Returns
    -------
    PairScorer
        Fitted.

    Raises
    ------
    DataError
        It is no such directory, of another format, or damaged, or another model has replaced it meanwhile. Or a
        pretrained model that it was made with is gone or has changed.
    ConfigError
        The module is missing, or another.
    """
    from safetensors import SafetensorError

    damaged = (SafetensorError, OSError, KeyError, TypeError, AttributeError, RuntimeError, ValueError)
    saved = Saved(path)
    name = saved.config.get("method")
    is_own = name is not None and name == getattr(own, "method_name", None)
    if not is_own and name not in METHODS:
        found = f"method {name!r} is not registered; load it by its own class"
        raise DataError(f"{saved.file} does not hold a model of cleanpairs: {found}")
    try:
        method = own if is_own else METHODS.load(str(name))
        given = {"image_encoder": image_encoder, "image_transform": image_transform}
        with_module = "image_encoder" in saved.config.get("encoders", ())
        estimator = method(**saved.parameters(method) | (given if with_module else {}))
        estimator._begin()
        for name, value in saved.state().items():
            setattr(estimator, name, value)
        estimator.calibration_ = saved.calibration()
        with without_hub():
            estimator._restore(saved)
        if Saved(path).config != saved.config:
            raise DataError(f"{path} was replaced by another model while it was read: load it again")
    except CleanpairsError:
        raise
    except damaged as error:
        raise DataError(f"{saved.file} does not hold a model of cleanpairs: {error}") from error
    versions = saved.config.get("versions")
    estimator._versions = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    estimator.correspondence_ = np.empty(0, dtype=np.float32)
    estimator.quarantined_, estimator.history_ = {}, []
    return estimator
