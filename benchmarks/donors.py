"""Do several captions help whoever trains on repaired pairs? A plain InfoNCE model on one caption each, and on several.

    OMP_NUM_THREADS=1 python benchmarks/donors.py DATA_DIR --noise 0.4,0.6 --seeds 3

DATA_DIR: as ``benchmarks/truth.py`` has it, with the validation and test splits of the photographs. They have one
caption each. Columns are the rSum on the test split of a model that is trained on:

- what ``auto`` keeps
- that and its plausible repairs (``rematch --repairs plausible``), with one caption each
- the same with ``--donors N``: each epoch one caption of the plan's ``captions`` is drawn by weight, as open_clip does
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from truth import read

from cleanpairs import Auto, Pairs, load_pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.encoders.sentences import SentenceEncoder
from cleanpairs.methods.plain import InfoNCE
from cleanpairs.repair.actions import WRITTEN, acted
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.trainer import SingleNetwork, TrainingData


class Drawing(InfoNCE):
    """``others`` of pair i: the pairs whose captions it may have, and the weights by which one is drawn each epoch."""

    def _make_strategy(self, data: TrainingData) -> SingleNetwork:
        strategy = super()._make_strategy(data)
        rng, own = np.random.default_rng(self.random_state), np.arange(len(data))
        start = strategy.start_epoch

        def start_epoch(view: Any) -> None:
            start(view)
            strategy.captions = own.copy()
            for i, (pairs, weights) in self.others.items():
                strategy.captions[i] = rng.choice(pairs, p=weights / weights.sum())

        strategy.start_epoch = start_epoch  # type: ignore[method-assign]
        return strategy


def remember_sentences() -> None:
    """Encode each caption once in all fits: these are of the same captions, in another order."""
    encode, known = SentenceEncoder.encode_texts, {}

    def remembered(self: SentenceEncoder, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, encode(self, new), strict=True) if new else ())
        return np.array([known[text] for text in texts])

    SentenceEncoder.encode_texts = remembered  # type: ignore[method-assign]


def drawn(plan: RepairPlan) -> dict[int, tuple[list[int], np.ndarray]]:
    """Of each pair of the cleaned corpus that has several captions, who has them too, and their weights."""
    rows = plan.table.filter(acted(plan.table, WRITTEN)).to_pylist()
    holder = {row["caption"]: i for i, row in enumerate(rows) if row["action"] == "keep"}
    found: dict[int, tuple[list[int], np.ndarray]] = {}
    for i, row in enumerate(rows):
        told = row["captions"] or []
        pairs = [i if c["text"] == row["caption"] else holder[c["text"]] for c in told]
        found |= {i: (pairs, np.array([c["weight"] for c in told]))} if told else {}
    return found


def row(folder: Path, rate: float, seed: int, donors: int) -> list[float]:
    """The rSum of each column."""

    def one_caption(pairs: Pairs) -> Pairs:
        return pairs.select(np.sort(np.unique(pairs.image_index, return_index=True)[1]))

    clean, settings = read(folder, "photos-1")
    val, test = (one_caption(load_pairs(str(folder / f"photos_{split}.parquet"))) for split in ("val", "test"))
    noisy = apply_noise(clean, inject_noise(clean, rate, seed=seed))
    settings |= {"backbone": "mlp", "text_encoder": "auto", "random_state": seed}
    model = Auto(require_dependence=False, **settings).fit(noisy)
    none, one, several = (
        model.rematch(noisy, **how)
        for how in ({"repairs": "none"}, {"repairs": "plausible"}, {"repairs": "plausible", "n_donors": donors})
    )
    found = []
    for plan in (none, one, several):
        plain = Drawing(**settings)
        plain.others = drawn(plan)
        found.append(float(plain.fit(plan.apply(noisy), val=val).evaluate(test).rsum))
    print(rate, seed, one.summary(), found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Print the rows as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--noise", default="0.4", help="rates, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--donors", type=int, default=5)
    args = parser.parse_args()
    remember_sentences()
    print("# OMP_NUM_THREADS=1 python benchmarks/donors.py DATA", *sys.argv[2:])
    print(f"corpus,noise,seeds,kept,one caption,up to {args.donors} captions")
    for rate in args.noise.split(","):
        each = np.array([row(args.data, float(rate), seed, args.donors) for seed in range(args.seeds)])
        spread = [f" ± {x:.1f}" for x in each.std(0, ddof=1)] if args.seeds > 1 else [""] * each.shape[1]
        cells = [f"{mean:.1f}{more}" for mean, more in zip(each.mean(0), spread, strict=True)]
        print(f'"photographs, one caption",{rate},{args.seeds}', *cells, sep=",", flush=True)


if __name__ == "__main__":
    main()
