"""The CLIP-score filter, with a tiny random CLIP in a directory: what it computes, keeps on disk and refuses."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cleanpairs import Pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.methods.clip_score import ClipScore
from tests.encoders.conftest import made, save_clip
from tests.helpers import picture

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

WORDS = "red blue green cat dog boat tree house sky sea road car".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("clip"), save_clip)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> PretrainedCLIP:
    return PretrainedCLIP(folder)


def captions(n: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 3, replace=False)) for _ in range(n)]


def vectors(encoder: PretrainedCLIP, n: int) -> Pairs:
    """Vectors near those of the captions."""
    z = encoder.encode_texts(captions(n))
    return Pairs.from_arrays(
        captions(n), features=z + 0.02 * np.random.default_rng(0).normal(size=z.shape).astype("f4")
    )


def pictures(n: int) -> list[bytes | None]:
    return [picture(i, size=(50, 40)) for i in range(n)]


def clip(folder: Path, **settings: Any) -> ClipScore:
    return ClipScore(**{"model": folder, "device": "cpu", "eval_group_size": 16, **settings})


# -- what it computes -----------------------------------------------------------------------------------------------


def test_the_correspondence_is_the_cosine(folder: Path, encoder: PretrainedCLIP) -> None:
    images = pictures(8)
    pairs = Pairs.from_arrays(captions(8), images=images)
    model = clip(folder, normalise="none").fit(pairs)
    z_image = encoder.encode_images([Image.open(io.BytesIO(data or b"")) for data in images])
    cosine = (z_image * encoder.encode_texts(captions(8))).sum(1)
    np.testing.assert_allclose(2 * model.correspondence_ - 1, cosine, atol=1e-6)
    np.testing.assert_allclose(model.score_pairs(pairs), model.correspondence_, atol=1e-6)
    np.testing.assert_allclose(model.encode_images(pairs), z_image, atol=1e-6)
    np.testing.assert_allclose(model.encode_texts(captions(8)), encoder.encode_texts(captions(8)), atol=1e-6)
    with pytest.raises(ConfigError, match="list"):
        model.encode_texts("one caption")
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(data or b""))) for data in images]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(model.encode_images(pixels), z_image, atol=1e-6)
    assert model.tau_ == pytest.approx(encoder.temperature)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.95])
def test_the_quantile_is_the_share_that_is_flagged(folder: Path, encoder: PretrainedCLIP, quantile: float) -> None:
    pairs = vectors(encoder, 100)
    model = clip(folder, quantile=quantile).fit(pairs)
    assert (model.correspondence_ < model.threshold_).sum() == pytest.approx(100 * quantile, abs=1)
    assert clip(folder, quantile=quantile, threshold=0.64).fit(pairs).threshold_ == 0.64


# -- on disk --------------------------------------------------------------------------------------------------------


def test_another_model_under_the_name_is_refused(folder: Path, encoder: PretrainedCLIP, tmp_path: Path) -> None:
    path = clip(folder).fit(vectors(encoder, 10)).save_pretrained(tmp_path / "model")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config["pretrained"]["fingerprint"] = "0" * 64
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(DataError, match="is not the model that"):
        ClipScore.from_pretrained(path)


# -- what is refused ------------------------------------------------------------------------------------------------


def test_regions_are_refused(folder: Path) -> None:
    regions = Pairs.from_arrays(captions(4), features=np.ones((4, 9, 24), np.float32))
    with pytest.raises(DataError, match="9 x 24"):
        clip(folder).fit(regions)
