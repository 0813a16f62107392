"""The demonstration: wrong some pairs of the clip art, find them, repair them, and look what it does for retrieval."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.run import PLAN, Run
from cleanpairs.core.errors import OutputExistsError
from cleanpairs.core.progress import FitProgress
from cleanpairs.core.recipe import Recipe
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.noise import corrupt
from cleanpairs.datasets import clipart_path
from cleanpairs.export import ExportSummary, export_pairs
from cleanpairs.methods.infonce import InfoNCE
from cleanpairs.repair.plan import truth_of, wrong_in_output
from cleanpairs.report import before_after_figure, write_report
from cleanpairs.scoring.evaluate import Detection, detection

RESULT = "result.json"
FILES = (
    *("noisy.parquet", "run", "cleaned.parquet", "cleaned.parquet.manifest.json", "ledger.parquet", "dropped.parquet"),
    *("report.html", "before_after.png", RESULT),
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found; recalls are rSum on the untouched test images."""

    pairs: int
    corrupted: int
    wrong_kept: float
    wrong_out: float
    found: Detection
    flagged: int
    repaired: int
    right: int
    rsum_noisy: float
    rsum_cleaned: float
    rsum_own: float
    summary: ExportSummary
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {k: v for k, v in self.__dict__.items() if isinstance(v, int | float)}
        return {**plain, **self.found.to_dict(), "restored_share": self.right / max(self.corrupted, 1)}


def run_demo(
    out: str | Path = "demo",
    *,
    noise: float = 0.3,
    seed: int = 0,
    images: bool = False,
    say: Say = print,
    progress: FitProgress | None = None,
) -> DemoResult:
    """Run it all, and leave everything in the directory ``out``.

    ``noise`` float in [0, 1]: share of pairs to wrong; ``images``: train from the pixels (a small CNN) instead of the
    frozen features that ship with the corpus; ``say``: takes each line of text.
    """
    began = time.perf_counter()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    _begin(out / RESULT)
    noisy = out / "noisy.parquet"
    column: dict[str, Any] = {"image_column": "image"} if images else {}
    truth = corrupt(clipart_path("train"), noise, seed=seed, out=noisy, overwrite=True, **column)
    corrupted, n = int(truth.mismatched.sum()), len(truth.mismatched)
    say(f"1. {n:,} clip art images with captions; the captions of {corrupted:,} are permuted -> {noisy}")

    pixels: dict[str, Any] = {"image_encoder": "cnn", "image_size": 64} if images else {}
    options: dict[str, Any] = {
        "train": str(noisy), "val": str(clipart_path("val")), "out": str(out / "run"), "seed": seed,
        "overwrite": True, **column, **pixels,
    }  # fmt: skip
    say("2. two networks train on them, with the method auto; it does not know which are wrong")
    fit_run(Recipe.resolve("auto-clipart", options=options), latest=False, progress=progress)
    if progress is not None:
        progress.close()
    run = Run.open(out / "run")
    model, pairs = run.estimator(), run.load_input()
    mask = pairs.true_mismatch_mask()
    found = detection(model.correspondence_, mask, model.threshold_)
    flagged = int((model.correspondence_ < model.threshold_).sum())
    say(
        f"   found: AUROC {found.auroc:.3f}; {flagged:,} pairs flagged (correspondence below {model.threshold_:g}): "
        f"precision {found.precision:.2f}, recall {found.recall:.2f}, F1 {found.f1:.2f}"
    )

    plan = model.rematch(pairs)
    plan.save(run.path / PLAN, overwrite=True)
    files: dict[str, Any] = {"dropped": out / "dropped.parquet", "ledger": out / "ledger.parquet"}
    summary = export_pairs(pairs, plan, out / "cleaned.parquet", overwrite=True, **files)
    wrong_kept, wrong_out, repaired, right = _output(pairs, plan.table)
    say(
        f"3. mismatched pairs in the output: {mask.mean():.1%} as it came, {wrong_kept:.1%} of those "
        f"kept, {wrong_out:.1%} with the repairs that are likelier right than wrong "
        f"({repaired:,}, of which {right:,} are right)"
    )
    say("   " + str(summary).splitlines()[0])

    before, after, own = _retrieval(model, pairs, out / "cleaned.parquet", seed, column, pixels, say)
    result = DemoResult(
        pairs=n,
        corrupted=corrupted,
        wrong_kept=wrong_kept,
        wrong_out=wrong_out,
        found=found,
        flagged=flagged,
        repaired=repaired,
        right=right,
        rsum_noisy=before,
        rsum_cleaned=after,
        rsum_own=own,
        summary=summary,
        seconds=time.perf_counter() - began,
    )
    _write_pages(out, run, model, pairs, plan, mask, result)
    say(f"5. look at it: {out / 'report.html'}")
    say(f"   {out / 'cleaned.parquet'}, ledger.parquet, dropped.parquet and run/ (model, scores) are beside it")
    return result


def _retrieval(
    model: Any, noisy: Pairs, cleaned: Path, seed: int, column: dict[str, Any], pixels: dict[str, Any], say: Say
) -> tuple[float, float, float]:
    """rSum on the test images of a plain model of the noisy and of the cleaned data, and of the demonstration's own."""
    say("4. what it does for retrieval: a plain contrastive model, trained three ways, on 500 untouched test images")
    same = ("epochs", "text_encoder", "backbone", "dim", "batch_size")
    plain = {"random_state": seed, **{name: getattr(model, name) for name in same}, **pixels}
    val, test = (load_pairs(clipart_path(s), **column) for s in ("val", "test"))
    data = noisy, load_pairs(cleaned, **column)
    before, after = (InfoNCE(**plain).fit(pairs, val=val).evaluate(test).rsum for pairs in data)
    own = model.evaluate(test).rsum
    say(f"   rSum {before:6.1f}  on the noisy data")
    say(f"   rSum {after:6.1f}  on the cleaned data")
    say(f"   rSum {own:6.1f}  its own model, on the noisy data")
    return before, after, own


def _begin(result: Path) -> None:
    """Mark the directory as the demonstration's; OutputExistsError where its files would replace somebody else's."""
    try:
        ours = "demo" in json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        ours = False
    theirs = [name for name in FILES if os.path.lexists(result.parent / name)]
    if theirs and not ours:
        raise OutputExistsError(f"{result.parent} holds {theirs[0]}, which no demonstration wrote: name another --out")
    if not ours:
        write_whole(result, json.dumps({"demo": "running"}) + "\n")


def _output(pairs: Pairs, table: Any) -> tuple[float, float, int, int]:
    """Share of mismatched pairs among those kept, and kept or repaired; how many are repaired, and right."""
    truth, shares = truth_of(pairs, table), wrong_in_output(pairs, table)
    assert truth is not None and shares is not None
    repaired = np.char.startswith(np.array(table["action"].to_pylist()), "rematch")
    return *shares, int(repaired.sum()), int((~truth.mismatch[repaired]).sum())


def _write_pages(
    out: Path, run: Run, model: Any, pairs: Pairs, plan: Any, mask: np.ndarray, result: DemoResult
) -> None:
    write_report(
        out / "report.html",
        title="cleanpairs: clip art with permuted captions",
        info=run.info,
        scores=run.scores().table,
        metrics=run.metrics(),
        threshold=model.threshold_,
        pairs=pairs,
        plan=plan,
        truth=mask,
        calibration=run.calibration(),
        why=run.scores().why.to_pylist(),
        summary={
            "rSum of a plain model on the noisy data": round(result.rsum_noisy, 1),
            "rSum of a plain model on the cleaned data": round(result.rsum_cleaned, 1),
            "rSum of its own model, on the noisy data": round(result.rsum_own, 1),
        },
        overwrite=True,
    )
    if result.repaired:
        before_after_figure(pairs, plan, out / "before_after.png", overwrite=True)
    write_whole(out / RESULT, json.dumps({"demo": "complete", **result.to_dict()}, indent=2) + "\n")
