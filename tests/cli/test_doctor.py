"""``cleanpairs doctor``: what it finds, and what it does about installations that are broken."""

import json
import os
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cleanpairs.commands import doctor as diagnosis
from cleanpairs.commands.doctor import Check, diagnose
from tests.conftest import Command


@pytest.fixture(scope="module")
def here() -> list[Check]:
    return diagnose()


def test_this_installation_is_sound(here: list[Check]) -> None:
    found = {check.name: check for check in here}
    assert len(found) == len(here)
    assert {"cleanpairs", "python", "dependencies", "device", "cpu", "faiss", "cache", "runs"} <= set(found)
    assert "torch 2" in found["dependencies"].found and "pyarrow" in found["dependencies"].found
    assert found["faiss"].found.startswith(("CPU build", "GPU build"))
    assert found["extra test"].state == "ok"
    assert {check.state for check in here} <= {"ok", "note", "warning"}
    assert [check for check in here if (check.state == "ok") != (check.remedy == "")] == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('operator nms does not exist')", "RuntimeError: operator nms"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("print('noise'); import nothing_of_the_kind", "No module named"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))  # the probing process finds it there too
    (tmp_path / "broken_module.py").write_text(source)
    failed, _ = diagnosis.probe(["json", "broken_module"])
    assert list(failed) == ["broken_module"] and words in failed["broken_module"]


def test_what_is_broken() -> None:
    """A dependency that is missing, one that is too old, one that cannot be imported, a sound one."""
    wanted = [Requirement(x) for x in ("no-such-package>=2", "pyarrow>=1000", "torch>=2.4", "click>=8.1")]
    found = {check.name: check for check in diagnosis.dependencies(wanted, {"torch": "OSError: libtorch.so"})}
    broken = dict.fromkeys(("no-such-package", "pyarrow", "torch"), "broken")
    assert {name: check.state for name, check in found.items()} == broken | {"dependencies": "ok"}
    assert found["no-such-package"].remedy == 'pip install "no-such-package>=2"'
    assert ">=1000" in found["pyarrow"].found and "libtorch.so" in found["torch"].found
    assert found["dependencies"].found.startswith("click 8")


def test_gpus_that_are_used_and_not_and_more_threads_than_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {"threads": 1, "cuda_build": "12.8", "devices": ["A GPU"], "faiss_gpu": False}
    device, _, faiss = diagnosis.machine(facts)
    assert device.state == "ok" and "A GPU" in device.found and "cleanpairs[gpu]" in faiss.remedy
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    no_gpu = {"devices": [], "cuda_build": None, "faiss_gpu": False}
    device, cpu, _ = diagnosis.machine({**no_gpu, "threads": 1})
    assert device.state == "warning" and "CPU build" in device.found and cpu.state == "ok"
    _, cpu, _ = diagnosis.machine({**no_gpu, "threads": len(os.sched_getaffinity(0)) + 1})
    assert cpu.state == "warning" and "OMP_NUM_THREADS" in cpu.remedy


def test_a_disk_that_is_full_or_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnosis.disk("cache", tmp_path / "not" / "yet" / "there", "mend").state == "ok"
    (tmp_path / "file").touch()
    assert diagnosis.disk("runs", tmp_path / "file", "mend").state == "warning"
    assert diagnosis.disk("cache", tmp_path, "mend", least_free=2**62).remedy == "mend"


def test_the_command_and_its_exit_codes(command: Command, monkeypatch: pytest.MonkeyPatch, here: list[Check]) -> None:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: here)
    done = command("doctor", "--json")
    assert done.code == 0 and json.loads(done.out) == {"ok": True, "checks": [vars(check) for check in here]}
    assert "dependencies" in command("doctor").out
    monkeypatch.setattr(diagnosis, "diagnose", lambda: [Check("torch", "broken", "is not there", "mend")])
    done = command("doctor")
    assert done.code == 1 and "-> mend" in done.out
