"""Pictures, and plans of pairs whose actions and donors are given."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image

from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan


def png(i: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40), (6 * i % 256, (200 - 4 * i) % 256, 120)).save(buffer, format="PNG")
    return buffer.getvalue()


def plan_of(
    pairs: Pairs, y: np.ndarray, action: list[str], donors: dict[int, int], confidence: float | None = None
) -> RepairPlan:
    """Captions are those of the donors; repairs have scores from .9 downwards."""
    own = [caption.encode("utf-8", "replace").decode() for caption in pairs.captions]
    columns = {
        "pair_id": range(len(pairs)),
        "key": pairs.keys,
        "action": action,
        "correspondence": pa.array(y, pa.float32(), from_pandas=True),
        "donor_pair_id": [donors.get(i) for i in range(len(pairs))],
        "donor_key": [pairs.keys[donors[i]] if i in donors else None for i in range(len(pairs))],
        "caption": [
            None if a in ("drop", "quarantine") else own[donors[i] if a == "rematch_text" else i]
            for i, a in enumerate(action)
        ],
        "original_caption": own,
        "repair_score": [0.9 - i / 1e4 if i in donors else None for i in range(len(pairs))],
        "confidence": [confidence if i in donors else None for i in range(len(pairs))],
        "reason": ["it fits nowhere" if a in ("drop", "quarantine") else None for a in action],
    }
    nothing = [None] * len(pairs)
    table = pa.table({name: columns.get(name, nothing) for name in PLAN_SCHEMA.names}, schema=PLAN_SCHEMA)
    return RepairPlan(table, 0.5, 0.5)
