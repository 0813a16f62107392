"""Vectors with pictures beside them: near duplicates are one image, for whichever way a plan is made."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from cleanpairs import Auto
from cleanpairs.commands.rematch import rematch_run
from cleanpairs.commands.run import Run
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.settings import RepairSettings
from tests.helpers import encoded, fit_beside, vector_column, write_table


def twice(n: int) -> list[bytes]:
    """n pictures, each of them in two qualities of JPEG."""
    rng = np.random.default_rng(0)
    drawn = (rng.integers(0, 256, (6, 6, 3), dtype=np.uint8) for _ in range(n))
    images = [Image.fromarray(pixels).resize((96, 96)) for pixels in drawn]
    return [encoded(image, "JPEG", quality=quality) for image in images for quality in (95, 60)]


def test_a_plan_by_auto_is_that_of_memory_however_many_rows_there_are(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 300
    centre = np.repeat(rng.normal(size=(n // 2, 16)), 2, axis=0)
    images, texts = (centre + 0.3 * rng.normal(size=(n, 16)) for _ in range(2))
    captions, wrong = np.array([f"a text of number {i}" for i in range(n)]), rng.choice(n, 90, replace=False)
    order = rng.permutation(wrong)
    texts[wrong], captions[wrong] = texts[order], captions[order]
    texts[100:200], captions[100:200] = np.roll(texts[100:200], 1, axis=0), np.roll(captions[100:200], 1)
    image, text = (vector_column(x.astype(np.float32)) for x in (images, texts))
    pictures = pa.array(twice(n // 2), pa.binary())
    columns = {"caption": captions.tolist(), "image_features": image, "text_features": text, "image": pictures}
    fit_beside(write_table(tmp_path / "data.parquet", columns), "text_encoder=features", device="cpu", seed=0)
    model = Auto(text_encoder="features", device="cpu", random_state=0).fit(tmp_path / "data.parquet")
    plans = [model.rematch(tmp_path / "data.parquet")]
    for name, streamed_from in (("memory", 10**9), ("many", 0)):
        plan = tmp_path / f"{name}.parquet"
        assert len(rematch_run(Run(tmp_path / "run"), plan, RepairSettings(), streamed_from=streamed_from)[0])
        plans.append(RepairPlan.load(plan))
    assert plans[0].summary().repaired > 50
    assert plans[1].table.equals(plans[2].table)
    assert plans[0].table["correspondence"].equals(plans[1].table["correspondence"])
    assert 30 < np.count_nonzero(plans[0].table["correspondence"].to_numpy()[100:200] == 0) < 70  # a copy has its own
