"""120 pairs of four topics with pictures, a plan, and scores that know nearly all of the 30 mismatched pairs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs import Pairs, RepairPlan, load_pairs
from cleanpairs.audit import AuditSample, draw_sample
from cleanpairs.correspondence.calibration import Calibration, calibrate
from cleanpairs.explain import Explainer
from cleanpairs.review.log import DecisionLog
from cleanpairs.review.server import LabelServer
from cleanpairs.review.session import Session
from tests.helpers import picture, plan_of, unit, write_table

N, WRONG, REPAIRED, QUARANTINED = 120, 30, 5, 119
TOPICS = ("sand waves sea surf", "stove pan cook plate", "trees moss path deer", "cars lights bus shops")
EVIL = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 2</script>"


@dataclass(frozen=True)
class Case:
    """The corpus, its plan and its scores `y`; ``open`` begins a session whose log lies in a folder."""

    pairs: Pairs
    plan: RepairPlan
    y: np.ndarray
    explainer: Explainer
    calibration: Calibration | None

    def open(self, folder: Path, blind: bool = False) -> Session:
        log = DecisionLog(folder / "decisions.jsonl", self.pairs.source.fingerprint, N)
        if blind:
            return Session(self.pairs, None, self.y, log, sample=self.sample())
        return Session(self.pairs, self.plan, self.y, log, explainer=self.explainer, calibration=self.calibration)

    def sample(self) -> AuditSample:
        return draw_sample(self.y, 12, threshold=0.5)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    rng = np.random.default_rng(0)
    topic = rng.integers(0, 4, N)
    wrong = np.arange(N) < WRONG
    written = np.where(wrong, (topic + 1) % 4, topic)
    captions = [" ".join(rng.choice(TOPICS[t].split(), 3, replace=False)) + f" {i}" for i, t in enumerate(written)]
    captions[40:46], captions[60], captions[3] = ["click here for more"] * 6, EVIL, "sea \u202e txt"
    file = tmp_path_factory.mktemp("review") / "data.parquet"
    images = [picture(i, size=(320, 240)) for i in range(N)]
    columns = {"key": [f"k{i:03d}" for i in range(N)], "image": images, "caption": captions}
    pairs = load_pairs(write_table(file, columns))
    y = np.where(wrong, rng.beta(1, 6, N), rng.beta(6, 1, N)).astype(np.float32)
    y[QUARANTINED] = np.nan
    pairs = replace(pairs, reasons={QUARANTINED: "broken"})
    action = ["quarantine" if v != v else "drop" if v < 0.5 else "keep" for v in y.tolist()]
    donor: list[int | None] = [None] * N
    action[REPAIRED], donor[REPAIRED] = "rematch_text", int(np.flatnonzero(~wrong & (topic == topic[REPAIRED]))[0])
    told = {
        "correspondence": pa.array(y, from_pandas=True),
        "repair_score": [None if d is None else 0.9 for d in donor],
        "confidence": [None if d is None else 0.8 for d in donor],
        "donor_use": [None if d is None else 2 for d in donor],
        "reason": [{"drop": "it fits nowhere", "rematch_text": "displaced: by a row"}.get(a) for a in action],
    }
    plan = plan_of(pairs, action, donor, threshold=0.5, settings={"data": str(file), "columns": {}}, **told)
    shown = [unit(np.eye(4)[t].repeat(4, axis=1) + 0.3 * rng.normal(size=(N, 16))) for t in (topic, written)]
    explainer = Explainer(pairs, lambda rows: (shown[0][rows], shown[1][rows]), y, 0.5)
    return Case(pairs, plan, y, explainer, calibrate(y[:QUARANTINED], rng.beta(1, 6, 200), draws=20))


@contextmanager
def served(session: Session, folder: Path) -> Iterator[str]:
    """The address of the page while the server of the command answers."""
    server = LabelServer(session, lambda: session.write_plan(folder / "plan.parquet")["plan"])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.address
    finally:
        server._uvicorn.should_exit = True
        thread.join()
