"""The demonstration: wrong some pairs of the clip art, find them, repair them, and look what it does for retrieval."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.run import PLAN, Run, refuse_user_files
from cleanpairs.core import OutputExistsError, current_progress, percent, plural
from cleanpairs.core.recipe import Recipe
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.guard import holds
from cleanpairs.data.noise import corrupt
from cleanpairs.datasets import clipart_path
from cleanpairs.export import export_pairs
from cleanpairs.methods.plain import InfoNCE
from cleanpairs.repair.actions import REMATCHED, acted
from cleanpairs.repair.plan import RepairPlan, truth_of, wrong_in_output
from cleanpairs.report import write_report
from cleanpairs.scoring.evaluate import detection

_MODELS = {
    "noisy": "a plain model, trained on the noisy data",
    "cleaned": "a plain model, trained on the cleaned data",
    "own": "the model of auto, trained on the noisy data",
}
Say = Callable[[str], None]


def run_demo(out: str | Path = "demo", *, say: Say = print) -> dict[str, Any]:
    """Run it all, and leave everything in the directory ``out``. The figures, as ``result.json`` has them.

    ``say``: takes each line of text.
    """
    began, out = time.perf_counter(), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    refuse_user_files(out / "run")
    _begin(out / "result.json")
    noisy = out / "noisy.parquet"
    made = corrupt(clipart_path("train"), 0.3, seed=0, out=noisy, overwrite=True)
    corrupted, n = int(made.mismatched.sum()), len(made.mismatched)
    say(f"1. {n:,} clip art images with captions; {corrupted:,} captions are exchanged -> {noisy}")

    run, model, flagged = _fit(out / "run", {"train": str(noisy), "seed": 0}, say)
    pairs = run.load_input()
    mask = pairs.true_mismatch_mask()
    measured = detection(model.correspondence_, mask, model.threshold_)
    say(
        f"   found: AUROC {measured.auroc:.3f}; {flagged:,} pairs flagged (correspondence below {model.threshold_:g}): "
        f"precision {measured.precision:.2f}, recall {measured.recall:.2f}, F1 {measured.f1:.2f}"
    )
    plan, repairs = _export(model, pairs, run, out, say)
    rsum = _retrieval(model, pairs, out / "cleaned.parquet", say)
    result = {
        **{"pairs": n, "corrupted": corrupted, "flagged": flagged, **repairs},
        "restored_share": repairs["right"] / max(corrupted, 1),
        **measured.to_dict(),
        **{f"rsum_{name}": value for name, value in rsum.items()},
        "seconds": time.perf_counter() - began,
    }
    write_report(
        out / "report.html",
        title="cleanpairs: clip art with exchanged captions",
        truth=mask,
        summary={f"rSum of {_MODELS[name]}": round(value, 1) for name, value in rsum.items()},
        overwrite=True,
        **run.reported(pairs, plan),
    )
    write_whole(out / "result.json", json.dumps({"demo": "complete", **result}, indent=2) + "\n")
    say(f"5. open the report: {out / 'report.html'}")
    say(f"   next to it: {out / 'cleaned.parquet'}, ledger.parquet, dropped.parquet and run/ (model, scores)")
    say("clean your own data: cleanpairs fit data.parquet && cleanpairs export --out clean.parquet")
    return result


def _fit(out: Path, options: dict[str, Any], say: Say) -> tuple[Run, Any, int]:
    """Return the run, its fitted estimator, and how many pairs it flags."""
    say("2. the method auto is trained on them, and does not know which captions are wrong")
    options |= {"val": str(clipart_path("val")), "out": str(out), "overwrite": True}
    result = fit_run(Recipe.resolve("auto-clipart", options=options), latest=False)
    current_progress().close()
    run = Run.open(out)
    return run, run.estimator(), result["flagged"]


def _export(model: Any, pairs: Pairs, run: Run, out: Path, say: Say) -> tuple[RepairPlan, dict[str, Any]]:
    """Write the cleaned data. Returns the plan, and how much of what was written is mismatched."""
    plan = model.rematch(pairs)
    plan.save(run.path / PLAN, overwrite=True)
    files: dict[str, Any] = {"dropped": out / "dropped.parquet", "ledger": out / "ledger.parquet"}
    summary = export_pairs(pairs, plan, out / "cleaned.parquet", overwrite=True, **files)
    truth, shares = truth_of(pairs, plan.table), wrong_in_output(pairs, plan.table)
    assert truth and shares is not None
    changed = acted(plan.table, REMATCHED)
    repaired, right = int(changed.sum()), int((~truth["true_mismatch"][changed]).sum())
    say(
        f"3. mismatched pairs: {percent(pairs.true_mismatch_mask().mean())} of the input, "
        f"{percent(shares[0])} of the kept pairs, {percent(shares[1])} of the kept and repaired pairs "
        f"({plural(repaired, 'repair')}, {right:,} of them right)"
    )
    say("   " + str(summary).splitlines()[0])
    return plan, {"wrong_kept": shares[0], "wrong_out": shares[1], "repaired": repaired, "right": right}


def _retrieval(model: Any, noisy: Pairs, cleaned: Path, say: Say, trainings: int = 3) -> dict[str, float]:
    """Model -> rSum. A plain model is trained several times: one alone varies by more than cleaning may gain."""
    say(
        "4. retrieval on 500 clean test images: a plain contrastive model, trained "
        f"{trainings} times on each data, and the model of auto"
    )
    say("   rSum is the sum of recall@1, @5 and @10 (%) from image to text and from text to image: at most 600")
    same = ("epochs", "text_encoder", "backbone", "dim", "batch_size")
    plain = {name: getattr(model, name) for name in same}
    val, test = (load_pairs(clipart_path(s)) for s in ("val", "test"))
    rsum = dict[str, float]()
    for name, pairs in {"noisy": noisy, "cleaned": load_pairs(cleaned)}.items():
        each = []
        for k in range(trainings):
            current_progress().advance("comparing", "models", len(rsum) * trainings + k, 2 * trainings)
            each.append(InfoNCE(**plain, random_state=k).fit(pairs, val=val).evaluate(test).rsum)
        current_progress().close()
        rsum[name] = sum(each) / trainings
        say(f"   rSum {rsum[name]:6.1f}  {_MODELS[name]} ({min(each):.0f} to {max(each):.0f})")
    rsum["own"] = model.evaluate(test).rsum
    say(f"   rSum {rsum['own']:6.1f}  {_MODELS['own']}")
    return rsum


def _begin(result: Path) -> None:
    """Mark the directory as the demonstration's. OutputExistsError where it is somebody else's."""
    ours = False
    with suppress(OSError, ValueError, TypeError):
        ours = "demo" in json.loads(result.read_text(encoding="utf-8"))
    names = holds(result.parent)
    if names and not ours:
        raise OutputExistsError(f"{result.parent} holds {names[0]}, and no demonstration: name another --out")
    if not ours:
        write_whole(result, json.dumps({"demo": "running"}) + "\n")
