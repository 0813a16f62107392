"""Noise injection: rate, seed, truth, both protocols, and corrupted copies of both kinds of input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.data import Pairs, load_pairs, normalise_text
from cleanpairs.data.noise import apply_noise, corrupt, inject_noise, load_noise_file, load_truth
from tests.helpers import picture as png


def corpus(images: int, per_image: int = 1) -> Pairs:
    n = images * per_image
    features = np.random.default_rng(0).normal(size=(images, 3)).astype(np.float32)
    index = np.repeat(np.arange(images), per_image)
    return Pairs.from_arrays([f"text {i}" for i in range(n)], features=features, image_index=index)


@pytest.mark.parametrize("per", ["caption", "image"])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 1.0])
def test_rate_seed_and_truth(per: str, rate: float) -> None:
    pairs = corpus(200, 5)
    noise = inject_noise(pairs, rate, per=per, seed=3)
    assert noise.permutation.dtype == np.int64 and noise.mismatched.dtype == bool
    np.testing.assert_array_equal(np.sort(noise.permutation), np.arange(1000))
    moved = noise.permutation != np.arange(1000)
    owner = np.repeat(np.arange(200), 5)
    np.testing.assert_array_equal(noise.mismatched, owner[noise.permutation] != owner)
    assert moved.sum() <= round(rate * 1000) and (noise.mismatched <= moved).all()
    assert rate * 0.95 - 0.02 <= noise.mismatched.mean() <= rate
    again, other = inject_noise(pairs, rate, per=per, seed=3), inject_noise(pairs, rate, per=per, seed=4)
    np.testing.assert_array_equal(again.permutation, noise.permutation)
    assert rate == 0 or (other.permutation != noise.permutation).any()


@pytest.mark.parametrize("per", ["caption", "image"])
def test_exactly_so_many_units_are_chosen(per: str) -> None:
    """A permutation may leave some at home, but never adds one."""
    for n, rate, most in ((10, 0.5, 5), (7, 0.4, 3), (9, 0.15, 0), (6, 1.0, 6), (10, 0.04, 0)):
        pairs, own = corpus(n), np.arange(n)
        moved = [(inject_noise(pairs, rate, per=per, seed=s).permutation != own).sum() for s in range(100)]
        assert max(moved) == most


@st.composite
def corpora(draw: st.DrawFn) -> Pairs:
    """Small corpora full of images and texts that are the same as others."""
    images = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.integers(0, 5), min_size=images, max_size=images))
    index = draw(st.lists(st.integers(0, images - 1), max_size=25))
    n = len(index)
    texts = draw(st.lists(st.sampled_from(["A", "a ", "b", "c", "d", "", "B"]), min_size=n, max_size=n))
    features = np.array(kinds, np.float32)[:, None]
    return Pairs.from_arrays(texts, features=features, image_index=np.array(index, int))


@given(corpora(), st.floats(0, 1), st.sampled_from(["caption", "image"]), st.integers(0, 9))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_truth_is_what_a_plain_recount_finds(pairs: Pairs, rate: float, per: str, seed: int) -> None:
    noise = inject_noise(pairs, rate, per=per, seed=seed)
    n, order = len(pairs), noise.permutation.tolist()
    assert sorted(order) == list(range(n))
    image, text = pairs.pair_image_group.tolist(), [normalise_text(c) for c in pairs.captions]
    for i in range(n):
        own = {text[j] for j in range(n) if image[j] == image[i]}
        assert bool(noise.mismatched[i]) == (text[order[i]] not in own)
    corrupted = apply_noise(pairs, noise)
    assert corrupted.captions == [pairs.captions[i] for i in order]
    assert corrupted.true_key == [pairs.keys[i] for i in order] and pairs.true_mismatch is None
    fresh = Pairs.from_arrays(corrupted.captions, features=pairs.images.array(), image_index=pairs.image_index)
    assert corrupted.reasons == fresh.reasons
    if per == "caption":
        assert sum(i != j for i, j in enumerate(order)) <= round(rate * n)
        return
    givers: dict[int, set[int]] = {}
    for i in range(n):
        givers.setdefault(image[i], set()).add(image[order[i]])
    assert all(len(g) == 1 for g in givers.values())  # an image shows the captions of one image, all of them
    assert sum(g != {i} for i, g in givers.items()) <= round(rate * len(givers))


def test_settings_that_do_not_exist() -> None:
    for rate, per, words in ((-0.1, "caption", r"\[0, 1\]"), (float("nan"), "image", r"\[0, 1\]"), (1, "row", "'row'")):
        with pytest.raises(ConfigError, match=words):
            inject_noise(corpus(3), rate, per=per)


def test_noise_files(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(9)
    np.save(tmp_path / "good.npy", order)
    np.testing.assert_array_equal(load_noise_file(tmp_path / "good.npy", 9), order)
    bad = {"twice": np.array([0, 0, 2]), "short": np.arange(2), "beyond": np.array([1, 2, 3]), "floats": np.arange(3.0)}
    bad |= {"negative": np.array([-1, 0, 1]), "matrix": np.arange(3)[:, None]}
    for name, values in bad.items():
        np.save(tmp_path / f"{name}.npy", values)
        with pytest.raises(DataError, match=f"{name}.npy"):
            load_noise_file(tmp_path / f"{name}.npy", 3)
    with pytest.raises(DataError, match=r"missing\.npy"):
        load_noise_file(tmp_path / "missing.npy", 3)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("per", ["caption", "image"])
def test_a_corrupted_parquet_file(tmp_path: Path, lists: bool, per: str) -> None:
    n, path, out = 700, tmp_path / "in.parquet", tmp_path / "out.parquet"
    sizes = [i % 4 for i in range(n)] if lists else [1] * n
    captions = [[f"text {i}.{k}" for k in range(size)] for i, size in enumerate(sizes)]
    columns = {"key": [f"k{i}" for i in range(n)], "site": list(range(n)), "image": [png(i % 256) for i in range(n)]}
    columns["captions" if lists else "caption"] = captions if lists else [c[0] for c in captions]
    columns["label"] = [i % 2 for i in range(n)]
    pq.write_table(pa.table(columns), path, row_group_size=100)
    before, pairs = path.read_bytes(), load_pairs(path)
    noise = corrupt(path, 0.4, per=per, seed=5, out=out)
    assert path.read_bytes() == before

    corrupted, table = load_pairs(out), pq.read_table(out)
    for name in ("key", "site", "image", "label"):
        assert table[name].to_pylist() == columns[name]
    assert table.schema.names == [*columns, "true_mismatch", "true_key"]
    assert corrupted.captions == [pairs.captions[i] for i in noise.permutation]
    assert corrupted.keys == pairs.keys and corrupted.true_key == [pairs.keys[i] for i in noise.permutation]
    np.testing.assert_array_equal(corrupted.true_mismatch_mask(), noise.mismatched)
    np.testing.assert_array_equal(noise.mismatched, inject_noise(pairs, 0.4, per=per, seed=5).mismatched)
    assert 0.2 < noise.mismatched.mean() <= 0.4
    for target in (out, path):
        with pytest.raises(OutputExistsError):
            corrupt(path, 0.4, out=target)
    with pytest.raises(OutputExistsError, match="input"):
        corrupt(path, 0.4, out=path, overwrite=True)
    with pytest.raises(DataError, match="already"):  # its truth would be of the wrong beginning
        corrupt(out, 0.4, seed=6, out=tmp_path / "twice.parquet")
    corrupt(path, 0.0, out=tmp_path / "clean.parquet")
    corrupt(tmp_path / "clean.parquet", 0.4, seed=6, out=tmp_path / "again.parquet")
    assert pq.read_schema(tmp_path / "again.parquet").names == table.schema.names


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_rows_that_noise_does_not_touch_stay_as_they_are(tmp_path: Path, kind: pa.DataType) -> None:
    captions = ["a", None, "", "d", "e", None, "g", "h"] * 3
    table = pa.table({"image": [png(i) for i in range(24)], "caption": pa.array(captions, kind)})
    pq.write_table(table, tmp_path / "in.parquet")
    for rate, name in ((0.0, "none"), (0.3, "some"), (1.0, "all")):
        noise = corrupt(tmp_path / "in.parquet", rate, seed=1, out=tmp_path / name)
        got = pq.read_table(tmp_path / name)["caption"]
        assert got.type == (pa.string() if pa.types.is_string_view(kind) else kind)
        for i, j in enumerate(noise.permutation.tolist()):
            assert got[i].as_py() == captions[j] if i == j else got[i].as_py() == (captions[j] or "")


def test_lists_and_what_is_not_utf8_stay_as_they_are(tmp_path: Path) -> None:
    captions = [["a", "b"], None, [], [None], ["c", None], ["d"]]
    raw = pa.Array.from_buffers(pa.string(), 6, pa.array([b"a", b"\xff", b"c", b"d", b"e", b"f"]).buffers())
    for column in (pa.array(captions), raw):
        pq.write_table(pa.table({"image": [png(i) for i in range(6)], "captions": column}), tmp_path / "in.parquet")
        corrupt(tmp_path / "in.parquet", 0.0, out=tmp_path / "out.parquet", overwrite=True)
        clean, corrupted = load_pairs(tmp_path / "in.parquet"), load_pairs(tmp_path / "out.parquet")
        assert clean.reasons == corrupted.reasons and not corrupted.true_mismatch_mask().any()
        assert column is raw or pq.read_table(tmp_path / "out.parquet")["captions"].to_pylist() == captions
    assert list(corrupted.reasons) == [1]


def test_a_corrupted_research_directory(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out.parquet"
    data.mkdir()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 2, 3)).astype(np.float32)
    np.save(data / "train_ims.npy", vectors)
    (data / "train_caps.txt").write_text("".join(f"train {i}\n" for i in range(150)))
    order = rng.permutation(150)
    np.save(data / "noise.npy", order)
    noise = corrupt(data, None, out=out, noise_file=data / "noise.npy")
    clean, corrupted = load_pairs(data), load_pairs(out)
    assert corrupted.captions == [clean.captions[i] for i in order] and corrupted.keys == clean.keys
    np.testing.assert_array_equal(corrupted.images.array(), vectors)
    np.testing.assert_array_equal(corrupted.true_mismatch_mask(), np.arange(150) // 5 != order // 5)
    np.testing.assert_array_equal(corrupted.true_mismatch_mask(), noise.mismatched)
    np.testing.assert_array_equal(load_truth(data / "noise.npy", clean), noise.mismatched)
    assert corrupted.true_key == [f"train-{i // 5}" for i in order]
    (data / "dev_caps.txt").write_text("dev 0\n")
    corrupt(data, None, out=tmp_path / "out", noise_file=data / "noise.npy")
    wanted = ["dev_caps.txt", "train_caps.txt", "train_ims.npy", "train_truth.parquet"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == wanted
    again = load_pairs(tmp_path / "out")
    assert again.captions == corrupted.captions and again.source.kind == "precomp"
    assert (tmp_path / "out" / "train_ims.npy").read_bytes() == (data / "train_ims.npy").read_bytes()
    np.testing.assert_array_equal(load_truth(tmp_path / "out" / "train_truth.parquet", again), noise.mismatched)
    with pytest.raises(OutputExistsError, match="input"):
        corrupt(data, 0.4, out=data, overwrite=True)
    with pytest.raises(OutputExistsError, match="input"):
        corrupt(data, 0.4, out=data / "train_ims.npy", overwrite=True)
    with pytest.raises(ConfigError, match="rate or a noise file"):
        corrupt(data, None, out=tmp_path / "x")


def test_a_noise_file_of_images_makes_its_pairs(tmp_path: Path) -> None:
    """NCR's form: entry i is the image that caption i is shown with, several captions an image."""
    rng, file = np.random.default_rng(3), tmp_path / "n.npy"
    owner = np.repeat(np.arange(6), 5)
    shown_with = owner.copy()
    chosen = rng.choice(30, 14, replace=False)
    shown_with[chosen] = shown_with[rng.permutation(chosen)]
    np.save(file, shown_with)
    permutation = load_noise_file(file, 30, owner)
    shown = sorted(zip(shown_with, np.arange(30), strict=True))
    assert sorted(zip(owner, permutation, strict=True)) == shown
    with pytest.raises(DataError, match="as often"):
        load_noise_file(file, 30)
    shown_with[0] = (shown_with[0] + 1) % 6
    np.save(file, shown_with)
    with pytest.raises(DataError, match="as often"):
        load_noise_file(file, 30, owner)
