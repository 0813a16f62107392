"""What every test gets: a cache directory of its own; and no sentence encoder, where the module does not ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory; nothing is left in the user's, and nothing is found there."""
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True, scope="module")
def sentence_encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """As where its weights are not installed, unless the module says ``SENTENCES = True``: encoding takes its time."""
    from cleanpairs.estimators import encoders

    if getattr(request.module, "SENTENCES", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cleanpairs.encoders.sentences.PACKAGE", "not_installed")
        encoders._shipped.cache_clear()
        yield
    encoders._shipped.cache_clear()
