"""The dataset card: a README.md with the header that the hub and `datasets` read, and what was done to the data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import cleanpairs
from cleanpairs.core.registry import METHODS
from cleanpairs.repair.plan import RepairPlan

SIZES = (  # from a thousand rows on by their digits
    "n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B", "10B<n<100B",
    "100B<n<1T", "n>1T",
)  # fmt: skip

# Settings of a plan that say how it was made; its others name files of whoever made it.
_SAID = ("repairs", "strategy", "solver", "donors", "targets", "max_reuse", "candidates", "min_confidence")

_COUNTED = {
    "pairs": "pairs in the input",
    "kept": "kept as they were",
    "rematched_text": "with another caption of the corpus",
    "rematched_image": "with another image of the corpus",
    "recaptioned": "with a caption that a model wrote",
    "dropped": "dropped",
    "quarantined": "quarantined: unreadable",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card tells beyond the export itself.

    ``license``: an identifier of the hub, such as cc-by-4.0; ``method``: that gave the scores; ``flagged``: pairs that
    it took for wrong, of ``fitted``; ``noise_rate``: the share that it estimates, in [0, 1]; ``versions``: of the
    packages that the scores were made with. What is None is not known, and is said to be so or left out.
    """

    license: str | None = None
    method: str | None = None
    flagged: int | None = None
    fitted: int | None = None
    noise_rate: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def dataset_card(
    *,
    name: str,
    format: str,
    loads: str | None,
    shards: int,
    counts: Mapping[str, int],
    rows: int,
    plan: RepairPlan,
    restorable: bool,
    about: CardFacts,
) -> str:
    """The text of the card of the output ``name``.

    ``loads``: the files that `datasets` is to read, on the hub; ``shards``: tars of a webdataset; ``counts``: those of
    :class:`cleanpairs.repair.actions.ActionCounts`; ``restorable``: whether the ledger holds what the input is written
    again from.
    """
    from huggingface_hub import DatasetCardData

    files = {"config_name": "default", "data_files": [{"split": "train", "path": loads}]}
    header = DatasetCardData(
        license=about.license or "unknown",
        task_categories=["image-to-text", "text-to-image"],
        size_categories=size_category(rows),
        tags=["image-text", "noisy-correspondence", "cleanpairs", *(["webdataset"] if format == "webdataset" else [])],
        configs=None if loads is None else [files],
    )
    return filled(
        "card.md",
        header=header.to_yaml(),
        title=name.partition(".")[0] or "dataset",
        known=about.method in METHODS,
        settings={setting: plan.settings[setting] for setting in _SAID if plan.settings.get(setting) is not None},
        counted=[(what, counts[count]) for count, what in _COUNTED.items()],
        versions={**about.versions, "cleanpairs": cleanpairs.__version__, "pyarrow": pa.__version__},
        name=name,
        format=format,
        shards=shards,
        counts=counts,
        rows=rows,
        plan=plan,
        restorable=restorable,
        about=about,
    )


def filled(template: str, **values: Any) -> str:
    """A card, by a template that lies beside this module."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanpairs", "export"),
        autoescape=False,  # it is Markdown: see _inline
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline"] = _inline
    return environment.get_template(template).render(**values)


def _inline(value: object) -> str:
    """What a run or a plan says of itself, as text of one line: nothing in it is Markdown or HTML."""
    line = "".join(c for c in " ".join(str(value).split()) if c.isprintable())
    return re.sub(r"([\\`*\[\]<>&|~])", r"\\\1", line)


def size_category(rows: int) -> str:
    """The hub's class of sizes."""
    return SIZES[min(max(len(str(rows)) - 3, 0), len(SIZES) - 1)]
