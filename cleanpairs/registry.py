"""Name -> class, by strings only: nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cleanpairs.errors import ConfigError

__all__ = ["BACKBONES", "IMAGE_ENCODERS", "METHODS", "OBJECTIVES", "READERS", "Entry", "Registry", "nearest"]


def nearest(name: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True)
class Entry:
    """One registered name: where its class is (``module:attribute``) and one line about it."""

    name: str
    target: str
    summary: str

    def load(self) -> Any:
        """Import the module and return the registered object."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry:
    """An ordered table of names of one kind.

    Raises
    ------
    ConfigError
        From :meth:`entry` and :meth:`load`, for an unknown name; it suggests the nearest one.
    """

    def __init__(self, kind: str, entries: dict[str, tuple[str, str]]) -> None:
        self.kind = kind
        self._entries = {name: Entry(name, *value) for name, value in entries.items()}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """All registered names, in order of registration."""
        return list(self._entries)

    def entry(self, name: str) -> Entry:
        """The entry of ``name``."""
        if name not in self._entries:
            known = ", ".join(self._entries)
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest(name, list(self._entries))} (known: {known})")
        return self._entries[name]

    def load(self, name: str) -> Any:
        """The class registered under ``name``."""
        return self.entry(name).load()


METHODS = Registry(
    "method",
    {
        "crcl": (
            "cleanpairs.methods.crcl:CRCL",
            "active complementary loss, self-refining momentum labels (CRCL, 2023)",
        ),
        "infonce": ("cleanpairs.methods.infonce:InfoNCE", "plain contrastive training, no resistance: the baseline"),
    },
)

OBJECTIVES = Registry(
    "objective",
    {
        "acl": ("cleanpairs.objectives.acl:ActiveComplementaryLoss", "active complementary loss, CRCL eq. 8-9"),
        "infonce": ("cleanpairs.objectives.infonce:InfoNCELoss", "symmetric softmax cross entropy"),
    },
)

BACKBONES = Registry(
    "backbone",
    {
        "vse_inf": ("cleanpairs.encoders.vse_inf:VSEInf", "regions and words pooled by GPO (VSE infinity, 2021)"),
    },
)

IMAGE_ENCODERS = Registry(
    "image encoder",
    {
        "efficientnet_lite0": (
            "cleanpairs.encoders.efficientnet_lite:EfficientNetLite0",
            "frozen EfficientNet-Lite0 (ImageNet), a 3x3 grid of 1280-d regions",
        ),
        "cnn": ("cleanpairs.encoders.cnn:SmallCNN", "a small convolutional network, from scratch, on the pixels"),
    },
)

READERS = Registry(
    "reader",
    {
        "parquet": ("cleanpairs.data.parquet:ParquetReader", "Parquet: a file, a glob or a directory"),
        "precomp": ("cleanpairs.data.precomp:PrecompReader", "research layout: {split}_ims.npy and {split}_caps.txt"),
    },
)
