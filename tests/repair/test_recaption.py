"""Captions written for dropped pairs: used only where the scorer likes them better, and not over and over."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from cleanpairs import CRCL, Pairs, RepairPlan
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.images import encoded_list
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.recaption import recaption
from tests.encoders.test_captioner import save_vit_gpt2
from tests.helpers import assert_raises, encoded, plan_of

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 200)}


def png(colour: str, side: int) -> bytes:
    return encoded(Image.new("RGB", (side, side), COLOURS[colour]))


class Namer:
    """Names the colour of a picture, really looking at it; ``lies`` of them in turn are wrong."""

    name = "namer"

    def __init__(self, text: str = "a {} square of {}", lies: int = 0) -> None:
        self.text, self.lies, self.looked = text, lies, 0

    def caption(self, images: Sequence[Image.Image], captions: Any, words: Any) -> list[str]:
        told = []
        for image in images:
            pixel = np.asarray(image.convert("RGB"))[0, 0].astype(int)
            names = sorted(COLOURS, key=lambda c: float(np.abs(pixel - COLOURS[c]).sum()))
            self.looked += 1
            told.append(self.text.format(names[self.looked <= self.lies], image.width))
        return told


def corpus(n: int = 12) -> tuple[Pairs, RepairPlan]:
    """Squares of three colours, all captioned "purple"; the first half of the plan is dropped, the rest kept."""
    names = [list(COLOURS)[i % 3] for i in range(n)]
    pairs = Pairs.from_arrays(["purple"] * n, images=[png(c, 8 + i) for i, c in enumerate(names)])
    return pairs, plan_of(pairs, ["drop"] * (n // 2) + ["keep"] * (n - n // 2), correspondence=[0.1] * n, threshold=0.5)


def by_colour(pairs: Pairs) -> np.ndarray:
    """1 where the caption names the picture's colour, 0.6 where it names no colour, 0.1 for a wrong one."""
    told = zip(pairs.image_index.tolist(), pairs.captions, strict=True)
    named = [(list(COLOURS)[i % 3], [c for c in COLOURS if c in caption][:1]) for i, caption in told]
    return np.array([0.6 if not colours else 1.0 if colours == [own] else 0.1 for own, colours in named], np.float32)


def test_dropped_pairs_get_captions_that_fit() -> None:
    pairs, plan = corpus()
    of_a_spreadsheet = replace(plan, table=with_columns(plan.table, {"original_caption": pa.array(["7"] * 12)}))
    new = recaption(pairs, of_a_spreadsheet, Namer(), by_colour)
    for i, row in enumerate(new.table.to_pylist()):
        if i < 6:
            assert row["action"] == "recaption" and row["caption"] == f"a {list(COLOURS)[i % 3]} square of {8 + i}"
            assert row["repair_score"] == 1 and row["reason"] == "captioned by namer" and row["donor_pair_id"] is None
        else:
            assert row == plan.table.to_pylist()[i]
    assert new.summary().recaptioned == new.summary().repaired == 6 and new.summary().dropped == 0
    assert "caption written" in str(new.summary()) and new.settings["recaption"] == "namer"
    applied = new.apply(pairs)
    assert applied.captions[:2] == ["a red square of 8", "a green square of 9"] and len(applied) == 12
    assert len(set(applied.text_group.tolist())) == 7


def test_a_caption_that_is_no_better_is_not_used_and_an_equal_one_for_so_many_images_only() -> None:
    pairs, plan = corpus()
    new = recaption(pairs, plan, Namer(lies=2), by_colour).table.to_pylist()
    assert [row["action"] for row in new[:6]] == ["drop"] * 2 + ["recaption"] * 4 and new[0]["reason"] == "because drop"
    high = recaption(pairs, plan, Namer("a square of {1}, not {0}"), lambda p: np.full(len(p), 0.4, np.float32))
    assert high.table.equals(plan.table)  # below the lowest repair score
    for reuse in (1, 2):
        new = recaption(pairs, plan, Namer("A {0}  square"), by_colour, max_reuse=reuse)
        assert new.summary().recaptioned == 3 * reuse


def test_new_captions_do_not_keep_the_vectors_of_the_old_ones() -> None:
    pairs, plan = corpus()
    given = replace(pairs, text_vectors=np.ones((len(pairs), 3), np.float32))
    seen: list[Pairs] = []

    def score(asked: Pairs) -> np.ndarray:
        seen.append(asked)
        return by_colour(asked)

    assert recaption(given, plan, Namer(), score).summary().recaptioned == 6
    old, new = seen
    assert old.text_vectors is not None and new.text_vectors is None
    model = CRCL(
        backbone="mlp", text_encoder="features", epochs=1, refine_epochs=(), image_size=32, require_dependence=False
    ).fit(given)
    assert_raises(ConfigError, "text_encoder=words", model.recaption, given, plan, namer := Namer())
    assert namer.looked == 0  # as there are no vectors of captions that are written


def test_a_pair_that_is_there_already_is_not_written_again_and_what_cannot_be_read_stays_dropped() -> None:
    pairs, plan = corpus()
    whole = pairs.images.read(range(len(pairs.images)))
    unreadable = replace(pairs, images=encoded_list([whole[0], b"no picture", None, *whole[3:]]))
    new = recaption(unreadable, plan, Namer(), by_colour).table["action"].to_pylist()
    assert new[:6] == ["recaption", "drop", "drop", "recaption", "recaption", "recaption"]
    captions = ["purple"] * 3 + ["A red square, of 8!"] + ["purple"] * 8
    twice = Pairs.from_arrays(captions, images=[*whole[:3], *whole[:2], *whole[5:]])
    left = [*[None] * 4, "a green square of 9", None, *captions[6:]]
    plan = plan_of(twice, ["drop"] * 4 + ["recaption", "drop"] + ["keep"] * 6, caption=left, threshold=0.5)
    new = recaption(twice, plan, Namer(), by_colour).table["action"].to_pylist()
    assert new[:6] == ["drop", "drop", "recaption", "drop", "recaption", "recaption"]
    plan = plan_of(twice, ["drop"] * 4 + ["keep"] * 8, threshold=0.5, settings={"dedup": True, "duplicate_bits": 28})
    new = recaption(twice, plan, Namer("a {} picture of {}"), by_colour).table["action"].to_pylist()
    assert new[:5] == ["recaption", "drop", "recaption", "drop", "keep"]  # an image is shown once


def test_what_cannot_be() -> None:
    pairs, plan = corpus()
    vectors = Pairs.from_arrays(["purple"] * 12, features=np.eye(12, 4, dtype=np.float32))
    assert_raises(DataError, "other data", recaption, vectors, plan, Namer(), by_colour)
    assert_raises(ConfigError, "vectors only", recaption, vectors, replace(plan, fingerprint=""), Namer(), by_colour)
    for wrong in ({"min_repair_score": 2.0}, {"max_reuse": 0}):
        assert_raises(ConfigError, "min_repair_score", recaption, pairs, plan, Namer(), by_colour, **wrong)


def test_a_fitted_model_judges_a_captioning_model(tmp_path: Path) -> None:
    """The whole way, with a tiny ViT and text decoder from disk; it knows nothing, so little of it is used."""
    (tmp_path / "model").mkdir()
    save_vit_gpt2(tmp_path / "model")
    nouns, names = np.random.default_rng(0).choice(["cat", "dog", "boat"], 30), list(COLOURS) * 10
    captions = [f"a photo of the {name} {noun} and" for name, noun in zip(names, nouns, strict=True)]
    images = [png(name, 16 + i) for i, name in enumerate(names)]
    pairs = Pairs.from_arrays(captions[:10][::-1] + captions[10:], images=images)
    small = {"dim": 8, "epochs": 1, "refine_epochs": (1,), "freeze": 1, "batch_size": 8, "eval_group_size": 8}
    model = CRCL(backbone="mlp", image_size=32, device="cpu", **small).fit(pairs)
    plan = model.rematch(pairs, threshold=0.99, min_repair_score=1.0)
    assert plan.summary().dropped > 0
    given: list[Any] = []

    class Own:
        def caption(self, images: Any, captions: Sequence[str], words: Any) -> list[str]:
            given.extend(zip(captions, words, strict=True))
            return [f"{caption} boat" for caption in captions]

    written = model.rematch(pairs, threshold=0.99, min_repair_score=0.0, repairs="none", recaption=Own())
    dropped = [r for r in written.table.to_pylist() if r["action"] in ("drop", "recaption")]
    assert sorted(old for old, _ in given) == sorted(r["original_caption"] for r in dropped)
    assert all(set(words) <= set(old.split()) for old, words in given)
    assert {r["reason"] for r in dropped if r["action"] == "recaption"} <= {"captioned by Own"}
    new = model.recaption(pairs, plan, tmp_path / "model", min_repair_score=0.0, max_reuse=30)
    actions = np.array(new.table["action"].to_pylist())
    before, after = model.score_pairs(pairs), np.full(30, np.nan)
    after[~np.isin(actions, ["drop", "quarantine"])] = model.score_pairs(new.apply(pairs))
    for i in np.flatnonzero(actions == "recaption").tolist():
        assert before[i] < after[i] == pytest.approx(new.table["repair_score"][i].as_py(), abs=1e-5)
