"""An ensemble is one dual encoder whose similarity is its members' mean."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.encoders.base import Local
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.sgraf import SAF, SGR
from cleanpairs.encoders.tokenizer import Tokenizer, pack

WORDS = [f"w{k}" for k in range(8)]


def members_of(local: bool) -> list[Any]:
    torch.manual_seed(0)
    if local:
        return [kind(9, 6, dim=dim, dim_word=5, dim_sim=4).eval() for kind, dim in ((SAF, 8), (SGR, 4))]
    return [MLP(9, 6, dim=dim, dim_word=5).eval() for dim in (8, 4)]


@pytest.mark.parametrize("local", [False, True], ids=["vectors", "local"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_similarity_is_the_mean(n: int, local: bool) -> None:
    members = members_of(local)
    model = Ensemble(members)
    tokens, _ = pack(Tokenizer(WORDS).encode([" ".join(WORDS[: 1 + k % 3]) for k in range(n)]), np.arange(n))
    images = torch.randn(n, 3, 6, generator=torch.Generator().manual_seed(0))
    keep = torch.ones(n, 3, dtype=torch.bool)
    keep[0, 1] = False
    states = model(images, keep, tokens)
    each = [(m, *m(images, keep, tokens)) for m in members]
    mean = sum(m.similarity(image, text) for m, image, text in each) / 2
    torch.testing.assert_close(model.similarity(*states), mean)
    torch.testing.assert_close(model.paired_similarity(*states), mean.diagonal())
    vectors = [model.vector(s) for s in states]
    assert all(v.shape == (n, 12) for v in vectors) and model.dim == 12 and model.local is local
    torch.testing.assert_close(vectors[0].norm(dim=1), torch.ones(n))
    cosine = sum(m.vector(image) @ m.vector(text).T for m, image, text in each)
    torch.testing.assert_close(vectors[0] @ vectors[1].T, cosine / 2)  # of the vectors: the mean cosine
    assert isinstance(states[0], Local) is local
