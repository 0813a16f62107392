"""Decisions in a file that is only ever appended to: one JSON object a line, on the disk before it is answered.

A line is one ``write`` with ``O_APPEND``, so several processes may write at once; and it begins with a line break, so
that half a line that a killed process has left spoils nothing but itself.
"""

import json
import os
import stat
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.core.regular import writing
from cleanpairs.repair.actions import WRITTEN

CHOICES = (*WRITTEN, "drop")


@dataclass(frozen=True)
class Decision:
    """What a person has decided of some pairs. ``asked``: one pair that was chosen without regard to its words, so that
    it may stand for others with such scores; ``drawn``: at random among all; ``time``: UTC.
    """

    name: str
    pairs: tuple[int, ...]
    action: str
    donor: int | None = None
    caption: str | None = None
    page: str = ""
    asked: bool = False
    drawn: bool = False
    time: str = ""


_FIELDS = {field.name for field in fields(Decision)}


def is_text(text: str) -> bool:
    """Whether it can be written: no half of a character is in it (a lone surrogate, which JSON may spell)."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


class DecisionLog:
    """The file, and what holds by it now; whatever others append is read when :meth:`refresh` is called.

    Raises OutputError: it cannot be written; DataError: it is no log of decisions, or one about other data.
    """

    def __init__(self, path: str | Path, fingerprint: str, pairs: int) -> None:
        self.path, self._about, self._n = Path(path), {"data": fingerprint, "pairs": pairs}, pairs
        self.damaged = 0  # lines that a killed process left half written, or with a caption that is no text
        self._made: dict[str, Decision] = {}  # all that were ever made, by name, in order
        self._undone: set[str] = set()
        self._of: dict[int, list[Decision]] = {}  # by pair
        self._read, self._rest, self._begun = 0, b"", False
        with writing(f"the decisions {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._fd = os.open(self.path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OutputError(f"{self.path} is no regular file: decisions are not written there")
            self.refresh()
            if not self._begun:
                self._append(self._about)
                folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
                os.fsync(folder)
                os.close(folder)
        except BaseException:
            self.close()
            raise

    @property
    def decisions(self) -> list[Decision]:
        """All that were ever made, in order."""
        return list(self._made.values())

    def close(self) -> None:
        """Let go of the file; nothing is lost without it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def decide(self, pairs: Sequence[int], action: str, **about: Any) -> Decision:
        """Write a decision; it is on the disk when this returns; ``about``: the other fields of :class:`Decision`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = Decision(uuid.uuid4().hex, tuple(int(i) for i in pairs), action, time=now, **about)
        self._append({k: v for k, v in vars(made).items() if v not in ("", None) and v is not False})
        return made

    def undo(self, page: str = "", opened: int = 0) -> Decision | None:
        """Take back the last decision of this page, or of those there before it ``opened``; None: there is none."""
        self.refresh()
        for k, made in reversed(list(enumerate(self.decisions))):
            if (made.page == page or k < opened) and made.name not in self._undone:
                self._append({"undo": made.name, "page": page})
                return made
        return None

    def of(self, pair: int) -> Decision | None:
        """The decision about a pair that holds: the last one that was not taken back."""
        return next((made for made in reversed(self._of.get(pair, [])) if made.name not in self._undone), None)

    def decided(self) -> dict[int, Decision]:
        """Pair -> the decision that holds."""
        return {pair: made for pair in self._of if (made := self.of(pair)) is not None}

    def refresh(self) -> list[int]:
        """Read what was appended since; the pairs that it concerns."""
        chunk = os.pread(self._fd, os.fstat(self._fd).st_size - self._read, self._read)
        self._read += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [pair for line in lines if line.strip() for pair in self._take(line)]

    def _take(self, line: bytes) -> Sequence[int]:
        try:
            told = json.loads(line)
            if not is_text(json.dumps(told, ensure_ascii=False)):
                raise ValueError("half of a character, which no output can hold")
        except (ValueError, RecursionError):
            self.damaged += 1
            return ()
        match told:
            case {"data": _} if told == self._about:
                self._begun = True
                return ()
            case {"data": _}:
                raise DataError(
                    f"{self.path} holds decisions about other data (of {told.get('pairs')} pairs, or changed since): "
                    "move it away, or review the run that they were made for"
                )
            case {"undo": str(name)}:
                self._undone.add(name)
                return self._made[name].pairs if name in self._made else ()
            case {"name": str(name), "pairs": [*pairs], "action": action} if (
                action in CHOICES and told.keys() <= _FIELDS and all(type(i) is int and 0 <= i < self._n for i in pairs)
            ):
                self._made[name] = made = Decision(**{**told, "pairs": tuple(pairs)})
                for pair in pairs:
                    self._of.setdefault(pair, []).append(made)
                return made.pairs
        raise DataError(f"{self.path} holds a line that is no decision: {line[:120]!r}; move it away")

    def _append(self, what: dict[str, Any]) -> None:
        line = b"\n" + json.dumps(what).encode() + b"\n"
        with writing(f"{self.path}: the decision"):
            written = os.write(self._fd, line)
            os.fsync(self._fd)
        if written < len(line):
            raise OutputError(f"{self.path}: the decision was written in part only; is the disk full?")
        self.refresh()
