"""What must never be lost: files that nobody named, labels given by hand, a good run; and several writers at once.

Each trial is one command in a copy of a prepared folder. It has to end with the exit code that is documented, and every
file that was there has to be there afterwards, with what it held.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.cases import SETTINGS, copy, digest, leftovers
from faults.figures import Figure
from faults.forked import in_child, run_command

__all__ = ["LOSSES", "Loss", "try_loss", "try_races"]

EXISTS = 5
LABELS = "pair_id,matched,key,stratum\n0,1,k0,s\n1,,k1,s\n"
FIT = ("--method", "infonce", *SETTINGS)

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Loss:
    """One command: ``kind``: its row of the table; ``make``: what is laid out for it; ``codes``: how it may end;
    ``changed``: what it may write where it ends with 0.
    """

    kind: str
    argv: tuple[str, ...]
    make: Make = lambda work: None
    codes: tuple[int, ...] = (EXISTS,)
    changed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The command."""
        return " ".join(self.argv)


# -- files that nobody named ------------------------------------------------------------------------------------------


def _put(name: str, text: str = "mine") -> Make:
    def make(work: Path) -> None:
        if name.split("/")[0] == "runs":  # the prepared run has made its link
            shutil.rmtree(work / "runs", ignore_errors=True)
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)

    return make


def _edited(work: Path) -> None:
    """A plan of the run, written again by another program."""
    in_child(_edit, str(work))


def _edit(work: str) -> None:
    import pyarrow.parquet as pq

    from cleanpairs.repair.plan import RepairPlan

    plan = Path(work) / "run" / "plan.parquet"
    RepairPlan.load(f"{work}/plan.csv").save(plan, overwrite=True)
    pq.write_table(pq.read_table(plan), plan)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


REFIT = (*_words("fit data.parquet --out run --overwrite"), *FIT)


def _foreign() -> Iterator[Loss]:
    kind = "files that nobody named, edited plans, labels given by hand"
    export, again = "export run --repaired", "--threshold 0.02 --overwrite"
    for part in ("part-00000.parquet", "part-000000", "image.f32", "manifest.json", "notes/mine.txt"):
        yield Loss(
            kind, _words("score run data.parquet --out new.parquet --workers 2"), _put(f"new.parquet.parts/{part}")
        )
        parts = _put(f"new.parquet.parts/{part}")
        yield Loss(
            kind, _words("rematch run --out new.parquet --workers 2 --repairs plausible"), parts, (0, EXISTS)
        )  # 0: nothing to search
    for text in ("mine", "[]", "{}"):
        for end in (".manifest.json", ".ledger.parquet"):
            yield Loss(kind, _words(f"{export} new.parquet {again}"), _put(f"new.parquet{end}", text))
    for out in ("new.parquet", "kept.parquet"):
        yield Loss(kind, _words(f"{export} {out} {again}"), _edited)
    yield Loss(kind, REFIT, _edited)
    for name in (
        "data.parquet",
        "report.html",
        "model/README.md",
        "checkpoints/best.pt",
        "audit/notes.txt",
        ".git/config",
    ):
        yield Loss(kind, REFIT, _put(f"run/{name}"))
    for name in ("run/audit/labels.csv", "run/audit/mine.csv"):
        yield Loss(kind, REFIT, _put(name, LABELS))
        yield Loss(kind, _words("audit run --overwrite"), _put(name, LABELS))
    for separator in (";", "\t"):
        yield Loss(kind, _words("audit run --overwrite"), _put("run/audit/labels.csv", LABELS.replace(",", separator)))
    for told in ("score run data.parquet", "rematch run", "corrupt clean.parquet --noise 0.4", "report run"):
        yield Loss(kind, _words(f"{told} --out labels.csv --overwrite"), codes=(2, EXISTS))  # 2: not its ending
    for name in ("table.md", "table.csv"):
        yield Loss(
            kind, _words("bench clean.parquet --methods infonce --noise 0.4 --out tables"), _put(f"tables/{name}")
        )
    for name in ("noisy.parquet", "result.json", "report.html", "run/run.json"):
        yield Loss(kind, _words("demo --out shown"), _put(f"shown/{name}"))
    for name in ("mine.txt", "00000.txt", "README.md"):
        yield Loss(kind, _words(f"{export} shards --format webdataset {again}"), _put(f"shards/{name}"))


# -- a run that is replaced -------------------------------------------------------------------------------------------


def _old(work: Path) -> None:
    shutil.rmtree(work / "runs", ignore_errors=True)
    (work / "runs").mkdir()
    (work / "runs" / "latest").symlink_to("../run")


def _unwritable(work: Path) -> None:
    """No link can be made beside the one that is there: every name that a process would take is taken."""
    _old(work)
    (work / "runs").chmod(0o500)


def _switched() -> Iterator[Loss]:
    kind = "runs whose replacement cannot begin"
    changed = ("run", "other", "runs")
    ends = {
        "the name is a file": _put("runs"),
        "the link is a folder": _put("runs/latest/mine"),
        "the link is old": _old,
    }
    for make in ends.values():
        yield Loss(kind, REFIT, make, (0,), changed)
        yield Loss(kind, (*_words("fit data.parquet --out other"), *FIT), make, (0,), changed)
        for bad in ("labels.csv", "missing.parquet", "plan.csv"):
            yield Loss(kind, (*_words(f"fit {bad} --out run --overwrite"), *FIT), make, (3,))
        for bad in ("--set dim=-1", "--set no=1", "--method no", "--set lr=nan"):
            yield Loss(kind, (*REFIT, *_words(bad)), make, (2,))
        yield Loss(kind, (*REFIT, "--limit", "1"), make, (3, 7))
        yield Loss(kind, (*REFIT, "--set", "image_encoder=nowhere"), make, (2, 3))
    if os.geteuid():
        yield Loss(kind, REFIT, _unwritable, (4,))


LOSSES: tuple[Loss, ...] = (*_foreign(), *_switched())


def _moved(base: Path, work: Path) -> Path:
    """A copy of the prepared folder, with more to lose, whose run and plan go back to the data in it."""
    copy(base, work)
    (work / "labels.csv").write_text(LABELS)
    for name in ("run/run.json", "run/recipe.yaml", "plan.csv"):
        file = work / name
        file.write_text(file.read_text().replace(str(base), str(work)))
    return work


def _state(work: Path, apart: Sequence[str]) -> dict[str, str]:
    found = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        if name.parts[0] in (*apart, ".tmp", ".cache") or ".cleanpairs-" in str(name):
            continue
        found[str(name)] = os.readlink(path) if path.is_symlink() else digest(path) if path.is_file() else ""
    return found


def try_loss(loss: Loss, base: Path, work: Path) -> list[str]:
    """What went wrong."""
    _moved(base, work)
    loss.make(work)
    before = _state(work, loss.changed)
    outcome = run_command(loss.argv, work)
    after = _state(work, loss.changed)
    problems = []
    if outcome.code not in loss.codes or outcome.hung:
        problems.append(
            f"exit code {outcome.code}, not {' or '.join(map(str, loss.codes))}: {outcome.err.strip()[-200:]}"
        )
    if not outcome.clean:
        problems.append("a traceback")
    if lost := [name for name, was in before.items() if after.get(name) != was]:
        problems.append(f"lost or changed: {', '.join(lost[:5])}")
    if outcome.code and (new := sorted(after.keys() - before.keys())):
        problems.append(f"left: {', '.join(new[:5])}")
    problems += [f"left behind: {name}" for name in leftovers(work) if not name.startswith(".tmp")]
    return problems


def try_races(times: int, base: Path, scratch: Path) -> Figure:
    """``fit --out same`` by three processes at once, so many times: one wins, the others are told, the run is whole."""
    problems = []
    for attempt in range(times):
        work = _moved(base, scratch / "race")
        children = []
        for k in range(3):
            (work / f"at-{k}").mkdir()
            words = [
                "fit",
                "../data.parquet",
                *FIT,
                "--seed",
                str(k + 1),
                "--out",
                "../same",
                *(["--overwrite"] * (attempt % 2)),
            ]
            child = os.fork()
            if child == 0:
                os._exit(run_command(words, work / f"at-{k}").code & 0xFF)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        verified = run_command(["verify", "same"], work)
        seeds = {_line(work / "same" / name, "seed") for name in ("run.json", "recipe.yaml")}
        if not set(codes) <= {0, EXISTS} or 0 not in codes or verified.code or len(seeds) != 1:
            problems.append(f"race {attempt}: codes {codes}, verify {verified.code}, seeds {sorted(seeds)}")
    return Figure("fits of one output by three processes at once", times, problems)


def _line(path: Path, word: str) -> str:
    """The number behind ``word`` in a file; recipe.yaml calls the seed by the name of the setting."""
    found = re.search(rf"\b(?:{word}|random_state)\b\W*(\d+)", path.read_text())
    return found[1] if found else "none"
