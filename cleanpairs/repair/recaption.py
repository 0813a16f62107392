"""Captions written anew for images that no caption of the corpus fits. It is CapFilt (Li et al., BLIP, ICML 2022) with
another filter. The filter is the fitted model, which resists wrong pairs and has never seen the captioner's words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from cleanpairs.core import ConfigError
from cleanpairs.data import Pairs
from cleanpairs.data.decoding import MISSING, RGB, Decoder, workers_for
from cleanpairs.data.duplicates import group_near_vectors, lesser_duplicates
from cleanpairs.data.text import text_groups
from cleanpairs.ops.columns import filtered, one_array, with_columns
from cleanpairs.repair.actions import CAPTIONED, DUPLICATE, REASONS, REPAIRED, WRITTEN, acted
from cleanpairs.repair.plan import RepairPlan, part_sources


class CaptionWriter(Protocol):
    """Writes captions. It may have a ``name``, else the plan has that of its type. It may have ``begin(captions,
    images)``, called first with the old captions and the number of images, and ``noted()``: what the plan keeps.
    """

    def caption(
        self, images: Sequence[Image.Image], captions: Sequence[str], words: Sequence[Sequence[str]]
    ) -> Sequence[str]:
        """A caption for each of n decoded images, with its old caption and its words in doubt. "" where there is none.

        Pairs that show the same image give the same object.
        """


def recaption(
    pairs: Pairs,
    plan: RepairPlan,
    writer: CaptionWriter,
    score: Callable[[Pairs], np.ndarray],
    *,
    words: Callable[[np.ndarray], Sequence[Sequence[str]]] = lambda rows: [()] * len(rows),
    min_repair_score: float | None = None,
    max_reuse: int = 1,
) -> RepairPlan:
    """Write captions for the dropped pairs of a plan: those that are used have the action ``recaption``. A plan without
    near duplicates (``dedup``) stays so.

    - ``writer``: such as :class:`cleanpairs.encoders.pretrained.Captioner`. ``score``: pairs to probabilities (n,)
    - ``words``: rows to the words of their captions that are in doubt
    - ``min_repair_score``: a new caption that scores lower is not used. The plan's when None
    - ``max_reuse``: images of different content that may get captions equal after normalisation. The best ones do

    Raises DataError: the plan is not for these pairs. ConfigError: the data has vectors only, or ``writer`` does not
    give a text for each image.
    """
    plan = plan.check_for(pairs)
    least = plan.min_repair_score if min_repair_score is None else min_repair_score
    if not 0 <= least <= 1 or max_reuse < 1:
        raise ConfigError(f"min_repair_score must lie in [0, 1] and max_reuse be at least 1, got {least}, {max_reuse}")
    duplicate = pc.fill_null(pc.equal(one_array(plan.table["reason"]), REASONS[DUPLICATE]), False)
    dropped = np.flatnonzero(acted(plan.table, ["drop"]) & ~np.asarray(duplicate))
    rows, captions = _written(pairs, dropped, writer, words)
    name = getattr(writer, "name", type(writer).__name__)
    noted = {**plan.settings, "recaption": writer.noted() if hasattr(writer, "noted") else name}
    if not len(rows):
        return replace(plan, settings=noted) if len(dropped) else plan
    old = pairs.select(rows)
    new = old.with_captions(captions)
    before, after = score(old), score(new)
    good, image = np.isfinite(after) & (after >= least) & ~(after <= before), old.pair_image_group
    good &= ~_present_pairs(pairs, plan, image, new.text_group)
    if plan.settings.get("dedup"):
        shown = group_near_vectors(pairs, plan.settings["duplicate_bits"]).pair_image_group
        value = np.where(acted(plan.table, WRITTEN), 2.0, np.nan)  # above those of new captions
        value[rows[good]] = after[good]
        good &= ~np.isin(rows, lesser_duplicates(shown[part_sources(plan.table)[1]], pairs.row, value))
    used, chosen = dict[int, set[int]](), np.zeros(len(rows), bool)
    for i in np.argsort(-np.where(good, after, -1), kind="stable")[: good.sum()].tolist():
        images = used.setdefault(int(new.text_group[i]), set())
        if int(image[i]) not in images and len(images) < max_reuse:
            images.add(int(image[i]))
            chosen[i] = True
    mask, table, texts = np.zeros(len(plan), bool), plan.table, [captions[i] for i in np.flatnonzero(chosen)]
    mask[rows[chosen]] = True
    changes = {"caption": pa.array(texts, pa.string()), "repair_score": pa.array(after[chosen], pa.float32())}
    changes |= {"action": pa.scalar("recaption"), "reason": pa.scalar(f"{CAPTIONED}{name}")}
    table = with_columns(table, {n: pc.replace_with_mask(one_array(table[n]), mask, v) for n, v in changes.items()})
    return replace(plan, table=table, settings=noted)


def _present_pairs(pairs: Pairs, plan: RepairPlan, image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Return which pairs (n,) of image and text groups the input has, or a plan makes by a repair."""
    repaired, images = acted(plan.table, REPAIRED), pairs.pair_image_group
    shown_by = part_sources(plan.table)[1][repaired]
    usable = np.isin(images, image) & ~np.isin(np.arange(len(pairs)), list(pairs.reasons))
    known = set(zip(images[usable].tolist(), pairs.text_group[usable].tolist(), strict=True))
    captions = filtered(plan.table["caption"], repaired).to_pylist()
    known.update(zip(images[shown_by].tolist(), text_groups(captions).tolist(), strict=True))
    return np.array([both in known for both in zip(image.tolist(), text.tolist(), strict=True)], bool)


def decoded_images(pairs: Pairs, rows: np.ndarray) -> Iterator[tuple[np.ndarray, list[Image.Image]]]:
    """The decoded images of rows (n,), in parts: positions in ``rows``, and an image for each. What has none is left
    out. ConfigError where the data has vectors only.
    """
    images, place = np.unique(pairs.image_index[rows], return_inverse=True)
    seen = 0
    with Decoder(RGB, workers_for(len(images))) as decoder:
        for batch in decoder.batches(pairs.images.at(images).iter_encoded(64)):
            seen += any(reason != MISSING for reason in batch.failures.values()) or bool(batch.arrays)
            decoded = dict(zip(batch.rows.tolist(), map(Image.fromarray, batch.arrays), strict=True))
            places = np.flatnonzero(np.isin(place, batch.rows))
            if len(places):
                yield places, [decoded[k] for k in place[places].tolist()]
    if len(images) and not seen:
        raise ConfigError("a model has to see the images, and this data has precomputed vectors only")


def _written(
    pairs: Pairs, rows: np.ndarray, writer: CaptionWriter, words: Callable[[np.ndarray], Sequence[Sequence[str]]]
) -> tuple[np.ndarray, list[str]]:
    """Return the rows whose image could be read and captioned, and their captions."""
    old = [pairs.captions[i] or "" for i in rows.tolist()]
    if len(rows) and hasattr(writer, "begin"):
        writer.begin(old, len(np.unique(pairs.image_index[rows])))
    captions: dict[int, str] = {}
    for places, images in decoded_images(pairs, rows):
        texts = writer.caption(images, [old[i] for i in places.tolist()], words(rows[places]))
        if len(texts) != len(places) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{type(writer).__name__}.caption must give a text for each of {len(places)} images")
        captions |= {i: " ".join(text.split()) for i, text in zip(places.tolist(), texts, strict=True)}
    kept = sorted(i for i, text in captions.items() if text)  # never an empty one
    return rows[kept], [captions[i] for i in kept]
