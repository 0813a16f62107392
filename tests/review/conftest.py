"""120 pairs of four topics with pictures; 30 of them mismatched, of which the scores know nearly all; a plan."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs.data import load_pairs
from cleanpairs.data.pairs import Pairs
from cleanpairs.explain import Explainer
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan
from cleanpairs.review.log import DecisionLog
from cleanpairs.review.server import ReviewServer
from cleanpairs.review.session import Review

N, WRONG = 120, 30
TOPICS = ("sand waves sea surf", "stove pan cook plate", "trees moss path deer", "cars lights bus shops")
EVIL = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 2</script>"


@dataclass(frozen=True)
class Case:
    """``wrong`` (N,) bool; ``open`` gives a review of the log in a folder."""

    pairs: Pairs
    plan: RepairPlan
    y: np.ndarray
    wrong: np.ndarray
    open: Callable[[Path], Review]


def _png(i: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (320, 240), (2 * i % 256, 200 - i, 120)).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    rng = np.random.default_rng(0)
    topic = rng.integers(0, 4, N)
    wrong = np.arange(N) < WRONG
    said = np.where(wrong, (topic + 1) % 4, topic)
    captions = [" ".join(rng.choice(TOPICS[t].split(), 3, replace=False)) + f" {i}" for i, t in enumerate(said)]
    captions[40:46], captions[60], captions[3] = ["click here for more"] * 6, EVIL, "sea \u202e txt"
    file = tmp_path_factory.mktemp("review") / "data.parquet"
    columns = {"key": [f"k{i:03d}" for i in range(N)], "image": [_png(i) for i in range(N)], "caption": captions}
    pq.write_table(pa.table(columns), file)
    pairs = load_pairs(file)
    y = np.where(wrong, rng.beta(1, 6, N), rng.beta(6, 1, N)).astype(np.float32)
    y[119] = np.nan
    pairs = replace(pairs, reasons={119: "broken"})
    action = ["quarantine" if v != v else "drop" if v < 0.5 else "keep" for v in y.tolist()]
    donor: list[int | None] = [None] * N
    action[5], donor[5] = "rematch_text", int(np.flatnonzero(~wrong & (topic == topic[5]))[0])
    table = pa.table(
        {
            "pair_id": range(N), "key": pairs.keys, "action": action, "correspondence": pa.array(y, from_pandas=True),
            "donor_pair_id": donor, "donor_key": [None if d is None else pairs.keys[d] for d in donor],
            "caption": [
                None if a in ("drop", "quarantine") else captions[i if d is None else d]
                for i, (a, d) in enumerate(zip(action, donor, strict=True))
            ],
            "original_caption": captions, "repair_score": [None if d is None else 0.9 for d in donor],
            "margin": [None] * N, "confidence": [None if d is None else 0.8 for d in donor],
            "donor_use": [None if d is None else 2 for d in donor],
            "reason": ["it fits nowhere" if a == "drop" else None for a in action],
            "why": [None] * N,
        }
    ).cast(PLAN_SCHEMA)  # fmt: skip
    about = {"data": str(file), "columns": {}}
    plan = RepairPlan(table, 0.5, 0.5, pairs.source.fingerprint, about)
    unit = [np.eye(4)[t].repeat(4, axis=1) + 0.3 * rng.normal(size=(N, 16)) for t in (topic, said)]
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in unit]
    explainer = Explainer(pairs, lambda rows: (unit[0][rows], unit[1][rows]), y, 0.5)

    def opened(folder: Path) -> Review:
        log = DecisionLog(folder / "decisions.jsonl", pairs.source.fingerprint, N)
        return Review(
            pairs,
            plan,
            y,
            log,
            explainer=explainer,
            probability=True,
        )

    return Case(pairs, plan, y, wrong, opened)


@contextmanager
def served(review: Review, folder: Path) -> Iterator[str]:
    """The address of the page while it is answered, by the server that the command runs."""
    server = ReviewServer(review, folder)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join()
