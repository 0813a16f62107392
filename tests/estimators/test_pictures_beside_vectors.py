"""Vectors with pictures beside them: near duplicates are one image, for whichever way a plan is made."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.rematch import rematch_run
from cleanpairs.commands.run import Run
from cleanpairs.core.recipe import Recipe
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.settings import RepairSettings
from tests.helpers import vector_column, write_table


def twice(n: int) -> list[bytes]:
    """n pictures, each of them in two qualities of JPEG."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        image = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((96, 96))
        for quality in (95, 60):
            out = io.BytesIO()
            image.save(out, "JPEG", quality=quality)
            found.append(out.getvalue())
    return found


@pytest.mark.parametrize("pictures", [True, False])
def test_a_plan_by_auto_is_that_of_memory_however_many_rows_there_are(pictures: bool, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 300
    centre = np.repeat(rng.normal(size=(n // 2, 16)), 2, axis=0)
    images, texts = (centre + 0.3 * rng.normal(size=(n, 16)) for _ in range(2))
    captions, wrong = np.array([f"a text of number {i}" for i in range(n)]), rng.choice(n, 90, replace=False)
    order = rng.permutation(wrong)
    texts[wrong], captions[wrong] = texts[order], captions[order]
    image, text = (vector_column(x.astype(np.float32)) for x in (images, texts))
    columns = {"caption": captions.tolist(), "image_features": image, "text_features": text}
    if pictures:
        columns |= {"image": pa.array(twice(n // 2), pa.binary())}
    options = {"train": str(write_table(tmp_path / "data.parquet", columns)), "method": "auto", "device": "cpu"}
    fit_run(Recipe.resolve(None, overrides=["text_encoder=features"], options=options), out=tmp_path / "run")
    plans = []
    for name, streamed_from in (("memory", 10**9), ("many", 0)):
        plan = tmp_path / f"{name}.parquet"
        made = rematch_run(Run(tmp_path / "run"), plan, RepairSettings(), streamed_from=streamed_from)
        assert made.streamed == (not pictures and streamed_from == 0)
        plans.append(RepairPlan.load(plan))
    assert plans[0].summary().repaired > (50 if pictures else 0)
    assert plans[0].table.equals(plans[1].table)
