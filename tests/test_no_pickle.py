"""Nothing reads or writes what could run code when it is loaded: by ruff's rules, and by the words of every file."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
RULES = "S102,S202,S301,S302,S307,S506,S602,S604,S605,TID251"  # exec, eval, extractall, YAML, a shell


def complaints(*given: object, source: str = "") -> set[str]:
    """Each file in which something is banned, and by which rule."""
    banned = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "faiss.read_index",
              "torch.save", "torch.load", "torch.jit.load", "pandas.read_pickle")  # fmt: skip
    api = ", ".join(f'"{name}" = {{msg = "it could run code"}}' for name in banned)
    argv = ["check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format=json", "--select", RULES]
    argv += ["--config", f"lint.flake8-tidy-imports.banned-api = {{{api}}}", *map(str, given)]
    found = subprocess.run([sys.executable, "-m", "ruff", *argv], input=source, capture_output=True, text=True)
    return {f"{complaint['filename']} {complaint['code']}" for complaint in json.loads(found.stdout)}


def words(source: str) -> list[str]:
    """Arguments that let others' code run, and a reader that must be told not to run any."""
    return re.findall(r"\b(?:allow_pickle|trust_remote_code)=(?!False\b)|torch\.load\((?!.*weights_only=True)", source)


def test_no_file_loads_what_could_run_code() -> None:
    folders = [REPO / folder for folder in ("cleanpairs", "benchmarks", "tools")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = complaints(*folders) | {str(path) for path in files if words(path.read_text(encoding="utf-8"))}
    assert len(files) > 150 and found == {
        str(REPO / name)
        for name in (
            "cleanpairs/core/recipe.py S506",  # YAML with a safe loader of its own: see the test below
            "cleanpairs/encoders/efficientnet_lite.py TID251",  # torch.load of weights only
            "cleanpairs/engine/queries.py TID251",  # an index that the process that asks has written for its workers
            "tools/faults/inputs.py",  # writes an array of objects, to see that it is refused
        )
    }


def test_the_loader_of_recipes_is_a_safe_one() -> None:
    import yaml

    from cleanpairs.core import recipe

    loaders = [v for v in vars(recipe).values() if isinstance(v, type) and issubclass(v, yaml.reader.Reader)]
    assert loaders and all(issubclass(loader, yaml.SafeLoader) for loader in loaders)


@pytest.mark.parametrize(
    ("source", "banned"),
    [
        ("import dill.settings", True),
        ("import faiss\nfaiss.read_index(p)", True),
        ("import torch\ntorch.load(x)", True),
        ("import yaml\nyaml.load(x, Loader=yaml.SafeLoader)", False),
        ("import yaml\nyaml.load(x, Loader=yaml.Loader)", True),
        ("import subprocess\nsubprocess.run(c, shell=True)", True),
        ("np.load(x, allow_pickle=True)", True),
        ("AutoModel.from_pretrained(p, trust_remote_code=False)", False),
    ],
)
def test_what_is_banned(source: str, banned: bool) -> None:
    assert bool(complaints("-", source=source) or words(source)) == banned
