"""What a plan does with a pair, and which pairs of a table it does that with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import plural
from cleanpairs.ops.columns import one_array

ACTIONS = ("keep", "rematch_text", "rematch_image", "recaption", "drop", "quarantine")
COUNTED = {  # the name of their count -> the action
    "kept": "keep",
    "rematched_text": "rematch_text",
    "rematched_image": "rematch_image",
    "recaptioned": "recaption",
    "dropped": "drop",
    "quarantined": "quarantine",
}


@dataclass(frozen=True)
class ActionCounts:
    """How many pairs each action is done with. Those of :data:`COUNTED` add up to ``pairs``."""

    pairs: int
    kept: int
    rematched_text: int
    rematched_image: int
    recaptioned: int
    dropped: int
    quarantined: int

    @property
    def repaired(self) -> int:
        """Pairs with another caption or another image."""
        return self.rematched_text + self.rematched_image + self.recaptioned


REMATCHED = ("rematch_text", "rematch_image")  # with a part of another pair
NEW_CAPTION = ("rematch_text", "recaption")
REPAIRED = (*REMATCHED, "recaption")
WRITTEN = ("keep", *REPAIRED)  # to the cleaned data

# Why a mismatched pair is dropped, by number. Number 3 is for one that has good candidates, all of them taken.
REASONS = (
    "no candidate",
    "no candidate reaches the lowest repair score",
    "no candidate scores higher than the present partner",
    "better repairs use its candidates",
    "its best candidate is too likely to be wrong",
    "its most probable candidate does not score highest",
    "the caption of its repair is nearly that of several other pairs",
    "its repair would raise the share of mismatched pairs",
    "undetermined: these scores do not show how likely a repair is right",
    "it is flagged, and no repairs were asked for",
    "it is flagged, and a list of uids cannot hold a repair",
    "its image is a near duplicate of that of a better pair",
)
# Numbers of `REASONS`.
UNSURE, RIVALLED, COPIED, DIRTIER, UNDETERMINED, NOT_ASKED, NOT_IN_UIDS, DUPLICATE = range(4, 12)
# What lends its part to a repair, by number.
KINDS = ("trusted image", "mismatched image", "pseudo-caption of a trusted pair", "mismatched caption")

DISPLACED = "displaced: "  # begins the reason of a pair whose caption the rule of displaced rows moved
CAPTIONED = "captioned by "  # and of one for which this model wrote a caption


def why_none_is_repaired(reasons: Mapping[str, int], *, listed: bool = False, uids: bool = False) -> str:
    """A sentence about a plan that drops pairs for ``reasons`` and repairs none. Nothing where no repair was wanted.

    ``listed``: the reader has seen the reasons. ``uids``: it goes to a list of uids, which holds no repair.
    """
    reasons = {reason: n for reason, n in reasons.items() if reason != REASONS[DUPLICATE]}
    if not reasons or set(reasons) == {REASONS[NOT_ASKED]}:
        return ""
    given = ". Reasons: " + ", ".join(f"{reason} ({plural(n, 'pair')})" for reason, n in reasons.items())
    could = ". --repairs plausible (repairs='plausible') takes the best candidate of each pair, right or near"
    helps = not uids and not reasons.keys().isdisjoint(REASONS[UNSURE:NOT_ASKED])
    return "nothing is repaired" + given * (not listed) + could * helps


def count_actions(actions: Counter[str]) -> dict[str, int]:
    """Return how many pairs became what, by the names of :data:`COUNTED`."""
    return {name: actions[action] for name, action in COUNTED.items()}


def acted(table: pa.Table, actions: Sequence[str]) -> np.ndarray:
    """Return which pairs (n,) of a plan, or a ledger, have one of these actions."""
    found = pc.is_in(one_array(table["action"]), pa.array(list(actions), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)
