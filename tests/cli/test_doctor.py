"""``cleanpairs doctor``: what it finds, and what it does about installations that are broken."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from cleanpairs.cli import cli
from cleanpairs.commands import doctor as diagnosis
from cleanpairs.commands.doctor import Check, diagnose

NO_GPU = {"devices": [], "cuda_build": None, "faiss_gpu": False}


@pytest.fixture(scope="module")
def here() -> list[Check]:
    return diagnose()


def by_name(found: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def test_this_installation_is_sound(here: list[Check]) -> None:
    found = by_name(here)
    assert {"cleanpairs", "python", "dependencies", "device", "cpu", "faiss", "cache", "runs"} <= set(found)
    assert "torch 2" in found["dependencies"].found and "pyarrow" in found["dependencies"].found
    assert found["faiss"].found.startswith(("CPU build", "GPU build"))
    assert found["extra test"].state == "ok"
    assert {check.state for check in here} <= {"ok", "note", "warning"}
    assert [check for check in here if (check.state == "ok") != (check.remedy == "")] == []


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, which the probing process finds too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('operator nms does not exist')", "RuntimeError: operator nms"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("print('noise'); import nothing_of_the_kind", "No module named"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_and_ends_nothing(module: Path, source: str, words: str) -> None:
    (module / "broken_module.py").write_text(source)
    failed, _ = diagnosis.probe(["json", "broken_module"])
    assert list(failed) == ["broken_module"] and words in failed["broken_module"]


def test_what_is_broken() -> None:
    """A dependency that is missing, one that is too old, one that cannot be imported, a sound one."""
    wanted = [Requirement(x) for x in ("no-such-package>=2", "pyarrow>=1000", "torch>=2.4", "click>=8.1")]
    found = {check.name: check for check in diagnosis.dependencies(wanted, {"torch": "OSError: libtorch.so"})}
    assert {name: check.state for name, check in found.items()} == {
        "no-such-package": "broken", "pyarrow": "broken", "torch": "broken", "dependencies": "ok",
    }  # fmt: skip
    assert found["no-such-package"].remedy == 'pip install "no-such-package>=2"'
    assert ">=1000" in found["pyarrow"].found and "libtorch.so" in found["torch"].found
    assert found["dependencies"].found.startswith("click 8")


def test_two_packages_of_one_module_and_an_extra_that_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"faiss-cpu": "1.9", "faiss-gpu-cu12": "1.9"}
    monkeypatch.setattr(diagnosis, "_installed", lambda *names: {name: there[name] for name in names if name in there})
    (faiss,) = diagnosis.dependencies([Requirement("faiss-cpu>=1.8")], {})
    assert faiss.state == "broken" and "overwrite each other" in faiss.found
    assert faiss.remedy == "pip uninstall faiss-cpu"
    extras = {c.name: c.remedy for c in diagnosis._extras([Requirement('ray[data]>=2.60; extra == "ray"')])}
    assert extras["extra ray"] == 'pip install "cleanpairs[ray]"' and extras["extra clip"] == ""


def test_gpus_that_are_used_and_not_and_more_threads_than_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {"threads": 1, "cuda_build": "12.8", "devices": ["A GPU"], "faiss_gpu": False}
    found = {check.name: check for check in diagnosis.machine(facts)}
    assert found["device"].state == "ok" and "A GPU" in found["device"].found
    assert "cleanpairs[gpu]" in found["faiss"].remedy
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    device, cpu, _ = diagnosis.machine({**NO_GPU, "threads": 1})
    assert device.state == "warning" and "CPU build" in device.found and cpu.state == "ok"
    _, cpu, _ = diagnosis.machine({**NO_GPU, "threads": len(os.sched_getaffinity(0)) + 1})
    assert cpu.state == "warning" and "OMP_NUM_THREADS" in cpu.remedy


def test_a_disk_that_is_full_or_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosis.disk("cache", tmp_path / "not" / "yet" / "there", "mend").state == "ok"
    (tmp_path / "file").touch()
    assert diagnosis.disk("runs", tmp_path / "file", "mend").state == "warning"
    assert diagnosis.disk("cache", tmp_path, "mend", least_free=2**62).remedy == "mend"


def test_the_command_and_its_exit_codes(monkeypatch: pytest.MonkeyPatch, here: list[Check]) -> None:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: here)
    done = CliRunner().invoke(cli, ["doctor", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output) == {"ok": True, "checks": [vars(check) for check in here]}
    assert "dependencies" in CliRunner().invoke(cli, ["doctor"]).output
    monkeypatch.setattr(diagnosis, "diagnose", lambda: [Check("torch", "broken", "is not there", "mend")])
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 1 and "-> mend" in done.output
