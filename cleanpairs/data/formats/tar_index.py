"""What lies where in the tar of a WebDataset: its samples, by the offsets of their members.

A sample is the members with one key: the name up to the first dot of its last part; what follows is the extension. Only
headers are read; nothing is unpacked, and no name is ever used as a path.
"""

import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, open_regular, reading

_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")


@dataclass(frozen=True, slots=True)
class Member:
    """A file in the tar: where its bytes begin, and how many they are."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The members of one key, by extension in small letters."""

    key: str
    members: Mapping[str, Member]


def read_index(path: str) -> list[Sample]:
    """The samples of a tar, in the order of their first members.

    Raises DataError: it cannot be read, is no plain tar, is damaged or cut short, or a name occurs twice.
    """
    try:
        with reading(path):
            return _index(path)
    except tarfile.TarError as error:
        packed = ": it is compressed; unpack it (gunzip) first" if path.endswith((".gz", ".tgz", ".bz2", ".xz")) else ""
        raise DataError(f"{path} cannot be read as a tar{packed or f': {error}'}") from error


@cached_by_file(256)
def _index(path: str) -> list[Sample]:
    found: dict[str, dict[str, Member]] = {}
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            if not member.isreg() or member.issparse():
                continue
            name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            parts = _NAME.fullmatch(name.removeprefix("./"))
            if parts is None or parts[1].startswith("__"):  # no extension, hidden, or a note of the writer
                continue
            members = found.setdefault(parts[1], {})
            if parts[2].lower() in members:
                raise DataError(f"{path} holds {name[:200]!r} more than once: its samples cannot be told apart")
            members[parts[2].lower()] = Member(member.offset_data, member.size)
        file.seek(end := tar.offset)  # tarfile takes a broken header, and a cut, for the end
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path} is cut short: it ends at byte {end + len(block)} without the mark of its end; fetch it again"
        )
    if any(block):
        raise DataError(f"{path} is damaged: there is no member at byte {end}; fetch it again")
    return [Sample(key, members) for key, members in found.items()]


def member_bytes(file: BinaryIO, member: Member) -> bytes:
    """What a member of an open tar holds; DataError where the tar is cut short."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise DataError(f"{file.name} is cut short: {member.size} bytes at {member.offset} are not all there")
    return data
