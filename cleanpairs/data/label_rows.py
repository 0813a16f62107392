"""Rows of a CSV with labels given by hand, as spreadsheets leave it."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular, reading

COLUMNS = ("pair_id", "key", "stratum", "matched")  # that are read


def label_rows(path: Path, columns: Sequence[str], errors: str = "strict") -> Iterator[tuple[int, dict[str, str]]]:
    """The line, and the fields of `COLUMNS` that are there, of each row. All ``columns`` must be.

    ``errors`` says what happens to bytes that are no text, as `bytes.decode` has it. Raises DataError: the file cannot
    be read, or is no such CSV.
    """
    with reading(f"the labels {path}"), open_regular(path) as file:
        encoding = "utf-16" if file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        with io.TextIOWrapper(file, encoding, errors, newline="") as lines:
            try:
                yield from _rows(path, lines, columns)
            except UnicodeDecodeError as error:
                raise DataError(f"{path} is not in UTF-8; save it as 'CSV UTF-8' from the spreadsheet") from error


def _rows(path: Path, lines: Iterable[str], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    before, head = 0, ""
    for line in lines:
        if line.strip() and not line.lower().startswith("sep="):  # a spreadsheet's note to itself
            head = line
            break
        before += 1
    reader = csv.DictReader(chain([head], lines), delimiter=max(",;\t", key=head.count), restval="")
    try:
        reader.fieldnames = names = [name.strip().lower() for name in reader.fieldnames or columns]
        if missing := [name for name in columns if name not in names]:
            raise DataError(
                f"{path}, line {before + 1}: the columns {', '.join(columns)} are needed; {missing[0]} is missing "
                f"(found: {', '.join(names)[:200]})"
            )
        for fields in reader:
            row = {name: fields[name].strip() for name in COLUMNS if name in names}
            if any(row.values()):
                yield before + reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {before + reader.line_num} cannot be read as CSV: {error}") from error
