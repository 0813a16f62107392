"""Noise injection: rate, seed, truth, both protocols, and corrupted copies of both kinds of input."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.noise import apply_noise, corrupt, inject_noise, load_noise_file
from cleanpairs.errors import ConfigError, DataError, OutputExistsError


def png(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 3), (number, 1, 2)).save(stream, "PNG")
    return stream.getvalue()


def corpus(images: int, per_image: int = 1) -> Pairs:
    n = images * per_image
    features = np.random.default_rng(0).normal(size=(images, 3)).astype(np.float32)
    return Pairs.from_arrays(
        [f"text {i}" for i in range(n)], features=features, image_index=np.repeat(np.arange(images), per_image)
    )


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


def test_an_images_captions_move_together() -> None:
    noise = inject_noise(corpus(50, 5), 0.6, per="image", seed=1)
    blocks = noise.permutation.reshape(50, 5)
    np.testing.assert_array_equal(blocks % 5, np.tile(np.arange(5), (50, 1)))
    assert (blocks // 5 == blocks[:, :1] // 5).all() and (noise.mismatched.reshape(50, 5).std(axis=1) == 0).all()


def test_images_with_other_numbers_of_captions_do_not_trade() -> None:
    index = np.repeat(np.arange(30), np.arange(30) % 3 + 1)
    features = np.eye(30, dtype=np.float32)
    pairs = Pairs.from_arrays([str(i) for i in range(len(index))], features=features, image_index=index)
    noise = inject_noise(pairs, 1.0, per="image", seed=0)
    np.testing.assert_array_equal(np.sort(noise.permutation), np.arange(len(index)))
    size = np.bincount(index)
    np.testing.assert_array_equal(size[index[noise.permutation]], size[index])
    assert noise.mismatched.any()


def test_equal_images_and_equal_texts_are_no_mismatch() -> None:
    features = np.ones((20, 3), np.float32)
    alike = Pairs.from_arrays([f"text {i}" for i in range(20)], features=features)
    assert not inject_noise(alike, 1.0).mismatched.any()
    same_text = Pairs.from_arrays(["A cat", "a  CAT"] * 10, features=np.eye(20, dtype=np.float32))
    noise = inject_noise(same_text, 1.0)
    assert (noise.permutation != np.arange(20)).any() and not noise.mismatched.any()
    siblings = Pairs.from_arrays(
        ["a", "b", "B", "c"], features=np.eye(2, dtype=np.float32), image_index=[0, 0, 1, 1]
    )  # pair 0 shows "B", which is also the text of pair 1 of its own image
    assert siblings.mismatched_by(np.array([2, 1, 0, 3])).tolist() == [False, False, True, False]


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("per", ["caption", "image"])
def test_few_pairs(n: int, per: str) -> None:
    noise = inject_noise(corpus(n), 1.0, per=per)
    assert sorted(noise.permutation.tolist()) == list(range(n)) and not noise.mismatched[: 1 if n < 2 else 0].any()


def test_settings_that_do_not_exist() -> None:
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match=r"\[0, 1\]"):
            inject_noise(corpus(3), rate)
    with pytest.raises(ConfigError, match="'row'"):
        inject_noise(corpus(3), 0.5, per="row")


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
    (tmp_path / "empty.npy").write_bytes(b"")
    for name in ("empty", "missing"):
        with pytest.raises(DataError, match=f"{name}.npy"):
            load_noise_file(tmp_path / f"{name}.npy", 3)


def test_apply_noise_shows_the_captions_and_their_keys() -> None:
    pairs = corpus(10)
    noise = inject_noise(pairs, 0.8, seed=2)
    wronged = apply_noise(pairs, noise)
    assert wronged.captions == [pairs.captions[i] for i in noise.permutation]
    assert wronged.true_key == [pairs.keys[i] for i in noise.permutation]
    np.testing.assert_array_equal(wronged.true_mismatch_mask(), noise.mismatched)
    assert pairs.true_mismatch is None and pairs.captions[0] == "text 0"


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

    wronged, table = load_pairs(out), pq.read_table(out)
    for name in ("key", "site", "image", "label"):
        assert table[name].to_pylist() == columns[name]
    assert table.schema.names == [*columns, "true_mismatch", "true_key"]
    assert wronged.captions == [pairs.captions[i] for i in noise.permutation]
    assert wronged.keys == pairs.keys and wronged.true_key == [pairs.keys[i] for i in noise.permutation]
    np.testing.assert_array_equal(wronged.true_mismatch_mask(), noise.mismatched)
    np.testing.assert_array_equal(noise.mismatched, inject_noise(pairs, 0.4, per=per, seed=5).mismatched)
    assert 0.2 < noise.mismatched.mean() <= 0.4
    for target in (out, path):
        with pytest.raises(OutputExistsError):
            corrupt(path, 0.4, out=target)
    with pytest.raises(OutputExistsError, match="input"):
        corrupt(path, 0.4, out=path, overwrite=True)
    corrupt(out, 0.4, seed=6, out=tmp_path / "twice.parquet")
    assert pq.read_schema(tmp_path / "twice.parquet").names == table.schema.names


def test_a_corrupted_research_directory(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    rng = np.random.default_rng(0)
    for split, n in (("train", 30), ("dev", 4)):
        np.save(data / f"{split}_ims.npy", rng.normal(size=(n, 2, 3)).astype(np.float32))
        (data / f"{split}_caps.txt").write_text("".join(f"{split} {i}\n" for i in range(n * 5)))
    order = rng.permutation(150)
    np.save(data / "noise.npy", order)
    noise = corrupt(data, None, out=out, noise_file=data / "noise.npy")
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [*(f"{s}_{f}" for s in ("train", "dev") for f in ("ims.npy", "caps.txt")), "train_truth.parquet"]
    )
    for name in ("train_ims.npy", "dev_ims.npy", "dev_caps.txt"):
        assert (out / name).read_bytes() == (data / name).read_bytes()
    clean, wronged = load_pairs(data), load_pairs(out)
    assert wronged.captions == [clean.captions[i] for i in order] and wronged.source.kind == "precomp"
    np.testing.assert_array_equal(wronged.true_mismatch_mask(), np.arange(150) // 5 != order // 5)
    np.testing.assert_array_equal(wronged.true_mismatch_mask(), noise.mismatched)
    np.testing.assert_array_equal(clean.true_mismatch_mask(data / "noise.npy"), noise.mismatched)
    assert wronged.true_key == [f"train-{i // 5}" for i in order]
    assert load_pairs(out, split="dev").true_mismatch is None

    corrupt(data, None, out=tmp_path / "out.parquet", noise_file=data / "noise.npy")
    flat = load_pairs(tmp_path / "out.parquet")
    assert flat.captions == wronged.captions and flat.true_key == wronged.true_key
    np.testing.assert_array_equal(flat.true_mismatch_mask(), noise.mismatched)
    with pytest.raises(OutputExistsError, match="input"):
        corrupt(data, 0.4, out=data, overwrite=True)
    with pytest.raises(ConfigError, match="rate or a noise file"):
        corrupt(data, None, out=tmp_path / "x")
