"""What a stranger may have laid beside the data, or written into what we read: nothing of it is run, read or asked.

Each class has controls, in which the same is followed because it was asked for: a trial that cannot fail shows nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.cases import age, copy, leftovers
from faults.figures import Figure
from faults.forked import begin_command, in_child, run_command

__all__ = ["left_behind", "modules", "stored"]

TRUST = "--trust-stored-paths"
STARTERS = {  # commands that start children, in a folder with data.parquet, run and plan.parquet
    "score": "score run data.parquet --out new.parquet --workers 2",
    "rematch": "rematch run --out new.parquet --workers 2",
    "export": "export --plan plan.parquet --repaired new.parquet",
    "fit": "fit data.parquet --method infonce --set image_size=32 --out new --epochs 1 "
    "--set dim=8 --set dim_word=4 --batch-size 16 --device cpu --quiet",
    "inspect": "inspect data.parquet",
    "doctor": "doctor",
    "report": "report run --out new.html",  # matplotlib reads a matplotlibrc of the working directory
    "export datasets": "export run --repaired new --format datasets",
}
PARTED = {"CLEANPAIRS_DECODE_WORKERS": "2"}


# -- modules ----------------------------------------------------------------------------------------------------------


def _names() -> list[str]:
    """Of all modules: Python's own, those that a warm process has loaded, and some that are looked for in vain."""
    optional = {"cupy", "ray", "_winapi", "sitecustomize", "usercustomize", "sentencepiece", "tensorflow", "jax"}
    loaded = {name.partition(".")[0] for name in sys.modules}
    before = subprocess.run([sys.executable, "-Ic", "import runpy, sys; print(*sys.modules)"], capture_output=True)
    return sorted(
        name
        for name in (loaded | set(sys.stdlib_module_names) | optional) - {"faults", "cleanpairs"}
        if name.isidentifier() and name not in before.stdout.decode().split()  # Python itself imports these, of `-m`
    )


def _lay(folder: Path, names: list[str], marker: Path, form: str) -> None:
    for name in names:
        code = f"open({str(marker)!r}, 'a').write({name + ' '!r})\n"
        if form == "package":
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "__init__.py").write_text(code)
        else:
            (folder / f"{name}.py").write_text(code)


def modules(base: Path, scratch: Path, *, quick: bool = False) -> Figure:
    """Every command that starts processes, in a folder with a file (or a package) of the name of every module."""
    names, problems, tried = _names(), [], 0
    script = Path(sys.executable).with_name("cleanpairs")
    starts = [[sys.executable, "-m", "cleanpairs"], [str(script)]][: 2 if script.is_file() and not quick else 1]
    path = str(Path(__file__).resolve().parents[2])
    for even, start in enumerate(starts):  # what is a file for the one is a package for the other
        for name, told in STARTERS.items():
            if quick and name not in ("score", "fit"):
                continue
            work, marker = copy(base, scratch / "work"), scratch / "marker"
            _lay(work, names[even::2], marker, "file")
            _lay(work, names[1 - even :: 2], marker, "package")
            (work / "matplotlibrc").write_text("backend: module://abc\n")
            env = os.environ | PARTED | {"PYTHONPATH": path, "CLEANPAIRS_CACHE": str(scratch / "cache")}
            done = subprocess.run([*start, *told.split()], cwd=work, env=env, capture_output=True, text=True)
            tried += 1
            if marker.exists():
                problems.append(f"{start[-1]} {name}: it ran {marker.read_text().split()[:9]}")
                marker.unlink()
            if done.returncode not in (0, 7) and name != "doctor":
                problems.append(f"{start[-1]} {name}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    control = subprocess.run([sys.executable, "-c", "import decimal"], cwd=scratch / "work", capture_output=True)
    if not (scratch / "marker").exists():
        problems.append(f"the control ran nothing: {control.stderr.decode()[-300:]}")
    return Figure(
        f"commands beside {len(names)} files and packages of the names of modules, that run one", tried, problems
    )


# -- stored values ----------------------------------------------------------------------------------------------------

URLS = (
    "http://127.0.0.1:{port}/data.parquet", "https://localhost:{port}/data.parquet", "http://[::1]:{port}/a.parquet",
    "http://0x7f000001:{port}/a.parquet", "http://169.254.169.254/latest/a.parquet", "hf://someone/data",
    "hf://datasets/someone/data@main", "simplecache::http://127.0.0.1:{port}/data.parquet", "local://{secret}",
    "file://{secret}", "simplecache::local://{secret}", "memory://bucket/data.parquet", "s3://bucket/data.parquet",
    "ftp://127.0.0.1:{port}/data.parquet",
)  # fmt: skip
ROOTS = ("/", "..", "../private", "{work}/../private", "link", "images/../../private")
READS = {  # of what a run names
    "export": "export run --repaired new.parquet",
    "export webdataset": "export run --repaired new --format webdataset",
    "rematch": "rematch run --out new.parquet",
    "report": "report run --out new",
    "audit": "audit run --n 5 --out new",
    "fit --resume": "fit --resume --out run --quiet",
}
PLANNED = {
    "plan": "export --plan plan.parquet --repaired new.parquet",
    "plan webdataset": "export --plan plan.parquet --repaired new --format webdataset",
    "plan csv": "export --plan plan.csv --repaired new.parquet",
}
MODELS = {"score": "score run data.parquet --out new.parquet", "export": "export run --repaired new.parquet"}
MANIFESTS = {
    "verify": "verify kept.parquet",
    "restore": "restore kept.parquet --out new.parquet",
    "diff": "diff kept.parquet",
}


def _of_run(work: str, data: str | None, options: dict[str, Any]) -> None:
    """run.json and recipe.yaml that name other data, and how to read it."""
    import yaml

    from cleanpairs.core.recipe import read_yaml

    run = Path(work) / "run"
    info = json.loads((run / "run.json").read_text())
    info["input"] |= {"options": options} | ({} if data is None else {"data": data})
    info["status"] = "running"
    (run / "run.json").write_text(json.dumps(info))
    recipe = read_yaml(run / "recipe.yaml")
    recipe["data"] |= options | {"train": info["input"]["data"]}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


def _of_plan(work: str, data: str | None, options: dict[str, Any]) -> None:
    from dataclasses import replace

    from cleanpairs.repair.plan import RepairPlan

    plan = RepairPlan.load(Path(work) / "plan.parquet")
    settings = {**plan.settings, "columns": options} | ({} if data is None else {"data": data})
    for name in ("plan.parquet", "plan.csv"):
        replace(plan, settings=settings).save(Path(work) / name, overwrite=True)


def _of_model(work: str, role: str, name: str) -> None:
    file = Path(work) / "run" / "model" / "config.json"
    config = json.loads(file.read_text())
    config["parameters"][role] = name
    if role == "text_encoder":
        config[role] = name  # the one that was chosen for the data
    file.write_text(json.dumps(config))


def _of_manifest(work: str, role: str, name: str) -> None:
    import hashlib

    folder = Path(work)
    secret = (folder.parent / "private" / "data.parquet").read_bytes()
    file = folder / "kept.parquet.manifest.json"
    noted = json.loads(file.read_text())
    noted["files"] = {k: v for k, v in noted["files"].items() if v["role"] != role or role == "out"}
    noted["files"][name] = {"role": role, "sha256": hashlib.sha256(secret).hexdigest(), "bytes": len(secret), "rows": 3}
    file.write_text(json.dumps(noted))


def _of_input(work: str, path: str) -> None:
    file = Path(work) / "kept.parquet.manifest.json"
    noted = json.loads(file.read_text())
    noted["input"]["paths"] = [path]
    file.write_text(json.dumps(noted))


def _values(work: Path, port: int) -> Iterator[tuple[str, str, Callable[..., None], tuple[Any, ...]]]:
    """(Name, command, what lays the value into the folder, its arguments)."""
    secret = str(work.parent / "private" / "data.parquet")
    places: list[tuple[dict[str, str], Callable[..., None]]] = [(READS, _of_run), (PLANNED, _of_plan)]
    for commands, lay in places:
        for name, told in commands.items():
            for url in URLS:
                for options in ({}, {"allow_urls": True}):
                    yield f"{name} {url} {options}", told, lay, (url.format(port=port, secret=secret), options)
            for root in ROOTS:
                yield f"{name} image_root {root}", told, lay, (None, {"image_root": root.format(work=work)})
            yield f"{name} other data", told, lay, (secret, {})
    for name, told in MODELS.items():
        for role in ("encoder", "text_encoder"):
            for model in ("someone/model", "gpt2", "../private", f"http://127.0.0.1:{port}/model"):
                yield f"{name} {role} {model}", told, _of_model, (role, model)
    for name, told in MANIFESTS.items():
        for role in ("out", "ledger", "dropped") if name == "verify" else ("out", "ledger"):  # others do not open it
            for entry in (secret, "../private/data.parquet", "link/data.parquet"):
                yield f"{name} {role} {entry}", told, _of_manifest, (role, entry)
        for entry in (secret, "../private/data.parquet", "link/data.parquet", *URLS):
            yield f"{name} input {entry}", told, _of_input, (entry.format(port=port, secret=secret),)


def stored(base: Path, scratch: Path, *, quick: bool = False) -> Figure:
    """Values in a plan, a run, a model and a manifest that name files and addresses which the user has not."""
    problems, tried, work = [], 0, scratch / "work"
    (scratch / "private").mkdir()
    secret = scratch / "private" / "data.parquet"
    in_child(_copy, str(base / "data.parquet"), str(secret))
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    port = listener.getsockname()[1]
    before = _point_hub(f"http://127.0.0.1:{port}")
    try:
        for number, (name, told, lay, given) in enumerate(_values(work, port)):
            if quick and number % 18:
                continue
            _fresh(base, work)
            in_child(lay, str(work), *given)
            os.utime(secret, (0, secret.stat().st_mtime))
            done = run_command(told.split(), work)
            tried += 1
            harmless = lay is _of_input  # the way to the input is told, and nothing is done with it
            if done.code not in ((0, 2, 3) if harmless else (2, 3)) or not done.clean or done.hung:
                problems.append(f"{name}: exit code {done.code}: {(done.err or done.out).strip()[-200:]}")
            if list(work.glob("new*")) and not harmless:
                problems.append(f"{name}: an output was written")
            if secret.stat().st_atime and "other data" not in name:  # whose fingerprint is compared, and told of
                problems.append(f"{name}: it opened the file")
            if _asked(listener):
                problems.append(f"{name}: it asked the network")
        for told, lay, given in (  # controls
            (f"{PLANNED['plan']} {TRUST}", _of_plan, (None, {"image_root": "/"})),
            (f"{READS['export']} {TRUST}", _of_run, (None, {})),
        ):
            _fresh(base, work)
            in_child(lay, str(work), *given)
            done = run_command(told.split(), work)
            if "nobody has named" in done.err or done.code == 1:
                problems.append(f"control {told}: {done.err.strip()[-200:]}")
        secret.read_bytes()
        if not _control(port) or not _asked(listener) or not secret.stat().st_atime:
            problems.append("the control did not reach the listener, or the file")
    finally:
        listener.close()
        _point_hub(before)
    name = "paths, URLs and names in plans, runs, recipes, models and manifests of a stranger that are followed"
    return Figure(name, tried, problems)


def _copy(source: str, target: str) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(source).slice(1), target)


def _fresh(base: Path, work: Path) -> None:
    copy(base, work)
    (work / "link").symlink_to(work.parent / "private")
    (work / "images").mkdir()


def _point_hub(url: str) -> str:
    """Where the hub is said to be; the former address."""
    from huggingface_hub import constants

    before, constants.ENDPOINT = constants.ENDPOINT, url
    constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
    return str(before)


def _control(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def _asked(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


# -- left behind ------------------------------------------------------------------------------------------------------


def left_behind(base: Path, scratch: Path, *, quick: bool = False) -> Figure:
    """Commands that are ended while their workers are at work: who is alive ten seconds later, and what lies there
    after the same command again.
    """
    problems, tried, seen = [], 0, 0
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    for name in ("score", "export") if quick else ("score", "rematch", "export", "fit"):
        for number, delay in itertools.product(signals[: 1 if quick else 4], (0.0,) if quick else (0.0, 0.1, 0.3)):
            work = copy(base, scratch / "work")
            os.environ |= PARTED
            parent = begin_command(STARTERS[name].split(), work)
            for variable in PARTED:
                del os.environ[variable]
            children: set[int] = set()
            while not children and _alive(parent):
                children = _children(parent)
                time.sleep(0.005)
            time.sleep(delay)
            children |= _children(parent)
            os.kill(parent, number)
            os.waitpid(parent, 0)
            tried, seen = tried + 1, seen + len(children)
            until = time.monotonic() + 10
            while (alive := [pid for pid in children if _alive(pid)]) and time.monotonic() < until:
                time.sleep(0.02)
            what = f"{name} ended by {number.name} after {delay:g} s"
            problems += [f"{what}: its worker {pid} is alive" for pid in alive]
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            age(work)
            again = run_command([*STARTERS[name].split(), "--overwrite"], work)
            left = [
                p for p in (*leftovers(work), *map(str, work.glob("new.*parts"))) if "cleanpairs-" in p or "parts" in p
            ]
            if again.code or left:
                problems.append(f"{what}, and again: exit code {again.code}, left: {left}: {again.err.strip()[-200:]}")
    if not seen:
        problems.append("no command had a worker: nothing was tried")
    return Figure("commands ended at work, workers or files of which stay behind", tried, problems)


def _stat(pid: str) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _children(parent: int) -> set[int]:
    return {int(p) for p in os.listdir("/proc") if p.isdigit() and _stat(p)[1:2] == [str(parent)]}


def _alive(pid: int) -> bool:
    return _stat(str(pid))[:1] not in ([], ["Z"], ["X"])
