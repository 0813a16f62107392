"""Rows of a CSV with labels given by hand, as spreadsheets leave it."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from cleanpairs.core import DataError, open_regular, reading

COLUMNS = ("pair_id", "key", "stratum", "matched")  # that are read


def label_rows(path: Path, columns: Sequence[str], errors: str = "strict") -> Iterator[tuple[int, dict[str, str]]]:
    """The line of each row, and its fields of those `COLUMNS` that exist. All ``columns`` must exist.

    ``errors`` says what happens to bytes that are no text, as `bytes.decode` has it. Raises DataError: the file cannot
    be read, or is no such CSV.
    """
    with _opened(path, errors) as lines:
        above, head, delimiter = _beginning(lines)
        before, reader = len(above), csv.DictReader(chain([head], lines), delimiter=delimiter, restval="")
        try:
            reader.fieldnames = names = [name.strip().lower() for name in reader.fieldnames or columns]
            if missing := [name for name in columns if name not in names]:
                found = ", ".join(names)[:200]
                raise DataError(f"{path}, line {before + 1}: the column {missing[0]} is missing (found: {found})")
            for fields in reader:
                row = {name: fields[name].strip() for name in COLUMNS if name in names}
                if any(row.values()):
                    yield before + reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}, line {before + reader.line_num} cannot be read as CSV: {error}") from error


def relabelled(path: Path, label_of: Callable[[str, str], str]) -> tuple[str, str]:
    """The text of a CSV with new labels, by the fields `pair_id` and `matched` of each row, and its encoding.

    All else stays: other columns and rows, their order and the delimiter. Raises DataError as :func:`label_rows`.
    """
    with _opened(path, "strict") as lines:
        before, head, delimiter = _beginning(lines)
        reader, out = csv.reader(chain([head], lines), delimiter=delimiter), io.StringIO(newline="")
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\r\n" if head.endswith("\r\n") else "\n")
        names = next(reader)
        pair, label = ([name.strip().lower() for name in names].index(name) for name in ("pair_id", "matched"))
        writer.writerow(names)
        for row in reader:
            if len(row) > pair and row[pair].strip():
                row += [""] * (label + 1 - len(row))
                row[label] = label_of(row[pair].strip(), row[label].strip())
            writer.writerow(row)
        return "".join(before) + out.getvalue(), lines.encoding


@contextmanager
def _opened(path: Path, errors: str) -> Iterator[io.TextIOWrapper]:
    """The lines of a file of labels. Raises DataError, also from within the block."""
    with reading(f"the labels {path}"), open_regular(path) as file:
        encoding = "utf-16" if file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        how = "read as UTF-8 (save it as 'CSV UTF-8' from the spreadsheet)"
        with io.TextIOWrapper(file, encoding, errors, newline="") as lines, reading(path, how, UnicodeDecodeError):
            yield lines


def _beginning(lines: Iterable[str]) -> tuple[list[str], str, str]:
    """The lines before the header, the header, "" where there is none, and the delimiter."""
    before, head = list[str](), ""
    for line in lines:
        if line.strip() and not line.lower().startswith("sep="):  # a spreadsheet's note of the delimiter
            head = line
            break
        before.append(line)
    return before, head, max(",;\t", key=head.count)
