"""Ridge regressions between frozen spaces, in closed form: captions from images, and images from captions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core.torch_state import seeded
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.tokenizer import PackedTokens, TokenTable
from cleanpairs.encoders.towers import Standardised, l2_normalise, summed
from cleanpairs.ops.matching import token_counts

PENALTY = 0.3  # in units of the mean variance of the inputs


class _Projected(Standardised):
    """Vectors (B, D), standardised, in fixed directions: unit vectors (B, d)."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.add_moments(dim_in)
        self.directions = nn.Linear(dim_in, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return l2_normalise(self.directions(l2_normalise(self.standardised(x))))

    @torch.no_grad()
    def fit(self, x: np.ndarray, rows: np.ndarray, seed: int, sample: int = 16_384) -> np.ndarray:
        """Fit the principal directions of vectors (M, D), or of means of regions (M, R, D). Return projections (n, d).

        ``rows`` (n,) int64 of them count. About ``sample`` of these, at even distances, give the directions.
        """
        sampled = torch.cat(list(_vectors(x, rows[:: len(rows) // sample + 1])))
        self.fit_input(sampled.mean(dim=0), sampled.std(dim=0, correction=0))
        units = l2_normalise(self.standardised(sampled)).numpy()
        self.directions.weight.copy_(torch.from_numpy(_directions(units, self.directions.out_features, seed)))
        return torch.cat([self(block) for block in _vectors(x, rows)]).numpy()


def _vectors(x: np.ndarray, rows: np.ndarray, at_once: int = 1024) -> Iterator[Tensor]:
    """Blocks (b, D) float32 of rows (n,) of vectors (M, D), or of the means of regions (M, R, D)."""
    for at in range(0, len(rows), at_once):
        block = torch.from_numpy(np.array(x[rows[at : at + at_once]], np.float32))
        yield block if block.ndim == 2 else block.mean(dim=1)


class Linear(DualEncoder):
    """Ridge regression of captions on images, and of images on captions. A state holds the prediction and the
    vector that the other prediction is compared with. So the dot product of two states is the mean cosine of both.

    An image is its mean region. A caption its words, by their rarity, the vector of a frozen encoder, or both side by
    side. The sizes of the inputs may be 0. ``dims``: directions of the images, the words and the vectors.
    """

    registered = "linear"
    mean_image: Tensor
    mean_text: Tensor

    def __init__(self, dim_image: int, vocabulary: int, dim_sentence: int, dims: Sequence[int]) -> None:
        super().__init__()
        self.config = {
            "name": self.registered, "dim_image": dim_image, "vocabulary": vocabulary, "dim_sentence": dim_sentence,
            "dims": list(dims),
        }  # fmt: skip
        d, words, sentence = dims
        e = words + sentence
        self.dim = d + e
        self.image = _Projected(dim_image, d)
        self.words = nn.Embedding(vocabulary, words) if words else None  # each by its rarity, in the directions
        self.sentence = _Projected(dim_sentence, sentence) if sentence else None
        self.to_text, self.to_image = nn.Linear(d, e), nn.Linear(e, d)
        self.register_buffer("mean_image", torch.zeros(d))
        self.register_buffer("mean_text", torch.zeros(e))
        self.requires_grad_(False)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Unit vectors (B, E) of regions (B, R, D)."""
        x = self.image(images.mean(dim=1))
        return _side_by_side(self.to_text(x), x - self.mean_image)

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        parts = []
        if self.words is not None:
            parts.append(l2_normalise(summed(self.words(tokens.ids), tokens)))
        if self.sentence is not None:
            parts.append(self.sentence(tokens.ids if tokens.sentences is None else tokens.sentences))
        t = l2_normalise(torch.cat(parts, dim=1))
        return _side_by_side(t - self.mean_text, self.to_image(t))

    @classmethod
    def fit(
        cls,
        images: np.ndarray,
        tokens: TokenTable,
        image_index: np.ndarray,
        weight: np.ndarray,
        *,
        vocabulary: int = 0,
        seed: int = 0,
        most_directions: int = 256,
    ) -> "Linear":
        """Fit to N pairs.

        These have ``images`` (M, R, D) float regions, and ``tokens`` of N captions in numbers below ``vocabulary``.
        Each caption has an ``image_index`` (N,) int64, and each pair a ``weight`` (N,) >= 0. At most
        ``most_directions`` principal directions of each space are taken.
        """
        frozen, (shown, place) = tokens.frozen(), np.unique(image_index, return_inverse=True)
        counts = None if tokens.vectors is not None else token_counts(tokens.ids, tokens.offsets, vocabulary)
        shapes = [(len(shown), images.shape[-1]), *(None if x is None else x.shape for x in (counts, frozen))]
        dims = [0 if s is None else max(1, min(most_directions, s[0] - 1, s[-1] - 1)) for s in shapes]
        with seeded(0):  # the drawn weights are replaced
            model = cls(images.shape[-1], vocabulary, 0 if frozen is None else frozen.shape[1], dims)
        x = model.image.fit(images, shown, seed)[place]
        parts = []
        if model.words is not None:
            parts.append(_fit_words(model.words, counts, seed))
        if model.sentence is not None and frozen is not None:
            parts.append(model.sentence.fit(frozen, np.arange(len(frozen)), seed))
        t = l2_normalise(torch.from_numpy(np.concatenate(parts, axis=1))).numpy()
        _fit_ridge(model.to_text, model.mean_text, x, t, weight)
        _fit_ridge(model.to_image, model.mean_image, t, x, weight)
        return model.eval()


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([l2_normalise(a), l2_normalise(b)], dim=1) / 2**0.5


def _directions(x: Any, k: int, seed: int) -> np.ndarray:
    """The first ``k`` right singular vectors (k, D) of rows (n, D), dense or sparse."""
    from sklearn.utils.extmath import randomized_svd

    return np.asarray(randomized_svd(x, k, n_iter=5, flip_sign=False, random_state=seed)[2])


@torch.no_grad()
def _fit_words(layer: nn.Embedding, counts: Any, seed: int) -> np.ndarray:
    """Fix ``layer`` to the words' part in the principal directions of tf-idf. Return projections (N, d)."""
    from sklearn.feature_extraction.text import TfidfTransformer

    rarity = TfidfTransformer().fit(counts)
    directions = _directions(rarity.transform(counts), layer.embedding_dim, seed)
    weight = (rarity.idf_[:, None] * directions.T).astype(np.float32)
    layer.weight.copy_(torch.from_numpy(weight))
    return l2_normalise(torch.from_numpy(counts @ weight)).numpy()


@torch.no_grad()
def _fit_ridge(layer: nn.Linear, mean: Tensor, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
    """Fix ``layer`` to the regression of ``y`` (N, e), less its ``mean``, on ``x`` (N, d), weighted."""
    from sklearn.linear_model import Ridge

    variance = np.average((x - np.average(x, axis=0, weights=weight)) ** 2, axis=0, weights=weight).mean()
    ridge = Ridge(PENALTY * float(variance) * float(weight.sum())).fit(x, y, sample_weight=weight)
    middle = np.average(y, axis=0, weights=weight)
    mean.copy_(torch.from_numpy(middle))
    layer.weight.copy_(torch.from_numpy(ridge.coef_))
    layer.bias.copy_(torch.from_numpy(ridge.intercept_ - middle))
