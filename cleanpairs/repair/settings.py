"""How repairs are planned: one frozen object, from the command line to the decisions."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import check_settings, choice, number, whole


@dataclass(frozen=True)
class RepairSettings:
    """What is repaired, how, and how sure one must be. ConfigError where a setting is out of its range.

    - ``threshold``: pairs at or above it are trusted and kept. That of the model when None
    - ``repairs`` {"probable", "plausible", "none"}: probable: those likelier right than wrong, surest first. The
      expected share of mismatched pairs stays within .02 of that of the kept ones. None where it cannot be judged.
      plausible: what fits best, right or near, as the strategy has it
    - ``min_confidence`` float in [0, 1]: of probable repairs, and of displaced rows, the least probability
    - ``min_repair_score`` float in [0, 1]: a repair that scores lower is not made, and the pair is dropped
    - ``candidates``: nearest parts to score, per row, direction and pool (mismatched, trusted)
    - ``take_from`` {"both", "mismatched", "trusted"}: which pairs lend their captions and images. ``max_reuse``: how many rows one may serve
    - ``targets`` {"both", "text", "image"}: what may be replaced
    - ``n_donors``: so many captions at most for each pair that gets a new one: that of its donor, and those of the
      trusted pairs most similar to its image, with weights. Of plausible repairs
    - ``mismatched_bonus``: added to the score of a mismatched donor when candidates are ranked, as a trusted caption
      has its image already (dev/LOG.md). ``image_margin``: taken off that of a replaced image
    - ``max_trusted``: only so many trusted pairs, of the highest correspondence, are searched for donors
    - ``displaced``: captions of displaced rows go back to their images by the rule, before all else. See
      :mod:`cleanpairs.repair.displaced`. Not where only images may be replaced, nor where nothing is repaired
    - ``dedup``: of near duplicates of an image only the best row is kept, and the kept pairs of the others are dropped.
      ``duplicate_bits``: of vectors without pictures, bits of 256 in which near duplicates differ at most
    - ``repeats``: in a uid list a pair stands so many times its correspondence, rounded, and once at least
    - ``strategy`` {"ot", "nearest", "half-replace", "pseudo-caption", "method"}: see :mod:`cleanpairs.repair.planning`.
      The third and fourth take from trusted pairs only. "method": the method's own, where the paper has one (REPAIR:
      half-replacing, PC2: the most similar predicted pseudo-classes, L2RM: its transport plan), else "nearest"
    """

    threshold: float | None = number(None, least=0, most=1, also=(None,))
    repairs: str = choice("probable", "plausible", "none")
    min_confidence: float = number(0.5, least=0, most=1)
    min_repair_score: float = number(0.5, least=0, most=1)
    candidates: int = whole(32, 1)
    take_from: str = choice("both", "mismatched", "trusted")
    targets: str = choice("both", "text", "image")
    n_donors: int = whole(1, 1)
    max_reuse: int = whole(1, 1)
    mismatched_bonus: float = number(0.3)
    image_margin: float = number(0.05)
    max_trusted: int = whole(100_000, 1)
    strategy: str = choice("ot", "nearest", "half-replace", "pseudo-caption", "method")
    displaced: bool = True
    dedup: bool = False
    duplicate_bits: int = whole(28, 0, most=256)
    repeats: int = whole(1, 1)

    def __post_init__(self) -> None:
        check_settings("rematch", self)
        if self.n_donors > 1 and not (self.repairs == "plausible" and self.replaces_text):
            raise ConfigError(
                "several donors (--donors) are of plausible repairs that replace captions: give --repairs plausible, "
                "and leave targets=image out"
            )

    def resolved(self, model_threshold: float) -> "RepairSettings":
        """With a threshold, and a strategy that does not depend on a method."""
        threshold = float(model_threshold if self.threshold is None else self.threshold)
        return replace(self, threshold=threshold, strategy="nearest" if self.strategy == "method" else self.strategy)

    @property
    def resolved_threshold(self) -> float:
        """The threshold that :meth:`resolved` has set."""
        assert self.threshold is not None
        return self.threshold

    @property
    def lenders(self) -> str:
        """``take_from``, as far as the strategy has a choice."""
        return "trusted" if self.strategy in ("half-replace", "pseudo-caption") else self.take_from

    @property
    def replaces_text(self) -> bool:
        """Whether captions may be replaced."""
        return self.targets != "image" or self.strategy == "pseudo-caption"

    @property
    def moves_displaced(self) -> bool:
        """Whether captions of displaced rows are moved."""
        return self.displaced and self.repairs != "none" and self.replaces_text

    @property
    def replaces_image(self) -> bool:
        """Whether images may be replaced."""
        return self.targets != "text" and self.strategy != "pseudo-caption"

    def noted(self) -> dict[str, Any]:
        """As a plan keeps them, beside the threshold and the least score."""
        known = asdict(self)
        return {name: known[name] for name in known if name not in ("threshold", "min_repair_score")}


def changed(settings: RepairSettings | None, changes: Mapping[str, Any]) -> RepairSettings:
    """``settings``, or the default ones, with ``changes`` by name. ConfigError where there is no such setting."""
    known = RepairSettings.__dataclass_fields__
    for name in changes.keys() - known.keys():
        raise ConfigError(f"rematch has no setting {name!r}: it has {', '.join(sorted(known))}")
    return replace(settings or RepairSettings(), **changes)
