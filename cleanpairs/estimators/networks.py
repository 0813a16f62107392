"""The networks of a trained scorer: made for its inputs, stored, and loaded again."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.registry import BACKBONES, HEADS
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.estimators.encoders import vector_moments
from cleanpairs.estimators.persistence import Saved, Stored
from cleanpairs.features import ImageMatrix, WordsAndSentences
from cleanpairs.trainer import TrainingData, step_seed

if TYPE_CHECKING:
    from cleanpairs.estimators.cleaner import PairCleaner


def builder(model: "PairCleaner", matrix: ImageMatrix, data: TrainingData) -> Callable[[], Any]:
    """A maker of fresh networks for these images and captions."""
    on_pretrained = model.encoders_.builder(model, matrix, data.tokens)
    if on_pretrained is not None:
        return on_pretrained
    backbone, pixels = BACKBONES.load(model.backbone), matrix.encoder == "cnn"
    moments = None if pixels else _moments(matrix.array, data.image_index)
    sentences = data.tokens.sentences
    own: dict[str, Any] = {}
    if hasattr(backbone.Shape, "dim_sim"):
        own["dim_sim"] = model.dim_sim
    if sentences is not None:
        own["dim_sentence"] = int(sentences.shape[1])
        sentence_moments = vector_moments(sentences)

    def build() -> Any:
        network = backbone(
            len(model.tokenizer_), 256 if pixels else matrix.array.shape[-1], pixels=pixels, dim=model.dim,
            dim_word=model.dim_word, image_drop=model.image_drop, text_drop=model.text_drop, **own,
        )  # fmt: skip
        if moments is not None and model.standardise:
            network.fit_input(*moments)
        if sentences is not None and model.standardise:
            network.fit_text(*sentence_moments)
        return network

    return build


def _moments(array: np.ndarray, image_index: np.ndarray, sample: int = 4096) -> tuple[Any, Any]:
    """Mean and standard deviation (D,) of the regions of up to ``sample`` images."""
    import torch

    rows = np.unique(image_index)
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(step_seed(0)).choice(rows, sample, replace=False))
    x = np.asarray(array[rows], dtype=np.float32).reshape(-1, array.shape[-1])
    return torch.from_numpy(x.mean(axis=0)), torch.from_numpy(x.std(axis=0))


def stored_networks(model: "PairCleaner") -> Stored:
    """Of :meth:`cleanpairs.estimators.scorer.PairScorer.stored`: the trained networks, and what stands before them."""
    encoders, members = model.encoders_.to_dict(), members_of(model.model_)
    # By their absolute paths; a module is none of text, and what was chosen for these data is no parameter.
    named = {role: network["name"] for role, network in encoders.items() if role != "image_encoder"}
    weights = dict(model.model_.state_dict())
    for k, head in enumerate(model.heads_):
        if model.head(members[k]) is not None:
            weights |= {f"head.{k}.{name}": value for name, value in head.state_dict().items()}
    words = getattr(model.tokenizer_, "words", model.tokenizer_)
    return Stored(
        config={
            "backbone": {"name": getattr(members[0], "registered", model.backbone), **model.model_.config},
            "encoders": encoders,
            "text_encoder": named.get("text_encoder", model.text_encoder_),
        },
        parameters={role: name for role, name in named.items() if getattr(model, role) not in (None, "auto")},
        weights={name: value.detach().cpu().contiguous() for name, value in weights.items()},
        vocabulary=words.to_dict() if isinstance(words, Tokenizer) else None,
    )


def restore_networks(model: "PairCleaner", saved: Saved, image_encoder: Any, image_transform: Any) -> None:
    """Give ``model`` what :func:`stored_networks` kept; see :meth:`cleanpairs.estimators.scorer.PairScorer.restore`."""
    import torch

    encoders: dict[str, Any] = saved.config.get("encoders") or {}
    if "image_encoder" in encoders:
        if image_encoder is None:
            raise ConfigError(
                f"{saved.path} was fitted with a torch module as image_encoder ({encoders['image_encoder']['name']}), "
                f"which is not saved: give it again, from_pretrained(path, image_encoder=module)"
            )
        model.image_encoder, model.image_transform = image_encoder, image_transform
    model.load_encoders(saved.config.get("text_encoder", model.text_encoder), encoders, saved.path)
    shape = dict(saved.config["backbone"])
    for known in (shape, *shape.get("members", ())):
        known.pop("packed_regions", None)  # of models that were saved before: it is so of all
    with torch.random.fork_rng(devices=[]):  # weights that are drawn only to be replaced
        name, members = shape.pop("name"), shape.get("members")
        each = [
            _builder_of(member.get("name", name), model)(**{k: v for k, v in member.items() if k != "name"})
            for member in members or [shape]
        ]
        network = Ensemble(each, shape.get("weights")) if members else each[0]
    weights = saved.weights()
    heads = [model.head(member) for member in members_of(network)]
    for k, head in enumerate(heads):
        if head is not None:
            prefix = f"head.{k}."
            head.load_state_dict({n[len(prefix) :]: weights.pop(n) for n in list(weights) if n.startswith(prefix)})
    network.load_state_dict(weights)
    device = model.resolved_device()
    model.model_ = network.eval().to(device)
    model.heads_ = [None if head is None else head.to(device) for head in heads]
    model.bank_ = saved.bank(saved.arrays(), model.model_, device)
    model.tokenizer_ = _texts(model, members[0] if members else shape, saved)


def members_of(model: Any) -> list[Any]:
    """The networks of an ensemble, or the only one."""
    return list(model.members) if type(model) is Ensemble else [model]  # SGRAF is one network of two parts


def _builder_of(name: str, model: "PairCleaner") -> Any:
    if name in HEADS:
        return partial(HEADS.load(name), model.encoders_.both) if name == "tuned_clip" else HEADS.load(name)
    return BACKBONES.load(name)


def _texts(model: "PairCleaner", shape: dict[str, Any], saved: Saved) -> Any:
    """What makes tables of captions: the stored vocabulary, or a pretrained network."""
    pretrained = model.encoders_.texts(dim=shape.get("dim_text") or shape.get("dim_image"))
    if pretrained is not None and not shape.get("dim_sentence"):
        return pretrained
    tokenizer = Tokenizer.from_dict(saved.json("vocabulary.json"))
    if len(tokenizer) != shape["vocabulary"]:
        raise DataError(
            f"{saved.path / 'vocabulary.json'} makes {len(tokenizer)} tokens, and the model takes "
            f"{shape['vocabulary']}: the files are not of one model"
        )
    return tokenizer if pretrained is None else WordsAndSentences(tokenizer, pretrained)
