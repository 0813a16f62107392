"""What ``rematch`` and ``export`` are both told about repairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cleanpairs.cli.options import together

REPAIR_NAMES = (
    "repairs", "strategy", "donors", "max_reuse", "min_repair_score", "min_confidence", "candidates",
)  # fmt: skip


repair_options = together(
    click.option("--threshold", metavar="P|auto", help="Pairs below it are repaired or dropped.  [default: the run's]"),
    click.option(
        "--max-wrong",
        type=float,
        metavar="P",
        help="Keep the largest set of which at most this share is mismatched; refused where that is not known.",
    ),
    click.option("--keep", type=float, metavar="P", help="Keep this share of the pairs, the best."),
    click.option(
        "--repairs",
        type=click.Choice(["probable", "plausible", "none"]),
        default="probable",
        help="probable: those likelier right than wrong, where that can be judged; plausible: what fits best, "
        "right or near; none: drop all below the threshold.",
    ),
    click.option(
        "--strategy",
        type=click.Choice(["ot", "nearest", "half-replace", "pseudo-caption", "method"]),
        default="ot",
        help="ot: all mismatched pairs jointly, by partial transport; nearest: the best score; half-replace: "
        "from trusted pairs near in what stays; pseudo-caption: the caption of the most similar trusted image; "
        "method: the method's own.",
    ),
    click.option("--donors", type=click.Choice(["both", "mismatched", "trusted"]), default="both"),
    click.option("--max-reuse", type=int, default=1, help="Rows that one donor may serve."),
    click.option("--min-repair-score", type=float, default=0.5, help="A repair below it is a drop."),
    click.option(
        "--min-confidence",
        type=float,
        default=0.5,
        help="Of --repairs probable: one that is right with a lower probability is a drop.",
    ),
    click.option("--candidates", type=int, default=32, help="Nearest captions or images considered for each pair."),
)
"""Which pairs are kept, and how the others are repaired."""


def repair_settings(options: Mapping[str, Any], threshold: float | None, **more: Any) -> Any:
    """The :class:`cleanpairs.repair.settings.RepairSettings` of a command's options."""
    from cleanpairs.repair.settings import RepairSettings

    return RepairSettings(threshold, **{name: options[name] for name in REPAIR_NAMES}, **more)


def chosen_threshold(threshold: str | None) -> float | str | None:
    """``--threshold`` as a number, "auto" or None; a usage error otherwise."""
    if threshold in (None, "auto"):
        return threshold
    try:
        return float(str(threshold))
    except ValueError as error:
        raise click.BadParameter(f"{threshold!r} is neither a number nor 'auto'", param_hint="--threshold") from error
