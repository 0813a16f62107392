"""Filters find what they name, say why, and what they set aside takes no part in anything."""

from __future__ import annotations

import io
from dataclasses import replace

import emoji
import numpy as np
import pytest
from PIL import Image

from cleanpairs import CRCL, ClipScore
from cleanpairs.core.errors import ConfigError
from cleanpairs.data import Pairs
from cleanpairs.data.filters import FILTERS, PREFIX, chosen_filters, filter_reasons

WORDS = "cat dog horse boat tree".split()


def filtered(pairs: Pairs, drop: str = "all") -> dict[str, np.ndarray]:
    """Name -> the pairs that each of the filters finds."""
    return {name: FILTERS[name].find(pairs, setting) for name, setting in chosen_filters(drop).items()}


@pytest.mark.parametrize(
    ("caption", "names"),
    [
        ("https://t.co/abcdef", {"url"}), ("#cats #dogs", {"hashtags"}), ("@somebody www.example.org/x", {"hashtags"}),
        ("IMG_20412041.jpg", {"url"}), ("DSC0012300", {"url"}), ("2019 - 12 - 30", {"no_word"}), ("!!!", {"no_word",
         "caption_length"}), ("a dog https://t.co/abc", set()), ("#1 fan of the team", set()),
        ("dog.", {"caption_length"}), ("собака на траве", {"language"}), ("una mañana en el café", set()),
        ("a cafÃ© in the old town", {"mojibake"}), ("MAÇÃ VERDE “MAÇÔ", set()), ("l’été à la plage", set()),
        ("itâ€™s a boat on a lake", {"mojibake"}),
    ],
)  # fmt: skip
def test_captions(caption: str, names: set[str]) -> None:
    captions = [f"a {WORDS[i % 5]} with the number {i}" for i in range(30)]
    pairs = Pairs.from_arrays([*captions, caption], image_vectors=np.eye(31, dtype=np.float32))
    found = {name for name, rows in filtered(pairs).items() if len(rows)}
    assert found == names
    reasons = filter_reasons(pairs)
    assert list(reasons) == ([30] if names else [])
    assert all(reasons[30].startswith(f"{PREFIX}{sorted(names, key=list(FILTERS).index)[0]}: ") for _ in names)


def test_mojibake_of_captions_in_many_languages() -> None:
    emoji.config.load_language()
    for language in ("es", "ja", "ko", "pt", "fr", "de", "fa", "zh", "ru", "tr", "ar"):
        names = [d[language].strip(":").replace("_", " ") for d in emoji.EMOJI_DATA.values() if language in d]
        names = sorted({name for name in names if not name.isascii()})[::20]
        damaged = [name.encode().decode("latin-1") for name in names]
        pairs = Pairs.from_arrays([*names, *damaged], image_vectors=np.zeros((2 * len(names), 2), np.float32))
        found = filtered(pairs, "none,mojibake")["mojibake"]
        assert (found >= len(names)).all() and len(found) >= 0.8 * len(names), language


def picture(width: int, height: int, seed: int | None) -> bytes:
    grain = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.new("RGB", (1, 1), (9, 80, 200)) if seed is None else Image.fromarray(grain)
    buffer = io.BytesIO()
    image.resize((width, height)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_images() -> None:
    sizes = {3: (40, 80), 4: (63, 64), 5: (301, 100), 6: (100, 400), 7: (64, 192)}
    images = [picture(*sizes.get(i, (80, 80)), seed=None if i == 9 else i) for i in range(20)]
    images[11] = b"no image"
    pairs = Pairs.from_arrays([f"a {WORDS[i % 5]} with the number {i}" for i in range(20)], images=images)
    found = {name: rows.tolist() for name, rows in filtered(pairs).items() if len(rows)}
    assert found == {"blank": [9], "small": [3, 4], "aspect": [5, 6]}
    assert filtered(pairs, "small=50,aspect=4")["small"].tolist() == [3]
    assert filter_reasons(pairs, "small=50") == {
        3: "filter small: the image's shorter side has fewer than 50 pixels",
        9: "filter blank: the image shows one colour",
    }  # fmt: skip
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


def test_what_most_pairs_have_is_no_reason() -> None:
    assert sorted(filter_reasons(corpus(), "")) == [*range(25), 30, 32]
    assert not filter_reasons(Pairs.from_arrays(["one class", "another"] * 30, image_vectors=np.eye(60)))
    assert 12 in filter_reasons(corpus(), "caption_length=14")
    assert 40 not in filter_reasons(corpus(), "caption_length=99")


@pytest.mark.parametrize(
    ("copies", "times", "found"),
    [
        ([1] * 300, {"image": 13, "thumbnail": 15, "view larger image": 16}, 44),
        ([1] * 300, {"image": 5}, 0),
        ([1] * 3000, {"image": 14}, 0),  # fewer than .5 % of all
        ([1 + i % 12 for i in range(300)], {}, 0),  # a shop with some photographs of each product
        ([1] * 600 + [10] * 40, {"image": 70}, 70),
    ],
)
def test_boilerplate_stands_out_and_titles_repeat(copies: list[int], times: dict[str, int], found: int) -> None:
    captions = [f"title {i}" for i, many in enumerate(copies) for _ in range(many)]
    captions += [caption for caption, many in times.items() for _ in range(many)]
    pairs = Pairs.from_arrays(captions, image_vectors=np.arange(2.0 * len(captions)).reshape(-1, 2))
    assert len(filtered(pairs)["repeated_caption"]) == found


def test_names_and_settings() -> None:
    usual = chosen_filters("")
    assert set(usual) == {"blank", "no_word", "url", "repeated_caption"}
    assert set(chosen_filters("all")) == set(FILTERS) and chosen_filters("none") == {}
    assert chosen_filters("none, small=128 ,aspect") == {"small": 128, "aspect": 3}
    for wrong in ("smal", "small=x", "small=-1", "url=3", "none;small"):
        with pytest.raises(ConfigError, match="drop: "):
            chosen_filters(wrong)
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        CRCL(drop="smal").validate()


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
