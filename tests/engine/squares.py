"""Work that workers of their own import, and that ends some of them."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import DataError
from cleanpairs.engine import Partition


@dataclass
class Squares:
    """The squares of a partition's rows; ``done`` tells, in this process, which partitions were done.

    On partition ``dies`` the worker is killed, as often as there is a file in the folder ``times``, of which it takes
    one each time. Partition ``refuses`` fails, and ``waits`` takes a minute.
    """

    dies: int = -1
    times: Path = Path()
    refuses: int = -1
    waits: int = -1
    done: list[int] = field(default_factory=list)

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        if partition.number == self.refuses:
            path.write_text("half of")
            raise DataError("no row 7 for you")
        if partition.number == self.dies and (left := sorted(self.times.iterdir())):
            left[0].unlink()
            path.write_text("half of")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60 * (partition.number == self.waits))
        import pyarrow as pa  # a worker that is killed has not waited for them
        import torch

        self.done.append(partition.number)
        path.write_text(" ".join(str(r * r) for r in range(partition.first, partition.first + partition.rows)))
        return {"process": os.getpid(), "threads": [torch.get_num_threads(), pa.cpu_count()]}


def allowed_deaths(folder: Path, times: int) -> Path:
    """A folder of so many files."""
    folder.mkdir()
    for i in range(times):
        (folder / str(i)).touch()
    return folder
