"""What pyproject.toml, constraints.txt and the package say about one another."""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import cleanpairs

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_dependency_that_make_installs_is_pinned_within_its_bounds() -> None:
    lines = (REPO / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    pinned = {str(canonicalize_name(name)): Version(version) for name, version in pairs}
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
    files = "py.typed report/template.html report/style.css report/report.mplstyle".split()
    of_package = [f"cleanpairs/{file}" for file in files]
    for name in [*of_package, *PROJECT["project"]["license-files"], PROJECT["project"]["readme"]]:
        assert (REPO / name).is_file(), name
    assert Version(cleanpairs.__version__).public == cleanpairs.__version__
    module, _, name = PROJECT["project"]["scripts"]["cleanpairs"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


# -- Every dependency that is declared has its licence listed ---------------------------------------------------------


def test_every_declared_dependency_is_in_the_list_of_licences() -> None:
    tool = run_path(str(REPO / "tools" / "list_licences.py"))
    text = (REPO / "dev" / "licences.md").read_text(encoding="utf-8")
    assert len(tool["declared"]()["core"]) > 10
    assert tool["missing"](text) == [], "python tools/list_licences.py"
    assert "torch" in tool["missing"](text.replace("| torch |", "|"))


# -- The public names are what is importable, and importing the package is light --------------------------------------


def test_all_is_what_is_importable() -> None:
    for name, home in cleanpairs._HOME.items():
        assert getattr(cleanpairs, name) is getattr(importlib.import_module(home), name)
    assert dir(cleanpairs) == sorted(cleanpairs.__all__)
    assert len(set(cleanpairs.__all__)) == len(cleanpairs.__all__)
    namespace: dict[str, object] = {}
    exec("from cleanpairs import *", namespace)  # as a notebook does
    assert set(cleanpairs.__all__) <= set(namespace)
    assert set(cleanpairs._HOME) | {"__version__"} == set(cleanpairs.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'CRLC'"):
        cleanpairs.CRLC  # noqa: B018 - the access is the test


def test_what_is_public_describes_its_parameters_and_results() -> None:
    public = [getattr(cleanpairs, name) for name in cleanpairs._HOME if name != "CleanpairsError"]
    members = [member for each in public if isinstance(each, type) for member in inspect.getmembers(each, callable)]
    for thing in [*public, *(method for name, method in members if not name.startswith("_"))]:
        text, signature = inspect.getdoc(thing), inspect.signature(thing)
        if not text.startswith("See :meth:"):
            described = re.findall(r"\w+", " ".join(re.findall(r"(?m)^[\w, ]+(?= : )|^\*\*\w+$", text)))
            assert signature.parameters.keys() <= {"self", *described}, thing
            assert isinstance(thing, type) or signature.return_annotation is None or "\nReturns\n---" in text, thing


HEAVY = {"torch", "pyarrow", "pandas", "sklearn", "faiss", "matplotlib", "datasets"}
LATER = {"sklearn", "scipy", "pandas", "faiss", "matplotlib", "datasets", "transformers", "tokenizers", "ot"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import cleanpairs", HEAVY),
        ("import cleanpairs; cleanpairs.Auto; cleanpairs.PairScorer", LATER),
        ("import cleanpairs.cli, cleanpairs.cli.fit, cleanpairs.core.recipe", HEAVY | {"numpy"}),
        ("from cleanpairs import Pairs, load_pairs", {"torch", "faiss", "matplotlib", "datasets"}),
    ],
)
def test_what_is_not_needed_yet_is_not_imported(statement: str, absent: set[str]) -> None:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in done.stdout.split()} & absent == set()
