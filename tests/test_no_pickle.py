"""Nothing reads or writes what could run code when it is loaded: by ruff's rules, and by the words of every file."""

import json
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
RULES = "S102,S202,S301,S302,S307,S506,S602,S604,S605,TID251"  # exec, eval, extractall, YAML, a shell
BANNED = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
          "torch.save", "torch.load", "torch.jit.load", "pandas.read_pickle")  # fmt: skip
# Arguments that let others' code run, and a reader that must be told not to run any.
WORDS = re.compile(
    r"\b(?:allow_pickle|trust_remote_code)=(?!False\b)|torch\.load\((?!.*weights_only=True)|\.read_index\("
)


def test_no_file_loads_what_could_run_code() -> None:
    folders = [REPO / folder for folder in ("cleanpairs", "benchmarks", "tools")]
    api = ", ".join(f'"{name}" = {{msg = "it could run code"}}' for name in BANNED)
    argv = ["check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format=json", "--select", RULES]
    argv += ["--config", f"lint.flake8-tidy-imports.banned-api = {{{api}}}", *map(str, folders)]
    output = subprocess.run([sys.executable, "-m", "ruff", *argv], capture_output=True, text=True).stdout
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = {f"{complaint['filename']} {complaint['code']}" for complaint in json.loads(output)}
    found |= {str(path) for path in files if WORDS.search(path.read_text(encoding="utf-8"))}
    assert len(files) > 150 and found == {
        str(REPO / name)
        for name in (
            "cleanpairs/cli/__init__.py S102",  # an empty text: it makes Python forget an interrupt
            "cleanpairs/core/recipe.py S506",  # YAML with a safe loader of its own: see tests/core/test_recipe.py
            "cleanpairs/encoders/efficientnet_lite.py TID251",  # torch.load of weights only
            "cleanpairs/engine/queries.py",  # an index that the process that asks has written for its workers
            "tools/faults/inputs.py",  # writes an array of objects, to see that it is refused
        )
    }
