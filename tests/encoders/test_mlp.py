"""The MLP backbone: the mean region and the mean word, however they are laid out."""

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.tokenizer import PackedTokens, Tokenizer, pack

WORDS = [f"w{k}" for k in range(8)]


def model_of() -> MLP:
    torch.manual_seed(0)
    return MLP(9, 6, dim=8, dim_word=5).eval()


def tokens_of(*captions: str) -> PackedTokens:
    return pack(Tokenizer(WORDS).encode(captions), np.arange(len(captions)))[0]


def regions(n: int) -> Tensor:
    return torch.randn(n, 3, 6, generator=torch.Generator().manual_seed(1))


def test_a_caption_is_its_mean_word_whatever_is_beside_it() -> None:
    model = model_of()
    captions = ("w1 w2 w3 w1", "w4 w5", "w6")
    together = model.encode_texts(tokens_of(*captions))
    for row, caption in zip(together, captions, strict=True):
        tokens = tokens_of(caption)
        torch.testing.assert_close(row, model.encode_texts(tokens)[0])
        torch.testing.assert_close(row, model.text(model.embedding(tokens.ids).mean(dim=0, keepdim=True))[0])
    torch.testing.assert_close(model.encode_texts(tokens_of("w1 w2")), model.encode_texts(tokens_of("w2 w1")))
