"""All methods against noise on photos and fashion, with the settings of the published table; ``cleanpairs bench``.

    OMP_NUM_THREADS=1 python benchmarks/methods.py DATA_DIR
    OMP_NUM_THREADS=1 python benchmarks/methods.py DATA_DIR --corpora photos --methods crcl --noise 0.4 --seeds 1

DATA_DIR holds ``{photos,fashion}_{train,val,test}.parquet``. All methods have the same encoder, image size and
validation; each has its recipe ``METHOD-photos`` where one is shipped, else its defaults. Captions are mismatched
one by one. A second call goes on where the first stopped; the tables are in ``OUT/CORPUS/table.md``.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanpairs.benchmarking import Bench, run_bench, to_text
from cleanpairs.core.errors import CleanpairsError
from cleanpairs.core.recipe import find_recipes


@dataclass(frozen=True)
class Corpus:
    """Settings of all methods, and keywords of ``load_pairs``."""

    overrides: tuple[str, ...]
    columns: dict[str, str]


CORPORA = {
    "photos": Corpus(("image_size=224",), {}),
    # 20,000 titles: half the epochs of photos are as many steps.
    "fashion": Corpus(
        ("image_size=96", "crcl.refine_epochs=[3, 3]", "crcl.epochs=4", "infonce.epochs=10", "triplet.epochs=10"),
        {"text_column": "text"},
    ),
}


class Lines:
    """A line a cell on standard error."""

    def note(self, text: str) -> None:
        """Something that the reader should know."""
        print(f"note: {text}", file=sys.stderr)

    def step(self, done: int, total: int, loss: float) -> None:
        """Steps are not told."""

    def cell(self, at: int, total: int, row: dict[str, Any], *, done_before: bool) -> None:
        """One figure of each kind."""
        shown = ("rsum", "auroc", "auroc_best_epoch", "f1", "repair_precision", "pairs_per_cpu_second", "seconds")
        figures = " ".join(f"{name} {row[name]:.4g}" for name in shown if row.get(name) is not None)
        state = "was there: " if done_before else ""
        head = f"[{at}/{total}] {row['method']} {row['noise']} seed {row['seed']}: {state}"
        print(head + (figures or str(row.get("error"))), file=sys.stderr, flush=True)


def chosen(overrides: list[str], methods: str) -> tuple[str, ...]:
    """Without the overrides that name a method which takes no part."""
    names = methods.split(",")
    return tuple(o for o in overrides if methods == "all" or "." not in o.split("=")[0] or o.split(".")[0] in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--methods", default="all")
    parser.add_argument("--noise", default="0.2,0.4,0.6,0.8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per", choices=["caption", "image"], default="caption")
    parser.add_argument("--backbone")
    parser.add_argument("--device")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="as of `cleanpairs bench`")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    args = parser.parse_args()
    for name in args.corpora.split(","):
        if name not in CORPORA:
            parser.error(f"no corpus {name!r} (known: {', '.join(CORPORA)})")
        corpus = CORPORA[name]
        recipes = [recipe for recipe in find_recipes() if recipe.endswith(f"-{name}")]
        names = [recipe.removesuffix(f"-{name}") for recipe in recipes]
        fits = args.methods == "all" or any(method in names for method in args.methods.split(","))
        try:
            result = run_bench(
                Bench(
                    data=str(args.data / f"{name}_train.parquet"),
                    methods=args.methods,
                    noise=tuple(float(rate) for rate in args.noise.split(",")),
                    seeds=args.seeds,
                    per=args.per,
                    recipe=name if recipes and fits else None,
                    overrides=chosen([*corpus.overrides, *args.overrides], args.methods),
                    options={"backbone": args.backbone, "device": args.device},
                    columns=corpus.columns,
                    limit=args.limit,
                    out=str(args.out / name),
                ),
                progress=Lines(),
            )
        except CleanpairsError as error:
            sys.exit(f"{name}: {error}")
        print(f"{name}\n")
        print(to_text(result.summaries, tables=("Detection and repair", "Retrieval", "Threshold", "Cost")))
        print(f"\n{result.out}/table.md\n")


if __name__ == "__main__":
    main()
