"""What pyproject.toml, constraints.txt and the package say about one another."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import cleanpairs

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def pins() -> dict[str, Version]:
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([\w.-]+)==(\S+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found)
    return {str(canonicalize_name(m[1])): Version(m[2]) for m in found if m}


def test_every_dependency_that_make_installs_is_pinned_within_its_bounds() -> None:
    pinned = pins()
    project = PROJECT["project"]
    requirements = [Requirement(r) for r in project["dependencies"] + project["optional-dependencies"]["test"]]
    assert len(requirements) >= 25
    for requirement in requirements:
        assert requirement.specifier, f"{requirement} has no lower bound"
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    assert pinned["torch"].local is None  # both the CPU and the CUDA build fit


def test_what_the_build_takes_is_there() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source in wheel["force-include"]:
        assert (REPO / source).is_dir(), source
    for name in ("py.typed", "report/template.html", "report/style.css", "report/report.mplstyle"):
        assert (REPO / "cleanpairs" / name).is_file(), name
    for name in [*PROJECT["project"]["license-files"], PROJECT["project"]["readme"]]:
        assert (REPO / name).is_file(), name


def test_version_and_entry_point() -> None:
    assert Version(cleanpairs.__version__).public == cleanpairs.__version__
    module, _, name = PROJECT["project"]["scripts"]["cleanpairs"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
