"""cleanpairs: find the wrong pairs of an image-text corpus, repair them, and train a retrieval model all the same.

    from cleanpairs import CRCL, load_pairs

    pairs = load_pairs("data.parquet")
    model = CRCL(random_state=0).fit(pairs)
    plan = model.rematch(pairs)

Names are imported when they are first used: ``import cleanpairs`` alone loads neither torch nor pyarrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cleanpairs.data import Pairs, load_pairs
    from cleanpairs.errors import CleanpairsError
    from cleanpairs.estimators import PairCleaner
    from cleanpairs.methods.crcl import CRCL
    from cleanpairs.methods.infonce import InfoNCE
    from cleanpairs.plan import RepairPlan

__version__ = "0.1.0"

_HOME = {
    "CRCL": "cleanpairs.methods.crcl",
    "CleanpairsError": "cleanpairs.errors",
    "InfoNCE": "cleanpairs.methods.infonce",
    "PairCleaner": "cleanpairs.estimators",
    "Pairs": "cleanpairs.data",
    "RepairPlan": "cleanpairs.plan",
    "load_pairs": "cleanpairs.data",
}

__all__ = [
    "CRCL",
    "CleanpairsError",
    "InfoNCE",
    "PairCleaner",
    "Pairs",
    "RepairPlan",
    "__version__",
    "load_pairs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cleanpairs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
