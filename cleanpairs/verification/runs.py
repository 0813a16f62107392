"""A run directory, and a model: the files, their hashes where they were noted, the scores, the weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.commands.run import Run, mistyped
from cleanpairs.core.errors import CleanpairsError, ConfigError
from cleanpairs.core.regular import check_regular, read_object, read_text, reading
from cleanpairs.export.files import sha256_of
from cleanpairs.verification.findings import Findings
from cleanpairs.verification.tables import check_scores, read_pages

_RUNS_CODE = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt")  # loading one of these may run code


def verify_run(path: Path, findings: Findings) -> None:
    """Check a run directory; what an unfinished run has not yet is a note."""
    run = Run(path)
    with findings.section("run.json", path / "run.json"):
        info = read_object(path / "run.json", "run")
        _check_info(info, path, findings)
    if findings.problems:
        return  # nothing to hold the other files to
    done = info["status"] == "complete"
    if not done:
        findings.notes.append(
            f"the run is {info['status']}, not complete: `cleanpairs fit --resume --out {path}` goes on"
        )
    _check_hashes(path, info.get("files"), findings)
    _check_text(path, done, findings)
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


def _there(path: Path, done: bool, findings: Findings, kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether a file, or what ``kind`` says, is there; that a complete run lacks it is wrong."""
    there = kind(path)
    if done and not there:
        findings.wrong(path, "is missing, and the run is complete")
    return there


def _check_info(info: dict[str, Any], path: Path, findings: Findings) -> None:
    wanted: dict[str, type | tuple[type, ...]] = {"status": str, "method": str, "versions": dict, "input": dict}
    for name, kind in wanted.items():
        if not isinstance(info.get(name), kind):
            findings.wrong(path / "run.json", "is missing, or not what fit writes", f"key {name!r}")
    for name in mistyped(info):
        if name not in wanted:
            findings.wrong(path / "run.json", "is not what fit writes", f"key {name!r}")
    if findings.problems:
        return
    for name in ("data", "fingerprint", "rows", "pairs"):
        if name not in info["input"]:
            findings.wrong(path / "run.json", "is missing", f"key 'input.{name}'")
    if info["status"] not in ("running", "interrupted", "complete"):
        findings.wrong(path / "run.json", f"is {info['status']!r}: running, interrupted or complete", "key 'status'")
    elif info["status"] == "complete" and not isinstance(info.get("result"), dict):
        findings.wrong(path / "run.json", "is missing, and the run is complete", "key 'result'")


def _check_hashes(path: Path, noted: Any, findings: Findings) -> None:
    """The files whose hashes a complete run has noted."""
    if noted is None:
        return  # an earlier version noted none
    if not isinstance(noted, dict):
        findings.wrong(path / "run.json", "is no table of hashes", "key 'files'")
        return
    for name, digest in noted.items():
        file = path / name
        if not file.is_file():
            findings.wrong(file, "is missing, and run.json lists it")
            continue
        with findings.section(f"{name}: SHA-256", file):
            if sha256_of(file) != digest:
                findings.wrong(file, "has not the SHA-256 of run.json: damaged or edited")


def _check_text(path: Path, done: bool, findings: Findings) -> None:
    from cleanpairs.core.recipe import Recipe

    recipe = path / "recipe.yaml"
    if _there(recipe, done, findings):
        with findings.section("recipe.yaml: settings", recipe):
            Recipe.resolve(str(recipe))
    metrics = path / "metrics.jsonl"
    if _there(metrics, done, findings):
        with findings.section("metrics.jsonl: one JSON object an epoch", metrics):
            for number, line in enumerate(read_text(metrics, errors="replace").splitlines(), 1):
                try:
                    good = isinstance(json.loads(line), dict)
                except (ValueError, RecursionError):
                    good = False
                if not good:
                    findings.wrong(metrics, "is no JSON object", f"line {number}")


def _check_scores(scores: Path, info: dict[str, Any], done: bool, findings: Findings) -> None:
    result = info.get("result", {}) if done else {}
    flagged = check_scores(
        scores, findings, pairs=info["input"]["pairs"] if done else None, threshold=result.get("threshold")
    )
    if done and not findings.problems and flagged != result.get("flagged"):
        findings.wrong(scores, f"flags {flagged:,} pairs, and run.json says {result.get('flagged')}", "is_mismatch")


def verify_model(folder: Path, findings: Findings) -> None:
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


def _read_tensors(file: Path, findings: Findings, *, finite: bool) -> None:
    """Read every tensor of a safetensors file; DataError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    with reading(file, "read as safetensors", SafetensorError, ValueError, TypeError, RuntimeError):
        check_regular(file)
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                value = tensors.get_tensor(name)
                if finite and value.is_floating_point() and not bool(np.isfinite(value.float().numpy()).all()):
                    findings.wrong(file, "holds values that are not finite", f"tensor {name!r}")
