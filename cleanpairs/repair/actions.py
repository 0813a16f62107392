"""What a plan does with a pair, and which pairs of a table it does that with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.ops.columns import one_array

__all__ = ["ACTIONS", "COUNTED", "KINDS", "NEW_CAPTION", "REASONS", "REMATCHED", "REPAIRED", "WRITTEN", "acted"]

ACTIONS = ("keep", "rematch_text", "rematch_image", "recaption", "drop", "quarantine")
COUNTED = {  # the name of their count -> the action
    "kept": "keep",
    "rematched_text": "rematch_text",
    "rematched_image": "rematch_image",
    "recaptioned": "recaption",
    "dropped": "drop",
    "quarantined": "quarantine",
}
REMATCHED = ("rematch_text", "rematch_image")  # with a part of another pair
NEW_CAPTION = ("rematch_text", "recaption")
REPAIRED = (*REMATCHED, "recaption")
WRITTEN = ("keep", *REPAIRED)  # to the cleaned data

# Why a mismatched pair is dropped, by number; number 3 is for one that has good candidates, all of them taken.
REASONS = (
    "no candidate",
    "no candidate reaches the lowest repair score",
    "no candidate beats the present partner",
    "its candidates serve better repairs",
    "no candidate is likelier right than the least confidence",
    "its repair would make the kept pairs dirtier",
    "undetermined: no repair can be judged here (--repairs plausible makes those that fit best)",
    "no repairs were asked for",
)
# What lends its part to a repair, by number.
KINDS = ("trusted image", "mismatched image", "pseudo-caption of a trusted pair", "mismatched caption")


def acted(table: pa.Table, actions: Sequence[str]) -> np.ndarray:
    """Which pairs of a plan, or a ledger, have one of these actions: (n,) bool."""
    found = pc.is_in(one_array(table["action"]), pa.array(list(actions), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)
