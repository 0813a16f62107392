"""The kind of a path, and the checks of runs, models and Parquet. Those of an export are in their own module."""

from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from cleanpairs.commands.run import SCORES_SCHEMA, Run
from cleanpairs.core import CleanpairsError, ConfigError, DataError, plural
from cleanpairs.core.recipe import Recipe
from cleanpairs.core.regular import read_object, reading, sha256_of
from cleanpairs.data.arrays import read_tensors
from cleanpairs.data.parquet_io import footer, parquet_files
from cleanpairs.export.manifest import manifest_of
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.verification.exports import verify_export
from cleanpairs.verification.findings import Verification, check_scores, read_pages

_MANIFEST = ".manifest.json"


def kind_of(path: Path) -> str:
    """``export``, ``run``, ``model``, ``parquet`` or ``directory`` (of Parquet). DataError: nothing that can be
    verified.
    """
    if path.name.endswith(_MANIFEST) or manifest_of(path).is_file():
        return "export"
    if not path.exists():
        raise DataError(f"there is no {path}: name an export, a run, a model or a Parquet file")
    if path.is_dir():
        if (path / "run.json").exists():
            return "run"
        if (path / "config.json").exists():
            return "model"
        if parquet_files(path):
            return "directory"
        raise DataError(f"{path} is no run, model or directory of Parquet, and has no {path.name}{_MANIFEST} beside it")
    if path.suffix in (".parquet", ".pq"):
        return "parquet"
    raise DataError(f"{path} is no Parquet file, and has no {path.name}{_MANIFEST} next to it: it cannot be verified")


def verify_path(path: str | Path) -> Verification:
    """Check an export (its cleaned data, or the manifest), a run, a model or Parquet, by what it says of itself.

    Raises DataError: there is nothing to verify.
    """
    path = Path(path) if Path(path).name else Path(path).absolute()  # "."
    kind = kind_of(path)
    findings = Verification(path, kind)
    if kind == "export":
        out = path.parent / path.name.removesuffix(_MANIFEST)
        with findings.section(f"{out.name}{_MANIFEST}: a manifest", manifest_of(out)):
            verify_export(out, findings)
    elif kind == "run":
        _verify_run(path.resolve(), findings)  # runs/latest is a link
    elif kind == "model":
        _verify_model(path, findings)
    else:
        for file in [path] if kind == "parquet" else [Path(p) for p in parquet_files(path)]:
            _verify_parquet(file, findings)
    return findings


def _verify_parquet(path: Path, findings: Verification) -> None:
    with findings.section(f"{path.name}: pages", path):
        rows = read_pages(path, findings)
    if rows is None:
        return
    _, groups, schema = footer(str(path))
    counts = plural(rows, "row"), plural(len(groups), "row group"), plural(len(schema), "column")
    findings.notes.append(f"{path.name}: {', '.join(counts)}")
    if schema.names[: len(SCORES_SCHEMA)] == SCORES_SCHEMA.names:
        with findings.section(f"{path.name}: a scores table, one row a pair, ranges", path):
            check_scores(path, findings)


def _verify_run(path: Path, findings: Verification) -> None:
    """Check a run directory. Files that an unfinished run does not have yet are a note."""
    run = Run(path)
    with findings.section("run.json", path / "run.json"):
        info = run.info
        _check_info(info, path, findings)
    if findings.problems:
        return  # the other files cannot be checked without it
    done = info["status"] == "complete"
    if not done:
        resume = f"cleanpairs fit --resume --out {quote(str(path))}"
        findings.notes.append(f"the run is {info['status']}, not complete: `{resume}` resumes it")
    for name, digest in (info.get("files") or {}).items():  # a run that did not finish has none
        file = path / name
        if _exists(file, True, findings, "run.json lists it"):
            with findings.section(f"{name}: SHA-256", file):
                if sha256_of(file) != digest:
                    findings.wrong(file, "has not the SHA-256 of run.json: damaged or edited")
    if _exists(path / "recipe.yaml", done, findings):
        with findings.section("recipe.yaml: settings", path / "recipe.yaml"):
            Recipe.resolve(str(path / "recipe.yaml"))
    scores = path / "scores.parquet"
    if _exists(scores, done, findings):
        with findings.section("scores.parquet: pages, one row a pair, ranges", scores):
            if read_pages(scores, findings) is not None:
                result = info["result"] if done else {}
                pairs = info["input"]["pairs"] if done else None
                flagged = check_scores(scores, findings, pairs=pairs, threshold=result.get("threshold"))
                if done and not findings.problems and flagged != (recorded := result.get("flagged")):
                    findings.wrong(scores, f"flags {flagged:,}, and run.json says {recorded}", "is_mismatch")
    if _exists(path / "model", done, findings):
        _verify_model(path / "model", findings)
    plan = path / "plan.parquet"
    if plan.is_file():
        with findings.section("plan.parquet: pages, a repair plan", plan):
            if read_pages(plan, findings) is not None:
                RepairPlan.load(plan)
    checkpoints = path / "checkpoints"
    for file in sorted(checkpoints.rglob("*.safetensors")) if checkpoints.is_dir() else ():
        with findings.section(f"{file.relative_to(path)}: whole", file):
            _read_tensors(file, findings, finite=False)  # moments of an optimizer may be anything
    if run._replaced.exists():
        findings.notes.append(f"the run that this one was to replace is kept, at {run._replaced}")


def _exists(path: Path, wanted: bool, findings: Verification, why: str = "the run is complete") -> bool:
    """Whether a file, or the model's folder, exists. A ``wanted`` one that is missing is a problem."""
    exists = path.is_dir() if path.name == "model" else path.is_file()
    if wanted and not exists:
        findings.wrong(path, f"is missing, and {why}")
    return exists


def _check_info(info: dict[str, Any], path: Path, findings: Verification) -> None:
    wanted = ["status", "method", "versions", "input", *(["result"] if info.get("status") == "complete" else [])]
    lacking = [name for name in wanted if info.get(name) is None]
    within = info.get("input") or {}
    lacking += [f"input.{name}" for name in ("data", "fingerprint", "rows", "pairs") if name not in within]
    for name in lacking:
        findings.wrong(path / "run.json", "is missing", f"key {name!r}")
    if info.get("status") not in ("running", "interrupted", "complete"):
        findings.wrong(path / "run.json", "is none of running, interrupted and complete", "key 'status'")


def _verify_model(folder: Path, findings: Verification) -> None:
    """Check a directory that ``save_pretrained`` wrote: no code in files, finite weights, and that it loads."""
    may_run = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt")
    for file in sorted(p for p in folder.rglob("*") if p.suffix.lower() in may_run):
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
    except ConfigError as error:  # it needs the caller's module, or an extra: the files are right
        findings.notes.append(f"{folder.name} was not loaded: {error}")
    except CleanpairsError as error:
        findings.wrong(folder, str(error))
    else:
        findings.checked.append(f"{folder.name}: loads, from safetensors and JSON")


def _read_tensors(file: Path, findings: Verification, *, finite: bool) -> None:
    from safetensors import SafetensorError

    with reading(file, "read as safetensors", SafetensorError, ValueError, TypeError, RuntimeError):
        for name, value in read_tensors(file, "pt")[0].items():
            # An undetermined noise rate is NaN.
            if finite and name != "calibration.noise_rate" and not bool(np.isfinite(value.float().numpy()).all()):
                findings.wrong(file, "holds values that are not finite", f"tensor {name!r}")
