"""The MLP backbone: a caption is the mean of its words, however they are laid out."""

import numpy as np
import torch

from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.tokenizer import PackedTokens, Tokenizer, pack


def tokens_of(*captions: str) -> PackedTokens:
    return pack(Tokenizer([f"w{k}" for k in range(8)]).encode(captions), np.arange(len(captions)))[0]


def test_a_caption_is_its_mean_word_whatever_is_beside_it() -> None:
    torch.manual_seed(0)
    model = MLP(9, 6, dim=8, dim_word=5).eval()
    captions = ("w1 w2 w3 w1", "w4 w5", "w6")
    together = model.encode_texts(tokens_of(*captions))
    for row, caption in zip(together, captions, strict=True):
        tokens = tokens_of(caption)
        torch.testing.assert_close(row, model.encode_texts(tokens)[0])
        torch.testing.assert_close(row, model.text(model.embedding(tokens.ids).mean(dim=0, keepdim=True))[0])
    torch.testing.assert_close(model.encode_texts(tokens_of("w1 w2")), model.encode_texts(tokens_of("w2 w1")))
