"""The files of a pretrained model of transformers: fetched or found, and read as data, never as code."""

import hashlib
import importlib.util
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cleanpairs.core.errors import ConfigError, DataError, needing
from cleanpairs.core.hub import hub_allowed
from cleanpairs.core.regular import error_text, read_object, reading, sha256_of
from cleanpairs.core.torch_state import seeded
from cleanpairs.encoders.image_transform import ImageTransform, to_rgb
from cleanpairs.ops.mapped import blocks

INSTALL = 'pip install "cleanpairs[clip]"'
PRETRAINED = "pretrained model"  # for :func:`cleanpairs.core.regular.read_object`
FILES = (  # all that is ever fetched or read
    "config.json", "preprocessor_config.json", "processor_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model",
)  # fmt: skip


def require_extra() -> None:
    """Raise ConfigError where the packages that read pretrained models are not installed."""
    with needing("a pretrained model", INSTALL):
        import tokenizers  # noqa: F401  # not used: transformers would report a missing one late and at length
        from transformers import PreTrainedModel  # noqa: F401


def package_folders(package: str) -> list[Path]:
    """The folders of an installed package of data. Nothing of it is run."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or () if spec else ())]


def download(name: str, revision: str | None, also: Sequence[str] = ()) -> Path:
    """The directory of a model of the hub, fetched unless it is in the hub's cache. Only data files are fetched."""
    from huggingface_hub import snapshot_download

    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)?", name):
        raise DataError(f"there is no directory {name}, and it is no name on the hub either: check the path")
    patterns = [*FILES, *also]
    allowed = hub_allowed.get()
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=not allowed)
    except Exception as error:  # whatever the HTTP client raises: the message has the reason
        if not allowed:
            raise DataError(
                f"there is no model {name} on this machine, neither as a directory nor in the hub's cache, and what a "
                f"file names is never fetched: if you trust it, `hf download {name}`, then again"
            ) from error
        raise DataError(
            f"there is no directory {name}, and the model could not be had from the hub: {error_text(error)}; give the "
            "directory of a model (as transformers' save_pretrained writes it), or check name and network"
        ) from error
    return Path(folder)


def folder_and_kind(name: str, revision: str | None, known: Collection[str], message: str) -> tuple[Path, str]:
    """A model's directory, given or fetched, and its type. ConfigError, with the ``message``, if not ``known``."""
    require_extra()
    folder = Path(name) if Path(name).is_dir() else download(name, revision)
    kind = read_object(folder / "config.json", PRETRAINED).get("model_type")
    if kind not in known:
        raise ConfigError(f"{name} is a model of type {kind!r}, and {message.format(known=', '.join(known))}")
    return folder, str(kind)


class FrozenImages:
    """A frozen network of images. Its features have the ``shape`` (D,) or (R, D). ``transform`` prepares images."""

    name: str
    fingerprint: str  # of all that determines the vectors
    shape: tuple[int, ...]
    transform: ImageTransform
    prepare: Callable[[Sequence[Image.Image]], Any] | None = None  # prepares whole images. None: ``transform``
    cache_key: str | None = None  # in place of the fingerprint in names of caches
    dtype: type = np.float32  # of the cached vectors
    batch_size = 32  # images a pass

    def vectors(self, x: Any) -> Tensor:
        """Features (n, *shape) of n prepared images: by ``transform`` pixels (n, 3, H, W) float32, standardised."""
        raise NotImplementedError

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Features (n, *shape) float32 of n decoded images of any mode and size. DataError: an image has no pixels."""
        prepare = self.prepare or self.transform
        return self._in_batches(lambda some: self.vectors(prepare(some)), [to_rgb(image) for image in images])

    def encode_pixels(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """As :meth:`encode_images`, of n images' pixels (3, H, W) uint8 by ``transform.pixels``."""
        if self.prepare is not None:
            return self.encode_images([Image.fromarray(x.transpose(1, 2, 0)) for x in pixels])
        standardise = self.transform.standardise
        return self._in_batches(lambda some: self.vectors(standardise(torch.from_numpy(np.stack(some)))), pixels)

    @torch.inference_mode()
    def _in_batches(self, vectors: Callable[[Any], Tensor], items: Sequence[Any], most: int = 0) -> np.ndarray:
        """Features (n, *shape) float32 of n ``items``, by ``vectors`` of at most ``most`` at once."""
        parts = (vectors(items[at]).float().cpu().numpy() for at in blocks(len(items), most or self.batch_size))
        return np.concatenate([np.empty((0, *self.shape), np.float32), *parts])


class FrozenPair(FrozenImages):
    """A frozen network of both sides, which makes unit vectors of one space, with ``dim`` dimensions.

    The network's own logits are cosines over ``temperature``. If it is ``tunable``, its towers can be trained further.
    """

    dim: int
    temperature: float
    tunable = False

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(dim,)."""
        return (self.dim,)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (n, E) float32 of n captions, each cut to the model's length. An empty one is encoded too."""
        raise NotImplementedError


def settings_of(file: Path) -> dict[str, Any]:
    """The JSON object of a file. Empty where there is no file."""
    return read_object(file, PRETRAINED) if file.exists() else {}


def image_settings(folder: Path) -> dict[str, Any]:
    """A model's settings of image preparation, by its own JSON. Newer processors keep everything in one file."""
    alone = settings_of(folder / "preprocessor_config.json")
    config: dict[str, Any] = alone or settings_of(folder / "processor_config.json").get("image_processor", {})
    if not config:
        raise DataError(f"{folder} does not say how to prepare images: preprocessor_config.json is missing")
    return config


def load_network(folder: Path, kind: str, optional: tuple[str, ...] = ()) -> Any:
    """The network of class ``kind`` of transformers. Weights that begin with one of ``optional`` may be missing."""
    import transformers
    from safetensors import SafetensorError

    if not (folder / "model.safetensors").exists() and not (folder / "model.safetensors.index.json").exists():
        pickled = sorted(p.name for p in folder.glob("pytorch_model*.bin"))
        why = f"found {', '.join(pickled)}, which could run code" if pickled else "found no weights"
        raise DataError(
            f"{folder} has no model.safetensors ({why}): save the model again with transformers' save_pretrained, or "
            f"take a revision that has it"
        )
    bar = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    errors = SafetensorError, RuntimeError, ValueError, KeyError, TypeError
    try:
        with reading(folder, "read as the weights of its config.json", *errors), seeded(0):  # drawn ones are replaced
            model, info = getattr(transformers, kind).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
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


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of ``tokenizer.json`` as it stands, whatever class the other files name."""
    from transformers import PreTrainedTokenizerFast

    with _reading_tokenizer(folder):
        if not (folder / "tokenizer.json").exists():
            raise FileNotFoundError("there is none")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        tokenizer(["a"])
    return tokenizer


def text_tokens(folder: Path, limit: int) -> Any:
    """The same tokenizer without transformers, of the package ``tokenizers``: at most ``limit`` tokens a text."""
    from tokenizers import Tokenizer

    with _reading_tokenizer(folder):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit)
    return tokenizer


def _reading_tokenizer(folder: Path) -> AbstractContextManager[None]:
    remedy = "save it again with transformers' save_pretrained, or take a revision that has it"
    return reading(folder / "tokenizer.json", f"used ({remedy})", Exception)  # its parser raises a bare Exception


def fingerprint_of(folder: Path, patterns: Sequence[str] = FILES) -> str:
    """SHA-256 over names and contents of the model's files."""
    digest = hashlib.sha256()
    for file in sorted({file for pattern in patterns for file in folder.glob(pattern)}):
        digest.update(f"{file.relative_to(folder)}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()
