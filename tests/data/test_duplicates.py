"""Near duplicates: what is linked, what is not, and what becomes of the groups."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy.sparse.csgraph import connected_components

from cleanpairs import CRCL, ClipScore, InfoNCE
from cleanpairs.core.errors import ConfigError
from cleanpairs.data import Pairs, duplicates
from cleanpairs.data.duplicates import flat_images, image_signatures, near_duplicate_groups, near_vector_groups
from cleanpairs.data.filters import FILTERS, PREFIX, chosen_filters, filter_reasons
from cleanpairs.data.images import encoded_list
from tests.helpers import assert_raises, encoded


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


def copies(image: Image.Image) -> list[bytes]:
    smaller = image.resize((image.width * 2 // 3,) * 2, Image.Resampling.LANCZOS)
    forms = ("PNG", {}), ("JPEG", {"quality": 50}), ("WEBP", {"quality": 70})
    return [*(encoded(image, form, **options) for form, options in forms), encoded(smaller, "JPEG", quality=85)]


def groups_of(images: list[bytes | None]) -> list[int]:
    return near_duplicate_groups(image_signatures(encoded_list(images))).tolist()


def test_copies_are_one_and_others_are_not() -> None:
    images = [data for seed in range(20) for data in copies(picture(seed))]
    assert groups_of(images) == [4 * (i // 4) for i in range(80)]
    image = picture(3)
    red, green, blue = image.split()
    swapped = Image.merge("RGB", (blue, red, green))  # other colours in the same place: colour alone tells them apart
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)  # and shape alone
    assert groups_of([encoded(i) for i in (image, swapped, mirrored)]) == [0, 1, 2]


def test_groups_are_those_of_a_search_through_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    centre = rng.integers(0, 256, (40, 8), dtype=np.uint8)
    bits = np.unpackbits(centre[rng.integers(0, 40, 400)], axis=1)
    for row in bits:  # up to 9 flips: some pairs within 6, some beyond
        row[rng.choice(64, rng.integers(0, 6), replace=False)] ^= 1
    colours = np.repeat(rng.integers(0, 256, (1, 192), dtype=np.uint8), 400, axis=0)
    codes = np.packbits(bits, axis=1)
    found = near_duplicate_groups(np.concatenate([codes, colours, np.ones((400, 1), np.uint8)], axis=1))
    labels = connected_components((bits[:, None] != bits[None]).sum(axis=2) <= 6)[1]
    assert found.tolist() == [int(np.argmax(labels == label)) for label in labels]  # the lowest number of each
    assert 5 < len(np.unique(found)) < 400  # there was something to link, and something not
    alike = np.tile(np.array([1, 201], np.uint8), (3200, 101))[:, :201]
    alike[:, 9:13:2] = np.transpose(np.divmod(np.arange(3200) % 1600, 40))
    alike[1600:, 13:200:2] = 101
    monkeypatch.setattr(duplicates, "_linked", linked := Mock(wraps=duplicates._linked))
    assert set(near_duplicate_groups(alike)) == {0, 1600} and linked.call_count == 3  # of 5,120,000 links half
    signs = np.pad(np.arange(3000, dtype=np.uint16).view(np.uint8).reshape(-1, 2), ((0, 0), (0, 30)))
    signs[1500:, 16:] = 255
    linked.reset_mock()
    assert set(near_vector_groups(signs)) == {0, 1500} and linked.call_count == 1  # of 4,500,000 links few are asked


def test_flat_and_broken_pictures_are_left_alone_and_few_are_no_fault() -> None:
    flat = [encoded(Image.new("RGB", (40, 40), (level, level, level))) for level in (200, 201)]
    assert not image_signatures(encoded_list([*flat, b"no image", None]))[:, 200].any()
    assert groups_of([*flat, b"no image", None]) == [0, 1, 2, 3]
    for count in range(3):
        assert groups_of([encoded(picture(7))] * count) == [0] * count
    two = Image.new("RGB", (40, 40), "red")  # luminance 76
    two.paste("green", (0, 20, 40, 40))  # 75: not one colour
    three = [encoded(two), encoded(Image.new("RGB", (40, 40), "red")), encoded(picture(0))]
    assert flat_images(Pairs.from_arrays(["a b", "a", "c"], images=three)).tolist() == [1]


@pytest.mark.parametrize("grouped", [True, False])
def test_a_model_takes_copies_for_one_image_unless_told_not_to(grouped: bool) -> None:
    images = [data for seed in range(8) for data in copies(picture(seed))[:2]]
    pairs = Pairs.from_arrays([f"number {i}" for i in range(16)], images=images)
    model = InfoNCE(image_size=32, backbone="mlp", epochs=1, near_duplicates=grouped).fit(pairs)
    seen = model._embed(pairs).pairs.image_group
    assert len(np.unique(seen)) == (8 if grouped else 16)
    assert set(model.bank_.image_group.tolist()) <= set(seen.tolist())


# -- Filters find what they name, say why, and what they set aside takes no part in anything --------------------------


WORDS = "cat dog horse boat tree".split()


def filtered(pairs: Pairs, drop: str = "all") -> dict[str, np.ndarray]:
    """Name -> the pairs that each of the filters finds."""
    return {name: FILTERS[name].find(pairs, setting) for name, setting in chosen_filters(drop).items()}


@pytest.mark.parametrize(("caption", "names"), [
    ("https://t.co/abcdef", {"url"}), ("#cats #dogs", {"hashtags"}), ("@somebody www.example.org/x", {"hashtags"}),
    ("IMG_20412041.jpg", {"url", "no_word"}), ("DSC0012300", {"url", "no_word"}), ("2019 - 12 - 30", {"no_word"}),
    ("!!!", {"no_word", "caption_length"}), ("WH-1000XM4 $34.99", {"no_word"}), ("WH-1000XM4 black", set()),
    ("a dog https://t.co/abc", set()), ("#1 fan of the team", set()), ("itâ€™s a boat on a lake", {"mojibake"}),
    ("dog.", {"caption_length"}), ("собака на траве", {"language"}), ("una mañana en el café", set()),
    ("a cafÃ© in the old town", {"mojibake"}), ("MAÇÃ VERDE “MAÇÔ", set()), ("l’été à la plage", set()),
    pytest.param("1" * 200_000 + "é" + "\u0301\u0316" * 100_000, set(), id="long"),
])  # fmt: skip
def test_captions(caption: str, names: set[str]) -> None:
    captions = [f"a {WORDS[i % 5]} with the number {i}" for i in range(30)]
    pairs = Pairs.from_arrays([*captions, caption], image_vectors=np.eye(31, dtype=np.float32))
    assert {name for name, rows in filtered(pairs).items() if len(rows)} == names
    reasons = filter_reasons({"caption": pairs.captions, "image_features": np.eye(31).tolist()})
    assert list(reasons) == ([30] if names else [])
    assert all(reasons[30].startswith(f"{PREFIX}{sorted(names, key=list(FILTERS).index)[0]}: ") for _ in names)


def test_images() -> None:
    sizes = {3: (40, 80), 4: (63, 64), 5: (301, 100), 6: (100, 400), 7: (64, 192)}
    rng = np.random.default_rng(0)
    grains = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(20)]
    grains[9] = Image.new("RGB", (1, 1), (9, 80, 200))
    images = [encoded(grain.resize(sizes.get(i, (80, 80)))) for i, grain in enumerate(grains)]
    images[11], images[12] = b"no image", images[12][:-40]  # the latter has a header
    pairs = Pairs.from_arrays([f"a {WORDS[i % 5]} with the number {i}" for i in range(20)], images=images)
    found = {name: rows.tolist() for name, rows in filtered(pairs).items() if len(rows)}
    assert found == {"blank": [9], "small": [3, 4], "aspect": [5, 6]}
    assert filtered(pairs, "small=50,aspect=4")["small"].tolist() == [3]
    small, blank = "filter small: the image's shorter side has fewer than 50 pixels", "the image shows one colour"
    assert filter_reasons(pairs, "small=50") == {3: small, 9: f"filter blank: {blank}"}
    assert set(filter_reasons(pairs, "all", pictures=False)) == {3, 4, 5, 6}


def corpus(n: int = 200, dim: int = 16) -> Pairs:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 5, n)
    vectors = np.eye(dim, dtype=np.float32)[kind] + 0.3 * rng.normal(size=(n, dim)).astype(np.float32)
    captions = [f"{WORDS[k]} number {i}" for i, k in enumerate(kind)]
    captions[:25] = ["photo of the day"] * 25
    captions[30:33] = ["https://t.co/x1", "#a #b", "IMG_1.png"]
    captions[40] = "лошадь"
    return Pairs.from_arrays(captions, image_vectors=vectors)


@pytest.mark.parametrize(("copies", "times", "found"), [
    ([1] * 300, {"image": 13, "thumbnail": 15, "view larger image": 16}, 44),
    ([1] * 3000, {"image": 14}, 0),  # fewer than .5 % of all
    ([1 + i % 12 for i in range(300)], {}, 0),  # a shop with some photographs of each product
    ([1] * 600 + [10] * 40, {"image": 70}, 70),
])  # fmt: skip
def test_boilerplate_stands_out_and_titles_repeat(copies: list[int], times: dict[str, int], found: int) -> None:
    captions = [f"title {i}" for i, many in enumerate(copies) for _ in range(many)]
    captions += [caption for caption, many in times.items() for _ in range(many)]
    pairs = Pairs.from_arrays(captions, image_vectors=np.arange(2.0 * len(captions)).reshape(-1, 2))
    assert len(filtered(pairs)["repeated_caption"]) == found
    same = np.unique(captions, return_inverse=True)[1] + 1.0  # vectors alone show it, too
    pairs = Pairs.from_arrays(image_vectors=np.arange(2.0 * len(captions)).reshape(-1, 2), text_vectors=same[:, None])
    assert len(filter_reasons(pairs, "")) == found
    pairs = Pairs.from_arrays([f"title {i}" for i in range(len(same))], image_vectors=same[:, None])
    assert len(filtered(pairs)["repeated_image"]) == found and not filter_reasons(pairs, "")


def test_names_and_settings() -> None:
    assert set(chosen_filters("")) == {"blank", "no_word", "url", "repeated_caption"}
    assert set(chosen_filters("all")) == set(FILTERS) and chosen_filters("none") == {}
    assert chosen_filters("none, small=128 ,aspect") == {"small": 128, "aspect": 3}
    for wrong in ("smal", "small=x", "small=-1", "url=3", "none;small"):
        assert_raises(ConfigError, "drop: ", chosen_filters, wrong)
    assert_raises(ConfigError, "did you mean 'small'", CRCL(drop="smal").validate)
    # what most pairs have is no reason
    assert sorted(filter_reasons(corpus(), "")) == [*range(25), 30, 32]
    assert not filter_reasons(Pairs.from_arrays(["one class", "another"] * 30, image_vectors=np.eye(60)))
    assert 12 in filter_reasons(corpus(), "caption_length=14")
    assert 40 not in filter_reasons(corpus(), "caption_length=99")


def test_they_are_no_donors_and_no_repaired_partners() -> None:
    pairs = corpus()
    model = CRCL(backbone="mlp", epochs=3, refine_epochs=(1,), dim=16, batch_size=64, drop="language").fit(pairs)
    aside = set(filter_reasons(pairs, "language"))
    assert 40 in aside
    assert {i for i, why in model.quarantined_.items() if why.startswith(PREFIX)} == aside
    assert set(np.flatnonzero(np.isnan(model.correspondence_))) == aside
    flagged = np.where(np.arange(len(pairs)) % 2, 0.0, 1.0)
    wanted = {"min_repair_score": 0.0, "max_reuse": 5, "repairs": "plausible"}
    plan = model.rematch(pairs, correspondence=flagged, threshold=0.5, **wanted).table.to_pydict()
    made = [i for i, action in enumerate(plan["action"]) if action.startswith("rematch")]
    assert made and not {*made, *(plan["donor_pair_id"][i] for i in made)} & aside
    assert {plan["action"][i] for i in aside} == {"quarantine"} and plan["reason"][40].startswith("filter language: ")
    given = replace(pairs, text_vectors=np.asarray(pairs.images.array())[:, 0] + 0.1)
    scored = ClipScore(text_encoder="features", drop="language", require_dependence=False).fit(given)
    assert list(scored.quarantined_) == [40]
