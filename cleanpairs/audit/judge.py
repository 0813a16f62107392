"""A second opinion of a model about pairs in doubt: labels with errors, which are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from cleanpairs.core import DataError, RefusedError, percent, read_json, reading
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.recaption import decoded_images


class Judge(Protocol):
    """Such as a ``CrossEncoder`` of sentence-transformers, or :class:`cleanpairs.repair.chat.ChatJudge`."""

    def predict(self, inputs: Sequence[tuple[Image.Image, str]]) -> Any:
        """Return how well images and captions fit (n,), on any scale. NaN where it cannot say."""


@dataclass(frozen=True, eq=False)
class Opinions:
    """The values that a judge gives some pairs, and how often it is wrong.

    Attributes
    ----------
    values : dict of int to float
        Pair -> what the judge gives.
    cut : float
        From this value on, the judge takes a pair as matched.
    wrong_matched, wrong_mismatched : float
        How often it is wrong about matched pairs, and about mismatched ones.
    known_matched, known_mismatched : int
        How many pairs these errors are measured on.
    """

    values: dict[int, float]
    cut: float
    wrong_matched: float
    wrong_mismatched: float
    known_matched: int
    known_mismatched: int

    def labels(self) -> dict[int, bool]:
        """Return pair -> whether the judge takes it as matched."""
        return {pair: value >= self.cut for pair, value in self.values.items()}

    def in_words(self) -> dict[int, str]:
        """Return pair -> a sentence."""
        words = {True: "it belongs", False: "it does not belong"}
        return {pair: f"{self.values[pair]:.3g}: {words[matched]}" for pair, matched in self.labels().items()}

    def errors(self, cases: int = 8) -> np.ndarray:
        """Pairs of errors (m, 2) that are as likely as the pairs on which they are measured make them."""
        from scipy.stats import beta

        rng, middle = np.random.default_rng(0), (np.arange(cases) + 0.5) / cases
        of = ((self.wrong_matched, self.known_matched), (self.wrong_mismatched, self.known_mismatched))
        drawn = [beta.ppf(rng.permutation(middle), e * (n + 1), (1 - e) * (n + 1)) for e, n in of]
        return np.clip(np.stack(drawn, axis=1), 1e-3, 0.499)

    @classmethod
    def read(cls, path: Path) -> "Opinions":
        """Read the fields, in JSON. Raises DataError: it holds something else."""
        with reading(path, "read as opinions of a judge", ValueError, TypeError, KeyError, AttributeError):
            content = read_json(path)
            values = {int(pair): float(value) for pair, value in content.pop("values").items()}
            opinions = cls(values, **content)
            errors = opinions.wrong_matched, opinions.wrong_mismatched
            known = min(opinions.known_matched, opinions.known_mismatched)
            if not (min(errors) > 0 and sum(errors) < 1 and known >= 0 and np.isfinite(opinions.cut)):
                raise ValueError("its errors are no shares, or its counts no numbers")
            return opinions

    def __str__(self) -> str:
        return (
            f"second opinions {len(self.values):,}, wrong about {percent(self.wrong_matched, 0)} of matched pairs "
            f"(measured on {self.known_matched:,}) and {percent(self.wrong_mismatched, 0)} of mismatched ones (on "
            f"{self.known_mismatched:,})"
        )


def second_opinions(
    pairs: Pairs,
    scores: ArrayLike,
    judge: Judge,
    *,
    threshold: float,
    answers: Mapping[int, bool] | None = None,
    count: int = 200,
    seed: int = 0,
) -> Opinions:
    """Ask a judge about the pairs in doubt, and measure how often it is wrong.

    Parameters
    ----------
    pairs : Pairs
        N pairs.
    scores : array_like of float, shape (N,)
        NaN where quarantined.
    judge : Judge
        The model.
    threshold : float
        Half of the pairs have scores next to it. The others are spread over all scores.
    answers : mapping of int to bool, optional
        Pair -> whether a person says that it is matched. The errors are measured on a kind with ten answers or more.
    count : int
        How many pairs. A kind with fewer answers gets a quarter as many planted pairs. Planted mismatched pairs are
        random images with random captions. Planted matched pairs are those with the highest scores.
    seed : int
        Seed of what is planted.

    Returns
    -------
    Opinions

    Raises
    ------
    ConfigError
        The data has vectors only.
    DataError
        The judge gives no number for a pair.
    RefusedError
        The judge cannot tell matched pairs from mismatched ones.

    Notes
    -----
    Planted pairs are easier than those in doubt, so a judge may be wrong more often than is measured on them.
    """
    y, given = np.asarray(scores, np.float64), dict(answers or {})
    rng, ranked = np.random.default_rng(seed), np.argsort(y, kind="stable")[: int(np.isfinite(y).sum())]
    ranked = ranked[[pairs.captions[i] is not None for i in ranked.tolist()]]
    free = ranked[~np.isin(ranked, list(given))]
    near = np.abs(np.arange(len(free)) - np.searchsorted(y[free], threshold)).argsort(kind="stable")[: count // 2]
    rest = np.delete(free, near)
    spread = np.linspace(0, len(rest) - 1, min(count - len(near), len(rest))).round().astype(int)
    chosen = np.sort(np.concatenate([free[near], rest[spread]])).tolist()
    controls = _control_pairs(pairs, ranked, given, max(count // 4, 20), rng)
    images, texts = np.array([*((i, i) for i in chosen), *((i, j) for i, j, _ in controls)], np.int64).reshape(-1, 2).T
    value = _predicted(judge, pairs, images, [pairs.captions[j] or "" for j in texts])
    opinions = {i: float(v) for i, v in zip(chosen, value.tolist(), strict=False) if np.isfinite(v)}
    return _measured(opinions, value[len(chosen) :], np.array([matched for *_, matched in controls], bool))


def _control_pairs(
    pairs: Pairs, ranked: np.ndarray, given: Mapping[int, bool], planted: int, rng: np.random.Generator
) -> list[tuple[int, int, bool]]:
    """Return image, caption, and whether they match, by people, and planted ones of a kind with few answers."""
    controls = [(i, i, matched) for i, matched in given.items() if pairs.captions[i] is not None]
    if sum(matched for *_, matched in controls) < 10:
        sure = ranked[-max(len(ranked) // 5, planted) :]
        controls += [(i, i, True) for i in rng.permutation(np.setdiff1d(sure, list(given)))[:planted].tolist()]
    if sum(not matched for *_, matched in controls) < 10:
        rows, group = rng.choice(ranked, (2, 4 * planted)), pairs.pair_image_group
        other = (group[rows[0]] != group[rows[1]]) & (pairs.text_group[rows[0]] != pairs.text_group[rows[1]])
        controls += [(i, j, False) for i, j in rows[:, other].T[:planted].tolist()]
    return controls


def _measured(measured: dict[int, float], value: np.ndarray, truth: np.ndarray) -> Opinions:
    """Return opinions with the cut that separates known pairs (k,) best by their ``value``, and its errors."""
    usable = np.isfinite(value)
    truth, own = truth[usable], value[usable]
    cuts = np.unique(own)
    matched = own >= cuts[:, None]  # (cuts, known)
    wrong = [((matched != truth) & some).sum(axis=1) + 0.5 for some in (truth, ~truth)]
    total = [int(some.sum()) for some in (truth, ~truth)]
    errors = np.array([w / (t + 1) for w, t in zip(wrong, total, strict=True)]).reshape(2, -1)
    if not len(cuts) or (best := errors.sum(axis=0)).min() > 0.8:
        raise RefusedError("the judge cannot tell matched pairs from mismatched ones: its opinions say nothing")
    at = int(best.argmin())
    return Opinions(measured, float(cuts[at]), float(errors[0, at]), float(errors[1, at]), *total)


def _predicted(judge: Judge, pairs: Pairs, rows: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return the judge's values (n,) of the images of rows (n,) with texts. NaN where an image cannot be read."""
    value = np.full(len(rows), np.nan)
    for places, images in decoded_images(pairs, rows):
        predicted = judge.predict([(image, texts[i]) for i, image in zip(places.tolist(), images, strict=True)])
        predicted = np.asarray(predicted, np.float64)
        if predicted.shape != (len(places),):
            raise DataError(f"the judge must give a number for each of {len(places)} pairs, and gave {predicted.shape}")
        value[places] = predicted
    return value
