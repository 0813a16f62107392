"""Pictures, and plans of pairs whose actions and donors are given."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from cleanpairs import Pairs, RepairPlan
from tests import helpers


def png(i: int) -> bytes:
    return helpers.picture(i, size=(60, 40))


def plan_of(
    pairs: Pairs, y: np.ndarray, action: list[str], donors: dict[int, int], confidence: float | None = None
) -> RepairPlan:
    """Captions are those of the donors; repairs have scores from .9 downwards."""
    own = [caption.encode("utf-8", "replace").decode() for caption in pairs.captions]
    columns = {
        "correspondence": pa.array(y, pa.float32(), from_pandas=True),
        "repair_score": [0.9 - i / 1e4 if i in donors else None for i in range(len(y))],
        "confidence": [confidence if i in donors else None for i in range(len(y))],
        "reason": ["path/of/" + "x" * 60 if a in ("drop", "quarantine") else None for a in action],
    }
    shown = replace(pairs, captions=own, reasons={})
    plan = helpers.plan_of(shown, action, [donors.get(i) for i in range(len(y))], threshold=0.5, **columns)
    return replace(plan, fingerprint="")
