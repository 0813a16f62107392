"""Models that write captions and that judge pairs: tiny random ones, as transformers writes them and read back."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders.pretrained import Captioner, Matcher
from tests.encoders.conftest import TOKENS, made, pictures, save_words, tower
from tests.helpers import assert_raises


def save_vit_gpt2(folder: Path) -> None:
    from transformers import GPT2Config, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    n = save_words(folder)
    vision = ViTConfig(**tower(), image_size=32, patch_size=8)
    text = GPT2Config(vocab_size=n, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    model = VisionEncoderDecoderModel(config=config)
    for settings in (config, model.generation_config):
        settings.decoder_start_token_id, settings.pad_token_id, settings.eos_token_id = 1, 0, 2
    model.save_pretrained(folder)
    settings = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def save_blip(folder: Path, kind: str = "BlipForConditionalGeneration") -> None:
    import transformers
    from transformers import BlipConfig

    n = save_words(folder)
    text = {
        **tower(), "vocab_size": n, "max_position_embeddings": 64, "encoder_hidden_size": 32, "bos_token_id": 1,
        "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0, "projection_dim": 16,
    }  # fmt: skip
    vision = {**tower(), "image_size": 32, "patch_size": 8}
    config = BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=16)
    getattr(transformers, kind)(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}}))


CAPTIONERS = {"vit": save_vit_gpt2, "blip": save_blip}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: made(tmp_path_factory.mktemp(kind), save) for kind, save in CAPTIONERS.items()}


@pytest.mark.parametrize("kind", list(CAPTIONERS))
def test_captions_are_the_models_own_words_and_always_the_same(folders: dict[str, Path], kind: str) -> None:
    captioner = Captioner(folders[kind])
    captions = captioner.caption(pictures(5), max_length=8)
    assert len(captions) == 5 and any(captions) and "\n" not in "".join(captions)
    assert {w for c in captions for w in c.split()} <= {*TOKENS, "<unk>"}
    assert captioner.caption(pictures(5), max_length=8, batch_size=2) == captions and captioner.caption([]) == []
    assert Captioner(folders[kind]).caption(pictures(5), max_length=8) == captions
    assert all(len(c.split()) <= 3 for c in captioner.caption(pictures(2), max_length=3))


def test_the_same_captions_as_transformers(folders: dict[str, Path]) -> None:
    from transformers import VisionEncoderDecoderModel

    captioner = Captioner(folders["vit"])
    model = VisionEncoderDecoderModel.from_pretrained(folders["vit"]).eval()
    x = captioner.transform(pictures(3))
    with torch.no_grad():
        tokens = model.generate(pixel_values=x, max_new_tokens=6, num_beams=3, do_sample=False)
    texts = captioner.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert captioner.caption(pictures(3), max_length=6) == [" ".join(t.split()) for t in texts]


def test_blip_judges_pairs_as_transformers_does(tmp_path: Path) -> None:
    from transformers import BlipForImageTextRetrieval

    save_blip(tmp_path, "BlipForImageTextRetrieval")
    matcher, model = Matcher(tmp_path), BlipForImageTextRetrieval.from_pretrained(tmp_path).eval()
    inputs = [*zip(pictures(5), ["a red cat", "the dog", "boat", "a photo of the red boat " * 30, "and"], strict=True)]
    found = matcher.predict(inputs)
    assert found.shape == (5,) and np.all((found > 0) & (found < 1)) and len(set(found.tolist())) == 5
    assert np.allclose(matcher.predict(inputs, batch_size=2), found, atol=1e-5) and not len(matcher.predict([]))
    tokens = matcher.tokenizer(["a red cat"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        score = model(pixel_values=matcher.transform([inputs[0][0]]), input_ids=tokens).itm_score
    assert found[0] == pytest.approx(float(score.softmax(dim=1)[0, 1]), abs=1e-5)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert_raises(ConfigError, "pairs are judged by blip", Matcher, tmp_path)


def test_what_is_no_captioning_model(tmp_path: Path) -> None:
    assert_raises(DataError, r"config\.json is missing", Captioner, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert_raises(ConfigError, "'clip', and captions are written by", Captioner, tmp_path)
