"""What tests of methods share, for them to import: a small corpus, and an epoch of a procedure on it."""

from typing import Any

import numpy as np
import torch

from cleanpairs import Pairs
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import EpochContext, Network, TrainingData, TrainingSettings
from tests.helpers import WORDS, rotated

SMALL: dict[str, Any] = {
    "backbone": "mlp", "dim": 32, "dim_word": 16, "batch_size": 16, "eval_group_size": 32, "lr": 5e-3, "tau": 0.1,
    "epochs": 8, "image_drop": 0.0, "text_drop": 0.1, "device": "cpu",
}  # fmt: skip


def corpus(n: int = 160, wrong: int = 40, seed: int = 0, *, names: int = 0, noise: float = 0.0) -> Pairs:
    """Captions of three words; the vector is the sum of the words' vectors. The first ``wrong`` captions rotate.

    ``names``: so many words of its own each caption has beside them, and as many more dimensions of ``noise`` each
    vector: by these a network learns wrong pairs by heart.
    """
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(99).normal(size=(len(WORDS), 16))
    chosen = [rng.choice(len(WORDS), 3, replace=False) for _ in range(n)]
    captions = [
        " ".join([*(WORDS[k] for k in row), *(f"n{i}x{m}" for m in range(names))]) for i, row in enumerate(chosen)
    ]
    features = np.array([vectors[row].sum(0) for row in chosen])
    if noise:  # of the same draws: test_against_plain.py depends on them
        features = np.concatenate([features, noise * rng.normal(size=(n, 16))], axis=1)
    return Pairs.from_arrays(rotated(captions, wrong), features=features.astype(np.float32))


def procedure_of(method: Any, n: int, **settings: Any) -> Any:
    """What trains n pairs by a method with these settings."""
    return method(**settings)._procedure(range(n))


def parts(view: EpochContext, clean: np.ndarray, noisy: np.ndarray, network: int = 0) -> tuple[Any, Any]:
    """A batch of clean and noisy pairs through a network, apart."""
    f = view.forward(network, clean, noisy, seed=1)
    return f.select(f.source == 0), f.select(f.source == 1)


def view_of(procedure: Any, n: int, **settings: Any) -> EpochContext:
    """An epoch of the procedure's networks, which know nothing, on n pairs."""
    pairs, ids = corpus(n, 0), np.arange(n)
    images = pairs.images.array()
    data = TrainingData(images, Tokenizer(WORDS).encode(pairs.captions), ids, ids, ids)
    torch.manual_seed(0)
    networks = []
    for _ in range(procedure.networks):
        model = MLP(len(WORDS) + 1, 16, dim=8, dim_word=4, text_drop=0.0, dropout=0.0)
        networks.append(Network(model, procedure.head(model)))
    known = {"batch_size": 8, "eval_group_size": n, "label_rounds": 1, "bucket": 1, **settings}
    return EpochContext(data, TrainingSettings(**known), networks)


def begun(method: Any, n: int, **settings: Any) -> tuple[Any, EpochContext]:
    """What trains n pairs by a method with these settings, and an epoch of its networks."""
    procedure = procedure_of(method, n, **settings)
    return procedure, view_of(procedure, n)


def probabilities_of_both(view: EpochContext, tau: float = 0.07) -> list[np.ndarray]:
    """Matching probabilities (n,) of all pairs among each other, by each of two networks."""
    encoded = (view.encoded(k) for k in range(2))
    return [matching_probability(torch.from_numpy(e.images.vectors @ e.texts.vectors.T), tau).numpy() for e in encoded]
