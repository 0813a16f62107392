"""A review by somebody who knows: how many decisions make a corpus clean, in which order.

    OMP_NUM_THREADS=1 python benchmarks/review.py DATA_DIR --corpora clipart,photos --seeds 3

DATA_DIR holds the corpora of truth.py; of photos the first 2,000 captions (five an image); clipart is shipped. 30 % of
the captions are permuted, ``auto`` is fitted with its defaults, and the plan is `rematch`'s. Then pairs are looked at
one by one: a matched one is kept, a mismatched one gets the first right caption among those that the page offers, else
it is dropped. ``flagged`` is the page's first list, and then its list of kept pairs; ``upward`` is these two lists the
other way round; ``score`` begins with the lowest score of all; ``random`` takes any pair. The curve is the share of
mismatched pairs in the output after so many decisions. The figure is the number until it stays below --goal, and beside
it how many right pairs the output holds then.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from truth import read

from cleanpairs import Auto, Pairs, load_pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.explain import Explainer
from cleanpairs.repair.plan import RepairPlan, truth_after, truth_of
from cleanpairs.review.log import DecisionLog
from cleanpairs.review.session import Session

PAIRS = 2000
SHOWN = (0, 25, 50, 100, 200, 300, 400, 600, 800, 1000, 1500)


def fitted(folder: Path | None, corpus: str, rate: float, seed: int) -> tuple[Pairs, Auto, RepairPlan, Explainer]:
    if corpus == "clipart":
        clean, settings = load_pairs(clipart_path("train")), {}
    else:
        assert folder is not None, "DATA_DIR is needed"
        clean, settings = read(folder, corpus)
    clean = clean.select(np.arange(min(PAIRS, len(clean))))
    pairs = apply_noise(clean, inject_noise(clean, rate, seed=seed))
    model = Auto(backbone="mlp", random_state=seed, require_dependence=False, **settings).fit(pairs)
    return pairs, model, model.rematch(pairs), model.explainer(pairs)


class Oracle:
    """Decides by the truth, and knows what is wrong in the output after each decision."""

    def __init__(self, session: Session, plan: RepairPlan) -> None:
        self.session, self.pairs = session, session.pairs
        self.wrong = truth_of(self.pairs, plan.table)["true_mismatch"].copy()  # of what the plan has made of each
        self.written = session.known & ~np.isin(session.planned, ["drop", "quarantine"])

    def decide(self, i: int) -> None:
        """As the truth says."""
        assert self.pairs.true_mismatch is not None
        wrong = bool(self.pairs.true_mismatch[i])
        action, donor = "drop" if wrong else "keep", None
        for option in self.session.options(i) if wrong else ():
            if option["action"] == "rematch_text" and self.right(i, option["donor"]):
                action, donor = "rematch_text", option["donor"]
                break
        self.session.answer(i, action, donor=donor)
        self.written[i], self.wrong[i] = action != "drop", False

    def right(self, i: int, donor: int) -> bool:
        """Whether that pair's caption belongs to this one's image."""
        own = np.arange(len(self.pairs))
        text = own.copy()
        text[i] = donor
        return not truth_after(self.pairs, text, own)["true_mismatch"][i]

    def share(self) -> float:
        """Of mismatched pairs in the output."""
        return float(self.wrong[self.written].mean())

    def right_pairs(self) -> int:
        """In the output."""
        return int((self.written & ~self.wrong).sum())


def ordered(session: Session, order: str, seed: int) -> np.ndarray:
    if order == "random":
        return np.random.default_rng(seed).permutation(np.flatnonzero(session.known))
    if order == "score":
        return session.queue("lowest")
    lists = [session.queue("flagged"), session.queue("kept")]
    return np.concatenate(lists if order == "flagged" else lists[::-1])


def session(fit: tuple[Pairs, Auto, RepairPlan, Explainer], order: str, goal: float, seed: int) -> Any:
    """One review to its end: the curve, the decisions until the goal, and how many right pairs there are then."""
    pairs, model, plan, explainer = fit
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLEANPAIRS_CACHE"] = folder
        log = DecisionLog(Path(folder) / "log", pairs.source.fingerprint, len(pairs))
        made = Session(pairs, plan, model.correspondence_, log, explainer=explainer)
        oracle = Oracle(made, plan)
        curve, right = [oracle.share()], [oracle.right_pairs()]
        for i in ordered(made, order, seed)[: SHOWN[-1]].tolist():
            oracle.decide(i)
            curve.append(oracle.share())
            right.append(oracle.right_pairs())
        log.close()
    above = [k for k, share in enumerate(curve) if share >= goal]
    need = above[-1] + 1 if above and above[-1] + 1 < len(curve) else None if above else 0
    shown = [curve[k] if k < len(curve) else None for k in SHOWN]
    return shown, need, None if need is None else right[need], right[0]


def curves(args: argparse.Namespace) -> None:
    shown = f"{SHOWN[0]} decisions,{','.join(map(str, SHOWN[1:]))}"
    print(f"corpus,seed,order,{shown},below {args.goal:g} after,right pairs then (before)")
    for corpus in args.corpora.split(","):
        for seed in range(args.seeds):
            fit = fitted(args.data, corpus, args.noise, seed)
            for order in args.orders.split(","):
                shown, need, right, before = session(fit, order, args.goal, seed)
                cells = ["" if c is None else f"{c:.3f}" for c in shown]
                last = ["never", f"({before})"] if need is None else [str(need), f"{right} ({before})"]
                print(",".join([corpus, str(seed), order, *cells, *last]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--corpora", default="clipart,photos")
    parser.add_argument("--orders", default="flagged,upward,score,random")
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--goal", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=1)
    curves(parser.parse_args())


if __name__ == "__main__":
    main()
