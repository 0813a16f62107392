"""What ``cleanpairs doctor`` looks at: the installation and the machine, and what would mend each thing.

The heavy modules are imported by a process of their own: a broken build may end the process that imports it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import cleanpairs
from cleanpairs.core.children import start
from cleanpairs.core.errors import CleanpairsError
from cleanpairs.data.atomic import staged_directory
from cleanpairs.data.source import cache_dir

__all__ = ["Check", "Diagnosis", "diagnose"]

LEAST_FREE = 2 * 2**30  # bytes: below it a disk is said to be nearly full
_TIMEOUT = 120  # seconds for the imports: a cold disk takes its time

# Each import is announced before it is tried, so that the one that ended the process is known.
_PROBE = """
import importlib, json, sys
from cleanpairs.ops import search
search._choose_openblas_kernel()
def say(**what):
    sys.__stdout__.write(json.dumps(what) + "\\n")
    sys.__stdout__.flush()
for name in sys.argv[1:]:
    say(begun=name)
    try:
        importlib.import_module(name)
        say(done=name)
    except BaseException as error:
        say(failed=name, error=f"{type(error).__name__}: {error}"[:300])
torch, faiss = (sys.modules.get(name) for name in ("torch", "faiss"))
if hasattr(torch, "get_num_threads"):
    cuda = torch.cuda.is_available()
    say(facts={"threads": torch.get_num_threads(), "cuda_build": torch.version.cuda,
               "devices": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if cuda else []})
if hasattr(faiss, "IndexFlatIP"):
    say(facts={"faiss_gpu": hasattr(faiss, "StandardGpuResources")})
"""

_MODULES = {"pyarrow": "pyarrow.parquet", "pillow": "PIL.Image", "scikit-learn": "sklearn", "faiss-cpu": "faiss"}
_PROBED = ("torch", "numpy", "pyarrow", "pillow", "scikit-learn", "datasets", "faiss-cpu")


@dataclass(frozen=True)
class Check:
    """One thing: ``state`` is ok, note (nothing wrong), warning, or broken (cleanpairs does not run so).

    ``remedy`` is a command, or words where no command would do; "" where there is nothing to mend.
    """

    name: str
    state: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':<28}-> {self.remedy}" if self.remedy else ""
        return f"{self.state:<8} {self.name:<18} {self.found}{remedy}"


@dataclass(frozen=True)
class Diagnosis:
    """All checks."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing essential is broken."""
        return all(check.state != "broken" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))


def diagnose() -> Diagnosis:
    """Look at everything; it takes the seconds that importing torch takes, and writes nothing that stays."""
    wanted = [Requirement(line) for line in _requires()]
    torchvision = ["torchvision"] if _installed("torchvision") else []
    facts = _probe([*(_MODULES.get(name, name) for name in _PROBED), *torchvision])
    checks = [
        Check("cleanpairs", "ok", f"{cleanpairs.__version__}, in {Path(cleanpairs.__file__).parent}"),
        Check("python", "ok", f"{platform.python_version()}, {platform.platform()}"),
        *_dependencies([r for r in wanted if r.marker is None], facts["failed"]),
        *_extras([r for r in wanted if r.marker is not None]),
        *_machine(facts),
        *(_disk(name, path) for name, path in (("cache", cache_dir()), ("runs", Path("runs")))),
        _publishing(Path.cwd()),
    ]
    return Diagnosis(tuple(checks))


def _requires() -> list[str]:
    try:
        return requires("cleanpairs") or []
    except PackageNotFoundError:  # it runs from a source tree
        return []


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _probe(modules: list[str]) -> dict[str, Any]:
    """{"failed": {module: error}, facts...} of importing ``modules`` in another process."""
    found: dict[str, Any] = {"failed": {}}
    try:
        with start(_PROBE, *modules, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            try:
                out, _ = child.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()
                out, _ = child.communicate()
        code = child.returncode
    except OSError as error:
        found["failed"] = dict.fromkeys(modules, f"no process can be started: {error}")
        return found
    begun: str | None = None
    for line in out.decode(errors="replace").splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue  # a module printed something
        begun = message.get("begun")
        if "failed" in message:
            found["failed"][message["failed"]] = message["error"]
        found.update(message.get("facts", {}))
    if begun is not None:
        found["failed"][begun] = f"importing it ended the process (exit status {code}), or took over {_TIMEOUT} s"
    return found


def _dependencies(wanted: list[Requirement], failed: dict[str, str]) -> Iterator[Check]:
    """The core dependencies: installed, new enough, importable. Sound ones share a line."""
    sound = []
    for r in wanted:
        names = ("faiss-cpu", "faiss-gpu-cu12") if r.name == "faiss-cpu" else (r.name,)  # one module, two packages
        present = {name: v for name in names if (v := _installed(name)) is not None}
        install = f'pip install "{r.name}{r.specifier}"'
        found = next(iter(present.values()), "")
        if not present:
            yield Check(r.name, "broken", "is not installed", install)
        elif len(present) > 1:
            yield Check(r.name, "broken", f"{' and '.join(present)} overwrite each other", "pip uninstall faiss-cpu")
        elif not r.specifier.contains(found, prereleases=True):
            yield Check(r.name, "broken", f"{found}, and cleanpairs needs {r.specifier}", install)
        elif error := failed.get(_MODULES.get(r.name, r.name)):
            again = f'pip install --force-reinstall "{next(iter(present))}=={found}"'
            yield Check(r.name, "broken", f"{found} cannot be imported: {error}", again)
        else:
            sound.append(f"{next(iter(present))} {found}")
    if sound:
        yield Check("dependencies", "ok", ", ".join(sound))
    elif not wanted:
        yield Check("dependencies", "note", "the package has no metadata: it runs from a source tree", "pip install .")
    if error := failed.get("torchvision"):  # made for another torch, it breaks transformers, which imports it
        remedy = "pip uninstall torchvision (cleanpairs does not need it)"
        yield Check("torchvision", "warning", f"cannot be imported, which breaks transformers: {error}", remedy)


def _extras(wanted: list[Requirement]) -> Iterator[Check]:
    """What each extra lacks. None is needed."""
    for extra in metadata("cleanpairs").get_all("Provides-Extra") or [] if wanted else []:
        of_extra = [r.name for r in wanted if r.marker is not None and r.marker.evaluate({"extra": extra})]
        missing = [name for name in of_extra if _installed(name) is None]
        remedy = f'pip install "cleanpairs[{extra}]"'
        if extra == "gpu":
            remedy = f"with a GPU only: pip uninstall faiss-cpu, then {remedy}"
        if missing:
            yield Check(f"extra {extra}", "note", f"not installed: {', '.join(missing)}", remedy)
        else:
            yield Check(f"extra {extra}", "ok", "installed")


def _machine(facts: dict[str, Any]) -> Iterator[Check]:
    """GPU and CPUs, as far as torch and FAISS can be imported: where they cannot, that is said already."""
    if "threads" in facts:
        build, devices = facts["cuda_build"], facts["devices"]
        gpu = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
        if devices:
            yield Check("device", "ok", f"CUDA {build}: {', '.join(devices)}")
        elif gpu:
            why = f"torch is built for CUDA {build}" if build else "torch is a CPU build"
            remedy = "install the torch build for your driver (https://pytorch.org), and look at `nvidia-smi`"
            yield Check("device", "warning", f"CPU, though there is an NVIDIA GPU: {why}", remedy)
        else:
            yield Check("device", "ok", "CPU; no NVIDIA GPU here")
        usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        found = f"{usable} of {os.cpu_count()} CPUs usable, torch uses {facts['threads']} threads"
        if facts["threads"] > usable:
            yield Check("cpu", "warning", f"{found}: more than there are", f"export OMP_NUM_THREADS={usable}")
        else:
            yield Check("cpu", "ok", found)
    if "faiss_gpu" in facts:
        if facts.get("devices") and not facts["faiss_gpu"]:
            remedy = 'for searches on the GPU: pip uninstall faiss-cpu, then pip install "cleanpairs[gpu]"'
            yield Check("faiss", "note", "CPU build", remedy)
        else:
            yield Check("faiss", "ok", f"{'GPU' if facts['faiss_gpu'] else 'CPU'} build")


def _disk(name: str, path: Path) -> Check:
    """Room and permission at ``path``, or at the nearest folder above it that exists."""
    near = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    try:
        free = shutil.disk_usage(near).free
    except OSError as error:
        return Check(name, "warning", f"{path}: {error.strerror or error}", "look whether its disk is mounted")
    found = f"{path}: {free / 2**30:,.1f} GiB free"
    remedy = "export CLEANPAIRS_CACHE=DIR, on another disk" if name == "cache" else "work in another directory"
    if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK):
        return Check(name, "warning", f"{found}, but it cannot be written", remedy)
    if free < LEAST_FREE:
        return Check(name, "warning", f"{found}: nearly full", remedy)
    return Check(name, "ok", found)


def _publishing(folder: Path) -> Check:
    """Whether outputs can be replaced in one step on the file system of ``folder``."""
    try:
        with tempfile.TemporaryDirectory(prefix=".cleanpairs-doctor-", dir=folder) as scratch:
            for overwrite in (False, True):
                with staged_directory(Path(scratch) / "out", overwrite=overwrite) as staged:
                    (staged / "file").touch()
    except (CleanpairsError, OSError) as error:
        remedy = "write to a local file system (ext4, xfs, btrfs, tmpfs), or leave --overwrite out"
        return Check("publishing", "warning", f"directories cannot be replaced in one step here: {error}", remedy)
    return Check("publishing", "ok", "files and directories are replaced in one step here")
