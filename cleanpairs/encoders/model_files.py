"""The files of a pretrained model of transformers: fetched or found, and read as data, never as code."""

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.hub import hub_allowed
from cleanpairs.core.regular import read_object, sha256_of
from cleanpairs.encoders.image_transform import ImageTransform

INSTALL = 'pip install "cleanpairs[clip]"'
PRETRAINED = "pretrained model"  # for :func:`cleanpairs.core.regular.read_object`
FILES = (  # all that is ever fetched or read
    "config.json", "preprocessor_config.json", "processor_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model",
)  # fmt: skip


def require_extra() -> None:
    """ConfigError where what reads pretrained models is not installed."""
    try:
        import tokenizers  # noqa: F401  # looked for, not used: transformers would say so late and at length
        import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a pretrained model needs {error.name or 'transformers'}, run: {INSTALL}") from error


def download(name: str, revision: str | None, also: Sequence[str] = ()) -> Path:
    """The directory of a model of the hub, fetched unless it is in the hub's cache; only files that are data."""
    from huggingface_hub import snapshot_download

    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)?", name):
        raise DataError(f"there is no directory {name}, and it is no name on the hub either: check the path")
    patterns = [*FILES, *also]
    if not hub_allowed():
        with suppress(Exception):  # whatever it is: it is not here
            return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
        raise DataError(
            f"there is no model {name} on this machine, neither as a directory nor in the hub's cache, and what a file "
            f"names is never fetched: if you trust it, `hf download {name}`, then again"
        )
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # whatever the HTTP client below raises: there is no model, and the reason is told
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"there is no directory {name}, and the model could not be had from the hub: {reason}; give the directory "
            f"of a model (as transformers' save_pretrained writes it), or check name and network"
        ) from error


def folder_and_kind(name: str, revision: str | None, known: Collection[str], said: str) -> tuple[Path, str]:
    """The directory of a model, given or fetched, and its type; ConfigError where that is not ``known``, which ``said``
    tells, with ``{known}`` for the names.
    """
    require_extra()
    folder = Path(name) if Path(name).is_dir() else download(name, revision)
    kind = read_object(folder / "config.json", PRETRAINED).get("model_type")
    if kind not in known:
        raise ConfigError(f"{name} is a model of type {kind!r}, and {said.format(known=', '.join(known))}")
    return folder, str(kind)


def in_batches(encode: Callable[[Any], np.ndarray], images: Any, batch_size: int, shape: tuple[int, ...]) -> np.ndarray:
    """(n, *shape) float32 of what ``encode`` makes of n ``images``, so many at a time."""
    starts = range(0, len(images), batch_size)
    return np.concatenate([np.empty((0, *shape), np.float32), *(encode(images[s : s + batch_size]) for s in starts)])


def load_transform(folder: Path, model_type: str) -> ImageTransform:
    """How the model prepares images, by its own JSON."""
    file = folder / "preprocessor_config.json"
    if file.exists():
        config = read_object(file, PRETRAINED)
    else:  # newer processors keep everything in one file
        file = folder / "processor_config.json"
        config = read_object(file, PRETRAINED).get("image_processor", {}) if file.exists() else {}
    if not config:
        raise DataError(f"{folder} does not say how to prepare images: preprocessor_config.json is missing")
    return ImageTransform.from_config(config, model_type, str(file))


def load_network(folder: Path, kind: str, optional: tuple[str, ...] = ()) -> Any:
    """The network of class ``kind`` of transformers; weights that begin with one of ``optional`` may be missing."""
    import transformers
    from safetensors import SafetensorError

    if not (folder / "model.safetensors").exists() and not (folder / "model.safetensors.index.json").exists():
        pickled = sorted(p.name for p in folder.glob("pytorch_model*.bin"))
        found = f"found {', '.join(pickled)}, which could run code" if pickled else "found no weights"
        raise DataError(
            f"{folder} has no model.safetensors ({found}): save the model again with transformers' save_pretrained, or "
            f"take a revision that has it"
        )
    bar = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):  # weights that are drawn only to be replaced
            model, info = getattr(transformers, kind).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} does not hold the weights of its config.json: {error}") from error
    finally:
        if bar:
            transformers.utils.logging.enable_progress_bar()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = sorted(key for key in set(info["missing_keys"]) - tied if not key.startswith(optional))
    if missing:
        raise DataError(
            f"model.safetensors of {folder} lacks {len(missing)} weights, of which the first is {missing[0]}: it is "
            f"not of this model"
        )
    return model


def load_tokenizer(folder: Path, also: tuple[str, ...] = ()) -> Any:
    """The tokenizer of ``tokenizer.json`` as it stands, or made of the older files by the class that they name.

    ``also``: files that are enough too.
    """
    import transformers

    whole = (folder / "tokenizer.json").exists()
    parts = (folder / "vocab.json").exists() and (folder / "merges.txt").exists()
    try:
        older = any((folder / name).exists() for name in ("spiece.model", *also))
        if not whole and not parts and not older:
            raise FileNotFoundError("there is none")  # transformers would make one that knows no word
        # AutoTokenizer would insist on sentencepiece for SigLIP, even where tokenizer.json is there
        kind = transformers.PreTrainedTokenizerFast if whole else transformers.AutoTokenizer
        tokenizer = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer(["a"])
    except Exception as error:  # a broken vocabulary fails as its parser does, even with a bare Exception
        raise DataError(
            f"{folder} has no tokenizer that can be used: {' '.join(str(error).split())[:300]}; it needs "
            f"tokenizer.json (or vocab.json and merges.txt; or spiece.model and the packages sentencepiece, protobuf)"
        ) from error
    return tokenizer


def tokenizer_class(folder: Path) -> Any:
    """The name of its tokenizer's class, if it says one."""
    file = folder / "tokenizer_config.json"
    return read_object(file, PRETRAINED).get("tokenizer_class") if file.exists() else None


def fingerprint_of(folder: Path) -> str:
    """SHA-256 over names and contents of the model's files."""
    digest = hashlib.sha256()
    for file in sorted({file for pattern in FILES for file in folder.glob(pattern)}):
        digest.update(f"{file.name}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()
