"""Images to features: the cache, what cannot be decoded, pixels, and the limit on bad rows."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from cleanpairs import CRCL, load_pairs
from cleanpairs.core.errors import ConfigError
from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0
from cleanpairs.features import image_matrix, resolve_image_encoder
from tests.helpers import assert_raises, encoded, unit, vector_column, write_table

SMALL = {"dim": 16, "dim_word": 8, "epochs": 1, "refine_epochs": (), "freeze": 1, "batch_size": 8, "image_size": 32}


def picture(seed: int, size: int = 40) -> bytes:
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)))


def written(path: Path, images: list[bytes]) -> Path:
    captions = [f"caption number {i} of {chr(97 + i % 20)}" for i in range(len(images))]
    return write_table(path, {"image": pa.array(images, pa.binary()), "caption": captions})


def test_an_encoder_fits_the_data_and_its_features_are_the_same_the_second_time(tmp_path: Path) -> None:
    images, drawn = [picture(i) for i in range(3)], torch.get_rng_state()
    assert resolve_image_encoder("auto", "features") == "features"
    assert resolve_image_encoder("auto", "bytes") == "efficientnet_lite0"
    assert_raises(ConfigError, "precomputed vectors", resolve_image_encoder, "features", "bytes")
    assert_raises(ConfigError, "one of auto, features, efficientnet_lite0", resolve_image_encoder, "cn", "bytes")
    pairs = load_pairs(written(tmp_path / "a.parquet", images))
    first = image_matrix(tmp_path / "a.parquet", image_size=224)
    direct = EfficientNetLite0().encode_images([Image.open(io.BytesIO(b)) for b in images])
    assert first.encoder == "efficientnet_lite0" and first.array.shape == (3, 9, 1280)
    assert (unit(first.array.astype(np.float32)) * unit(direct)).sum(2).min() > 0.999  # maybe in bfloat16
    loaded = load_pairs(tmp_path / "a.parquet")
    for some in (loaded[1:], loaded.with_captions(["x", "y", "z"]), loaded):
        np.testing.assert_array_equal(image_matrix(some, image_size=224).array, first.array)
    assert not np.array_equal(image_matrix(pairs, image_size=64).array, first.array)  # another size is another key
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("vectors", [False, True], ids=["alone", "beside the same vectors"])
def test_an_image_file_that_was_replaced_is_encoded_again(vectors: bool, tmp_path: Path) -> None:
    table = pa.table({"image_path": ["a.png", "b.png"], "caption": ["one thing", "another thing"]})
    if vectors:
        table = table.append_column("image_features", vector_column(np.arange(1, 9, dtype=np.float32).reshape(2, 4)))
    write_table(tmp_path / "a.parquet", table)
    for name, seed in (("a.png", 0), ("b.png", 1)):
        (tmp_path / name).write_bytes(picture(seed))

    def encode() -> np.ndarray:
        pairs = load_pairs(tmp_path / "a.parquet")
        assert (pairs.images.kind == "features") == vectors
        return np.array(image_matrix(pairs, "efficientnet_lite0" if vectors else "auto", image_size=32).array)

    before = encode()
    (tmp_path / "b.png").write_bytes(picture(2))
    after = encode()
    np.testing.assert_array_equal(after[0], before[0])
    assert np.abs(after[1].astype(float) - before[1]).max() > 0.01


def test_pictures_that_a_limit_refused_are_read_once_it_is_higher(tmp_path: Path, monkeypatch: Any) -> None:
    pairs = written(tmp_path / "a.parquet", [picture(i, 100 if i == 3 else 40) for i in range(8)])
    monkeypatch.setenv("CLEANPAIRS_MAX_PIXELS", "1600")
    assert list(CRCL(**SMALL).fit(pairs).quarantined_) == [3]
    monkeypatch.delenv("CLEANPAIRS_MAX_PIXELS")
    assert not CRCL(**SMALL).fit(pairs).quarantined_ and np.asarray(image_matrix(pairs, image_size=32).array[3]).any()
    monkeypatch.setenv("CLEANPAIRS_MAX_PIXELS", "1600")  # what is encoded stays
    assert not image_matrix(pairs, image_size=32).failures


def test_a_truncated_image_is_quarantined_with_its_reason_and_survives_the_cache(tmp_path: Path) -> None:
    pairs = load_pairs(written(tmp_path / "a.parquet", [picture(i)[: 200 if i == 3 else None] for i in range(8)]))
    for _ in range(2):
        matrix = image_matrix(pairs, image_size=32)
        assert list(matrix.failures) == [3] and "cannot be decoded" in matrix.failures[3]
        assert not np.asarray(matrix.array[3]).any()
    model = CRCL(**SMALL).fit(pairs)
    assert list(model.quarantined_) == [3] and np.flatnonzero(np.isnan(model.correspondence_)).tolist() == [3]
