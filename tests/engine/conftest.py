"""Work that workers of their own import: a module's source, for each engine to put where its workers look."""

WORKS = '''
import os
import signal
from pathlib import Path
from dataclasses import dataclass

from cleanpairs.core.errors import DataError


@dataclass(frozen=True)
class Squares:
    """The squares of a partition's rows. On partition ``dies`` the worker is killed, while ``times`` can be taken."""

    dies: int = -1
    times: str = ""
    refuses: int = -1

    def __call__(self, partition, path):
        if partition.number == self.refuses:
            raise DataError("no row 7 for you")
        if partition.number == self.dies:
            left = sorted(Path(self.times).iterdir())
            if left:
                left[0].unlink()
                path.write_text("half of")
                os.kill(os.getpid(), signal.SIGKILL)
        import pyarrow as pa  # a worker that is killed has not waited for them
        import torch

        rows = range(partition.first, partition.first + partition.rows)
        path.write_text(" ".join(str(r * r) for r in rows))
        return {"process": os.getpid(), "threads": [torch.get_num_threads(), pa.cpu_count()]}
'''
