"""The uids of the samples kept: a sorted .npy of dtype ``u8,u8``, the halves of a uid's 32 hexadecimal digits.

Source: DataComp (Gadre et al., NeurIPS 2023), README, "Selecting samples in the filtering track", and its resharder,
which writes a sample as often as its uid is listed.
"""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from cleanpairs.core import ConfigError, DataError, nearest
from cleanpairs.data.arrays import read_npy
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout

UID_COLUMN = "uid"
UID_DTYPE = np.dtype("u8,u8")


def uid_array(uids: list[str | None]) -> np.ndarray:
    """Uids of 32 hexadecimal digits as (n,) ``u8,u8``, in the order given. DataError: one is no such text."""
    for uid in uids:
        if not isinstance(uid, str) or not re.fullmatch(r"[0-9a-fA-F]{32}", uid):
            raise DataError(f"the uid {str(uid)[:60]!r} is not 32 hexadecimal digits, as DataComp's are: write Parquet")
    raw = np.frombuffer(bytes.fromhex("".join(map(str, uids))), ">u8").astype(np.uint64)
    return raw.view(UID_DTYPE)


class UidsOutput(Output):
    """One .npy file of dtype ``u8,u8``. 16 bytes a row in memory until it is written. A uid is listed
    ``layout.repeats`` times its correspondence, rounded, and once at least.

    Raises ConfigError: there is no column ``uid``, or rows hold lists of captions.
    """

    selection: ClassVar[bool] = True

    def __init__(self, path: Path, layout: Layout) -> None:
        names = layout.out_schema.names
        if UID_COLUMN not in names:
            raise ConfigError(
                f"a .npy lists the column {UID_COLUMN!r}, and the data has none{nearest(UID_COLUMN, names) or '.'} "
                f"Name its ids {UID_COLUMN!r} and fit again, or name the output *.parquet, where each row has its key"
            )
        if not layout.one_row_a_pair:
            raise ConfigError("uids name whole rows, and rows of this input have several captions: write Parquet")
        self.path, self._repeats = path, layout.repeats
        self._uids: list[np.ndarray] = []
        self._times: list[np.ndarray] = []

    @staticmethod
    def count(path: Path) -> int:
        """The number of distinct uids."""
        return len(np.unique(read_npy(path)))

    def _write(self, table: pa.Table) -> None:
        self._uids.append(uid_array(table.column(UID_COLUMN).to_pylist()))
        y = np.asarray(table.column("correspondence"), np.float32)
        self._times.append(np.fmax(1, np.rint(self._repeats * y)).astype(np.int64))

    def _finish(self) -> None:
        uids = np.concatenate([np.empty(0, UID_DTYPE), *self._uids])
        order = np.argsort(uids)
        uids, times = uids[order], np.concatenate([np.empty(0, np.int64), *self._times])[order]
        twice = np.flatnonzero(uids[1:] == uids[:-1])
        if len(twice):
            uid = "".join(f"{int(half):016x}" for half in uids[twice[0]])
            raise DataError(f"uids occur more than once ({len(twice)}, as {uid}), and name no one row: write Parquet")
        with self.path.open("wb") as file:  # by its name numpy would add .npy to it
            np.save(file, np.repeat(uids, times), allow_pickle=False)
