"""The public names are what is importable, and importing the package is light."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import cleanpairs


def test_all_is_what_is_importable() -> None:
    for name in cleanpairs.__all__:
        assert getattr(cleanpairs, name) is not None
    assert dir(cleanpairs) == sorted(cleanpairs.__all__)
    assert len(set(cleanpairs.__all__)) == len(cleanpairs.__all__)
    namespace: dict[str, object] = {}
    exec("from cleanpairs import *", namespace)  # as a notebook does
    assert set(cleanpairs.__all__) <= set(namespace)
    assert set(cleanpairs._HOME) | {"__version__"} == set(cleanpairs.__all__)


def test_a_public_name_is_the_one_of_its_home() -> None:
    for name, home in cleanpairs._HOME.items():
        module = importlib.import_module(home)
        assert getattr(cleanpairs, name) is getattr(module, name)


def test_what_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'CRLC'"):
        cleanpairs.CRLC  # noqa: B018 - the access is the test


def test_all_of_every_package_exists() -> None:
    swept = 0
    for info in pkgutil.walk_packages(cleanpairs.__path__, "cleanpairs."):
        module = importlib.import_module(info.name) if info.ispkg else None
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{info.name}.{name}"
            swept += 1
    assert swept > 40


def imported_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_is_light() -> None:
    heavy = {"torch", "pyarrow", "pandas", "sklearn", "faiss", "matplotlib", "datasets"}
    assert imported_by("import cleanpairs") & heavy == set()


def test_a_method_is_imported_without_what_it_does_not_need_yet() -> None:
    heavy = {"sklearn", "scipy", "pandas", "faiss", "matplotlib", "datasets", "transformers", "tokenizers", "ot"}
    assert imported_by("import cleanpairs; cleanpairs.Auto; cleanpairs.PairScorer") & heavy == set()


@pytest.mark.parametrize("statement", ["import cleanpairs.cli", "from cleanpairs import Pairs, load_pairs"])
def test_no_torch_before_it_is_needed(statement: str) -> None:
    assert imported_by(statement) & {"torch", "faiss", "matplotlib", "datasets"} == set()
