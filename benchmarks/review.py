"""A review by somebody who knows: how many decisions make a corpus clean, in which order; and the server's haste.

    OMP_NUM_THREADS=1 python benchmarks/review.py DATA_DIR --corpora clipart,photos --seeds 3
    OMP_NUM_THREADS=1 python benchmarks/review.py --answers --kill 50

DATA_DIR holds the corpora of truth.py; of photos the first 2,000 captions (five an image); clipart is shipped. 30 % of
the captions are permuted, ``auto`` is fitted with its defaults, and the plan is `rematch`'s. Then pairs are looked at
one by one: a matched one is kept, a mismatched one gets the first right caption among those that the page offers, else
it is dropped. ``flagged`` is the page's first list, and then its list of kept pairs; ``upward`` is these two lists the
other way round; ``score`` begins with the lowest score of all; ``random`` takes any pair. The curve is the share of
mismatched pairs in the output after so many decisions. The figure is the number until it stays below --goal, and beside
it how many right pairs the output holds then.

``--answers`` measures the server with 100,000 pairs; ``--kill N`` kills it N times (-9) while pages write.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from truth import read

from cleanpairs import Auto, Pairs, load_pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.explain import Explainer
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan, truth_after, truth_of
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
    print(f"corpus,seed,order,{','.join(map(str, SHOWN))},below {args.goal:g} after,right pairs then (before)")
    for corpus in args.corpora.split(","):
        for seed in range(args.seeds):
            fit = fitted(args.data, corpus, args.noise, seed)
            for order in args.orders.split(","):
                shown, need, right, before = session(fit, order, args.goal, seed)
                cells = ["" if c is None else f"{c:.3f}" for c in shown]
                last = ["never", f"({before})"] if need is None else [str(need), f"{right} ({before})"]
                print(",".join([corpus, str(seed), order, *cells, *last]), flush=True)


def large(folder: Path, n: int, d: int = 256) -> Session:
    """Of n pairs of vectors, a third flagged."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(5000)])
    captions = [" ".join(row) for row in words[rng.zipf(1.3, (n, 8)) % 5000].tolist()]
    captions[: n // 50] = ["buy now"] * (n // 50)
    images = rng.normal(size=(n, d)).astype(np.float32)
    texts = (images + rng.normal(size=(n, d))).astype(np.float32)
    images, texts = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (images, texts))
    pairs = Pairs.from_arrays(captions, image_vectors=images, text_vectors=texts)
    y = rng.beta(0.6, 0.4, n).astype(np.float32)
    drop = y < 0.5
    none = pa.nulls(n)
    table = pa.table({
        "pair_id": np.arange(n), "key": pairs.keys, "action": np.where(drop, "drop", "keep"), "correspondence": y,
        "donor_pair_id": none, "donor_key": none, "caption": pa.array(captions, mask=drop),
        "original_caption": captions,
        "repair_score": none, "margin": none, "confidence": none, "donor_use": none, "reason": none, "why": none,
        "captions": none,
    }).cast(PLAN_SCHEMA)  # fmt: skip
    plan = RepairPlan(table, 0.5, 0.5, pairs.source.fingerprint)
    log = DecisionLog(folder / "decisions.jsonl", pairs.source.fingerprint, n)
    explainer = Explainer(pairs, lambda rows: (images[rows], texts[rows]), y, 0.5)
    return Session(pairs, plan, y, log, explainer=explainer)


def get(port: int, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, data
    return json.loads(data)


def serving(folder: Path, n: int) -> tuple[subprocess.Popen[str], str, int]:
    """Another process that serves n pairs, and its address."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(folder), "--pairs", str(n)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    return process, "/" + address.rstrip("/").rpartition("/")[2] + "/", int(address.split(":")[2].partition("/")[0])


def answers(n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process, root, port = serving(Path(folder), n)
        found: dict[str, list[tuple[float, float]]] = {}

        def work() -> float:
            used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")

        def timed(name: str, path: str, body: Any = None) -> Any:
            begun, used = time.perf_counter(), work()
            answer = get(port, root + path, body)
            found.setdefault(name, []).append((1000 * (time.perf_counter() - begun), 1000 * (work() - used)))
            return answer

        get(port, root + "question/1")  # as the command does before it serves

        rng = random.Random(0)
        for _ in range(20):
            for show in ("flagged", "lowest", "repeated", "all"):
                timed("a list", f"queue?show={show}")
            timed("a list by words", f"queue?show=all&words=word{rng.randrange(100)}")
            i = rng.randrange(n)
            timed("a question with its evidence", f"question/{i}")
            timed("an answer", "decide", {"pair": i, "action": "drop"})
        made = timed("a batch of 2 %", "decide_all", {"alike": 5, "action": "drop"})
        timed("its undo", "undo", {"name": made["name"]})
        print(f"| of {n:,} pairs, milliseconds | median | largest | CPU, mean |\n|---|---|---|---|")
        for name, values in found.items():
            wall, cpu = np.array(values).T
            print(f"| {name} | {np.median(wall):.0f} | {wall.max():.0f} | {cpu.mean():.0f} |")
        process.kill()
        process.wait()


def kill(times: int) -> None:
    """Two pages decide as fast as they can; the server is killed; what it has answered must be there."""
    with tempfile.TemporaryDirectory() as name:
        folder, answered, rng, half = Path(name), {}, random.Random(0), 0
        for _ in range(times):
            process, root, port = serving(folder, 300)
            lock = threading.Lock()

            def page(which: int, root: str = root, port: int = port, lock: threading.Lock = lock) -> None:
                mine = random.Random(rng.random())
                while True:
                    i, caption = mine.randrange(150) * 2 + which, f"caption {mine.random()} " * 20
                    try:
                        get(
                            port,
                            root + "decide",
                            {"pair": i, "action": "recaption", "caption": caption},
                        )
                    except (OSError, http.client.HTTPException):
                        return
                    with lock:
                        answered[i] = " ".join(caption.split())

            pages = [threading.Thread(target=page, args=(which,)) for which in (0, 1)]
            for one in pages:
                one.start()
            time.sleep(0.2 + rng.random())
            process.kill()
            for one in pages:
                one.join()
            process.wait()
            log = large(folder, 300).log
            held, half = log.decided(), log.damaged
            every = {(i, made.caption) for made in log.decisions for i in made.pairs}
            lost = [i for i, caption in answered.items() if (i, caption) not in every or i not in held]
            assert not lost, lost
            log.close()
        print(f"killed {times} times: {len(every):,} decisions, none that was answered is lost; half lines: {half}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--corpora", default="clipart,photos")
    parser.add_argument("--orders", default="flagged,upward,score,random")
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--goal", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--kill", type=int, default=0, metavar="N")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        from cleanpairs.review.server import LabelServer

        server = LabelServer(large(args.serve, args.pairs), str)
        print(server.address, flush=True)
        server.serve()
    if args.answers:
        answers(args.pairs)
    if args.kill:
        kill(args.kill)
    if not (args.answers or args.kill):
        curves(args)


if __name__ == "__main__":
    main()
