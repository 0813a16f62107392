"""Answers about pairs, in a file that is only appended to: one JSON object a line.

A line is on the disk before the answer counts. Several processes may write at once.
"""

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cleanpairs.core import DataError, reading, writing
from cleanpairs.data.atomic import append_lines, opened_for_lines, sync
from cleanpairs.repair.actions import WRITTEN

CHOICES = (*WRITTEN, "drop", "unsure")


@dataclass(frozen=True)
class Decision:
    """What a person has decided about some pairs.

    Parameters
    ----------
    name : str
        Unique in the log.

    pairs : tuple of int
        Which pairs.

    action : str
        One of `CHOICES`. "keep" says that the caption belongs to the image, "drop" that it does not.

    donor : int, optional
        The pair whose caption or image is taken.

    caption : str, optional
        The caption that was typed.

    drawn : bool
        It was chosen only by its score, which was hidden. The answer is a label of an audit or a calibration.

    time : str
        Time in UTC.
    """

    name: str
    pairs: tuple[int, ...]
    action: str
    donor: int | None = None
    caption: str | None = None
    drawn: bool = False
    time: str = ""


def can_be_written(text: str) -> bool:
    """Whether every output can hold it: it has no lone surrogate, which is half of a character, and no NUL."""
    return not any("\ud800" <= c <= "\udfff" or c == "\0" for c in text)


class DecisionLog:
    """The file of decisions, and those that hold now.

    Parameters
    ----------
    path : str or Path
    fingerprint : str
        Fingerprint of the data that the decisions are about.
    pairs : int
        How many pairs the data has.
    read_only : bool
        The file exists, and no decision is added.

    Raises
    ------
    OutputError
        The file cannot be written.
    DataError
        The file is no log of decisions, or it is about other data.

    Notes
    -----
    :meth:`refresh` reads what other processes have appended.
    """

    def __init__(self, path: str | Path, fingerprint: str, pairs: int, *, read_only: bool = False) -> None:
        self.path, self._about, self._n = Path(path), {"data": fingerprint, "pairs": pairs}, pairs
        # Lines that cannot be used: half written by a killed process, or with a caption that is no text.
        self.damaged = 0
        self._made: dict[str, Decision] = {}  # all that were ever made, by name, in order
        self._undone: set[str] = set()
        self._of: dict[int, list[Decision]] = {}  # by pair
        self._read, self._rest, self._begun = 0, b"", False
        with (reading if read_only else writing)(f"the decisions {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = opened_for_lines(self.path, 0o600, read_only=read_only)
        try:
            self.refresh()
            if not (self._begun or read_only):
                self._append(self._about)
                sync(self.path.parent)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. All decisions are on the disk already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def decide(self, pairs: Sequence[int], action: str, **about: Any) -> Decision:
        """Write a decision, with other fields of :class:`Decision`. It is on the disk when this returns."""
        return self._decide([(pairs, action)], **about)[0]

    def label(self, labels: Mapping[int, bool | None]) -> None:
        """Write labels, pair -> whether it is matched, or None, as far as they are new, all at once."""
        current, actions = self.labels(), {True: "keep", False: "drop", None: "unsure"}
        new = [([i], actions[label]) for i, label in labels.items() if i not in current or current[i] is not label]
        if new:
            self._decide(new, drawn=True)

    def _decide(self, each: Sequence[tuple[Sequence[int], str]], **about: Any) -> list[Decision]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = [Decision(uuid.uuid4().hex, tuple(map(int, i)), action, time=now, **about) for i, action in each]
        self._append(*({k: v for k, v in vars(d).items() if v not in ("", None) and v is not False} for d in made))
        return made

    def undo(self, name: str) -> Decision | None:
        """Take back the decision of that name. None where no such decision holds."""
        self.refresh()
        if name not in self._made or name in self._undone:
            return None
        self._append({"undo": name})
        return self._made[name]

    def about(self, pair: int) -> list[Decision]:
        """All decisions that were ever made about a pair, in order."""
        return self._of.get(pair, [])

    def of(self, pair: int, drawn: bool = False) -> Decision | None:
        """The last decision about a pair that was not taken back. With `drawn`, only labels of an audit count."""
        for made in reversed(self.about(pair)):
            if made.name not in self._undone and (made.drawn or not drawn):
                return made
        return None

    def decided(self) -> dict[int, Decision]:
        """Pair -> the decision that holds."""
        return {pair: made for pair in self._of if (made := self.of(pair)) is not None}

    def labels(self) -> dict[int, bool | None]:
        """Pair -> whether its label says that it is matched, in the order of their first. None: nobody can say."""
        made = {pair: made for pair in self._of if (made := self.of(pair, drawn=True)) is not None}
        return {pair: {"keep": True, "drop": False}.get(decision.action) for pair, decision in made.items()}

    def refresh(self) -> None:
        """Read what was appended since, also by others."""
        chunk = os.pread(self._fd, os.fstat(self._fd).st_size - self._read, self._read)
        self._read += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in filter(bytes.strip, lines):
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            if isinstance(record, dict) and not can_be_written(str(record.get("caption"))):
                raise ValueError("the caption is no text")
        except (ValueError, RecursionError):
            self.damaged += 1
            return
        match record:
            case {"data": _} if record == self._about:
                self._begun = True
            case {"data": _}:
                raise DataError(f"{self.path} holds decisions about other data, or it has changed: move it away")
            case {"undo": str(name)}:
                self._undone.add(name)
            case {"name": str(name), "pairs": [*pairs], "action": action} if action in CHOICES and all(
                type(i) is int and 0 <= i < self._n for i in pairs
            ):
                values = {key: record[key] for key in Decision.__dataclass_fields__ if key in record}
                self._made[name] = made = Decision(**{**values, "pairs": tuple(pairs)})
                for pair in pairs:
                    self._of.setdefault(pair, []).append(made)
            case _:
                raise DataError(f"{self.path} holds a line that is no decision: {line[:120]!r}; move it away")

    def _append(self, *what: dict[str, Any]) -> None:
        append_lines(self._fd, self.path, *what)
        self.refresh()
