"""Noise injection: rate, seed, truth, both protocols, and corrupted copies of both kinds of input."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs import apply_noise, corrupt, inject_noise
from cleanpairs.benchmarking.settings import load_splits
from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.data import Pairs, load_pairs, normalise_text
from cleanpairs.data.noise import Noise, NoiseKind, load_noise_file, load_truth, noise_of
from cleanpairs.repair.plan import truth_after
from tests.helpers import assert_raises, picture, research, vector_column, write_pictures, write_table

EYE = np.eye(60, dtype=np.float32)
UNIFORM = ("caption", "image")
ALL = "within:c shift shift:3 collapse collapse:4 partial partial:0.2 partial:1 copied copied:c truncated".split()
ALL += ["boilerplate"]


@st.composite
def corpora(draw: st.DrawFn) -> Pairs:
    """Small corpora full of images and texts that are the same as others."""
    images = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.integers(0, 5), min_size=images, max_size=images))
    index = draw(st.lists(st.integers(0, images - 1), max_size=25))
    n = len(index)
    texts = draw(st.lists(st.sampled_from(["A", "a ", "b", "c", "d", "", "B"]), min_size=n, max_size=n))
    return Pairs.from_arrays(texts, features=np.array(kinds, np.float32)[:, None], image_index=np.array(index, int))


@given(corpora(), st.floats(0, 1), st.sampled_from([*UNIFORM, *ALL]), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_the_truth_is_what_a_plain_recount_finds(pairs: Pairs, rate: float, kind: str, seed: int) -> None:
    noise = noise_of_kind(pairs, rate, kind, seed)
    assert_truth(pairs, noise)
    corrupted = apply_noise(pairs, noise)
    fresh = Pairs.from_arrays(corrupted.captions, features=pairs.images.array(), image_index=pairs.image_index)
    assert corrupted.reasons == fresh.reasons and pairs.true_mismatch is None
    if kind not in UNIFORM:
        return
    n, order, image = len(pairs), noise.permutation.tolist(), pairs.pair_image_group.tolist()
    assert sorted(order) == list(range(n)) and corrupted.captions == [pairs.captions[i] for i in order]
    if kind == "caption":
        assert sum(i != j for i, j in enumerate(order)) <= round(rate * n)
        return
    givers: dict[int, set[int]] = {}
    for i in range(n):
        givers.setdefault(image[i], set()).add(image[order[i]])
    assert all(len(g) == 1 for g in givers.values())  # an image shows the captions of one image, all of them
    assert sum(g != {i} for i, g in givers.items()) <= round(rate * len(givers))


def test_noise_files(tmp_path: Path) -> None:
    """Entry i: the pair that lends its caption to pair i. In NCR's form: the image that caption i is shown with."""
    rng, owner = np.random.default_rng(3), np.repeat(np.arange(6), 5)

    def loaded(values: np.ndarray, owner: np.ndarray | None = None) -> np.ndarray:
        np.save(tmp_path / "n.npy", values)
        return load_noise_file(tmp_path / "n.npy", 30, owner)

    order, own = rng.permutation(30), np.arange(30)
    np.testing.assert_array_equal(loaded(order), order)
    for values in (np.append(own[:-1], 0), own[:-1], own.astype(float), own[:, None]):
        assert_raises(DataError, r"n\.npy", loaded, values)
    shown_with, chosen = owner.copy(), rng.choice(30, 14, replace=False)
    shown_with[chosen] = shown_with[rng.permutation(chosen)]
    assert sorted(zip(owner, loaded(shown_with, owner), strict=True)) == sorted(zip(shown_with, own, strict=True))
    order = rng.permutation(6)  # RCL's form: entry i is the image that all captions of image i are shown with
    assert set(zip(owner[loaded(order, owner)], owner, strict=True)) == set(enumerate(order))
    assert_raises(DataError, "as often", loaded, shown_with)
    shown_with[0] = (shown_with[0] + 1) % 6
    assert_raises(DataError, "as often", loaded, shown_with, owner)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_rows_that_noise_does_not_touch_stay_as_they_are(tmp_path: Path, kind: pa.DataType) -> None:
    captions = ["a", None, "", "d", "e", None, "g", "h"] * 3
    table = {"image": [picture(i) for i in range(24)], "caption": pa.array(captions, kind)}
    data = write_table(tmp_path / "in.parquet", table)
    for rate in (0.0, 0.3, 1.0):
        noise = corrupt(data, rate, seed=1, out=tmp_path / f"{rate}.parquet")
        got = pq.read_table(tmp_path / f"{rate}.parquet")["caption"]
        assert got.type == (pa.string() if pa.types.is_string_view(kind) else kind)
        for i, j in enumerate(noise.permutation.tolist()):
            assert got[i].as_py() == captions[j] if i == j else got[i].as_py() == (captions[j] or "")
    lists = [["a", "b"], None, [], [None], ["c", None], ["d"]]
    raw = pa.Array.from_buffers(pa.string(), 6, pa.array([b"a", b"\xff", b"c", b"d", b"e", b"f"]).buffers())
    for column in (pa.array(lists), raw):  # lists, and what is not UTF-8
        write_table(data, {"image": table["image"][:6], "captions": column})
        corrupt(data, 0.0, out=tmp_path / "out.parquet", overwrite=True)
        clean, corrupted = load_pairs(data), load_pairs(tmp_path / "out.parquet")
        assert clean.reasons == corrupted.reasons and not corrupted.true_mismatch_mask().any()
        assert column is raw or pq.read_table(tmp_path / "out.parquet")["captions"].to_pylist() == lists
    assert list(corrupted.reasons) == [1]


def test_a_corrupted_research_directory(tmp_path: Path) -> None:
    rng, out = np.random.default_rng(0), tmp_path / "out.parquet"
    vectors = rng.normal(size=(30, 2, 3)).astype(np.float32)
    data = research(tmp_path / "data", vectors, [f"train {i}" for i in range(150)])
    np.save(data / "noise.npy", order := rng.permutation(150))
    noise = corrupt(data, None, out=out, noise_file=data / "noise.npy")
    clean, corrupted = load_pairs(data), load_pairs(out)
    assert corrupted.captions == [clean.captions[i] for i in order] and corrupted.keys == clean.keys
    np.testing.assert_array_equal(corrupted.images.array(), vectors)
    for truth in (corrupted.true_mismatch_mask(), load_truth(data / "noise.npy", clean), noise.mismatched):
        np.testing.assert_array_equal(truth, np.arange(150) // 5 != order // 5)
    assert corrupted.true_key == [f"train-{i // 5}" for i in order]
    research(data, vectors[:2], ["dev 0", "dev 1"], "dev")
    corrupt(data, None, out=tmp_path / "out", noise_file=data / "noise.npy")
    wanted = ["dev_caps.txt", "dev_ims.npy", "train_caps.txt", "train_ims.npy", "train_truth.parquet"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == wanted
    again = load_pairs(tmp_path / "out")
    assert (again.captions, again.true_key, again.source.kind) == (corrupted.captions, corrupted.true_key, "precomp")
    assert (tmp_path / "out" / "train_ims.npy").read_bytes() == (data / "train_ims.npy").read_bytes()
    np.testing.assert_array_equal(load_truth(tmp_path / "out" / "train_truth.parquet", again), noise.mismatched)
    np.testing.assert_array_equal(again.true_mismatch_mask(), noise.mismatched)
    corrupt(tmp_path / "out", 1.0, split="dev", out=tmp_path / "both", seed=1)
    assert load_pairs(tmp_path / "both").true_key == corrupted.true_key
    for judge in (partial(corrupt, rate=0.4, out=tmp_path / "twice"), load_splits):
        assert_raises(DataError, "holds mismatched pairs", judge, str(tmp_path / "out"))
    assert_raises(OutputExistsError, "input", corrupt, data, 0.4, out=data, overwrite=True)
    assert_raises(ConfigError, "rate or a noise file", corrupt, data, None, out=tmp_path / "x")


# -- Noise that is not uniform: what every pair shows then, what the truth says of it, and the copies tha --


def worded(images: int, per_image: int = 1, words: int = 6) -> Pairs:
    """No two captions share a word."""
    features = np.random.default_rng(0).normal(size=(images, 3)).astype(np.float32)
    captions = [" ".join(f"w{i}.{k}" for k in range(words)) for i in range(images * per_image)]
    return Pairs.from_arrays(captions, features=features, image_index=np.repeat(np.arange(images), per_image))


def noise_of_kind(pairs: Pairs, rate: float, kind: str, seed: int = 0) -> Noise:
    if kind in UNIFORM:
        return inject_noise(pairs, rate, per=kind, seed=seed)
    groups = np.arange(len(pairs)) % 4 if kind.endswith(":c") else None
    return inject_noise(pairs, rate, kind=kind, groups=groups, seed=seed)


def assert_truth(pairs: Pairs, noise: Noise) -> None:
    """A plain recount: a caption is right where its text is one of the image's own."""
    corrupted = apply_noise(pairs, noise)
    image, text = pairs.pair_image_group.tolist(), [normalise_text(c) for c in pairs.captions]
    own: dict[int, set[str]] = {}
    for m, t in zip(image, text, strict=True):
        own.setdefault(m, set()).add(t)
    found = [normalise_text(c) not in own[m] for m, c in zip(image, corrupted.captions, strict=True)]
    np.testing.assert_array_equal(noise.mismatched, np.array(found, dtype=bool))
    np.testing.assert_array_equal(corrupted.true_mismatch_mask(), noise.mismatched)
    assert corrupted.true_key == [pairs.keys[i] for i in noise.permutation]
    still = ~noise.moved
    assert not noise.mismatched[still].any()
    np.testing.assert_array_equal(np.array(corrupted.captions)[still], np.array(pairs.captions)[still])


# -- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*UNIFORM, *ALL])
def test_rate_seed_and_truth_of_every_kind(kind: str) -> None:
    for per_image, rate in itertools.product((1, 5), (0.0, 0.3, 1.0)):
        pairs = worded(240, per_image)
        noise = noise_of_kind(pairs, rate, kind)
        assert_truth(pairs, noise)
        if kind not in UNIFORM:
            np.testing.assert_array_equal(noise.mismatched, noise.moved)  # no image gets a caption of its own
        most = 1 - 4 / 240 if kind.startswith("collapse") else 1.0  # those that own the caption keep it
        assert min(rate, most) - 0.01 <= noise.mismatched.mean() <= rate
        again, other = (noise_of_kind(pairs, rate, kind, seed) for seed in (0, 1))
        np.testing.assert_array_equal(again.permutation, noise.permutation)
        assert again.rewritten == noise.rewritten
        assert rate != 0.3 or (other.moved != noise.moved).any()
    # of two pairs there is nobody to take from where three are to be between, or in another group
    most = {"shift:3": 0, "collapse": 1, "collapse:4": 0, "within:c": 0, "copied:c": 0}.get(kind, 2)
    assert kind in UNIFORM or noise_of_kind(worded(2), 1.0, kind).mismatched.sum() == most


# -- within ---------------------------------------------------------------------------------------------------------


def test_within_keeps_to_its_groups_and_reaches_the_rate() -> None:
    """Of groups of two a random choice of 20 % would leave most chosen ones without a partner."""
    for n, size, rate in ((500, 25, 0.4), (1000, 2, 0.2)):
        groups = np.arange(n) // size
        noise = inject_noise(worded(n), rate, kind="within:c", groups=groups, seed=2)
        np.testing.assert_array_equal(np.sort(noise.permutation), np.arange(n))
        np.testing.assert_array_equal(groups[noise.permutation], groups)
        assert round(rate * n) - 1 <= noise.mismatched.sum() <= round(rate * n)


def test_within_groups_of_one_and_none_stay_and_an_image_with_most_captions_cannot_lose_all() -> None:
    groups = np.concatenate([np.arange(30), np.full(30, -1), np.full(30, 77)])
    noise = inject_noise(worded(90), 1.0, kind="within:c", groups=groups)
    np.testing.assert_array_equal(noise.moved, np.arange(90) >= 60)
    # a group of one image, however many captions it has
    assert not inject_noise(worded(2, 5), 1.0, kind="within:c", groups=np.repeat([0, 1], 5)).moved.any()
    pairs = Pairs.from_arrays([f"w{i}" for i in range(5)], features=EYE[:2], image_index=[0] * 4 + [1])
    noise = inject_noise(pairs, 1.0, kind="within:c", groups=np.zeros(5, int))
    assert noise.mismatched.sum() == 2 and noise.mismatched[4]
    np.testing.assert_array_equal(np.sort(noise.permutation), np.arange(5))


# -- shift ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "per_image"), [(1, 5), (3, 1), (3, 5)])
def test_shift_runs_are_contiguous_and_in_order(by: int, per_image: int) -> None:
    images = 1000
    noise = inject_noise(worded(images, per_image), 0.4, kind=f"shift:{by}", seed=3)
    np.testing.assert_array_equal(np.sort(noise.permutation), np.arange(images * per_image))
    blocks = noise.permutation.reshape(images, per_image)
    np.testing.assert_array_equal(blocks % per_image, np.tile(np.arange(per_image), (images, 1)))  # places are kept
    shown = blocks[:, 0] // per_image
    moved = shown != np.arange(images)
    assert moved.sum() == 400
    runs = np.flatnonzero(np.diff(np.concatenate([[False], moved, [False]]).astype(int))).reshape(-1, 2)
    assert len(runs) == 4  # of 100
    for start, end in runs:
        np.testing.assert_array_equal(shown[start:end], np.roll(np.arange(start, end), -by))


def test_shift_of_images_whose_rows_are_apart_or_whose_captions_differ_in_number() -> None:
    """Captions sorted by their number: every image comes five times, each time in another place."""
    pairs = Pairs.from_arrays([f"w{i}" for i in range(200)], features=EYE[:40], image_index=np.tile(np.arange(40), 5))
    assert not inject_noise(pairs, 1.0, kind="shift:40", seed=0).moved.any()  # nobody is 40 images further on
    noise = inject_noise(pairs, 1.0, kind="shift:39", seed=0)
    assert noise.mismatched.all()
    place, at = np.divmod(np.arange(200), 40)
    np.testing.assert_array_equal(noise.permutation, place * 40 + (at - 1) % 40)
    pairs = Pairs.from_arrays(list("abcd"), features=EYE[:2], image_index=[0, 1, 1, 1])
    noise = inject_noise(pairs, 1.0, kind="shift")
    assert noise.permutation.tolist() == [1, 0, 0, 0] and noise.mismatched.all()


# -- collapse -------------------------------------------------------------------------------------------------------


def test_collapse_shows_a_few_captions_of_the_corpus_none_broken_and_wrongs_no_owner() -> None:
    for captions in (1, 4):
        noise = inject_noise(worded(200, 5), 0.4, kind=f"collapse:{captions}", seed=1)
        shown, often = np.unique(noise.permutation[noise.mismatched], return_counts=True)
        assert noise.mismatched.sum() == 400 and len(shown) == captions and often.min() > 50
        assert not noise.moved[shown].any()
    given = ["", "the same", *["the same", "The Same!"] * 4, "x", ""]
    for seed in range(10):
        noise = inject_noise(Pairs.from_arrays(given, features=EYE[:12]), 1.0, kind="collapse", seed=seed)
        text = {normalise_text(given[i]) for i in noise.permutation[noise.moved]}
        assert text in ({"the same"}, {"x"}) and noise.mismatched.sum() == (3 if text == {"the same"} else 11)


# -- copied, edited, truncated, boilerplate ----------------------------------------------------------------------


def test_a_copy_is_of_the_same_value_or_shares_a_word_and_the_other_pair_keeps_its_caption() -> None:
    captions = [f"{'red blue green'.split()[i % 3]} thing{i % 20} number{i}" for i in range(60)]
    pairs, groups = Pairs.from_arrays(captions, features=EYE), np.arange(60) // 10
    by_value = inject_noise(pairs, 0.5, kind="copied:value", groups=groups)
    assert by_value.mismatched.sum() == 30 and (groups[by_value.permutation] == groups).all()
    assert len(np.unique(by_value.permutation)) < 60  # no permutation: captions are lost
    by_word = inject_noise(pairs, 0.5, kind="copied:noun")
    assert by_word.mismatched.sum() == 30  # "red" is in a third of the captions, and tells nothing
    assert all(i % 20 == j % 20 for i, j in enumerate(by_word.permutation.tolist()))


def test_an_edit_changes_one_word_to_another_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    colours, things = "red blue green black".split(), "car boat".split()
    shown = [(i, c, t) for i in range(5) for c in colours for t in things]
    captions = [f"A {c.upper() if i % 2 else c} {t} is in the picture" for i, c, t in shown]
    pairs = Pairs.from_arrays(captions, features=EYE[:40])
    monkeypatch.setattr(Pairs, "pair_image_group", property(looked_up := Mock(wraps=Pairs.pair_image_group.fget)))
    noise = inject_noise(pairs, 0.5, kind="edited")
    assert looked_up.call_count < 9  # not for each word
    assert len(noise.rewritten) == noise.mismatched.sum() == 20
    assert_truth(pairs, noise)
    for i, text in noise.rewritten.items():
        (at,) = (k for k, (a, b) in enumerate(zip(captions[i].split(), text.split(), strict=True)) if a != b)
        old, new = captions[i].split()[at], text.split()[at]
        assert {old.lower(), new.lower()} <= set(colours) or {old, new} <= set(things)
        assert old.isupper() == new.isupper()
    assert not inject_noise(worded(40), 0.5, kind="edited").moved.any()  # no word stands in the place of another


def test_a_cut_caption_is_its_beginning_and_boilerplate_says_nothing() -> None:
    pairs = worded(90)
    for i, text in inject_noise(pairs, 1.0, kind="truncated:2").rewritten.items():
        assert pairs.captions[i].startswith(text + " ") and len(text.split()) <= 2
    templates = set(inject_noise(pairs, 1.0, kind="boilerplate").rewritten.values())
    assert 2 <= len(templates) <= 8 and not any("w" in text.split() for text in templates)


# -- partial --------------------------------------------------------------------------------------------------------


def test_partial_replaces_so_many_words_by_those_of_one_other_caption() -> None:
    pairs = worded(100)
    for share, replaced in ((0.5, 3), (0.2, 1), (0.01, 1), (0.99, 5), (1, 6)):
        noise = inject_noise(pairs, 0.3, kind=f"partial:{share}")
        np.testing.assert_array_equal(noise.permutation, np.arange(100))  # every caption is still its image's
        assert len(noise.rewritten) == noise.mismatched.sum() == 30
        for i, caption in noise.rewritten.items():
            fresh = [b for a, b in zip(pairs.captions[i].split(), caption.split(), strict=True) if a != b]
            assert len(fresh) == replaced
            assert len({word.split(".")[0] for word in fresh}) == 1 and fresh == sorted(fresh)


def test_partial_brings_in_no_word_that_the_image_has() -> None:
    rng = np.random.default_rng(2)
    captions = [" ".join(rng.choice([f"w{k}" for k in range(12)], 4, replace=False)) for _ in range(60)]
    pairs = Pairs.from_arrays(captions, features=EYE[:20], image_index=np.repeat(np.arange(20), 3))
    noise = inject_noise(pairs, 1.0, kind="partial")
    assert len(noise.rewritten) > 40
    for i, caption in noise.rewritten.items():
        own = {w for k in range(60) if k // 3 == i // 3 for w in captions[k].split()}
        fresh = [b for a, b in zip(captions[i].split(), caption.split(), strict=True) if a != b]
        assert fresh and not own & set(fresh)
    alike = Pairs.from_arrays(["red shoe", "Shoe, red"] * 3, features=EYE[:6])
    assert not inject_noise(alike, 1.0, kind="partial").moved.any()  # no caption has another word
    spaced = Pairs.from_arrays(["one", "  two\tthree  four ", "five six"] * 3, features=EYE[:9])
    rewritten = inject_noise(spaced, 1.0, kind="partial").rewritten  # white space stays, and so do single words
    assert sorted(rewritten) == [1, 2, 4, 5, 7, 8] and rewritten[1].endswith(" ")
    assert all(rewritten[i].startswith("  ") and "\t" in rewritten[i] for i in (1, 4, 7))


# -- names ----------------------------------------------------------------------------------------------------------


def test_names_and_what_does_not_go_together() -> None:
    for text in ("within:a:b", "collapse:3", "partial:0.5", "edited"):
        assert str(NoiseKind.parse(text)) == text
    for text, words in {"swap": "uniform, within, shift", "shift:1.5": "whole", "partial:1.1": "at most 1"}.items():
        assert_raises(ConfigError, words, NoiseKind.parse, text)
    for options, error, words in (
        ({"rate": -0.1}, ConfigError, "<= 1, found"), ({"kind": "shift", "per": "image"}, ConfigError, "leave per out"),
        ({"rate": float("nan")}, ConfigError, "<= 1, found"), ({"rate": "0.5"}, ConfigError, "found '0.5'"),
        ({"kind": "within:c", "groups": [1, 2]}, ConfigError, "3 groups"), ({"per": "row"}, ConfigError, "'row'"),
        ({"groups": [1, 2, 3]}, ConfigError, "'uniform' has no groups"),
    ):  # fmt: skip
        assert_raises(error, words, inject_noise, worded(3), **{"rate": 0.5, **options})
    three = inject_noise(worded(3), 1.0)
    assert_raises(DataError, "holds mismatched pairs already", apply_noise, apply_noise(worded(3), three), three)
    assert_raises(DataError, "noise is of 3 pairs, and the data has 4", apply_noise, worded(4), three)


# -- files ----------------------------------------------------------------------------------------------------------


def write(path: Path, n: int = 60, lists: bool = False) -> Path:
    captions = [[f"a{i}.{k} b{i}.{k} c{i}" for k in range(i % 4 if lists else 1)] for i in range(n)]
    category = pa.array([None if i % 10 == 9 else f"c{i % 4}" for i in range(n)]).dictionary_encode()
    features = vector_column(np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32))
    columns = {"key": [f"k{i}" for i in range(n)], "image_features": features}
    columns |= {"captions": captions} if lists else {"caption": [c[0] for c in captions]}
    columns |= {"category": category, "tags": [["x"]] * n}
    return write_table(path, columns, row_group_size=13)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "within:category", "shift", "collapse:2", "partial"])
def test_a_copy_holds_the_captions_and_the_truth(tmp_path: Path, kind: str, lists: bool) -> None:
    data, out = write(tmp_path / "in.parquet", lists=lists), tmp_path / "out.parquet"
    before, given = data.read_bytes(), pq.read_table(data)
    noise = corrupt(data, 0.5, kind=kind, seed=3, out=out)
    clean, corrupted, table = load_pairs(data), load_pairs(out), pq.read_table(out)
    assert data.read_bytes() == before and table.column_names == [*given.column_names, "true_mismatch", "true_key"]
    others = ["key", "image_features", "category", "tags"]
    assert table.select(others).equals(given.select(others)) and corrupted.keys == clean.keys
    assert_truth(clean, noise)
    assert corrupted.captions == apply_noise(clean, noise).captions
    assert corrupted.true_key == [clean.keys[i] for i in noise.permutation]
    np.testing.assert_array_equal(corrupted.true_mismatch_mask(), noise.mismatched)
    assert 0.4 < noise.mismatched.mean() <= 0.55
    category = [table["category"][row].as_py() for row in clean.row.tolist()]
    for i, j in enumerate(noise.permutation.tolist()):
        assert i == j or category[i] == category[j] is not None or not kind.startswith("within")


def test_the_outputs_and_inputs_of_a_copy(tmp_path: Path) -> None:
    data, out = write(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    categories = r"noise by 'categ.*such column.*category"
    assert_raises(ConfigError, categories, corrupt, data, 0.5, kind="copied:categories", out=out)
    assert_raises(ConfigError, "one value a row", corrupt, data, 0.5, kind="within:tags", out=out)
    assert not out.exists()
    corrupt(data, 0.4, out=out)
    with pytest.raises(DataError, match="already"):  # its truth would be of the wrong beginning
        corrupt(out, 0.4, seed=6, out=tmp_path / "twice.parquet")
    corrupt(data, 0.0, out=tmp_path / "clean.parquet")
    corrupt(tmp_path / "clean.parquet", 0.4, seed=6, out=tmp_path / "again.parquet")
    assert pq.read_schema(tmp_path / "again.parquet").names == pq.read_schema(out).names


def test_a_copy_of_a_table_has_its_keys_and_takes_no_broken_line(tmp_path: Path) -> None:
    write_pictures(tmp_path, [f"{i}.png" for i in range(12)])
    lines = [f"{i}.png,caption {i}" for i in range(12)]
    lines[3], lines[5], lines[7] = "3.png,a red dress, long", "5.png", "/mnt/x/0.png,which image is it"
    (tmp_path / "in.csv").write_text("\n".join(["image,caption", *lines]))
    records = [{"image": f"{i}.png", "caption": {"de": "x"} if i in (3, 5) else f"caption {i}"} for i in range(12)]
    records = [record | {"key": None if i == 4 else str(i + 1)} for i, record in enumerate(records)]
    (tmp_path / "in.json").write_text(json.dumps(records))
    for name in ("in.csv", "in.json"):
        for rate in (0.0, 1.0):
            noise = corrupt(tmp_path / name, rate, out=tmp_path / "out.parquet", overwrite=True)
            clean, copy = load_pairs(tmp_path / name), load_pairs(tmp_path / "out.parquet")
            order = noise.permutation.tolist()
            assert copy.keys == clean.keys and copy.true_key == [clean.keys[i] for i in order]
            broken = {3, 5, 7} if name == "in.csv" else {order.index(3), order.index(5)}
            assert broken <= copy.reasons.keys() <= broken | {order.index(5)}
            assert copy.reasons.keys() == apply_noise(clean, noise).reasons.keys()


def test_the_truth_after_a_repair() -> None:
    def wrong(pairs: Pairs, text_from: list[int]) -> list[bool]:
        return truth_after(pairs, np.array(text_from), np.arange(4))["true_mismatch"].tolist()

    # pairs 0 and 1 are of one image; the caption of 1 is half wrong, and was its own
    pairs = apply_noise(worded(2, 2), Noise(np.arange(4), np.arange(4) == 1, {1: "w1.0 w1.1 w9.2"}))
    assert wrong(pairs, [1, 1, 2, 3]) == [True, True, False, False] and not any(wrong(pairs, [0, 0, 2, 3]))
    # two products with two images each; the captions of pairs 1 and 2 were exchanged
    pairs = replace(worded(4, 1), keys=["a", "a", "b", "b"])
    pairs = apply_noise(pairs, Noise(np.array([0, 2, 1, 3]), np.isin(np.arange(4), [1, 2])))
    assert not any(wrong(pairs, [0, 2, 1, 3])) and all(wrong(pairs, [3, 1, 2, 0]))
    # images 0 and 1 came with the same words; the captions of 0 and 2, and of 1 and 3, were exchanged
    clean = worded(4, 1).with_captions(["a red cat", "A red cat.", "two dogs", "one bird"])
    order = np.array([2, 3, 0, 1])
    pairs = apply_noise(clean, noise_of(clean, order))
    for text_from in ([3, 2, 1, 0], [2, 3, 0, 1], [2, 2, 2, 3]):
        assert wrong(pairs, text_from) == clean.mismatched_by(order[text_from]).tolist()
