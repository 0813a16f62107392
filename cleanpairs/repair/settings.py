"""How repairs are planned: one frozen object, from the command line to the decisions."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from cleanpairs.core import ConfigError
from cleanpairs.core.parameters import check_settings, choice, number, refuse_unknown, whole


@dataclass(frozen=True)
class RepairSettings:
    """What is repaired, how, and how sure one must be.

    Parameters
    ----------
    threshold : float in [0, 1], optional
        Pairs at or above it are trusted and kept. None: that of the model.

    repairs : {"probable", "plausible", "none"}
        With "probable", repairs are made that are likelier right than wrong, surest first. The expected share of
        mismatched pairs stays within .02 of that of the kept ones. Where this cannot be judged, nothing is repaired.
        With "plausible", what fits best is taken, right or near, as the strategy has it.

    min_confidence : float in [0, 1]
        Least probability of a probable repair and, above 2/3, of displaced rows.

    min_repair_score : float in [0, 1]
        A repair that scores lower is not made, and the pair is dropped.

    candidates : int
        Nearest captions or images to score, per row, direction and pool (mismatched, trusted).

    take_from : {"both", "mismatched", "trusted"}
        Which pairs lend their captions and images.

    targets : {"both", "text", "image"}
        What may be replaced.

    n_donors : int
        Most captions for a pair that gets a new one: that of its donor, and those of the trusted pairs most similar
        to its image. Each has a weight. Only for plausible repairs.

    max_reuse : int
        How many rows one caption or image may serve.

    mismatched_bonus : float
        Added to the score of a mismatched donor when candidates are ranked. A trusted caption has its image already.

    image_margin : float
        Taken off the score of a replaced image when candidates are ranked.

    max_trusted : int
        So many trusted pairs, those of the highest correspondence, are searched for donors.

    strategy : {"ot", "nearest", "half-replace", "pseudo-caption", "method"}
        See :mod:`cleanpairs.repair.planning`. The third and the fourth take from trusted pairs only. With "method", a
        method takes its own way. That is half-replacing for REPAIR, the most similar predicted pseudo-classes for PC2,
        and the transport plan for L2RM. For other methods it is "nearest".

    displaced : bool
        Captions of displaced rows go back to their images by the rule, before all else
        (:mod:`cleanpairs.repair.displaced`). This needs repairs, and captions that may be replaced.

    dedup : bool
        Keep only the best row of an image's near duplicates, and drop the others. A kept pair is better than a repair.

    duplicate_bits : int
        Vectors without images are near duplicates when they differ in at most so many bits of 256.

    repeats : int
        In a list of uids a pair stands so many times its correspondence, rounded, but at least once.

    Raises
    ------
    ConfigError
        A setting is out of its range.
    """

    streamed_from: ClassVar[int] = 250_000  # rows that are planned in a stream, where they can be
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
        """Return settings with a threshold, and a strategy that does not depend on a method.

        Parameters
        ----------
        model_threshold : float in [0, 1]
            That of the fit. It is used where the settings have none.

        Returns
        -------
        RepairSettings
            The same otherwise.
        """
        threshold = float(model_threshold if self.threshold is None else self.threshold)
        return replace(self, threshold=threshold, strategy="nearest" if self.strategy == "method" else self.strategy)

    @property
    def resolved_threshold(self) -> float:
        """The threshold that :meth:`resolved` has set."""
        assert self.threshold is not None
        return self.threshold

    @property
    def donor_pool(self) -> str:
        """``take_from``, as far as the strategy has a choice."""
        return "trusted" if self.strategy in ("half-replace", "pseudo-caption") else self.take_from

    @property
    def replaces_text(self) -> bool:
        """Whether captions may be replaced."""
        return self.targets != "image" or self.strategy == "pseudo-caption"

    @property
    def replaces_image(self) -> bool:
        """Whether images may be replaced."""
        return self.targets != "text" and self.strategy != "pseudo-caption"

    def noted(self) -> dict[str, Any]:
        """Return the settings as a plan keeps them, in addition to the threshold and the least score.

        Returns
        -------
        dict
            Values by name.
        """
        return {name: value for name, value in asdict(self).items() if name not in ("threshold", "min_repair_score")}


def changed(settings: RepairSettings | None, changes: Mapping[str, Any]) -> RepairSettings:
    """Return ``settings``, or the defaults, with ``changes`` by name. ConfigError: there is no such setting."""
    refuse_unknown("rematch", changes, RepairSettings.__dataclass_fields__)
    if not isinstance(settings, RepairSettings | None):
        raise ConfigError(
            f"rematch takes RepairSettings, or single ones by name (threshold=0.5), found {settings!r:.80}"
        )
    return replace(settings or RepairSettings(), **changes)
