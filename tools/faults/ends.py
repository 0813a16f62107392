"""Hangs, ends and escapes: files that are no files, signals and streams that are gone, and names that a terminal obeys.

Each trial is one command on a copy of the prepared folder. It is to end by itself, with an exit code that is not 1,
without a traceback, and without a character that a terminal would obey.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults.cases import edit_note
from faults.forked import Outcome, in_child, run_command
from faults.inputs import table

__all__ = ["Trial", "trials", "try_trial"]

HANGS = "FIFOs, devices, sockets, directories and loops of links as each file that is read; 30,000 columns"
ENDS = "streams closed, unread or full, no HOME, extension types, paths that are not UTF-8, nested JSON"
ESCAPES = "control characters in arguments, columns, values, run.json, manifests, plans, models"
SECONDS = 10  # of CPU: a busy machine is no hang; what waits for ever is killed after LIMIT seconds
LIMIT = 100
MEMORY = 12 * 2**30  # of address space: an endless file is to end in a refusal, not in the machine's memory

FIT = "fit {} --method infonce --epochs 1 --batch-size 16 --device cpu --set dim=8 --set dim_word=4 --quiet --out new"
SCORE = "score run {} --out new.parquet"
EVIL = "a\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnp\u2066\r\nError"
HTML = "<script>alert(1)</script><b>"
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Trial:
    """One command: ``make`` prepares the folder, ``become`` the child process; ``codes``: the exit
    codes allowed; ``after``: what is wrong with what it wrote.
    """

    kind: str
    name: str
    argv: tuple[str, ...]
    make: Callable[[Path], None] = lambda work: None
    become: Callable[[], None] = lambda: None
    codes: tuple[int, ...] = ()
    after: Callable[[Path], list[str]] = lambda work: []


def try_trial(trial: Trial, base: Path, work: Path) -> list[str]:
    """Run it; what was wrong with how it ended."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work, symlinks=True)
    in_child(_made, trial, str(work))
    done = run_command(list(trial.argv), work, memory=MEMORY, become=trial.become, limit=LIMIT)
    return [*_judged(trial, done), *trial.after(work)]


def _made(trial: Trial, work: str) -> None:
    os.chdir(work)
    trial.make(Path(work))


def _judged(trial: Trial, done: Outcome) -> list[str]:
    output = f"{done.err}{done.out}"
    problems = []
    if done.hung or done.seconds > SECONDS:
        problems.append(f"hung: {'killed' if done.hung else f'{done.seconds:.0f} s of CPU'}")
    if (done.code == 1 or (done.code < 0 and not done.hung)) or (trial.codes and done.code not in trial.codes):
        problems.append(f"exit code {done.code}")
    if not done.clean:
        problems.append("a traceback")
    if (found := _OBEYED.search(output)) is not None:
        problems.append(f"a raw {found.group()!r}")
    last = done.err.strip().splitlines()[-1:] or [""]
    return [f"{problem} ({ascii(last[0])[:300]})" for problem in problems]


def trials() -> Iterator[Trial]:
    """All of them."""
    yield from _special_files()
    yield from _wide()
    yield from _streams()
    yield from _odd_inputs()
    yield from _escapes()


# -- hangs -------------------------------------------------------------------------------------------------------------

# Where a file is expected, and the commands that read it.
READ = {
    "data.parquet": (FIT.format("data.parquet"), SCORE.format("data.parquet"), "inspect data.parquet",
                     "verify data.parquet", "export run --repaired new.parquet",
                     "corrupt data.parquet --noise 0.4 --out new.parquet", "evaluate run data.parquet"),
    "f.arrow": ("inspect f.arrow", FIT.format("f.arrow")),
    "f.csv": ("inspect f.csv", FIT.format("f.csv")),
    "f.jsonl": ("inspect f.jsonl",),
    "f.json": ("inspect f.json",),
    "00000.tar": ("inspect 00000.tar",),
    "many/a.parquet": (FIT.format("many"), "verify many", "inspect many"),
    "many/a.parquet.manifest.json": (FIT.format("many"), "inspect many"),
    "folder/captions.txt": ("inspect folder",),
    "folder/metadata.csv": ("inspect folder",),
    "folder/metadata.jsonl": ("inspect folder",),
    "precomp/train_ims.npy": (FIT.format("precomp"),),
    "precomp/train_caps.txt": (FIT.format("precomp"),),
    "precomp/train_truth.parquet": (FIT.format("precomp"),),
    "hub/state.json": ("inspect hub",),
    "hub/dataset_dict.json": ("inspect hub",),
    "emb/img_emb/img_emb_0.npy": ("inspect emb",),
    "emb/metadata/metadata_0.parquet": ("inspect emb",),
    "r.yaml": (f"{FIT.format('data.parquet')} --recipe r.yaml",),
    "plan.csv": ("export --plan plan.csv --repaired new.parquet",),
    "plan.parquet": ("export --plan plan.parquet --repaired new.parquet",),
    "run/run.json": ("report run --out new.html", "export run --repaired new.parquet", "verify run",
                     "fit --resume --out run --quiet"),
    "run/recipe.yaml": ("verify run", "fit --resume --out run --quiet"),
    "run/metrics.jsonl": ("report run --out new.html", "verify run"),
    "run/scores.parquet": ("report run --out new.html", "verify run", "audit run --n 6 --out new",
                           "rematch run --out new.csv", "export run --repaired new.parquet"),
    "run/model/config.json": (SCORE.format("data.parquet"), "verify run", "verify run/model"),
    "run/model/vocabulary.json": (SCORE.format("data.parquet"), "verify run/model"),
    "run/model/model.safetensors": (SCORE.format("data.parquet"), "verify run/model"),
    "run/model/bank.safetensors": (SCORE.format("data.parquet"), "verify run/model"),
    "run/audit/labels.csv": ("audit run --labels run/audit/labels.csv", "report run --out new.html"),
    "run/audit/result.json": ("report run --out new.html",),
    "kept.parquet": ("verify kept.parquet", "restore kept.parquet --out new.parquet", "diff kept.parquet"),
    "kept.parquet.manifest.json": ("verify kept.parquet", "restore kept.parquet --out new.parquet",
                                   "diff kept.parquet"),
    "kept.parquet.ledger.parquet": ("verify kept.parquet", "restore kept.parquet --out new.parquet",
                                    "diff kept.parquet"),
    "noise.npy": ("corrupt data.parquet --noise-file noise.npy --out new.parquet",),
    "truth.npy": ("evaluate run data.parquet --truth truth.npy",),
    "truth.parquet": ("evaluate run data.parquet --truth truth.parquet",),
    "bench/bench.jsonl": ("bench data.parquet --methods infonce --noise 0.4 --seeds 1 --epochs 1 --out bench --quiet",),
}  # fmt: skip
SPECIAL = ("a FIFO", "/dev/zero", "a socket", "a directory", "a link loop")


def special(name: str, what: str) -> Callable[[Path], None]:
    """In place of a file, something that is none."""

    def make(work: Path) -> None:
        path = work / name
        _surroundings(work)
        path.parent.mkdir(exist_ok=True, parents=True)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        if what == "a FIFO":
            os.mkfifo(path)
        elif what == "/dev/zero":
            path.symlink_to("/dev/zero")
        elif what == "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(name)
        elif what == "a directory":
            path.mkdir()
        else:
            path.symlink_to(path.name)

    return make


def _surroundings(work: Path) -> None:
    """The folders that the places lie in, whole: only the one file is none."""
    import numpy as np

    for name in ("many", "folder", "precomp", "hub", "emb/img_emb", "emb/metadata"):
        (work / name).mkdir(parents=True, exist_ok=True)
    for name in ("many/a.parquet", "many/b.parquet"):
        shutil.copy(work / "data.parquet", work / name)
    np.save(work / "precomp/train_ims.npy", np.ones((6, 3, 4), np.float32))
    (work / "precomp/train_caps.txt").write_text("a caption\n" * 6)
    np.save(work / "emb/img_emb/img_emb_0.npy", np.ones((48, 4), np.float32))
    shutil.copy(work / "clean.parquet", work / "emb/metadata/metadata_0.parquet")


def _special_files() -> Iterator[Trial]:
    for place, commands in READ.items():
        for command in commands:
            for what in SPECIAL:
                if what in ("a FIFO", "/dev/zero") or command == commands[0]:
                    yield Trial(HANGS, f"{what} as {place}: {command.split()[0]} {command.split()[1]}",
                                tuple(command.split()), special(place, what))  # fmt: skip
    for what in SPECIAL[:3]:
        image = lambda work, what=what: _images(work, partial(special("folder/0.jpg", what), work))  # noqa: E731
        yield Trial(HANGS, f"{what} among images: inspect", ("inspect", "folder"), image, codes=(0, 3))
        yield Trial(HANGS, f"{what} among images: fit", tuple(FIT.format("folder").split()), image, codes=(0, 3, 7))
    for what in SPECIAL[:3]:
        yield Trial(HANGS, f"{what} as an output of the manifest", ("verify", "kept.parquet"),
                    partial(_manifest_names, what), codes=(3,))  # fmt: skip
        yield Trial(HANGS, f"{what} as the output", tuple(f"{SCORE.format('data.parquet')} --overwrite".split()),
                    special("new.parquet", what), codes=(5,))  # fmt: skip
        yield Trial(HANGS, f"{what} as the run's directory", tuple(FIT.format("data.parquet").split()),
                    special("new", what), codes=(4, 5))  # fmt: skip


def _images(work: Path, then: Callable[[], None]) -> None:
    then()
    import pyarrow.parquet as pq

    cells = pq.read_table(work / "data.parquet")["image"].to_pylist()[:24]
    for number, cell in enumerate(cells):
        if not os.path.lexists(work / f"folder/{number}.jpg"):
            (work / f"folder/{number}.jpg").write_bytes(cell["bytes"])
    lines = [f"{number}.jpg,a caption of {number}" for number in range(len(cells))]
    (work / "folder/captions.csv").write_text("\n".join(["image,caption", *lines]))


def _manifest_names(what: str, work: Path) -> None:
    special("odd", what)(work)
    _edited(work / "kept.parquet.manifest.json", lambda noted: noted["files"].update(
        {"odd": next(iter(noted["files"].values())) | {"role": "out"}}))  # fmt: skip


def _edited(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _wide() -> Iterator[Trial]:
    for suffix in ("parquet", "csv", "arrow"):
        make = partial(_wide_file, f"wide.{suffix}")
        yield Trial(HANGS, f"30,000 columns of {suffix}", ("inspect", f"wide.{suffix}"), make, codes=(0,))
        yield Trial(HANGS, f"30,000 columns of {suffix}: one twice", ("inspect", f"wide.{suffix}"),
                    partial(make, twice=True), codes=(3,))  # fmt: skip
        for command in ("verify", f"corrupt --noise 0.4 --out new.{suffix} --seed 1", FIT.format("")):
            words = command.split()
            if suffix == "parquet":
                argv = (words[0], f"wide.{suffix}", *words[1:])
                yield Trial(HANGS, f"30,000 columns of {suffix}: {words[0]}", argv, make)
    for command in (
        "inspect many",
        "verify many",
        FIT.format("many"),
        "corrupt many/0.parquet --noise 0.4 --out new.pq",
    ):
        yield Trial(HANGS, f"400 files, 2,000 row groups: {command.split()[0]}", tuple(command.split()), _many_files)


def _many_files(work: Path) -> None:
    import pyarrow.parquet as pq

    found = pq.read_table(work / "data.parquet")
    (work / "many").mkdir()
    for number in range(400):
        pq.write_table(found.slice(number % 40, 5), work / f"many/{number}.parquet", row_group_size=1)


def _wide_file(name: str, work: Path, twice: bool = False) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [f"c{k}" for k in range(30_000)] + ["image", "caption", *(["c7"] if twice else [])]
    if name.endswith("csv"):
        (work / "a.jpg").write_bytes(b"x")
        (work / name).write_text("\n".join([",".join(columns), *[",".join(["a.jpg"] * len(columns))] * 3]))
        return
    found = pa.Table.from_arrays([pa.array(["a"] * 3)] * len(columns), names=columns)
    if name.endswith("parquet"):
        pq.write_table(found, work / name, write_statistics=False)
        return
    with pa.ipc.new_file(work / name, found.schema) as sink:
        sink.write_table(found)


# -- ends --------------------------------------------------------------------------------------------------------------

COMMANDS = ("inspect data.parquet", "verify kept.parquet", "diff kept.parquet", SCORE.format("data.parquet"),
            FIT.format("data.parquet"), "report run --out new.html",
            "export run --repaired new.pq --format parquet")  # fmt: skip


def closed(*numbers: int) -> None:
    """The child without these of its standard streams, as a shell starts it with ``2>&-``."""
    for number in numbers:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)


def to_pipe(*numbers: int) -> None:
    """The child with pipes that nobody reads any more."""
    for number in numbers:
        read, write = os.pipe()
        os.dup2(write, number)
        os.close(read)
        os.close(write)


def to_file(name: str, *numbers: int) -> None:
    """The child with its streams into a file such as /dev/full."""
    for number in numbers:
        os.dup2(os.open(name, os.O_WRONLY), number)


def homeless() -> None:
    """The child without HOME, and as a user whom the system does not know where such a user can run this Python."""
    for name in ("HOME", "CLEANPAIRS_CACHE", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        os.environ.pop(name, None)
    interpreter = Path(sys.executable).resolve()
    if os.getuid() == 0 and all(path.stat().st_mode & 0o001 for path in (interpreter, *interpreter.parents)):
        subprocess.run(["chmod", "-R", "a+rwX", ".", ".."], check=True)
        os.setgroups([])
        os.setgid(54_321)
        os.setuid(54_321)


def _streams() -> Iterator[Trial]:
    for command in COMMANDS:
        argv = tuple(command.replace("--quiet", "").split())
        what = argv[0]
        for numbers in ((0,), (1,), (2,), (0, 1, 2)):
            yield Trial(ENDS, f"{what}: streams {numbers} closed", argv, become=partial(closed, *numbers), codes=(0,))
        for numbers in ((1,), (2,), (1, 2)):
            yield Trial(ENDS, f"{what}: nobody reads {numbers}", argv, become=partial(to_pipe, *numbers), codes=(0,))
        yield Trial(ENDS, f"{what}: standard output is full", argv, become=partial(to_file, "/dev/full", 1),
                    codes=(0, 4))  # fmt: skip
        yield Trial(ENDS, f"{what}: standard error is full", argv, become=partial(to_file, "/dev/full", 2),
                    codes=(0,))  # fmt: skip
        yield Trial(ENDS, f"{what}: no HOME", argv, become=homeless, codes=(0, 4) if what == "doctor" else (0,))
    for numbers in ((1,), (2,)):
        for state, become in (("closed", closed), ("unread", to_pipe)):
            yield Trial(ENDS, f"an error with stream {numbers[0]} {state}", ("inspect", "nowhere.parquet"),
                        become=partial(become, *numbers), codes=(3,))  # fmt: skip


def _odd_inputs() -> Iterator[Trial]:
    formats = ("parquet", "datasets", "webdataset")
    for kind in ("uuid", "json", "bool8", "opaque"):
        make = partial(_extension, kind)
        argv = tuple(FIT.format("odd.parquet").split())
        yield Trial(ENDS, f"arrow.{kind}: fit", argv, make, codes=(0,))
        yield Trial(ENDS, f"arrow.{kind}: inspect", ("inspect", "odd.parquet"), make, codes=(0,))
        yield Trial(ENDS, f"arrow.{kind}: Arrow", ("inspect", "odd.arrow"), make, codes=(0,))
        for format in formats:
            yield Trial(ENDS, f"arrow.{kind}: export {format}",
                        ("export", "run", "--repaired", "new", "--format", format, "--overwrite"),
                        partial(_extension, kind, of_run=True), codes=(0,))  # fmt: skip
    name = os.fsdecode(b"caf\xe9")
    for command in (FIT.format("X.parquet"), SCORE.format("X.parquet"), "inspect X.parquet", "verify X.parquet",
                    "inspect X", FIT.format("X"), "score X data.parquet --out new.parquet", "verify X",
                    "report run --out X/new.html", f"{FIT.format('data.parquet')}X", "export run --repaired X/o",
                    "export --plan X.csv --repaired new.parquet", "diff X.parquet", "rematch run --out X/plan.csv",
                    "corrupt data.parquet --noise 0.4 --out X.pq", "audit run --out X2", "inspect in"):  # fmt: skip
        argv = tuple(word.replace("X", name) for word in command.split())
        yield Trial(ENDS, f"a path that is not UTF-8: {command}", argv, partial(_latin, name))
    for place in ("run/run.json", "run/model/config.json", "run/model/vocabulary.json", "kept.parquet.manifest.json",
                  "run/metrics.jsonl", "run/audit/result.json", "f.json", "f.jsonl", "hub/state.json",
                  "hub/dataset_dict.json", "many/a.parquet.manifest.json", "bench/bench.jsonl", "r.yaml",
                  "run/recipe.yaml"):  # fmt: skip
        for command in READ[place]:
            for text in ("[" * 100_000, '{"a":' * 100_000, '{"format": 1, "a": ' + "[" * 5000 + "]" * 5000 + "}"):
                yield Trial(ENDS, f"nested JSON ({text[:4]!r}) as {place}: {command.split()[0]} {command.split()[1]}",
                            tuple(command.split()), partial(_nested, place, text))  # fmt: skip


def _extension(kind: str, work: Path, of_run: bool = False) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pq.read_table(work / "data.parquet")
    made = {
        "uuid": lambda: (pa.uuid(), pa.array([bytes([k]) * 16 for k in range(len(found))], pa.binary(16))),
        "json": lambda: (pa.json_(pa.utf8()), pa.array(['{"a": [1, 2]}'] * len(found))),
        "bool8": lambda: (pa.bool8(), pa.array([1] * len(found), pa.int8())),
        "opaque": lambda: (pa.opaque(pa.int32(), "point", "somebody"), pa.array([1] * len(found), pa.int32())),
    }[kind]()
    column = pa.ExtensionArray.from_storage(*made)
    found = found.append_column("odd", column)
    if of_run:
        pq.write_table(found, work / "data.parquet")
        _refitted(work)
        return
    pq.write_table(found, work / "odd.parquet")
    with pa.ipc.new_file(work / "odd.arrow", found.schema) as sink:
        sink.write_table(found)


def _refitted(work: Path) -> None:
    """The run again, on the data as it is now."""
    sys.argv = ["cleanpairs", *FIT.format("data.parquet").split()[:-1], "run", "--overwrite"]
    from cleanpairs.cli import main

    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"fit ended with {stop.code}") from stop


def _latin(name: str, work: Path) -> None:
    (work / "in").mkdir()
    (work / name).mkdir()
    for path in (f"{name}.parquet", f"in/{name}.parquet", f"{name}/a.parquet"):
        shutil.copy(work / "data.parquet", work / path)
    shutil.copy(work / "plan.csv", work / f"{name}.csv")


def _nested(place: str, text: str, work: Path) -> None:
    _surroundings(work)
    (work / place).parent.mkdir(exist_ok=True, parents=True)
    (work / place).write_text(text)


# -- escapes -----------------------------------------------------------------------------------------------------------


def _escapes() -> Iterator[Trial]:
    file = EVIL.replace("/", "")
    for command in ("inspect X.parquet", FIT.format("X.parquet"), "verify X.parquet", "diff X.parquet",
                    "restore X.parquet --out new.parquet", "report X --out new.html", "score X data.parquet --out n",
                    "export --plan X.csv --repaired new.parquet", "evaluate run X.parquet", "corrupt X.parquet --out n",
                    f"{FIT.format('data.parquet')} --recipe X.yaml", "X", "inspect --X", "rematch run --out X.csv",
                    f"{FIT.format('data.parquet')} --set X=1", f"{FIT.format('data.parquet')} --column text=X",
                    "methods X", "export run --repaired X.parquet", "report run --out X.html",
                    "audit run --out X", "doctor X", f"{SCORE.format('X')}",
                    f"{FIT.format('data.parquet')}X", "score run data.parquet --out X.pq"):  # fmt: skip
        argv = tuple(word.replace("X", file) for word in command.split())
        yield Trial(ESCAPES, f"an argument: {command}", argv)
    commands = ("inspect n.parquet", FIT.format("n.parquet"), "verify n.parquet",
                f"{FIT.format('n.parquet')} --column text=nothing", SCORE.format("n.parquet"),
                "evaluate run n.parquet", "corrupt n.parquet --noise 0.4 --out new.parquet")  # fmt: skip
    for what, change in (("a column", _evil_column), ("columns", _evil_columns), ("captions and keys", _evil_values),
                         ("the captions' column", _evil_captions)):  # fmt: skip
        for command in commands:
            yield Trial(ESCAPES, f"{what}: {' '.join(command.split()[:2])} {command[-12:]}", tuple(command.split()),
                        table("n.parquet", change))  # fmt: skip
    for what in ("method", "status", "input", "result", "versions"):
        for command in ("report run --out new.html", "verify run", "export run --repaired new.parquet",
                        "rematch run --out new.csv", "audit run --n 6 --out new"):  # fmt: skip
            yield Trial(ESCAPES, f"run.json's {what}: {command.split()[0]}", tuple(command.split()),
                        partial(_evil_run, what))  # fmt: skip
    for command in ("verify kept.parquet", "diff kept.parquet", "restore kept.parquet --out new.parquet"):
        for what in ("file", "format", "counts", "all"):
            yield Trial(ESCAPES, f"the manifest's {what}: {command.split()[0]}", tuple(command.split()),
                        partial(_evil_manifest, what))  # fmt: skip
    for what in ("method", "input", "result", "versions"):
        for command in ("report run --out new.html", "export run --repaired new.parquet --card new.html",
                        "export run --repaired new --format datasets"):  # fmt: skip
            yield Trial(ESCAPES, f"HTML in run.json's {what}: {command}", tuple(command.split()),
                        partial(_evil_run, what, text=HTML), after=_unescaped)  # fmt: skip
    for command in ("report run --out new.html", "export run --repaired new.parquet --card new.html",
                    "export run --repaired new --format datasets"):  # fmt: skip
        yield Trial(ESCAPES, f"HTML in columns, captions and keys: {command}", tuple(command.split()), _html_data,
                    codes=(0,), after=_unescaped)  # fmt: skip
    for what in ("threshold", "settings", "data"):
        yield Trial(ESCAPES, f"the plan's {what}: export", tuple("export --plan plan.csv --repaired n".split()),
                    partial(_evil_plan, what))  # fmt: skip
    for what in ("method", "parameters", "backbone", "format"):
        for command in (SCORE.format("data.parquet"), "verify run/model"):
            yield Trial(ESCAPES, f"the model's {what}: {command.split()[0]}", tuple(command.split()),
                        partial(_evil_model, what))  # fmt: skip


def _evil_column(found: Any) -> Any:
    return found.append_column(EVIL, found["caption"])


def _evil_columns(found: Any) -> Any:
    return found.drop_columns(["caption"]).append_column(EVIL, found["caption"])


def _evil_captions(found: Any) -> Any:
    import pyarrow as pa

    return found.drop_columns(["caption"]).append_column("caption", pa.array([1] * len(found)))


def _evil_values(found: Any) -> Any:
    import pyarrow as pa

    evil = pa.array([f"{EVIL}{k}" for k in range(len(found))])
    return found.drop_columns(["caption", "key"]).append_column("caption", evil).append_column("key", evil)


def _html_data(work: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pq.read_table(work / "data.parquet").drop_columns(["caption", "key"])
    evil = pa.array([f"{HTML}{k}" for k in range(len(found))])
    for name in ("caption", "key", HTML):
        found = found.append_column(name, evil)
    pq.write_table(found, work / "data.parquet")
    _refitted(work)


def _unescaped(work: Path) -> list[str]:
    """Pages and cards in which HTML of the data is HTML."""
    pages = [p for p in (*work.glob("new*"), *work.glob("new/*")) if p.suffix in (".html", ".md")]
    bodies = {p.name: re.sub(r"\A---\n.*?\n---\n", "", p.read_text(), flags=re.S) for p in pages}  # YAML is none
    return [f"{name} has {HTML!r} raw" for name, body in bodies.items() if "<script>alert" in body]


def _evil(value: Any, text: str = EVIL) -> Any:
    """Text everywhere, with its names too; of numbers and other things text as well."""
    if isinstance(value, dict):
        return {text: text} | {name: _evil(part, text) for name, part in value.items()}
    if text is HTML and not isinstance(value, str | list):
        return value
    return [text] if isinstance(value, list) else text


def _evil_run(what: str, work: Path, text: str = EVIL) -> None:
    _edited(work / "run/run.json", lambda noted: noted.update({what: _evil(noted.get(what, ""), text)}))


def _evil_manifest(what: str, work: Path) -> None:
    def change(noted: dict[str, Any]) -> None:
        if what == "file":
            noted["files"][EVIL] = next(iter(noted["files"].values())) | {"role": "out"}
        elif what == "all":
            noted.update({name: _evil(value) for name, value in noted.items()})
        else:
            noted[what] = _evil(noted.get(what, ""))

    _edited(work / "kept.parquet.manifest.json", change)


def _evil_plan(what: str, work: Path) -> None:
    edit_note(work / "plan.csv", lambda noted: noted.update({what: _evil(noted.get(what, ""))}))


def _evil_model(what: str, work: Path) -> None:
    _edited(work / "run/model/config.json", lambda noted: noted.update({what: _evil(noted.get(what, ""))}))
