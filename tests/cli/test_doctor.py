"""``cleanpairs doctor``: what it finds, and what it does about installations that are broken."""

import json
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
    assert {check.state for check in here} <= {"ok", "note", "warning"}
    assert [check for check in here if (check.state == "ok") != (check.remedy == "")] == []


@pytest.mark.parametrize(("source", "words"), [
    ("raise RuntimeError('operator nms does not exist')", "RuntimeError: operator nms"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended the process"),
    ("print('noise'); import nothing_of_the_kind", "No module named"),
])  # fmt: skip
def test_a_broken_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str) -> None:
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


def test_the_command_and_its_exit_codes(command: Command, monkeypatch: pytest.MonkeyPatch, here: list[Check]) -> None:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: here)
    done = command("doctor", "--json")
    assert done.code == 0 and json.loads(done.out) == {"ok": True, "checks": [vars(check) for check in here]}
    monkeypatch.setattr(diagnosis, "diagnose", lambda: [Check("torch", "broken", "is not there", "mend")])
    done = command("doctor")
    assert done.code == 1 and "-> mend" in done.out
