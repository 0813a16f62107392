"""cleanpairs: find the wrong pairs of an image-text corpus, repair them, and train a retrieval model all the same.

    from cleanpairs import Auto, load_pairs

    pairs = load_pairs("data.parquet")
    model = Auto(random_state=0).fit(pairs)
    plan = model.rematch(pairs)

Names are imported when they are first used: ``import cleanpairs`` alone loads neither torch nor pyarrow.
"""

import sys

if sys.argv[:1] == ["-m"] and any(arg.endswith("cleanpairs") for arg in sys.orig_argv) and not sys.flags.safe_path:
    # `python -m cleanpairs`: Python has put the working directory first, where a stranger's data may lie, and his
    # json.py beside it. Where the package itself is imported from there, it stays, as the last.
    _working_directory = sys.path.pop(0)
    sys.path += [_working_directory] if __path__[0] == f"{_working_directory}/cleanpairs" else []

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# The stub beside this file has the one list of public names.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOME = {name.name: node.module for node in _STUB if isinstance(node, ast.ImportFrom) for name in node.names}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cleanpairs' has no attribute {name!r}")
    return getattr(importlib.import_module(str(_HOME[name])), name)


def __dir__() -> list[str]:
    return sorted(__all__)
