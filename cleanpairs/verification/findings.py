"""What a verification found."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cleanpairs.core.errors import CleanpairsError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``place``: the part of the file, such as ``row group 2, column 'caption'``, or ""."""

    file: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.what}"


@dataclass
class Verification:
    """What was checked, one line each; what is wrong; and notes on what is not wrong but worth knowing. It collects
    them while it is verified.
    """

    path: Path
    kind: str
    checked: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kind}"]
        lines += [f"  ok     {line}" for line in self.checked]
        lines += [f"  note   {line}" for line in self.notes]
        lines += [f"  WRONG  {problem}" for problem in self.problems]
        return "\n".join(" ".join(line.splitlines()) for line in lines)  # a name of several lines is none of ours

    def wrong(self, file: str | Path, what: str, place: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem(str(file), place, what))

    def wrong_rows(self, file: str | Path, column: str, bad: np.ndarray, what: str) -> None:
        """Note the first of the rows ``bad`` (n,) bool of a column, and how many more there are."""
        where = np.flatnonzero(bad)
        if len(where):
            more = f" (and in {len(where) - 1:,} more rows)" if len(where) > 1 else ""
            self.wrong(file, what + more, f"row {where[0]}, column {column!r}")

    @contextmanager
    def section(self, line: str, file: str | Path) -> Iterator[None]:
        """``line`` is noted as checked when the block has found nothing wrong; our errors in it become problems."""
        before = len(self.problems)
        try:
            yield
        except CleanpairsError as error:
            text = str(error)
            self.wrong(file, text.removeprefix(f"{file} ").removeprefix(f"{file}: "))
        if len(self.problems) == before:
            self.checked.append(line)
