"""What was cleaned and how, in words: input, method, noise estimate, threshold and how it was chosen, repair."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanpairs.core.registry import BACKBONES, METHODS
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.report.outcome import Outcome


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as ``{"input.rows": 5}``; lists as text; empty ones left out."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            if value:
                out[prefix + str(key)] = ", ".join(map(str, value))
        else:
            out[prefix + str(key)] = value
    return out


def story(
    info: Mapping[str, Any], settings: Mapping[str, Any], outcome: Outcome, plan: RepairPlan | None
) -> list[tuple[str, str]]:
    """(Heading, sentence) of what is known, by a run.json ``info`` and the estimator's ``settings``."""
    told = [
        ("Data", _data(info.get("input") or {})),
        ("Method", _method(info, settings)),
        ("Noise", _noise(info.get("result") or {}, outcome)),
        ("Threshold", _threshold(info, settings, outcome)),
        ("Repair", _repair(plan)),
    ]
    return [(name, text) for name, text in told if text]


def _data(given: Mapping[str, Any]) -> str:
    if not given.get("data"):
        return ""
    columns = ", ".join(f"{role} from “{column}”" for role, column in (given.get("columns") or {}).items())
    counts = f"{given['rows']:,} rows, {given['pairs']:,} pairs" if "rows" in given and "pairs" in given else ""
    parts = [str(given["data"]), str(given.get("kind") or ""), counts, columns]
    return "; ".join(p for p in parts if p) + "."


def _method(info: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    name = info.get("method")
    if not isinstance(name, str):
        return ""
    text = name
    if name in METHODS:
        entry = METHODS.entry(name)
        text += f": {entry.summary} ({entry.source})"
    backbone = settings.get("backbone")
    if isinstance(backbone, str) and backbone in BACKBONES:
        text += f". Backbone {backbone}: {BACKBONES.entry(backbone).summary}"
    encoder = settings.get("image_encoder")
    if encoder:
        text += f". Image encoder: {encoder}"
    epochs = (info.get("result") or {}).get("epochs")
    if epochs:
        text += f". Trained for {epochs} epochs"
        text += f" on {info['device']}" if info.get("device") else ""
        text += f", seed {info['seed']}" if info.get("seed") is not None else ""
    return text + "."


def _noise(result: Mapping[str, Any], outcome: Outcome) -> str:
    flagged = int((outcome.scored & (np.nan_to_num(outcome.correspondence, nan=1.0) < outcome.threshold)).sum())
    total = int(outcome.scored.sum())
    share = f"{flagged:,} of {total:,} scored pairs ({flagged / total:.1%}) are below the threshold." if total else ""
    if "noise_rate" not in result:
        return share
    rate = result["noise_rate"]
    if rate is None:
        return (
            "Undetermined: the scores do not tell how many pairs are mismatched; label some (cleanpairs audit). "
            + share
        )
    interval = result.get("noise_rate_interval")
    within = f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
    return f"An estimated {rate:.1%} of the pairs are mismatched{within}. {share}"


def _threshold(info: Mapping[str, Any], settings: Mapping[str, Any], outcome: Outcome) -> str:
    value = f"{outcome.threshold:.3g}"
    own = (info.get("result") or {}).get("threshold")
    if own is not None and abs(float(own) - outcome.threshold) > 1e-9:
        return f"{value}, given to the repair plan (the run's own is {float(own):.3g})."
    if "threshold" not in settings:
        return ""
    asked = settings["threshold"]
    if asked == "auto":
        return f"{value}, chosen from the scores (auto): the density minimum between their two modes."
    if asked is None:
        return f"{value}, the method's default; --set threshold=auto chooses it from the scores."
    return f"{value}, as the settings say."


def _repair(plan: RepairPlan | None) -> str:
    if plan is None:
        return ""
    plain = {k: v for k, v in plan.settings.items() if isinstance(v, str | int | float)}  # no records of searches
    parts = [f"{k.replace('_', ' ')} {v}" for k, v in plain.items()]
    return "; ".join([*parts, f"a repair needs a score of at least {plan.min_repair_score:.3g}"]) + "."
