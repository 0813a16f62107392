"""cleanpairs: find the wrong pairs of an image-text corpus, repair them, and train a retrieval model all the same.

    from cleanpairs import CRCL, load_pairs

    pairs = load_pairs("data.parquet")
    model = CRCL(random_state=0).fit(pairs)
    plan = model.rematch(pairs)

Names are imported when they are first used: ``import cleanpairs`` alone loads neither torch nor pyarrow.
"""

import sys

if sys.argv[:1] == ["-m"] and any(arg.endswith("cleanpairs") for arg in sys.orig_argv) and not sys.flags.safe_path:
    # `python -m cleanpairs`: Python has put the working directory first, where a stranger's data may lie, and his
    # json.py beside it. Where the package itself is imported from there, it stays, as the last.
    _working_directory = sys.path.pop(0)
    sys.path += [_working_directory] if __path__[0] == f"{_working_directory}/cleanpairs" else []

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cleanpairs.core.errors import CleanpairsError
    from cleanpairs.data import Pairs, load_pairs
    from cleanpairs.estimators import PairCleaner, PairScorer
    from cleanpairs.methods.auto import Auto
    from cleanpairs.methods.bicro import BiCro
    from cleanpairs.methods.clip_score import ClipScore
    from cleanpairs.methods.crcl import CRCL
    from cleanpairs.methods.cream import CREAM
    from cleanpairs.methods.decl import DECL
    from cleanpairs.methods.gsc import GSC
    from cleanpairs.methods.in2r import IN2R
    from cleanpairs.methods.l2rm import L2RM
    from cleanpairs.methods.lemon import LEMoN
    from cleanpairs.methods.mscn import MSCN
    from cleanpairs.methods.ncr import NCR
    from cleanpairs.methods.npc import NPC
    from cleanpairs.methods.pc2 import PC2
    from cleanpairs.methods.plain import InfoNCE, Triplet
    from cleanpairs.methods.rcl import RCL
    from cleanpairs.methods.repair import REPAIR
    from cleanpairs.repair.plan import RepairPlan

__version__ = "0.1.0"

_METHODS = "Auto BiCro CRCL CREAM DECL GSC IN2R L2RM LEMoN MSCN NCR NPC PC2 RCL REPAIR".split()
_HOME = {
    **{name: f"cleanpairs.methods.{name.lower()}" for name in _METHODS},
    "ClipScore": "cleanpairs.methods.clip_score",
    **dict.fromkeys(["InfoNCE", "Triplet"], "cleanpairs.methods.plain"),
    **dict.fromkeys(["PairCleaner", "PairScorer"], "cleanpairs.estimators"),
    **dict.fromkeys(["Pairs", "load_pairs"], "cleanpairs.data"),
    "RepairPlan": "cleanpairs.repair.plan",
    "CleanpairsError": "cleanpairs.core.errors",
}

__all__ = [
    "CRCL", "CREAM", "DECL", "GSC", "IN2R", "L2RM", "MSCN", "NCR", "NPC", "PC2", "RCL", "REPAIR", "Auto", "BiCro",
    "CleanpairsError", "ClipScore", "InfoNCE", "LEMoN", "PairCleaner", "PairScorer", "Pairs", "RepairPlan", "Triplet",
    "__version__", "load_pairs",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cleanpairs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
