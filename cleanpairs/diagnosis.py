"""What ``cleanpairs doctor`` looks at: the installation and the machine, and what would mend each thing.

The heavy modules are imported by a process of their own: a broken build may end the process that imports it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

import cleanpairs
from cleanpairs.children import start
from cleanpairs.data.source import cache_dir

__all__ = ["Check", "Diagnosis", "diagnose"]

ROOM = 2 * 2**30  # bytes: below it a disk is said to be nearly full
_TIMEOUT = 120  # seconds for the imports: a cold disk takes its time

# Each import is announced before it is tried, so that the one that ended the process is known.
_PROBE = """
import importlib, json, os, sys
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
    say(facts={"torch_threads": torch.get_num_threads(), "cuda_build": torch.version.cuda, "cuda": cuda,
               "devices": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if cuda else [],
               "bf16": bool(cuda and torch.cuda.is_bf16_supported())})
if hasattr(faiss, "IndexFlatIP"):
    say(facts={"faiss_gpu": hasattr(faiss, "StandardGpuResources"), "faiss_options": faiss.get_compile_options(),
               "faiss_kernel": os.environ.get("OPENBLAS_CORETYPE")})
try:
    from threadpoolctl import threadpool_info
    say(facts={"blas": sorted({f"{p['internal_api']} {p.get('version')} {p.get('architecture') or ''}".strip()
                               + f" ({p['num_threads']} threads)" for p in threadpool_info()})})
except Exception:
    pass
"""

_MODULES = {"torch": "torch", "numpy": "numpy", "pyarrow": "pyarrow.parquet", "pillow": "PIL.Image",
            "scikit-learn": "sklearn", "datasets": "datasets", "faiss-cpu": "faiss"}  # fmt: skip
_ONE_OF = {"faiss-cpu": ("faiss-cpu", "faiss-gpu-cu12")}  # they bring the same module and exclude each other


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
    facts = _probe([*_MODULES.values(), *(["torchvision"] if _installed("torchvision") else [])])
    checks = [
        Check("cleanpairs", "ok", f"{cleanpairs.__version__}, in {Path(cleanpairs.__file__).parent}"),
        _python(),
        *_dependencies(facts),
        _torchvision(facts),
        *_extras(),
        _device(facts),
        *_cpu(facts),
        _faiss(facts),
        *(_disk(name, path) for name, path in _places()),
        _publishing(Path.cwd()),
    ]
    return Diagnosis(tuple(check for check in checks if check is not None))


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
            said = json.loads(line)
        except ValueError:
            continue  # a module printed something
        if "begun" in said:
            begun = said["begun"]
        elif "failed" in said:
            found["failed"][said["failed"]], begun = said["error"], None
        elif "done" in said:
            begun = None
        else:
            found.update(said.get("facts", {}))
    if begun is not None:
        found["failed"][begun] = f"importing it ended the process (exit status {code}), or took over {_TIMEOUT} s"
    return found


def _python() -> Check:
    here = f"{platform.python_version()}, {platform.platform()}"
    if sys.platform != "linux":
        return Check("python", "warning", f"{here}: only Linux is tested", "run it on Linux")
    return Check("python", "ok", here)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _requirements() -> Iterator[tuple[str, str, str | None]]:
    """(Package, version specifier, extra or None) of everything that cleanpairs declares."""
    for line in requires("cleanpairs") or []:
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)", line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if found:
            yield found[1], found[2].strip(" ()"), extra[1] if extra else None


def _older(found: str, least: str) -> bool:
    """Whether version ``found`` is below ``least``, by the numbers that they begin with."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text.split("+")[0])][:3]

    return numbers(found) < numbers(least)


def _dependencies(facts: dict[str, Any]) -> Iterator[Check]:
    """The core dependencies: installed, new enough, importable. Sound ones share a line."""
    sound = []
    for package, specifier, extra in _requirements():
        if extra is not None:
            continue
        names = _ONE_OF.get(package, (package,))
        present = [(name, v) for name in names if (v := _installed(name)) is not None]
        wanted = f'pip install "{package}{specifier}"'
        least = specifier.removeprefix(">=") if specifier.startswith(">=") and "," not in specifier else None
        error = facts["failed"].get(_MODULES.get(package, ""))
        if not present:
            yield Check(package, "broken", "is not installed", wanted)
        elif len(present) > 1:
            both = " and ".join(name for name, _ in present)
            yield Check(
                package, "broken", f"{both} are installed: they overwrite each other", "pip uninstall faiss-cpu"
            )
        elif least is not None and _older(present[0][1], least):
            yield Check(package, "broken", f"{present[0][1]}, and cleanpairs needs {specifier}", wanted)
        elif error is not None:
            again = f'pip install --force-reinstall "{present[0][0]}=={present[0][1]}"'
            yield Check(package, "broken", f"{present[0][1]} cannot be imported: {error}", again)
        else:
            sound.append(f"{present[0][0]} {present[0][1]}")
    if sound:
        yield Check("dependencies", "ok", ", ".join(sound))
    else:
        yield Check("dependencies", "note", "the package has no metadata: it runs from a source tree", "pip install .")


def _torchvision(facts: dict[str, Any]) -> Check | None:
    """A torchvision made for another torch breaks transformers, which imports it if it is there."""
    error = facts["failed"].get("torchvision")
    if error is None:
        return None
    return Check(
        "torchvision",
        "warning",
        f"{_installed('torchvision')} is installed but cannot be imported, which breaks transformers: {error}",
        "pip uninstall torchvision (cleanpairs does not need it)",
    )


def _extras() -> Iterator[Check]:
    """What each extra lacks. None is needed."""
    missing: dict[str, list[str]] = {name: [] for name in metadata_extras()}
    for package, _, extra in _requirements():
        if extra is not None and _installed(package) is None:
            missing.setdefault(extra, []).append(package)
    for extra, packages in missing.items():
        if not packages:
            yield Check(f"extra {extra}", "ok", "installed")
            continue
        remedy = f'pip install "cleanpairs[{extra}]"'
        if extra == "gpu":
            remedy = f"with a GPU only: pip uninstall faiss-cpu, then {remedy}"
        yield Check(f"extra {extra}", "note", f"not installed: {', '.join(packages)}", remedy)


def metadata_extras() -> list[str]:
    """The names of the extras; none where cleanpairs is not installed."""
    try:
        return list(metadata("cleanpairs").get_all("Provides-Extra") or [])
    except PackageNotFoundError:
        return []


def _device(facts: dict[str, Any]) -> Check | None:
    if "cuda" not in facts:
        return None  # torch is broken, which is said already
    if facts["cuda"]:
        kind = "bf16" if facts["bf16"] else "fp32 only, no bf16"
        return Check("device", "ok", f"CUDA {facts['cuda_build']}, {kind}: {', '.join(facts['devices'])}")
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi"):
        why = (
            "torch is a CPU build" if facts["cuda_build"] is None else f"torch is built for CUDA {facts['cuda_build']}"
        )
        remedy = "install the torch build for your driver (https://pytorch.org), and look at `nvidia-smi`"
        return Check("device", "warning", f"CPU, though there is an NVIDIA GPU: {why}", remedy)
    return Check("device", "ok", "CPU; no NVIDIA GPU here")


def _cpu(facts: dict[str, Any]) -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = facts.get("torch_threads")
    found = f"{usable} of {os.cpu_count()} CPUs usable"
    if threads is not None:
        found += f", torch uses {threads} threads"
    if threads is not None and threads > usable:
        yield Check("cpu", "warning", f"{found}: more than there are", f"export OMP_NUM_THREADS={usable}")
    else:
        yield Check("cpu", "ok", found)
    if facts.get("blas"):
        yield Check("blas", "ok", "; ".join(facts["blas"]))


def _faiss(facts: dict[str, Any]) -> Check | None:
    if "faiss_gpu" not in facts:
        return None
    kind = "GPU" if facts["faiss_gpu"] else "CPU"
    kernel = facts["faiss_kernel"]
    found = f"{kind} build, {str(facts['faiss_options']).strip()}"
    found += f", OPENBLAS_CORETYPE={kernel}" if kernel else ", its BLAS chooses the kernel itself"
    if facts.get("cuda") and not facts["faiss_gpu"]:
        return Check(
            "faiss",
            "note",
            found,
            'for searches on the GPU: pip uninstall faiss-cpu, then pip install "cleanpairs[gpu]"',
        )
    return Check("faiss", "ok", found)


def _places() -> list[tuple[str, Path]]:
    return [("cache", cache_dir()), ("runs", Path("runs")), ("working directory", Path.cwd())]


def _disk(name: str, path: Path) -> Check:
    """Room and permission at ``path``, or at the nearest folder above it that exists."""
    near = path.absolute()
    while not near.exists() and near != near.parent:
        near = near.parent
    try:
        free = shutil.disk_usage(near).free
    except OSError as error:
        return Check(name, "warning", f"{path}: {error.strerror or error}", "look whether its disk is mounted")
    found = f"{path}: {free / 2**30:,.1f} GiB free"
    mend = "export CLEANPAIRS_CACHE=DIR, on another disk" if name == "cache" else "work in another directory"
    if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK):
        return Check(name, "warning", f"{found}, but it cannot be written", mend)
    if free < ROOM:
        return Check(name, "warning", f"{found}: nearly full", mend)
    return Check(name, "ok", found)


def _publishing(folder: Path) -> Check:
    """Whether outputs can be replaced in one step on the file system of ``folder``."""
    from cleanpairs.data import staged_directory
    from cleanpairs.errors import CleanpairsError

    try:
        with tempfile.TemporaryDirectory(prefix=".cleanpairs-doctor-", dir=folder) as scratch:
            for overwrite in (False, True):
                with staged_directory(Path(scratch) / "out", overwrite=overwrite) as staged:
                    (staged / "file").touch()
    except (CleanpairsError, OSError) as error:
        remedy = "write to a local file system (ext4, xfs, btrfs, tmpfs), or leave --overwrite out"
        return Check("publishing", "warning", f"directories cannot be replaced in one step here: {error}", remedy)
    return Check("publishing", "ok", "files and directories are replaced in one step here")
