"""Scorers of pairs: ``PairScorer`` is what all have, ``PairCleaner`` trains, ``FrozenScorer`` trains nothing.

They are imported when they are first used. They need torch, which some modules here do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cleanpairs.estimators.cleaner import PairCleaner
    from cleanpairs.estimators.embedded import Embedded
    from cleanpairs.estimators.frozen import FrozenScorer
    from cleanpairs.estimators.scorer import PairScorer

__all__ = ["Embedded", "FrozenScorer", "PairCleaner", "PairScorer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = {"Embedded": "embedded", "FrozenScorer": "frozen", "PairCleaner": "cleaner", "PairScorer": "scorer"}
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
