"""A pretrained text encoder, frozen: captions to one unit vector each, as sentence-transformers makes them.

Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", EMNLP 2019: the mean of the last
layer's states over the tokens, or that of the first token, as ``1_Pooling/config.json`` says (the mean, where the file
is not there). Read as in :mod:`cleanpairs.encoders.pretrained`: safetensors and JSON, no code of the model's directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.pretrained import (
    MODELS,
    _download,
    _fingerprint,
    _json,
    _model,
    _require_extra,
    _tokenizer,
)  # fmt: skip
from cleanpairs.errors import ConfigError, DataError

__all__ = ["SentenceEncoder"]

POOLING, LIMITS = "1_Pooling/config.json", "sentence_bert_config.json"


class SentenceEncoder:
    """A frozen transformer encoder with its tokenizer; made by :meth:`load`.

    Attributes
    ----------
    name, fingerprint : str
        As given to :meth:`load`; SHA-256 over the files that determine the vectors.
    dim : int
        Dimensions E of a vector.
    max_length : int
        Tokens after which a caption is cut.
    pooling : {"mean", "first"}
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, pooling: str, max_length: int, fingerprint: str) -> None:
        self.name, self.fingerprint, self.pooling, self.max_length = name, fingerprint, pooling, max_length
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.device = next(model.parameters()).device
        self.dim = int(model.config.hidden_size)

    @classmethod
    def load(cls, name_or_path: str | Path, device: str = "cpu", *, revision: str | None = None) -> Self:
        """Load a model from a directory, or from the Hugging Face hub by its name.

        Raises
        ------
        ConfigError
            transformers is missing; or a kind of model or of pooling that cannot be used.
        DataError
            There is no such model, or its files are missing, damaged or pickled.
        """
        _require_extra()
        name = str(name_or_path)
        folder = Path(name) if Path(name).is_dir() else _download(name, revision, (POOLING, LIMITS))
        config = _json(folder / "config.json")
        if config.get("model_type") in MODELS:
            raise ConfigError(f"{name} has two towers, and text_encoder takes one of text: name it as the encoder")
        if config.get("is_encoder_decoder") or "max_position_embeddings" not in config:
            raise ConfigError(
                f"{name} is a model of type {config.get('model_type')!r}; text_encoder takes encoders like BERT: name "
                f"one, like sentence-transformers/all-MiniLM-L6-v2"
            )
        pooling = _pooling(folder)
        limit = int(config["max_position_embeddings"])
        file = folder / LIMITS
        limit = min(limit, int(_json(file).get("max_seq_length") or limit)) if file.exists() else limit
        model, tokenizer = _model(folder, "AutoModel", optional=("pooler.",)), _tokenizer(folder, ("vocab.txt",))
        if len(tokenizer) > int(config.get("vocab_size", len(tokenizer))):
            raise DataError(f"the tokenizer of {name} makes more tokens than the model takes: not files of one model")
        if config.get("model_type") in ("roberta", "xlm-roberta", "camembert"):
            limit = min(limit, int(config["max_position_embeddings"]) - 2)  # whose positions begin behind the pad's
        return cls(name, model.to(device), tokenizer, pooling, limit, _fingerprint(folder) + pooling + str(limit))

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> np.ndarray:
        """Unit vectors (n, E) float32 of n captions, each cut to the model's length; an empty one is encoded too."""
        if isinstance(texts, str):
            raise ConfigError(f"encode_texts takes a list of captions, found one text: use [{texts[:40]!r}]")
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate is no text
        out = np.empty((len(clean), self.dim), np.float32)
        if not clean:
            return out
        ids = self.tokenizer(clean, truncation=True, max_length=self.max_length)["input_ids"]
        by_length = np.argsort([-len(row) for row in ids], kind="stable")
        for start in range(0, len(ids), batch_size):
            rows = by_length[start : start + batch_size]
            out[rows] = self._encode([ids[i] for i in rows]).cpu().numpy()
        return out

    def _encode(self, rows: list[list[int]]) -> Tensor:
        """(b, E) unit vectors."""
        pad = self.tokenizer.pad_token_id or 0
        width = max(1, max(len(row) for row in rows))
        ids, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[i, : max(1, len(row))] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state  # (b, L, E)
        if self.pooling == "first":
            z = hidden[:, 0]
        else:
            weight = mask[..., None].to(hidden.dtype)
            z = (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        return torch.nn.functional.normalize(z, dim=1)


def _pooling(folder: Path) -> str:
    file = folder / POOLING
    if not file.exists():
        return "mean"
    config = _json(file)
    on = sorted(key for key, value in config.items() if key.startswith("pooling_mode_") and value is True)
    if on == ["pooling_mode_mean_tokens"]:
        return "mean"
    if on == ["pooling_mode_cls_token"]:
        return "first"
    raise ConfigError(f"{file} pools by {', '.join(on) or 'nothing'}; the mean and the first token can be used")
