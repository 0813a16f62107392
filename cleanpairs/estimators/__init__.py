"""PairCleaner: an estimator that learns which pairs belong together, scores any pair, and plans repairs."""

from cleanpairs.estimators.cleaner import PairCleaner
from cleanpairs.estimators.shared import SharedParameters

__all__ = ["PairCleaner", "SharedParameters"]
