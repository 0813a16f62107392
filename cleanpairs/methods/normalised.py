"""A similarity as a probability: normalised against a background, and calibrated by pairs known to be wrong."""

from dataclasses import dataclass, fields

import numpy as np
from scipy.special import expit

from cleanpairs.correspondence.calibration import ORDER, calibrate, positions
from cleanpairs.correspondence.similarity import LEAST_PAIRS, null_pairs, one_space, scores_and_null
from cleanpairs.ops.normalised_similarity import Background, cosines

KINDS = {"background": "softmax", "csls": "csls", "none": ""}  # of the method -> of the operation
STORED = 4096  # pairs with which those that are scored later are compared
KNOTS = 2001


@dataclass(frozen=True)
class Probability:
    """P(matched) of a score: log odds ``logits`` (k,) at rising scores ``knots`` (k,), linear between and beyond."""

    noise_rate: float
    knots: np.ndarray
    logits: np.ndarray

    @classmethod
    def of(cls, observed: np.ndarray, null: np.ndarray, rate: float | None = None) -> "Probability | None":
        """By N observed and K null scores, and the noise rate where it is known; None where they are too few."""
        found = (
            calibrate(observed, null, by_score=True, draws=0) if min(len(observed), len(null)) >= LEAST_PAIRS else None
        )
        if found is None:
            return None
        found = found if rate is None else found.shifted(rate)
        knots = np.unique(np.quantile(np.concatenate([observed, null]), np.linspace(0, 1, KNOTS)))
        wrong = found.mismatched(positions(knots, observed))
        logits = np.log((1 - wrong) / wrong) + ORDER * np.linspace(-0.5, 0.5, len(knots))
        return cls(found.rate, knots, logits)

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """(n,) float64 in (0, 1), rising with the score (n,)."""
        width = max(float(self.knots[-1] - self.knots[0]), 1e-12)
        near = np.clip(score, self.knots[0], self.knots[-1])
        beyond = np.clip((score - near) / width, -1, 1)
        return np.asarray(expit(np.interp(near, self.knots, self.logits) + ORDER * beyond))

    def threshold(self) -> float:
        """The score below which a pair is more likely wrong; -inf where none is."""
        above_all = np.nextafter(self.knots[-1], np.inf)
        return float(np.interp(0, self.logits, self.knots, left=-np.inf, right=above_all))


@dataclass(frozen=True)
class NormalisedScore:
    """Scores pairs of unit vectors; see :mod:`cleanpairs.ops.normalised_similarity`.

    ``kind``: a name of :data:`KINDS`; ``background``: up to :data:`STORED` pairs; ``calibration``: what the scores
    against it mean, None where there were too few pairs to tell; ``fitted``: what those of the pairs that it was made
    of mean, which were compared with all of them.
    """

    kind: str
    tau: float
    background: Background
    calibration: Probability | None
    fitted: Probability | None = None

    @classmethod
    def of(cls, pairs: Background, kind: str, tau: float, seed: int = 0) -> "tuple[NormalisedScore, np.ndarray]":
        """By N pairs, and the correspondence (N,) float32 of these."""
        observed, null = _scores(pairs, kind, tau, seed)
        calibration = later = Probability.of(observed, null) if one_space(observed, null) else None
        stored = pairs.take(np.sort(np.random.default_rng(seed).permutation(len(pairs))[:STORED]))
        if kind != "none" and len(stored) < len(pairs) and calibration is not None:
            later = Probability.of(*_scores(pairs, kind, tau, seed, stored), calibration.noise_rate)
        score = cls(kind, tau, stored if kind != "none" else stored.take(np.arange(0)), later, calibration)
        return score, score._correspondence(observed, calibration)

    def __call__(self, pairs: Background) -> np.ndarray:
        """Correspondence (n,) float32 in [0, 1] of n pairs."""
        if self.kind == "none":
            return self._correspondence(cosines(pairs.images, pairs.texts), None)
        score = self.background.scores(pairs, kind=KINDS[self.kind], tau=self.tau)
        return self._correspondence(score, self.calibration)

    def _correspondence(self, score: np.ndarray, calibration: Probability | None) -> np.ndarray:
        """Of cosines half of 1 + cosine; else the probability, or where that is unknown the mean matching probability
        ("background"), or half of 1 + score ("csls").
        """
        if self.kind != "none" and calibration is not None:
            found = calibration(score)
        else:
            found = np.exp(score / self.tau) if self.kind == "background" else np.clip((1 + score) / 2, 0, 1)
        return np.asarray(found, np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """What :meth:`from_arrays` makes the same of, but for ``fitted``; by name, each contiguous."""
        found = {f"background.{name}": np.ascontiguousarray(array) for name, array in vars(self.background).items()}
        found["background.tau"] = np.array([self.tau])
        if self.calibration is not None:
            found |= {f"calibration.{name}": np.atleast_1d(value) for name, value in vars(self.calibration).items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], kind: str) -> "NormalisedScore":
        """Of what :meth:`arrays` gave, and maybe more."""
        background = Background(*(arrays[f"background.{field.name}"] for field in fields(Background)))
        calibration = None
        if "calibration.knots" in arrays:
            rate, knots, logits = (arrays[f"calibration.{field.name}"] for field in fields(Probability))
            calibration = Probability(float(rate[0]), knots, logits)
        return cls(kind, float(arrays["background.tau"][0]), background, calibration)

    def threshold(self) -> float:
        """The correspondence below which a pair is more likely wrong; 0 where that is unknown, or none is."""
        if self.fitted is None:
            return 0.0
        return 0.5 if self.kind != "none" else float(np.clip((1 + self.fitted.threshold()) / 2, 0, 1))


def _scores(
    pairs: Background, kind: str, tau: float, seed: int, background: Background | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores (N,) of the pairs among themselves, and of null pairs (K,).

    Against a ``background`` some of both, as of pairs of which it holds nothing.
    """
    if background is None:
        return scores_and_null(pairs, KINDS[kind], tau, seed)
    image, text = null_pairs(pairs.image_group, pairs.text_group, seed)
    rng = np.random.default_rng(seed)
    some, also = rng.permutation(len(pairs))[: len(background)], rng.permutation(len(image))[: 2 * len(background)]
    i, t = image[also], text[also]
    mixed = Background(pairs.images[i], pairs.texts[t], pairs.image_group[i], pairs.text_group[t])
    observed, null = (background.scores(x, kind=KINDS[kind], tau=tau) for x in (pairs.take(some), mixed))
    return observed, null
