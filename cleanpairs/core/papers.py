"""Recipes that are made, not kept: a paper's settings for its corpora, and a method's defaults for photographs.

What the papers set beside :meth:`paper` of a method, and what they print, is in ``papers.yaml`` beside the recipes that
were run here.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from cleanpairs.core.recipe_yaml import read_yaml
from cleanpairs.core.registry import METHODS

PAPERS, PHOTOS = "papers.yaml", "photos"


@functools.cache
def _known(folder: Path) -> dict[str, Any]:
    return read_yaml(folder / PAPERS) if (folder / PAPERS).is_file() else {"corpora": {}, "methods": {}}


def made_recipes(folder: Path) -> list[str]:
    """Names METHOD-CORPUS; ``folder``: of the recipes."""
    known = _known(folder)
    return [f"{method}-{corpus}" for method in known["methods"] for corpus in [*known["corpora"], PHOTOS]]


def header_of(folder: Path, name: str) -> dict[str, str]:
    """What a recipe of :func:`made_recipes` says of itself: ``command`` and ``expected``."""
    known, (method, corpus) = _known(folder), name.rsplit("-", 1)
    needs = "".join(f" --set {parameter}=DATA" for parameter in METHODS.entry(method).needs)
    if corpus == PHOTOS:
        command = f"cleanpairs fit photos.parquet --recipe {name} --val photos_val.parquet{needs}"
        return {"command": command, "expected": "the method's defaults; figures of photographs: benchmarks/RESULTS.md"}
    about = known["corpora"][corpus]
    noise = f" --noise-file {about['noise_file']}" if "noise_file" in about else ""
    printed = f"paper: {known['methods'][method][corpus].get('printed', 'no number printed for it at hand')}"
    expected = f"the paper's settings, not run here; {printed}"
    if METHODS.entry(method).source == "cleanpairs":
        expected = "settings as papers have them for this corpus, not run here; the method is this library's own"
    return {"command": f"cleanpairs fit {about['data']} --recipe {name}{noise}{needs}", "expected": expected}


def settings_of(folder: Path, name: str) -> dict[str, Any]:
    """Constructor parameters of a recipe of :func:`made_recipes`, as far as they are not the defaults."""
    (method, corpus), estimator = name.rsplit("-", 1), METHODS.load(name.rsplit("-", 1)[0])
    named = _known(folder)["methods"][method].get(corpus, {}).get("settings", {})
    if corpus == PHOTOS:
        return {}
    changes = {key: tuple(value) if isinstance(value, list) else value for key, value in named.items()}
    defaults = estimator().get_params()
    return {k: v for k, v in estimator.paper(**changes).get_params().items() if v != defaults[k]}
