"""Near duplicates: what is linked, what is not, and what becomes of the groups."""

from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw

from cleanpairs import InfoNCE
from cleanpairs.data import Pairs, duplicates, load_pairs
from cleanpairs.data.duplicates import flat_images, group_near_duplicates, image_signatures, near_duplicate_groups
from cleanpairs.data.images import encoded_list


def picture(seed: int, size: int = 160) -> Image.Image:
    """Coloured shapes on white, as in a catalogue."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = rng.integers(0, size * 3 // 4, 2).tolist()
        w, h = rng.integers(size // 8, size // 2, 2).tolist()
        draw.ellipse((x, y, x + w, y + h), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def copies(image: Image.Image) -> list[bytes]:
    side = image.width * 2 // 3
    smaller = image.resize((side, side), Image.Resampling.LANCZOS)
    return [
        encoded(image), encoded(image, "JPEG", quality=50), encoded(image, "WEBP", quality=70),
        encoded(smaller, "JPEG", quality=85),
    ]  # fmt: skip


def test_copies_are_one_and_others_are_not() -> None:
    images = [data for seed in range(20) for data in copies(picture(seed))]
    groups = near_duplicate_groups(image_signatures(encoded_list(list(images))))
    assert groups.tolist() == [4 * (i // 4) for i in range(80)]


def test_colour_alone_and_shape_alone_do_not_link() -> None:
    image = picture(3)
    red, green, blue = image.split()
    swapped = Image.merge("RGB", (blue, red, green))  # other colours in the same place
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    groups = near_duplicate_groups(image_signatures(encoded_list([encoded(i) for i in (image, swapped, mirrored)])))
    assert groups.tolist() == [0, 1, 2]


def test_two_colours_of_one_brightness_are_not_one_colour() -> None:
    two = Image.new("RGB", (40, 40), "red")  # luminance 76
    two.paste("green", (0, 20, 40, 40))  # 75
    three = [encoded(two), encoded(Image.new("RGB", (40, 40), "red")), encoded(picture(0))]
    assert flat_images(Pairs.from_arrays(["a b", "a", "c"], images=three)).tolist() == [1]


def test_groups_are_those_of_a_search_through_all_pairs() -> None:
    rng = np.random.default_rng(0)
    centre = rng.integers(0, 256, (40, 8), dtype=np.uint8)
    bits = np.unpackbits(centre[rng.integers(0, 40, 400)], axis=1)
    for row in bits:  # up to 9 flips: some pairs within 6, some beyond
        row[rng.choice(64, rng.integers(0, 6), replace=False)] ^= 1
    codes = np.packbits(bits, axis=1)
    colours = np.repeat(rng.integers(0, 256, (1, 192), dtype=np.uint8), 400, axis=0)
    found = near_duplicate_groups(np.concatenate([codes, colours, np.ones((400, 1), np.uint8)], axis=1))
    expected = np.arange(400)
    distance = (bits[:, None] != bits[None]).sum(axis=2)
    for _ in range(400):  # the lowest number that can be reached
        lower = np.where(distance <= 6, expected[None], 400).min(axis=1)
        if (lower == expected).all():
            break
        expected = lower
    assert found.tolist() == expected.tolist()
    assert 5 < len(np.unique(found)) < 400  # there was something to link, and something not


def test_flat_and_broken_pictures_are_left_alone_and_few_are_no_fault() -> None:
    flat = [encoded(Image.new("RGB", (40, 40), (level, level, level))) for level in (200, 201)]
    found = image_signatures(encoded_list([*flat, b"no image", None]))
    assert not found[:, 200].any()
    assert near_duplicate_groups(found).tolist() == [0, 1, 2, 3]
    for count in range(3):
        found = image_signatures(encoded_list([encoded(picture(7))] * count))
        assert near_duplicate_groups(found).tolist() == [0] * count


def test_pairs_keep_all_but_their_image_groups() -> None:
    images = [*copies(picture(0)), encoded(picture(1))]
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(5)], images=images)
    assert len(np.unique(pairs.image_group)) == 5
    grouped = group_near_duplicates(pairs)
    assert len(np.unique(grouped.image_group)) == 2
    assert set(grouped.image_group.tolist()) <= set(pairs.image_group.tolist())  # still hashes of contents
    assert grouped.captions == pairs.captions
    assert group_near_duplicates(pairs) is grouped  # looked at once


def test_vectors_have_no_pictures() -> None:
    pairs = Pairs.from_arrays(["one", "two"], features=np.eye(2, dtype=np.float32))
    assert group_near_duplicates(pairs) is pairs
    alive = weakref.ref(pairs)
    del pairs
    gc.collect()
    assert alive() is None  # what is known of them does not keep them


def test_signatures_of_a_file_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"image": copies(picture(0)), "caption": list("abcd")}), data)
    first = group_near_duplicates(load_pairs(data)).image_group
    monkeypatch.setattr(duplicates, "image_signatures", lambda *_: pytest.fail("decoded again"))
    again = group_near_duplicates(load_pairs(data)).image_group
    assert again.tolist() == first.tolist() and len(np.unique(again)) == 1


@pytest.mark.parametrize("grouped", [True, False])
def test_a_model_takes_copies_for_one_image_unless_told_not_to(grouped: bool) -> None:
    images = [data for seed in range(8) for data in copies(picture(seed))[:2]]
    pairs = Pairs.from_arrays([f"number {i}" for i in range(16)], images=images)
    model = InfoNCE(image_size=32, backbone="mlp", epochs=1, near_duplicates=grouped)
    model.fit(pairs)
    seen = model._embed(pairs).pairs.image_group
    assert len(np.unique(seen)) == (8 if grouped else 16)
    assert set(model.bank_.image_group.tolist()) <= set(seen.tolist())
