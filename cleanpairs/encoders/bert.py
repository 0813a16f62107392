"""BERT's encoder, frozen: token numbers to the states of the last layer, from safetensors and without ``transformers``.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", NAACL 2019. Written
from the paper for the sentence encoder that a plain installation has: importing ``transformers`` takes longer than
encoding a thousand captions. The names of the weights are those of its ``BertModel``.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cleanpairs.core.errors import DataError


def fast_precision(device: str) -> torch.dtype:
    """bfloat16 where the processor multiplies matrices of it (AMX, AVX-512 BF16), or a GPU does; else float32."""
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast and torch.cpu._is_avx512_bf16_supported() else torch.float32


class Bert:
    """The network of a directory with ``config.json`` and ``model.safetensors``.

    ``config``: what is in ``config.json``; ``dtype`` torch.dtype.
    Raises DataError: the weights are damaged, or not those of the configuration.
    """

    def __init__(self, folder: Path, config: dict[str, Any], device: str, dtype: torch.dtype = torch.float32) -> None:
        self.heads, self.eps = int(config["num_attention_heads"]), float(config.get("layer_norm_eps", 1e-12))
        try:
            found = {name.removeprefix("bert."): w for name, w in load_file(folder / "model.safetensors").items()}
            self._take(found, int(config["num_hidden_layers"]), torch.device(device), dtype)
        except (SafetensorError, OSError, KeyError) as error:
            raise DataError(f"{folder} does not hold the weights of its config.json: {error}") from error

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
            asked = [both(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            self.layers.append((
                (torch.cat([a[0] for a in asked]), torch.cat([a[1] for a in asked])),  # one product for the three
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
        for asked, output, first, up, down, second in self.layers:
            q, k, v = F.linear(x, *asked).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, heads, L, E/heads)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, -1)
            x = self._normed(x + F.linear(mixed, *output), first)
            x = self._normed(x + F.linear(F.gelu(F.linear(x, *up)), *down), second)
        return x

    def _normed(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], *norm, self.eps)
