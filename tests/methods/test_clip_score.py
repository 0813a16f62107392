"""The CLIP-score filter, with a tiny random CLIP in a directory: what it computes, keeps on disk and refuses."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cleanpairs import ClipScore, Pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders.pretrained import PretrainedCLIP
from tests.encoders.conftest import made, save_clip
from tests.helpers import assert_raises, picture

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

CAPTIONS = "red blue green,cat dog boat,tree house sky,sea road car,red cat,blue dog,green boat,sea sky".split(",")


def test_the_correspondence_is_the_cosine_and_another_model_or_regions_are_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "clip", save_clip)
    encoder = PretrainedCLIP(folder)
    images = [picture(i, size=(50, 40)) for i in range(8)]
    pairs = Pairs.from_arrays(CAPTIONS, images=images)
    settings = {"model": folder, "device": "cpu", "eval_group_size": 16}
    model = ClipScore(**settings, normalise="none").fit(pairs)
    opened = [Image.open(io.BytesIO(data)) for data in images]
    z_image, z_text = encoder.encode_images(opened), encoder.encode_texts(CAPTIONS)
    np.testing.assert_allclose(2 * model.correspondence_ - 1, (z_image * z_text).sum(1), atol=1e-6)
    np.testing.assert_allclose(model.score_pairs(pairs), model.correspondence_, atol=1e-6)
    np.testing.assert_allclose(model.encode_images(pairs), z_image, atol=1e-6)
    np.testing.assert_allclose(model.encode_texts(CAPTIONS), z_text, atol=1e-6)
    assert_raises(ConfigError, "list", model.encode_texts, "one caption")
    pixels = np.stack([np.asarray(image) for image in opened]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(model.encode_images(pixels), z_image, atol=1e-6)
    assert model.tau_ == pytest.approx(encoder.temperature)
    path = model.save_pretrained(tmp_path / "model")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config["pretrained"]["fingerprint"] = "0" * 64
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert_raises(DataError, "is not the model that", ClipScore.from_pretrained, path)
    with pytest.raises(DataError, match="9 x 24"):
        ClipScore(**settings).fit(Pairs.from_arrays(CAPTIONS, features=np.ones((8, 9, 24), np.float32)))
