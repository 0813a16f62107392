"""What tests of methods share, for them to import: a small corpus, and an epoch of a strategy on it."""

from typing import Any

import numpy as np
import torch

from cleanpairs import Pairs
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import EpochContext, Network, TrainingData, TrainingSettings
from tests.helpers import WORDS

SMALL: dict[str, Any] = {
    "backbone": "mlp", "dim": 32, "dim_word": 16, "batch_size": 16, "eval_group_size": 32, "lr": 5e-3, "tau": 0.1,
    "epochs": 8, "image_drop": 0.0, "text_drop": 0.1, "device": "cpu",
}  # fmt: skip


def corpus(n: int = 160, wrong: int = 40, seed: int = 0, *, names: int = 0, noise: float = 0.0) -> Pairs:
    """Captions of three words; the vector is the sum of the words' vectors. The first ``wrong`` captions are exchanged.

    ``names``: so many words of its own each caption has beside them, and as many more dimensions of ``noise`` each
    vector: by these a network learns wrong pairs by heart.
    """
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(len(WORDS), 3, replace=False) for _ in range(n)]
    told = ([*(WORDS[k] for k in row), *(f"n{i}x{m}" for m in range(names))] for i, row in enumerate(chosen))
    features = np.random.default_rng(99).normal(size=(len(WORDS), 16))[np.array(chosen)].sum(1)
    if noise:  # of the same draws: test_against_plain.py depends on them
        features = np.concatenate([features, noise * rng.normal(size=(n, 16))], axis=1)
    captions, moved = np.array([" ".join(words) for words in told]), np.random.default_rng(seed).permutation(wrong)
    captions[moved] = captions[np.roll(moved, 1)]
    return Pairs.from_arrays(captions.tolist(), features=features.astype(np.float32))


def strategy_of(method: Any, n: int, **settings: Any) -> Any:
    """What trains n pairs by a method with these settings."""
    made = method(**settings)
    made._begin()
    return made._make_strategy(range(n))


def parts(view: EpochContext, clean: np.ndarray, noisy: np.ndarray, network: int = 0) -> tuple[Any, Any]:
    """A batch of clean and noisy pairs through a network, apart."""
    f = view.forward(network, clean, noisy, seed=1)
    return f.select(f.source == 0), f.select(f.source == 1)


def view_of(strategy: Any, n: int, **settings: Any) -> EpochContext:
    """An epoch of the strategy's networks, which know nothing, on n pairs."""
    pairs, ids = corpus(n, 0), np.arange(n)
    data = TrainingData(pairs.images.array(), Tokenizer(WORDS).encode(pairs.captions), ids, ids, ids)
    torch.manual_seed(0)
    sizes = {"dim": 8, "dim_word": 4, "text_drop": 0.0, "dropout": 0.0}
    models = (MLP(len(WORDS) + 1, 16, **sizes) for _ in range(strategy.networks))
    networks = [Network(model, strategy.head(model)) for model in models]
    known = {"batch_size": 8, "eval_group_size": n, "label_rounds": 1, "bucket": 1, **settings}
    return EpochContext(data, TrainingSettings(**known), networks)


def begun(method: Any, n: int, **settings: Any) -> tuple[Any, EpochContext]:
    """What trains n pairs by a method with these settings, and an epoch of its networks."""
    strategy = strategy_of(method, n, **settings)
    return strategy, view_of(strategy, n)


def similarities(view: EpochContext, network: int = 0) -> torch.Tensor:
    """Of all images and all captions (n, n), by one of the networks."""
    encoded = view.encoded(network)
    return torch.from_numpy(encoded.images.vectors @ encoded.texts.vectors.T)


def probabilities_of_both(view: EpochContext, tau: float = 0.07) -> list[np.ndarray]:
    """Matching probabilities (n,) of all pairs among each other, by each of two networks that differ."""
    p = [matching_probability(similarities(view, k), tau).numpy() for k in range(2)]
    assert np.abs(p[0] - p[1]).max() > 0.01
    return p
