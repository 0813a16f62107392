"""What every test gets: a cache directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory; nothing is left in the user's, and nothing is found there."""
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
