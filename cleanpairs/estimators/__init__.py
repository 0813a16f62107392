"""Scorers of pairs: ``PairScorer`` is what all have, ``PairCleaner`` trains, ``FrozenScorer`` trains nothing."""

from cleanpairs.estimators.cleaner import PairCleaner
from cleanpairs.estimators.frozen import FrozenScorer
from cleanpairs.estimators.scorer import Embedded, PairScorer

__all__ = ["Embedded", "FrozenScorer", "PairCleaner", "PairScorer"]
