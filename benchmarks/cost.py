"""CPU seconds of a plain `cleanpairs fit` by `auto` and by CRCL, which take turns.

    OMP_NUM_THREADS=1 python benchmarks/cost.py [TRAIN.parquet] --rounds 3

Without a file it is the clip art. Both read the sentence vectors. ``cold``: nothing is in the cache of vectors.
``warm``: the same fit once more. The ratio is that of the sums over the rounds.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from vectors_at_scale import command

from cleanpairs.datasets import clipart_path

CORPORA = {"clipart_train": "clip art", "photos1_train": "photographs, 1 caption", "titles2000_train": "titles"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=clipart_path("train"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spent: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.rounds):
        for method in ("crcl", "auto"):
            with TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = folder
                for cache in ("cold", "warm"):
                    out = Path(folder) / f"run_{cache}"
                    cost = command("fit", args.data, "--method", method, "--set", "text_encoder=auto", "--out", out)
                    spent.setdefault((cache, method), []).append(cost.cpu)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["corpus", "cache", "CRCL CPU s", "auto CPU s", "ratio"])
    for cache in ("cold", "warm"):
        each = [spent[cache, method] for method in ("crcl", "auto")]
        seconds = [" ".join(f"{s:.1f}" for s in one) for one in each]
        name = CORPORA.get(args.data.stem, args.data.stem)
        table.writerow([name, cache, *seconds, f"{sum(each[1]) / sum(each[0]):.2f}"])


if __name__ == "__main__":
    main()
