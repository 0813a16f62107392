"""The first thing on the page: how many pairs are wrong as they came, among those kept, and in the repaired output."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.actions import REPAIRED, acted
from cleanpairs.repair.plan import RepairPlan, wrong_in_output
from cleanpairs.report.outcome import Outcome

STAGES = ("as it came", "kept", "kept and repaired")


def verdict(
    outcome: Outcome, plan: RepairPlan | None, pairs: Pairs | None, result: Mapping[str, Any],
    calibration: Calibration | None,
) -> dict[str, Any] | None:  # fmt: skip
    """A sentence on what is estimated, and what is known where the truth is; and (name, share of mismatched pairs) as
    text, of :data:`STAGES`. None of no pairs.

    - ``result``: run.json's: ``noise_rate`` in [0, 1] or None, ``noise_rate_interval``
    - ``calibration``: of the scores; without it the share among the kept pairs is undetermined
    """
    kept, repaired = (int((outcome.kind == kind).sum()) for kind in ("kept", "repaired"))
    if not len(outcome):
        return None
    estimates = _estimated(outcome, plan, result, calibration)
    known = _known(outcome, plan, pairs)
    stages = STAGES[: 3 if repaired else 2]
    rate, of_kept, output = estimates
    share = f"{kept / len(outcome):.0%} of the pairs are kept"
    if np.isnan(rate.value):
        sentence = "How many pairs are mismatched is undetermined: label some (cleanpairs audit). " + share
    else:
        sentence = f"About {_text(rate)} of the pairs are mismatched. {share}"
        sentence += f", of which about {_text(of_kept)} are mismatched" if np.isfinite(of_kept.value) else ""
    if repaired:
        sentence += f"; {repaired / len(outcome):.1%} are repaired"
        sentence += f", which makes it about {_text(output)}" if np.isfinite(output.value) else ""
    sentence += "."
    if known is not None:
        listed = [f"{value:.1%} {name}" for name, value in zip(stages, known, strict=False) if np.isfinite(value)]
        sentence += f" The truth of this corpus is known: mismatched are {', '.join(listed)}."
    shown = [_text(e) for e in (estimates if known is None else (Estimate(v, np.nan, np.nan) for v in known))]
    return {"sentence": sentence, "shares": list(zip(stages, shown, strict=False))}


def _estimated(
    outcome: Outcome, plan: RepairPlan | None, result: Mapping[str, Any], calibration: Calibration | None
) -> tuple[Estimate, Estimate, Estimate]:
    """Of all pairs, of the kept ones, and of those and the repaired ones."""
    rate = result.get("noise_rate")
    interval = result.get("noise_rate_interval") or (np.nan, np.nan)
    whole = UNDETERMINED if rate is None else Estimate(float(rate), *map(float, interval))
    kept = int((outcome.kind == "kept").sum())
    if calibration is None or not kept:
        return whole, UNDETERMINED, UNDETERMINED
    of_kept = calibration.shares(outcome.correspondence[outcome.scored], [kept])[0]
    if plan is None:
        return whole, of_kept, UNDETERMINED
    sure = plan.table.filter(acted(plan.table, REPAIRED))["confidence"].cast("float64").fill_null(np.nan).to_numpy()
    wrong, n = float((1 - sure).sum()), kept + len(sure)  # NaN where the probability of a repair is not known
    return whole, of_kept, Estimate((of_kept.value * kept + wrong) / n, np.nan, np.nan)


def _known(outcome: Outcome, plan: RepairPlan | None, pairs: Pairs | None) -> list[float] | None:
    """The true shares, NaN where it is unknown what a repair has made of a pair."""
    if outcome.truth is None or not outcome.truth[outcome.scored].any():
        return None
    came = float(outcome.truth[outcome.scored].mean())
    shares = None if plan is None or pairs is None else wrong_in_output(pairs, plan.table.sort_by("pair_id"))
    kept = outcome.truth[outcome.kind == "kept"]
    return [came, *(shares or (float(kept.mean()) if len(kept) else np.nan, np.nan))]


def _text(share: Estimate) -> str:
    if np.isnan(share.value):
        return "undetermined"
    within = f" ({share.low:.1%} to {share.high:.1%})" if np.isfinite(share.low) else ""
    return f"{share.value:.1%}{within}"
