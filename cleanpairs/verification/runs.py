"""A run directory, and a model: the files, their hashes where they were noted, the scores, the weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.commands.run import Run
from cleanpairs.core.errors import CleanpairsError, ConfigError
from cleanpairs.core.recipe import Recipe
from cleanpairs.core.regular import check_regular, read_object, reading, sha256_of
from cleanpairs.verification.findings import Verification
from cleanpairs.verification.tables import check_scores, read_pages

_RUNS_CODE = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt")  # loading one of these may run code


def verify_run(path: Path, findings: Verification) -> None:
    """Check a run directory; what an unfinished run has not yet is a note."""
    run = Run(path)
    with findings.section("run.json", path / "run.json"):
        info = run.info
        _check_info(info, path, findings)
    if findings.problems:
        return  # nothing to hold the other files to
    done = info["status"] == "complete"
    if not done:
        findings.notes.append(
            f"the run is {info['status']}, not complete: `cleanpairs fit --resume --out {path}` goes on"
        )
    _check_hashes(path, info.get("files"), findings)
    if _there(path / "recipe.yaml", done, findings):
        with findings.section("recipe.yaml: settings", path / "recipe.yaml"):
            Recipe.resolve(str(path / "recipe.yaml"))
    scores = path / "scores.parquet"
    if _there(scores, done, findings):
        with findings.section("scores.parquet: pages, one row a pair, ranges", scores):
            if read_pages(scores, findings) is not None:
                _check_scores(scores, info, done, findings)
    if _there(path / "model", done, findings, Path.is_dir):
        verify_model(path / "model", findings)
    plan = path / "plan.parquet"
    if plan.is_file():
        with findings.section("plan.parquet: pages, a repair plan", plan):
            from cleanpairs.repair.plan import RepairPlan

            if read_pages(plan, findings) is not None:
                RepairPlan.load(plan)
    checkpoints = path / "checkpoints"
    for file in sorted(checkpoints.rglob("*.safetensors")) if checkpoints.is_dir() else ():
        with findings.section(f"{file.relative_to(path)}: whole", file):
            _read_tensors(file, findings, finite=False)  # moments of an optimizer may be anything
    if run._aside.exists():
        findings.notes.append(f"the run that this one was to replace is kept, at {run._aside}")


def _there(path: Path, done: bool, findings: Verification, kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether a file, or what ``kind`` says, is there; that a complete run lacks it is wrong."""
    there = kind(path)
    if done and not there:
        findings.wrong(path, "is missing, and the run is complete")
    return there


def _check_info(info: dict[str, Any], path: Path, findings: Verification) -> None:
    wanted = ["status", "method", "versions", "input", *(["result"] if info.get("status") == "complete" else [])]
    lacking = [name for name in wanted if info.get(name) is None]
    within = info.get("input") or {}
    lacking += [f"input.{name}" for name in ("data", "fingerprint", "rows", "pairs") if name not in within]
    for name in lacking:
        findings.wrong(path / "run.json", "is missing", f"key {name!r}")
    if info.get("status") not in ("running", "interrupted", "complete"):
        findings.wrong(path / "run.json", "is none of running, interrupted and complete", "key 'status'")


def _check_hashes(path: Path, noted: Any, findings: Verification) -> None:
    """The files whose hashes a complete run has noted."""
    if noted is None:
        return  # an earlier version noted none
    for name, digest in noted.items():
        file = path / name
        if not file.is_file():
            findings.wrong(file, "is missing, and run.json lists it")
            continue
        with findings.section(f"{name}: SHA-256", file):
            if sha256_of(file) != digest:
                findings.wrong(file, "has not the SHA-256 of run.json: damaged or edited")


def _check_scores(scores: Path, info: dict[str, Any], done: bool, findings: Verification) -> None:
    result = info.get("result", {}) if done else {}
    flagged = check_scores(
        scores, findings, pairs=info["input"]["pairs"] if done else None, threshold=result.get("threshold")
    )
    if done and not findings.problems and flagged != result.get("flagged"):
        findings.wrong(scores, f"flags {flagged:,} pairs, and run.json says {result.get('flagged')}", "is_mismatch")


def verify_model(folder: Path, findings: Verification) -> None:
    """Check a directory that ``save_pretrained`` left: no file that could run code, finite weights, and that it loads.

    Loading reads safetensors and JSON only.
    """
    for file in sorted(p for p in folder.rglob("*") if p.suffix.lower() in _RUNS_CODE):
        findings.wrong(file, "is of a kind that may run code when it is loaded; cleanpairs neither writes nor reads it")
    for file in sorted(folder.glob("*.json")):
        with findings.section(f"{folder.name}/{file.name}: JSON", file):
            read_object(file, "model")
    for file in sorted(folder.glob("*.safetensors")):
        with findings.section(f"{folder.name}/{file.name}: tensors, finite", file):
            _read_tensors(file, findings, finite=True)
    if findings.problems:
        return
    from cleanpairs.estimators.persistence import load_estimator

    try:
        load_estimator(folder)
    except ConfigError as error:  # it was fitted with a module of the caller's, or needs an extra: not the files' fault
        findings.notes.append(f"{folder.name} was not loaded: {error}")
    except CleanpairsError as error:
        findings.wrong(folder, str(error))
    else:
        findings.checked.append(f"{folder.name}: loads, from safetensors and JSON")


def _read_tensors(file: Path, findings: Verification, *, finite: bool) -> None:
    """Read every tensor of a safetensors file; DataError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    with reading(file, "read as safetensors", SafetensorError, ValueError, TypeError, RuntimeError):
        check_regular(file)
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                value = tensors.get_tensor(name)
                if finite and value.is_floating_point() and not bool(np.isfinite(value.float().numpy()).all()):
                    findings.wrong(file, "holds values that are not finite", f"tensor {name!r}")
