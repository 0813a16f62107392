"""Encoders of images and captions by name: of sentence-transformers, of open_clip, else of transformers.

Weights are read from safetensors only, and no code of a model's directory is run. The libraries prepare whole images
themselves.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from cleanpairs.core import plain_text, read_json, reading, sha256_of
from cleanpairs.core.errors import ConfigError, DataError, needing
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.model_files import INSTALL, FrozenPair, download, fingerprint_of, settings_of
from cleanpairs.encoders.pretrained import MODELS, PretrainedCLIP

OPEN_CLIP = "open_clip:"
MODULES = "modules.json"  # names the parts of a model of sentence-transformers


def load_encoder(name: str, device: str = "cpu", *, revision: str | None = None) -> FrozenPair:
    """Load the encoder of both sides that is named.

    ``name``: ``open_clip:MODEL/PRETRAINED``, a directory or a name on the Hugging Face hub. ``revision``: branch, tag
    or commit there.
    Raises ConfigError: a package is missing, the model is of another kind or needs code of its own.
    DataError: there is no such model, or its files are missing, damaged or pickled.
    """
    if name.startswith(OPEN_CLIP):
        return OpenCLIP(name, device, revision)
    folder = Path(name) if Path(name).is_dir() else download(name, revision, (MODULES,))
    own = settings_of(folder / "config.json").get("model_type") in MODELS
    if own or not (folder / MODULES).exists():
        return PretrainedCLIP(name, device, revision=revision)
    return SentenceTransformers(name, device, revision)


class _Library(FrozenPair):
    """An encoder that another library computes. ``temperature``: CLIP's, where the library knows none."""

    temperature = 0.01

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device, self.transform = name, device, ImageTransform()

    def _probe(self) -> None:
        """Set ``dim``. ConfigError: images and captions do not come out as vectors of one length."""
        with torch.inference_mode():
            image = self.vectors(self.prepare([Image.new("RGB", (64, 64))]))  # type: ignore[misc]
            text = self.text_vectors(["a"])
        if image.shape != text.shape or image.ndim != 2:
            raise ConfigError(
                f"{self.name} makes {tuple(image.shape[1:])} numbers of an image and {tuple(text.shape[1:])} of a "
                "caption: both sides must be vectors of one length"
            )
        self.dim = int(text.shape[1])

    def text_vectors(self, texts: list[str]) -> Tensor:
        """Unit vectors (n, E) of n captions."""
        raise NotImplementedError

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """See :meth:`FrozenPair.encode_texts`."""
        return self._in_batches(lambda some: self.text_vectors(list(map(plain_text, some))), texts, 256)


class SentenceTransformers(_Library):
    """A model of images and text of sentence-transformers, such as CLIP or Qwen3-VL-Embedding."""

    def __init__(self, name: str, device: str, revision: str | None) -> None:
        super().__init__(name, device)
        with needing(name, INSTALL):
            from sentence_transformers import SentenceTransformer
        parts = (MODULES, "*.jinja", "*.json", "*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model", "*/*.jinja")
        folder = Path(name) if Path(name).is_dir() else download(name, revision, parts)
        _refuse_code(folder)
        self.prepare = list
        with reading(name, "loaded by sentence-transformers", Exception):  # every module of a model raises its own
            self.model: Any = SentenceTransformer(
                str(folder), device=device, trust_remote_code=False, local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )  # fmt: skip
        self.model.eval().requires_grad_(False)
        if not (self.model.supports("image") and self.model.supports("text")):
            raise ConfigError(
                f"{name} takes {', '.join(map(str, self.model.modalities))} and no images: name an encoder of both, or "
                f"this one of captions alone by --set text_encoder={name}"
            )
        self._probe()
        self.fingerprint = fingerprint_of(folder, [f"**/*.{k}" for k in "json safetensors txt model jinja".split()])

    def vectors(self, x: list[Any]) -> Tensor:
        """See :class:`FrozenImages`. It encodes captions too."""
        how = {"convert_to_tensor": True, "normalize_embeddings": True, "show_progress_bar": False}
        return self.model.encode(x, **how)

    text_vectors = vectors  # type: ignore[assignment]


def _refuse_code(folder: Path) -> None:
    """ConfigError: a module is not the library's own. DataError: weights are pickled and nothing else is there."""
    with reading(folder / MODULES, "read as a list of modules", ValueError, TypeError):
        modules = list(read_json(folder / MODULES))
    for kind in (str(module.get("type")) if isinstance(module, dict) else repr(module) for module in modules):
        if not kind.startswith("sentence_transformers."):
            raise ConfigError(f"{folder / MODULES} names {kind}, which is code of the model's own: it is never run")
    for file in sorted(f for f in folder.rglob("*") if f.suffix in (".bin", ".pt", ".pkl", ".ckpt")):
        if not any(file.parent.glob("*.safetensors")):
            raise DataError(f"{file} is pickled, which could run code: take a revision with model.safetensors")


class OpenCLIP(_Library):
    """A model of open_clip, by its name there and the name of its weights, or their file."""

    def __init__(self, name: str, device: str, revision: str | None) -> None:
        super().__init__(name, device)
        with needing(name, "pip install open_clip_torch"):
            import open_clip
        kind, _, weights = name.removeprefix(OPEN_CLIP).partition("/")
        if kind not in open_clip.list_models():
            raise ConfigError(f"open_clip has no model {kind!r}: it has {', '.join(open_clip.list_models())}")
        tags = open_clip.list_pretrained_tags_by_model(kind)
        given = weights.endswith(".safetensors")
        if not given and weights not in tags:
            raise ConfigError(f"open_clip has no weights {weights!r} of {kind}: it has {', '.join(tags) or 'none'}")
        configs = [open_clip.get_pretrained_cfg(kind, tag) for tag in (tags if given else [weights])] or [{}]
        config = configs[0]  # for a file of weights that of the model's first tag
        file = Path(weights) if given else _fetched(name, str(config.get("hf_hub") or ""), revision)
        if not file.is_file():
            raise DataError(f"there is no file {file} of weights for {name}")
        fields = "mean", "std", "interpolation", "resize_mode"
        how = {f"image_{field}": config[field] for field in fields if config.get(field)}
        # Where the tags of a file's model differ, the model's name says it: ViT-B-32-quickgelu.
        how["force_quick_gelu"] = all(each.get("quick_gelu") for each in configs)
        with reading(name, "loaded by open_clip", Exception):  # each of the models there raises its own
            self.model, prepare = open_clip.create_model_from_pretrained(kind, str(file), device=device, **how)
            self.tokenizer = open_clip.get_tokenizer(kind)
        self.model.eval().requires_grad_(False)
        self.prepare = lambda images: torch.stack([prepare(image) for image in images])
        self.temperature = 1 / float(self.model.logit_scale.exp())
        self.fingerprint = f"{kind}-{sha256_of(file)}{how if given else ''}"
        self._probe()

    def vectors(self, x: Tensor) -> Tensor:
        """See :class:`FrozenImages`."""
        return F.normalize(self.model.encode_image(x.to(self.device)), dim=1)

    def text_vectors(self, texts: list[str]) -> Tensor:
        """See :class:`_Library`."""
        return F.normalize(self.model.encode_text(self.tokenizer(texts).to(self.device)), dim=1)


def _fetched(name: str, hub: str, revision: str | None) -> Path:
    """Fetch the safetensors of a model from the repository that open_clip names."""
    if not hub:
        raise ConfigError(f"the weights of {name} are not on the Hugging Face hub: take other ones")
    repository, file = "/".join(hub.split("/")[:2]), "open_clip_model.safetensors"
    folder = download(repository, revision, (file,))
    if not (folder / file).exists():
        raise DataError(f"{repository} has no {file}, and pickled weights are never read: take other weights")
    return folder / file
