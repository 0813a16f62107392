"""The commands that write, on a tiny corpus, each over an older output: there is something to lose."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.forked import Outcome, in_child, run_command

__all__ = ["CASES", "Case", "State", "build", "leftovers", "prepare", "state_of"]

State = dict[str, str]  # output -> its digest, "" where there is none

SETTINGS = tuple(("--batch-size 16 --device cpu --epochs 2 --set dim=8 --set dim_word=4 --quiet").split())
ABSENT = ""


@dataclass(frozen=True)
class Case:
    """One command.

    ``before`` are the commands that leave the older output, ``outputs`` what is to be old or new, whole, afterwards.
    ``resume``: what goes on with a run that was cut short; ``run``: the output is a run directory, made in place.
    """

    name: str
    argv: tuple[str, ...]
    outputs: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    inputs: tuple[str, ...] = ("data.parquet", "run")
    resume: tuple[str, ...] = ()
    run: bool = False
    verified: str = ""  # an export: a mixture of old and new files may be left only where verify notices it
    made: dict[str, str] = field(default_factory=dict)  # older outputs that no command leaves: name -> text


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _export(name: str, out: str, more: str = "", dropped: str = "") -> Case:
    outputs = (out, f"{out}.manifest.json", f"{out}.ledger.parquet", *([dropped] if dropped else []))
    told = f"export run --repaired {out} {more} {f'--dropped {dropped}' if dropped else ''}"
    return Case(
        name,
        _words(f"{told} --overwrite --threshold 0.02 --set min_repair_score=0"),
        outputs,
        before=(_words(f"{told} --threshold 0.035 --set min_repair_score=0"),),
        inputs=("data.parquet",),
        verified=out,
    )


CASES = (
    Case(
        "fit",
        _words("fit data.parquet --method infonce --seed 2 --out other --overwrite") + SETTINGS,
        ("other",),
        before=(_words("fit data.parquet --method infonce --seed 1 --out other") + SETTINGS,),
        inputs=("data.parquet", "run"),
        resume=_words("fit --resume --out other --quiet"),
        run=True,
    ),
    Case(
        "fit in a new directory",
        _words("fit data.parquet --method infonce --seed 1 --out fresh") + SETTINGS,
        ("fresh",),
        inputs=("data.parquet", "run"),
        resume=_words("fit --resume --out fresh --quiet"),
        run=True,
    ),
    Case(
        "score", _words("score run data.parquet --out s.parquet --overwrite"), ("s.parquet",), made={"s.parquet": "old"}
    ),
    Case(
        "rematch",
        _words("rematch run --out plan.csv --overwrite --threshold 0.02 --set min_repair_score=0"),
        ("plan.csv",),
        before=(_words("rematch run --out plan.csv --threshold 0.035 --set min_repair_score=0"),),
    ),
    _export("export", "out.parquet", dropped="dropped.parquet"),
    _export("export webdataset", "shards", "--format webdataset"),
    _export("export datasets", "stored", "--format datasets"),
    Case(
        "corrupt",
        _words("corrupt clean.parquet --noise 0.4 --seed 1 --out noisy.parquet --overwrite"),
        ("noisy.parquet",),
        before=(_words("corrupt clean.parquet --noise 0.2 --out noisy.parquet"),),
        inputs=("clean.parquet",),
    ),
    Case("report", _words("report run --out r.html --overwrite"), ("r.html",), made={"r.html": "old"}),
    Case(
        "audit",
        _words("audit run --n 8 --seed 2 --out labels --overwrite"),
        ("labels",),
        before=(_words("audit run --n 6 --out labels"),),
    ),
    Case(
        "restore",
        _words("restore kept.parquet --out back.parquet --overwrite"),
        ("back.parquet",),
        inputs=("kept.parquet", "kept.parquet.ledger.parquet", "kept.parquet.manifest.json"),
        made={"back.parquet": "old"},
    ),
    Case(
        "bench",
        _words("bench clean.parquet --methods infonce --noise 0.4 --seeds 1 --set device=cpu --out bench --quiet")
        + _words("--set epochs=1 --set dim=8 --set dim_word=4 --set batch_size=16"),
        ("bench",),
        inputs=("clean.parquet",),
        resume=_words(
            "bench clean.parquet --methods infonce --noise 0.4 --seeds 1 --set device=cpu --out bench --quiet"
        )
        + _words("--set epochs=1 --set dim=8 --set dim_word=4 --set batch_size=16"),
        run=True,
    ),
)


def write_corpus(path: str, n: int, wrong: int) -> None:
    """``n`` pairs that have the sums of their words' vectors, and images; the first ``wrong`` captions are reversed."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng = np.random.default_rng(0)
    words = [f"word{k}" for k in range(24)]
    vectors = rng.normal(size=(len(words), 16))
    chosen = [rng.choice(len(words), 3, replace=False) for _ in range(n)]
    captions = [" ".join(words[k] for k in row) for row in chosen]
    captions[:wrong] = reversed(captions[:wrong])
    images = []
    for i in range(n):
        stream = io.BytesIO()
        Image.new("RGB", (8, 8), (i % 256, 3 * i % 256, 7)).save(stream, "PNG")
        images.append({"bytes": stream.getvalue(), "path": None})
    flat = pa.array(np.array([vectors[row].sum(0) for row in chosen], np.float32).ravel())
    columns = {
        "key": pa.array([f"k{i}" for i in range(n)]),
        "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "image_features": pa.FixedSizeListArray.from_arrays(flat, 16),
        "caption": pa.array(captions),
    }
    pq.write_table(pa.table(columns), path)


def prepare(base: Path) -> None:
    """Fill the directory ``base`` with data, a finished run, an export and plans."""
    base.mkdir()
    in_child(write_corpus, str(base / "data.parquet"), 48, 12)
    in_child(write_corpus, str(base / "clean.parquet"), 48, 0)
    fit = ["fit", "data.parquet", "--method", "infonce", "--seed", "0", "--out", "run", *SETTINGS]
    _must(run_command([*fit, "--epochs", "12", "--set", "lr=0.01"], base))
    _must(run_command(["export", "run", "--repaired", "kept.parquet"], base))
    for name in ("plan.csv", "plan.parquet"):
        _must(
            run_command(["rematch", "run", "--out", name, "--threshold", "0.02", "--set", "min_repair_score=0"], base)
        )


def build(prepared: Path, folder: Path, case: Case) -> Path:
    """A copy of the prepared directory, with the older output of ``case``."""
    base = copy(prepared, folder)
    if case.name == "rematch":
        (base / "plan.csv").unlink()
    for argv in case.before:
        _must(run_command(argv, base))
    for name, text in case.made.items():
        (base / name).write_text(text)
    return base


def _must(outcome: Outcome) -> None:
    if outcome.code != 0:
        raise RuntimeError(f"the preparation failed with {outcome.code}: {outcome.err}")


def edit_note(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a plan in CSV notes of its settings, in its first line."""
    head, _, rows = path.read_bytes().decode("utf-8-sig").partition("\n")
    names = next(csv.reader([head]))
    noted = json.loads(names[-1])
    change(noted)
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow([*names[:-1], json.dumps(noted)])
    path.write_bytes((line.getvalue() + rows).encode("utf-8-sig"))


def state_of(work: Path, case: Case) -> State:
    """The digests of the outputs."""
    return {name: _output(work / name, case) for name in case.outputs}


def _output(path: Path, case: Case) -> str:
    if case.name == "bench":
        return _bench(path)
    if case.run:
        aside = path.parent / f".replaced-{path.name}"  # what is being replaced, until the new one is complete
        for folder in (path, aside):
            if _complete(folder):
                return digest(folder / "scores.parquet") + digest(folder / "model")
        return ABSENT
    if path.suffix == ".csv":
        return str(in_child(_plan, str(path)))
    if path.name.endswith(".manifest.json") and path.is_file():  # it names the input by where it lies
        text = re.sub(r'"(?:\.\./)+', '"../', path.read_text(encoding="utf-8"))
        return hashlib.sha256(text.encode()).hexdigest()
    return digest(path)


def _plan(path: str) -> str:
    """What `export --plan` would make of a plan: its table and its note together."""
    from cleanpairs.core.errors import DataError
    from cleanpairs.repair.plan import RepairPlan

    try:
        plan = RepairPlan.load(path)
    except DataError:
        return ABSENT
    return hashlib.sha256(repr((plan.table.to_pylist(), plan.threshold, plan.settings)).encode()).hexdigest()


def _bench(path: Path) -> str:
    """The figures of the table: the seconds in it are another run's."""
    try:
        lines = [json.loads(line) for line in (path / "bench.jsonl").read_text().splitlines()]
        (path / "table.md").read_text()
    except (OSError, ValueError):
        return ABSENT
    kept = [{k: v for k, v in line.items() if "second" not in k and k[:4] not in ("when", "peak")} for line in lines]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def unfinished(run: Path, case: Case) -> bool:
    """Whether there is something to go on with."""
    if case.name == "bench":
        return run.exists()
    return (run / "recipe.yaml").exists() and not _complete(run)


def _complete(run: Path) -> bool:
    try:
        return bool(json.loads((run / "run.json").read_text()).get("status") == "complete")
    except (OSError, ValueError):
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file, or of a directory's names and files; "" where there is nothing."""
    if path.is_dir():
        lines = [f"{p.relative_to(path)} {digest(p)}" for p in sorted(path.rglob("*")) if p.is_file()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ABSENT


def input_state(work: Path, case: Case) -> State:
    """The digests of the inputs; of a run without the plan that an export or a rematch leaves in it."""
    found = {}
    for name in case.inputs:
        path = work / name
        if path.is_dir():
            files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.name != "plan.parquet"]
            files = [p for p in files if ".cleanpairs-" not in str(p)]
            found[name] = hashlib.sha256("".join(digest(p) for p in files).encode()).hexdigest()
        else:
            found[name] = digest(path)
    return found


def leftovers(work: Path) -> list[str]:
    """Staging directories and temporary files that a command has left."""
    found = [p for name in (".cleanpairs-*", ".*.cleanpairs-lock") for p in work.rglob(name) if ".cache" not in p.parts]
    found += list((work / ".tmp").glob("*")) if (work / ".tmp").exists() else []
    return sorted(str(p.relative_to(work)) for p in found)


def age(work: Path) -> None:
    """Let an hour pass for what a dead writer has left: without a lock it is collected after ten minutes."""
    for name in leftovers(work):
        then = (work / name).stat().st_mtime - 3600
        os.utime(work / name, (then, then))


def copy(base: Path, work: Path) -> Path:
    """A fresh copy of the prepared directory."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work, symlinks=True)
    return work
