"""Encoders by name: models of sentence-transformers and of open_clip."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import CRCL, ClipScore
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.encoders.libraries import load_encoder
from cleanpairs.encoders.pretrained import PretrainedCLIP
from tests.encoders.conftest import edit, pictures, save_bert
from tests.helpers import assert_raises, reloaded

pytest.importorskip("transformers")

TEXTS = ["a red cat", "the dog and a boat .", ""]


@pytest.fixture(scope="module")
def sentence_models(tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A CLIP in a directory below, and a BERT with mean pooling, as sentence-transformers writes them."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from sentence_transformers.base.modules import Transformer

    root = tmp_path_factory.mktemp("st")
    library.SentenceTransformer(modules=[Transformer(str(tiny_models["clip"]))]).save_pretrained(str(root / "below"))
    (root / "clip").mkdir()
    for name in ("modules.json", "config_sentence_transformers.json"):
        (root / "below" / name).rename(root / "clip" / name)
    (root / "below").rename(root / "clip" / "0_CLIP")
    edit_modules(root / "clip", path="0_CLIP")
    edit(root / "clip" / "0_CLIP" / "tokenizer_config.json", model_max_length=16)  # as released models say it
    save_bert(root / "bert")
    library.SentenceTransformer(str(root / "bert")).save_pretrained(str(root / "text"))
    return {"clip": root / "clip", "text": root / "text"}


def edit_modules(folder: Path, **changes: str) -> None:
    first, *others = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "modules.json").write_text(json.dumps([{**first, **changes}, *others]), encoding="utf-8")


def test_a_model_of_sentence_transformers(
    sentence_models: dict[str, Path], tiny_models: dict[str, Path], colored: Path, tmp_path: Path
) -> None:
    """The vectors of its CLIP are those of transformers, and a scorer on them is saved and read again."""
    encoder, own = load_encoder(str(sentence_models["clip"])), PretrainedCLIP(tiny_models["clip"])
    assert (encoder.dim, encoder.tunable, type(encoder).__name__) == (24, False, "SentenceTransformers")
    texts = [text for text in TEXTS if text]
    np.testing.assert_allclose(encoder.encode_texts(texts), own.encode_texts(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_images(pictures()), own.encode_images(pictures()), atol=1e-5)
    model = ClipScore(model=sentence_models["clip"], device="cpu", normalise="none").fit(colored)
    again = reloaded(model, tmp_path, colored)
    np.testing.assert_allclose(again.score_pairs(colored), model.correspondence_, atol=1e-6)
    with pytest.raises(ConfigError, match="tune='lora' trains on"):
        CRCL(encoder=sentence_models["clip"], tune="lora", epochs=1, refine_epochs=()).fit(colored)


def pickled(folder: Path) -> None:
    (folder / "0_CLIP" / "model.safetensors").rename(folder / "0_CLIP" / "pytorch_model.bin")


DAMAGE: dict[str, tuple[Any, type[CleanpairsError], str]] = {
    "code": (lambda f: edit_modules(f, type="custom.Model"), ConfigError, "custom.Model, which is code of the model's"),
    "pickled": (pickled, DataError, "pytorch_model.bin is pickled, which could run code"),
    "no list": (lambda f: (f / "modules.json").write_text("3"), DataError, "be read as a list of modules"),
    "no weights": (lambda f: (f / "0_CLIP" / "model.safetensors").unlink(), DataError, "cannot be loaded"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_what_cannot_be_loaded_says_why(sentence_models: dict[str, Path], tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(sentence_models["clip"], tmp_path / "model"))
    harm, error, words = DAMAGE[damage]
    harm(folder)
    assert_raises(error, words, load_encoder, str(folder))


def test_an_encoder_of_captions(sentence_models: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"takes text and no images: .*--set text_encoder="):
        load_encoder(str(sentence_models["text"]))


def test_a_model_of_open_clip(tmp_path: Path) -> None:
    library = pytest.importorskip("open_clip", reason="open_clip needs torchvision, which is not installed")
    from safetensors.torch import save_file

    size = {"width": 32, "layers": 1}
    config: dict[str, Any] = {"embed_dim": 16, "vision_cfg": {**size, "head_width": 16, "image_size": 32}}
    config["vision_cfg"]["patch_size"] = 8
    config["text_cfg"] = {**size, "heads": 2, "context_length": 77, "vocab_size": 49408}
    (tmp_path / "tiny-of-test.json").write_text(json.dumps(config), encoding="utf-8")
    library.add_model_config(tmp_path / "tiny-of-test.json")
    model, _, prepare = library.create_model_and_transforms("tiny-of-test")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    encoder = load_encoder(f"open_clip:tiny-of-test/{tmp_path}/weights.safetensors")
    with torch.inference_mode():
        z = model.eval().encode_text(library.get_tokenizer("tiny-of-test")(TEXTS), normalize=True)
        v = model.encode_image(torch.stack([prepare(image) for image in pictures()]), normalize=True)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), z.numpy(), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_images(pictures()), v.numpy(), atol=1e-5)
    for name, words in (("none/x", "open_clip has no model 'none'"), ("tiny-of-test/x", "has no weights 'x'")):
        assert_raises(ConfigError, words, load_encoder, f"open_clip:{name}")


def test_a_package_that_is_missing_or_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    assert_raises(ConfigError, "pip install open_clip_torch", load_encoder, "open_clip:ViT-B-32/openai")
    monkeypatch.delitem(sys.modules, "open_clip")
    monkeypatch.syspath_prepend(tmp_path)  # what a torchvision does whose library is of another torch
    (tmp_path / "open_clip.py").write_text('import torch\ntorch.library.register_fake("torchvision::nms")(print)\n')
    assert_raises(ConfigError, "torchvision that fits torch: operator", load_encoder, "open_clip:ViT-B-32/openai")
