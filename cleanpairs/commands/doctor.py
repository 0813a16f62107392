"""What ``cleanpairs doctor`` looks at: the installation and the machine, and what would mend each thing.

The heavy modules are imported by a process of their own: a broken build may end the process that imports it.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import cleanpairs
from cleanpairs.core import plural
from cleanpairs.core.children import start
from cleanpairs.data.source import cache_dir

_MODULES = {  # what is imported of each
    "torch": "torch", "numpy": "numpy", "pyarrow": "pyarrow.parquet", "pillow": "PIL.Image", "scikit-learn": "sklearn",
    "datasets": "datasets", "faiss-cpu": "faiss",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One thing: ``state`` is ok, note (nothing wrong), warning, or broken (cleanpairs does not run so).

    ``remedy`` is a command, or words where no command would do. "" where there is nothing to mend.
    """

    name: str
    state: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.state:<8} {self.name:<18} {self.found}" + (f"\n{'':<28}-> {self.remedy}" * bool(self.remedy))


def diagnose() -> list[Check]:
    """Look at everything. It takes the seconds that importing torch takes, and writes nothing."""
    wanted = []
    with suppress(PackageNotFoundError):  # it runs from a source tree
        wanted = [Requirement(line) for line in requires("cleanpairs") or []]
    failed, facts = probe(list(_MODULES.values()))
    return [
        Check("cleanpairs", "ok", f"{cleanpairs.__version__}, in {Path(cleanpairs.__file__).parent}"),
        Check("python", "ok", f"{platform.python_version()}, {platform.platform()}"),
        *dependencies([r for r in wanted if r.marker is None], failed),
        *_extras([r for r in wanted if r.marker is not None]),
        *(machine(facts) if facts else ()),
        disk("cache", cache_dir(), "export CLEANPAIRS_CACHE=DIR, on another disk"),
        disk("runs", Path("runs"), "work in another directory"),
    ]


def probe(modules: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Import ``modules`` in another process. Returns module -> error, and facts about torch and FAISS."""
    # Each import is announced before it is tried, so that the one that ended the process is known.
    code = """
import importlib, json, sys
from cleanpairs.ops import search
search._choose_openblas_kernel()
def say(**what):
    print(json.dumps(what), file=sys.__stdout__, flush=True)
for name in sys.argv[1:]:
    say(failed={name: "importing it ended the process"})
    try:
        importlib.import_module(name)
        say(failed={name: ""})
    except BaseException as error:
        say(failed={name: f"{type(error).__name__}: {error}"[:300]})
torch, faiss = (sys.modules.get(name) for name in ("torch", "faiss"))
if hasattr(torch, "get_num_threads"):
    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    say(facts={"threads": torch.get_num_threads(), "cuda_build": torch.version.cuda, "devices": devices,
               "faiss_gpu": hasattr(faiss, "StandardGpuResources")})
"""
    with start(code, *modules, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        out, _ = child.communicate()
    results: dict[str, dict[str, Any]] = {"failed": {}, "facts": {}}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(('{"failed"', '{"facts"')):  # a module may have printed something else
            for kind, reported in json.loads(line).items():
                results[kind] |= reported
    return {name: error for name, error in results["failed"].items() if error}, results["facts"]


def _installed(*packages: str) -> dict[str, str]:
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def dependencies(wanted: list[Requirement], failed: Mapping[str, str]) -> Iterator[Check]:
    """The core dependencies: installed, new enough, importable, but for ``failed`` (module -> error)."""
    sound = []
    for r in wanted:
        present = _installed(r.name, *(["faiss-gpu-cu12"] if r.name == "faiss-cpu" else []))  # one module, two packages
        name, version = next(iter(present.items()), (r.name, ""))
        install = f'pip install "{r.name}{r.specifier}"'
        if not present:
            yield Check(r.name, "broken", "is not installed", install)
        elif len(present) > 1:
            yield Check(r.name, "broken", f"{' and '.join(present)} overwrite each other", "pip uninstall faiss-cpu")
        elif not r.specifier.contains(version, prereleases=True):
            yield Check(r.name, "broken", f"{version}, and cleanpairs needs {r.specifier}", install)
        elif error := failed.get(_MODULES.get(r.name, r.name)):
            again = f'pip install --force-reinstall "{name}=={version}"'
            yield Check(r.name, "broken", f"{version} cannot be imported: {error}", again)
        else:
            sound.append(f"{name} {version}")
    if sound:
        yield Check("dependencies", "ok", ", ".join(sound))
    elif not wanted:
        yield Check("dependencies", "note", "the package has no metadata: it runs from a source tree", "pip install .")


def _extras(wanted: list[Requirement]) -> Iterator[Check]:
    for extra in metadata("cleanpairs").get_all("Provides-Extra") or [] if wanted else []:
        of_extra = [r.name for r in wanted if r.marker is not None and r.marker.evaluate({"extra": extra})]
        missing = [name for name in of_extra if not _installed(name)]
        gpu = "with a GPU only: pip uninstall faiss-cpu, then " if extra == "gpu" else ""
        status = f"not installed: {', '.join(missing)}", f'{gpu}pip install "cleanpairs[{extra}]"'
        yield Check(f"extra {extra}", "note", *status) if missing else Check(f"extra {extra}", "ok", "installed")


def machine(facts: Mapping[str, Any]) -> Iterator[Check]:
    """GPU and CPUs, by the facts of :func:`probe`."""
    build, devices, threads = facts["cuda_build"], facts["devices"], facts["threads"]
    if devices:
        yield Check("device", "ok", f"CUDA {build}: {', '.join(devices)}")
    elif Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None:
        why = f"torch is built for CUDA {build}" if build else "torch is a CPU build"
        remedy = "install the torch build for your driver (https://pytorch.org), and look at `nvidia-smi`"
        yield Check("device", "warning", f"CPU, though there is an NVIDIA GPU: {why}", remedy)
    else:
        yield Check("device", "ok", "CPU; no NVIDIA GPU here")
    usable = len(os.sched_getaffinity(0))
    found = f"{usable} of {plural(os.cpu_count() or 1, 'CPU')} usable, torch uses {plural(threads, 'thread')}"
    more = "warning", f"{found}: more than there are", f"export OMP_NUM_THREADS={usable}"
    yield Check("cpu", *more) if threads > usable else Check("cpu", "ok", found)
    if devices and not facts["faiss_gpu"]:
        remedy = 'for searches on the GPU: pip uninstall faiss-cpu, then pip install "cleanpairs[gpu]"'
        yield Check("faiss", "note", "CPU build", remedy)
    else:
        yield Check("faiss", "ok", f"{'GPU' if facts['faiss_gpu'] else 'CPU'} build")


def disk(name: str, path: Path, remedy: str, least_free: float = 2 * 2**30) -> Check:
    """Room and permission at ``path``, or at the nearest folder above it that exists. Enough is ``least_free``."""
    near = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(near).free
    facts = f"{path}: {free / 2**30:,.1f} GiB free"
    if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK):
        return Check(name, "warning", f"{facts}, but it cannot be written", remedy)
    return Check(name, "ok", facts) if free >= least_free else Check(name, "warning", f"{facts}: nearly full", remedy)
