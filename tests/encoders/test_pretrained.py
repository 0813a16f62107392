"""Pretrained CLIP and SigLIP: tiny random ones, written to a directory as transformers writes them and read back."""

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders.image_transform import MAX_ASPECT, ImageTransform
from cleanpairs.encoders.libraries import load_encoder
from cleanpairs.encoders.pretrained import PretrainedCLIP
from tests.encoders.conftest import LENGTH, SAVE, WORDS, edit, pictures
from tests.helpers import assert_raises

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(params=["clip", "siglip"])
def folder(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Path:
    return tiny_models[request.param]


@pytest.fixture
def encoder(folder: Path) -> PretrainedCLIP:
    return PretrainedCLIP(folder)


@pytest.fixture
def broken(tiny_clip: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(tiny_clip, tmp_path / "model"))


def captions(n: int = 12) -> list[str]:
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(n)]


# -- the vectors ----------------------------------------------------------------------------------------------------


def processor(folder: Path) -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    known = {"siglip": SiglipImageProcessorPil, "siglip2": Siglip2ImageProcessorPil}
    return known.get(kind, CLIPImageProcessorPil).from_pretrained(folder)


@pytest.mark.parametrize("kind", list(SAVE))
def test_the_same_logits_as_transformers(tiny_models: dict[str, Path], kind: str) -> None:
    """Its own whole model, of its own tokens and pixels: cosine, scale and bias are ours."""
    from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

    folder, siglip, texts = tiny_models[kind], kind.startswith("siglip"), [*captions(), "", "cat " * 40]
    model, padding = AutoModel.from_pretrained(folder).eval(), "max_length" if siglip else True
    reader = PreTrainedTokenizerFast if kind == "siglip2" else AutoTokenizer  # which takes it for Gemma's
    tokens = reader.from_pretrained(folder)(
        texts, padding=padding, truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    inputs = {name: tokens[name] for name in (["input_ids"] if siglip else ["input_ids", "attention_mask"])}
    with torch.inference_mode():
        expected = model(**inputs, **processor(folder)(pictures(), return_tensors="pt")).logits_per_image  # (5, 14)
    encoder = load_encoder(str(folder))
    cosine = encoder.encode_images(pictures()) @ encoder.encode_texts(texts).T
    bias = float(model.logit_bias.detach()) if siglip else 0.0
    np.testing.assert_allclose(cosine / encoder.temperature + bias, expected.numpy(), atol=2e-5)
    if encoder.prepare is not None:  # workers hand over whole pictures
        arrays = [np.asarray(image).transpose(2, 0, 1) for image in pictures()]
        np.testing.assert_allclose(encoder.encode_pixels(arrays), encoder.encode_images(pictures()), atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_order_and_batches_do_not_matter(encoder: PretrainedCLIP, batch_size: int, monkeypatch: Any) -> None:
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, encoder.dim)
    odd = ["", " ", "\n\t", "\ud800", "\x00", "猫", "!!!", "<|endoftext|>", "</s> <pad>", "é" * 100]
    images, texts = pictures(), [*captions(), *odd]
    z_image, z_text = encoder.encode_images(images), encoder.encode_texts(texts)
    np.testing.assert_allclose(np.linalg.norm(z_text, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(2).permutation(len(texts))
    shuffled = encoder.encode_texts([texts[i] for i in order], batch_size)
    np.testing.assert_allclose(shuffled, z_text[order], atol=1e-6)
    monkeypatch.setattr(encoder, "batch_size", batch_size)
    np.testing.assert_allclose(encoder.encode_images(images[::-1]), z_image[::-1], atol=1e-6)


# -- captions -------------------------------------------------------------------------------------------------------


def test_the_first_siglip_sees_no_punctuation(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    """As its sentencepiece tokenizer does, of which only tokenizer.json may be there."""
    later = PretrainedCLIP(tiny_models["siglip"])
    assert later._tokenize(["a cat."]) != later._tokenize(["a cat"])
    first = Path(shutil.copytree(tiny_models["siglip"], tmp_path / "first"))
    edit(first / "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    tokens = PretrainedCLIP(first)._tokenize(["a cat", " A  Cat. ", "(a) 'cat'!"])
    assert tokens[0] == tokens[1] == tokens[2] == later._tokenize(["a cat"])[0]


# -- images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (48, 65), (33, 97), (7, 5), (31, 300), (1, 9)])
def test_the_same_pixels_as_transformers(folder: Path, encoder: PretrainedCLIP, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    expected = processor(folder)([image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(encoder.transform([image]), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("crop", [8, 31, 33, 45])
def test_a_cut_larger_than_the_image_is_filled_up_as_there(crop: int) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    theirs = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": crop, "width": crop})
    ours = ImageTransform.from_config(theirs.to_dict(), "clip", "m")
    for image in pictures():
        expected = theirs([image], return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([image]), expected, atol=2e-6, rtol=0)
    assert ours.output_size == (crop, crop)


def test_the_oldest_form_of_the_settings() -> None:
    old = {"crop_size": 32, "size": 32, "resample": 3, "do_center_crop": True, "do_normalize": True, "do_resize": True}
    new = {"crop_size": {"height": 32, "width": 32}, "size": {"shortest_edge": 32}}
    assert ImageTransform.from_config(old, "clip", "m") == ImageTransform.from_config(new, "clip", "m")


def test_a_long_strip_stays_small(encoder: PretrainedCLIP) -> None:
    """Enlarged by its short edge it would take 12 GB."""
    strip = Image.new("RGB", (4_000_000, 1), (200, 10, 10))
    middle = Image.new("RGB", (MAX_ASPECT, 1), (200, 10, 10))
    torch.testing.assert_close(encoder.transform([strip]), encoder.transform([middle]), atol=0.02, rtol=0)
    assert encoder.encode_images([strip.rotate(90, expand=True)]).shape == (1, encoder.dim)


def test_settings_that_are_not_known_are_refused() -> None:
    for settings in (
        {"size": {"longest_edge": 32}, "do_center_crop": False},
        {"size": {"shortest_edge": 32}, "do_center_crop": False},
        {"size": {"max_height": 3, "max_width": 3}},
        {"size": "large"},
        {"size": {}},
        {"crop_size": {"height": 3}},
        {"do_resize": False, "do_center_crop": False},
        {"do_pad": True},
        {"resample": 99},
        {"image_mean": 3},
    ):
        assert_raises(ConfigError, r"^p\.json", ImageTransform.from_config, settings, "clip", "p.json")


# -- loading --------------------------------------------------------------------------------------------------------


def test_half_precision_files_become_float32(broken: Path) -> None:
    from transformers import AutoModel

    expected = PretrainedCLIP(broken).encode_texts(captions())
    AutoModel.from_pretrained(broken).half().save_pretrained(broken)
    half = PretrainedCLIP(broken)
    assert next(half.model.parameters()).dtype == torch.float32
    np.testing.assert_allclose(half.encode_texts(captions()), expected, atol=5e-3)


def test_the_fingerprint_is_of_the_contents(broken: Path, tiny_clip: Path) -> None:
    fingerprint = PretrainedCLIP(tiny_clip).fingerprint
    assert PretrainedCLIP(str(broken)).fingerprint == fingerprint and len(fingerprint) == 64
    (broken / "README.md").write_text("changes no vector", encoding="utf-8")
    assert PretrainedCLIP(broken).fingerprint == fingerprint
    edit(broken / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    assert PretrainedCLIP(broken).fingerprint != fingerprint


def test_settings_within_processor_config(broken: Path) -> None:
    expected = PretrainedCLIP(broken).transform
    settings = json.loads((broken / "preprocessor_config.json").read_text(encoding="utf-8"))
    (broken / "preprocessor_config.json").unlink()
    (broken / "processor_config.json").write_text(json.dumps({"image_processor": settings}), encoding="utf-8")
    assert PretrainedCLIP(broken).transform == expected


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_a_damaged_file_is_named(broken: Path, file: str, damage: str) -> None:
    data = (broken / file).read_bytes()
    if damage == "missing":
        (broken / file).unlink()
        if file == "tokenizer.json":
            (broken / "tokenizer_config.json").unlink()
    else:
        (broken / file).write_bytes(data[: len(data) // 2] if damage == "cut" else b"[1]")
    named = "the weights of its config.json" if file == "model.safetensors" and damage != "missing" else file
    assert_raises(DataError, f"{broken}.*{named}", PretrainedCLIP, broken)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def missing(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["logit_scale"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def of_another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    edit(folder / "config.json", text_config={**config["text_config"], "hidden_size": 16})


def of_another_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"more{k}" for k in range(100)])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (pickled, r"no model\.safetensors \(found pytorch_model\.bin, which could run code\)"),
        (missing, "lacks 1 weights, of which the first is logit_scale"),
        (of_another_shape, r"cannot be read as the weights of its config\.json"),
        (of_another_tokenizer, r"not of one model: they prepare images and tokens of \(32, 32, 1\d\d\)"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(broken: Path, harm: Any, words: str) -> None:
    harm(broken)
    assert_raises(DataError, words, PretrainedCLIP, broken)


def test_code_of_the_directory_is_never_run(broken: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil: pass\n"
    (broken / "evil.py").write_text(code, encoding="utf-8")
    remote = {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    for file in ("config.json", "tokenizer_config.json"):
        edit(broken / file, auto_map=remote)
    assert PretrainedCLIP(broken).encode_texts(["a cat"]).shape[0] == 1
    assert not mark.exists()


def test_without_the_extra_it_names_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transformers", "tokenizers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            assert_raises(ConfigError, rf'needs {name}, run: pip install "cleanpairs\[clip\]"', PretrainedCLIP, folder)


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"no directory nobody/nothing.*from the hub.*check name and network"):
        PretrainedCLIP("nobody/nothing")


def test_from_the_hub_only_data_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    encoder = PretrainedCLIP("someone/model", revision="v1")
    assert encoder.name == asked["name"] == "someone/model" and asked["revision"] == "v1"
    assert not [p for p in asked["allow_patterns"] if p.endswith((".bin", ".py", ".pt", ".h5", "*"))]
