"""What a person's answers about a few pairs make of the scores: probabilities, noise rate and threshold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.audit.judge import Opinions
from cleanpairs.audit.labels import refuse_quarantined
from cleanpairs.core import DataError, jsonable, percent
from cleanpairs.correspondence.calibration import Calibration, Estimate, calibrate_by_labels, positions
from cleanpairs.data.arrays import as_array


@dataclass(frozen=True, eq=False)
class Answered:
    """Scores that are calibrated by answers.

    Attributes
    ----------
    answers, wrong : int
        Pairs with an answer, and those that do not belong.

    correspondence : ndarray of float32, shape (N,)
        P(matched), NaN where quarantined. A pair with an answer has 1 or 0.

    threshold : float
        A pair below it is flagged. F1 is expected to be best there. It is 1/2 if perhaps no pair is mismatched.

    noise_rate : Estimate
        Share of mismatched pairs.

    calibration : Calibration
        What turns scores into probabilities.

    opinions : Opinions, optional
        Those of a judge, weighed by its errors.

    contradicted : bool
        Pairs that belong have surely lower scores than those that do not.
    """

    answers: int
    wrong: int
    correspondence: np.ndarray
    threshold: float
    noise_rate: Estimate
    calibration: Calibration
    opinions: Opinions | None = None
    contradicted: bool = False

    @classmethod
    def of(
        cls, scores: ArrayLike, answers: Mapping[int, bool | None], opinions: Opinions | None = None, *,
        displaced: bool = False,
    ) -> "Answered":  # fmt: skip
        """Calibrate scores by answers, and by opinions.

        Parameters
        ----------
        scores : array_like of float, shape (N,)
            NaN where quarantined.
        answers : mapping of int to bool or None
            Whether a pair is matched, by pair_id.
        opinions : Opinions, optional
            Those of a judge.
        displaced : bool
            Whether pairs with a score of 0 are of displaced rows. They keep it, unless a person has answered yes.

        Returns
        -------
        Answered
            The calibrated scores.

        Raises
        ------
        DataError
            An answer is none, or is about a pair that does not exist or is quarantined.
        """
        from scipy.stats import mannwhitneyu

        y = np.asarray(scores, dtype=np.float64).ravel()
        given = {i: answer for i, answer in answers.items() if answer is not None}
        for i, answer in given.items():
            if isinstance(answer, str) or str(answer) not in ("True", "False", "1", "0", "1.0", "0.0"):
                raise DataError(f"the answer about pair {i} is {answer!r}: True or False, or None if nobody can say")
        n, labels = len(given), given | ({} if opinions is None else opinions.labels()) | given  # a person is right
        rows, matched = as_array("pair ids", list(labels), int), np.array(list(labels.values()), dtype=bool)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(y):
            raise DataError(f"the answers name pairs from {rows.min()} to {rows.max()}, and there are {len(y)}")
        finite = np.isfinite(y)
        refuse_quarantined("", rows[~finite[rows]].tolist())
        person = np.array([0.005, 0.02, 0.06])  # shares of wrong answers, equally likely beforehand
        cases = np.zeros((1, 2)) if opinions is None else opinions.errors()
        wrong = np.tile(cases[:, None], (len(person), len(rows), 1))  # (3 m, k, 2)
        wrong[:, :n] = np.repeat(person, len(cases))[:, None, None]
        calibration = _calibrated(y, rows, matched, wrong)
        p, quantile = np.full(len(y), np.nan, dtype=np.float32), positions(y[finite], y[finite])
        p[finite] = by_score = 1 - calibration.mismatched(quantile)
        p[displaced & (y == 0)] = 0
        rate = calibration.shares(by_score, [len(by_score)])[0]  # equal scores leave quantiles that no pair has
        threshold, share = 0.5, calibration.best_share()
        if rate.low > 0 and quantile.min() <= share < quantile.max():
            flagged = quantile <= share
            threshold = float(by_score[flagged].max() / 2 + by_score[~flagged].min() / 2)
        of_matched, of_mismatched = wrong.mean(axis=0).T
        odds = np.where(matched, (1 - of_matched) / of_mismatched, of_matched / (1 - of_mismatched)) * p[rows]
        p[rows] = odds / (odds + 1 - p[rows])  # Bayes's rule
        p[rows[:n]] = matched[:n]
        by_answer = [y[rows[:n][matched[:n] == belongs]] for belongs in (True, False)]
        contradicted = min(map(len, by_answer)) > 0 and mannwhitneyu(*by_answer, alternative="less").pvalue < 0.01
        return cls(n, len(by_answer[1]), p, threshold, rate, calibration, opinions, bool(contradicted))

    def figures(self) -> dict[str, Any]:
        """Return the figures that take the place of the fit's.

        Returns
        -------
        dict
            As in run.json.
        """
        rate, scores = self.noise_rate, self.correspondence[np.isfinite(self.correspondence)]
        figures = {
            "answers": self.answers, "answered_wrong": self.wrong, "threshold": self.threshold,
            "flagged": int((scores < self.threshold).sum()), "noise_rate": rate.value,
            "noise_rate_interval": [rate.low, rate.high], "noise_rate_bound": None,
            "histogram": np.histogram(scores, bins=10, range=(0.0, 1.0))[0].tolist(),
        }  # fmt: skip
        opinions = {} if self.opinions is None else {"opinions": len(self.opinions.values)}
        return dict(jsonable(figures | opinions))

    def __str__(self) -> str:
        rate, y = self.noise_rate, self.correspondence[np.isfinite(self.correspondence)]
        promised, contradicted = [], "pairs with low scores belong, and others do not: were yes and no exchanged?"
        for most in (0.1, 0.05, 0.02):
            kept = min(self.calibration.purest(y, most), int((y > 0).sum()))
            promised.append(f"{most:g} keeps {kept:,} pairs" if kept else f"{most:g} cannot be kept")
        return "\n".join([
            f"answers         {self.answers:,}, that the caption does not belong: {self.wrong:,}",
            *([f"contradiction   {contradicted}"] if self.contradicted else []),
            *([] if self.opinions is None else [str(self.opinions)]),
            f"mismatched      {percent(rate.value)}  (95 % interval {percent(rate.low)} to {percent(rate.high)})",
            f"flagged         {int((y < self.threshold).sum()):,} of {len(y):,} pairs, below {self.threshold:.3g}",
            f"--max-wrong     {'; '.join(promised)}",
        ])  # fmt: skip


def next_questions(scores: ArrayLike, answers: Mapping[int, bool], count: int, *, seen: ArrayLike = ()) -> list[int]:
    """Return the pairs whose answers tell most next.

    Parameters
    ----------
    scores : array_like of float, shape (N,)
        NaN where quarantined.
    answers : mapping of int to bool
        Pair -> whether it is matched.
    count : int
        How many pairs.
    seen : array_like of int
        Pairs with an answer already.

    Returns
    -------
    list of int
        Fewer than ``count`` where there are no more.
    """
    y = np.asarray(scores, dtype=np.float64).ravel()
    rows, finite = np.array(list(answers), dtype=np.int64), np.isfinite(y)
    free = finite.copy()
    free[rows] = free[np.asarray(seen, dtype=np.int64)] = False
    calibration = _calibrated(y, rows, np.array(list(answers.values()), dtype=bool))
    at = np.flatnonzero(free)
    return list(at[calibration.telling(positions(y[at], y[finite]), count, seed=len(rows))].tolist())


def _calibrated(y: np.ndarray, rows: np.ndarray, matched: np.ndarray, wrong: np.ndarray | float = 0.02) -> Calibration:
    finite = np.isfinite(y)
    return calibrate_by_labels(y[finite], (np.cumsum(finite) - 1)[rows], matched, wrong)
