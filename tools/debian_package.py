"""Read files out of a Debian package (.deb: an ``ar`` archive with two tar archives) with the standard library only."""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DebianPackage"]


class DebianPackage:
    """One .deb file: its ``name``, ``version``, ``sha256``, and the regular files in it.

    Raises
    ------
    ValueError
        If the file is not a Debian package.
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._members = dict(_ar_members(path, data))
        control = next(text for name, text in self._tar("control.tar") if name == "control").decode()
        fields = dict(line.split(": ", 1) for line in control.splitlines() if ": " in line and line[0] != " ")
        self.name, self.version = fields["Package"], fields["Version"]

    def _archive(self, prefix: str) -> tarfile.TarFile:
        data = next((value for name, value in self._members.items() if name.startswith(prefix)), None)
        if data is None:
            raise ValueError(f"not a Debian package: it has no {prefix}.*, only {', '.join(self._members)}")
        return tarfile.open(fileobj=io.BytesIO(data), mode="r:*")

    def _tar(self, prefix: str, suffix: str = "") -> Iterator[tuple[str, bytes]]:
        with self._archive(prefix) as archive:
            for member in archive:
                if member.isreg() and member.name.endswith(suffix):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name.removeprefix("./"), file.read()

    def files(self, suffix: str = "") -> Iterator[tuple[str, bytes]]:
        """Path (without leading ``./``) and contents of every regular file; what links repeat is left out."""
        return self._tar("data.tar", suffix)

    def links(self, suffix: str = "") -> dict[str, str]:
        """Path of every symbolic link -> path that it points to."""
        with self._archive("data.tar") as archive:
            return {
                m.name.removeprefix("./"): posixpath.normpath(posixpath.join(posixpath.dirname(m.name), m.linkname))
                for m in archive
                if m.issym() and m.name.endswith(suffix)
            }


def _ar_members(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(b"!<arch>\n"):
        raise ValueError(f"{path} is not a Debian package: it does not begin as an ar archive")
    at = 8
    while at + 60 <= len(data):
        name = data[at : at + 16].decode("ascii").strip().rstrip("/")
        size = int(data[at + 48 : at + 58])
        yield name, data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
