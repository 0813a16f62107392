"""Pretrained CLIP and SigLIP: tiny random ones, written to a directory as libraries write them and read back."""

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

from cleanpairs import CRCL, ClipScore
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.encoders.image_transform import MAX_ASPECT, ImageTransform
from cleanpairs.encoders.libraries import load_encoder
from cleanpairs.encoders.pretrained import PretrainedCLIP
from tests.encoders.conftest import LENGTH, SAVE, WORDS, edit, pictures, save_bert
from tests.helpers import assert_raises, reloaded

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
    model, pad = AutoModel.from_pretrained(folder).eval(), "max_length" if siglip else True
    reader = PreTrainedTokenizerFast if kind == "siglip2" else AutoTokenizer  # which takes it for Gemma's
    tokens = reader.from_pretrained(folder)(texts, padding=pad, truncation=True, max_length=LENGTH, return_tensors="pt")
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
def test_order_and_batches_do_not_matter(folder: Path, batch_size: int, monkeypatch: Any) -> None:
    encoder = PretrainedCLIP(folder)
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
def test_the_same_pixels_as_transformers(folder: Path, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    expected = processor(folder)([image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(PretrainedCLIP(folder).transform([image]), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("crop", [8, 31, 33, 45])
def test_a_cut_larger_than_the_image_is_filled_up_as_there(crop: int) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    theirs = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": crop, "width": crop})
    ours = ImageTransform.from_config(theirs.to_dict(), "clip", "m")
    for image in pictures():
        expected = theirs([image], return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(ours([image]), expected, atol=2e-6, rtol=0)
    assert ours.output_size == (crop, crop)


def test_a_long_strip_stays_small(folder: Path) -> None:
    """Enlarged by its short edge it would take 12 GB."""
    encoder = PretrainedCLIP(folder)
    strip, middle = (Image.new("RGB", (length, 1), (200, 10, 10)) for length in (4_000_000, MAX_ASPECT))
    torch.testing.assert_close(encoder.transform([strip]), encoder.transform([middle]), atol=0.02, rtol=0)
    assert encoder.encode_images([strip.rotate(90, expand=True)]).shape == (1, encoder.dim)


def test_settings_that_are_not_known_are_refused() -> None:
    for settings in (
        *({"size": {edge: 32}, "do_center_crop": False} for edge in ("longest_edge", "shortest_edge")),
        *({"size": {}}, {"crop_size": {"height": 3}}, {"do_pad": True}, {"resample": 99}, {"image_mean": 3}),
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


def test_settings_may_be_in_processor_config_and_of_the_oldest_form(broken: Path) -> None:
    expected, file = PretrainedCLIP(broken).transform, broken / "preprocessor_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    (broken / "processor_config.json").write_text(json.dumps({"image_processor": settings}), encoding="utf-8")
    assert PretrainedCLIP(broken).transform == expected
    assert ImageTransform.from_config({**settings, "size": 32, "crop_size": 32}, "clip", "m") == expected


def test_the_fingerprint_is_of_the_contents(broken: Path, tiny_clip: Path) -> None:
    fingerprint = PretrainedCLIP(tiny_clip).fingerprint
    assert PretrainedCLIP(str(broken)).fingerprint == fingerprint and len(fingerprint) == 64
    (broken / "README.md").write_text("changes no vector", encoding="utf-8")
    assert PretrainedCLIP(broken).fingerprint == fingerprint
    edit(broken / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    assert PretrainedCLIP(broken).fingerprint != fingerprint


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
        (of_another_tokenizer, r"not of one model: they prepare images and tokens of \(32, 32, 1\d\d\)"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(broken: Path, harm: Any, words: str) -> None:
    harm(broken)
    assert_raises(DataError, words, PretrainedCLIP, broken)


def test_code_of_the_directory_is_never_run(broken: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (broken / "evil.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil: pass\n")
    remote = {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    for file in ("config.json", "tokenizer_config.json"):
        edit(broken / file, auto_map=remote)
    assert PretrainedCLIP(broken).encode_texts(["a cat"]).shape[0] == 1
    assert not mark.exists()


def test_from_the_hub_only_data_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    encoder = PretrainedCLIP("someone/model", revision="v1")
    assert encoder.name == asked["name"] == "someone/model" and asked["revision"] == "v1"
    assert not [p for p in asked["allow_patterns"] if p.endswith((".bin", ".py", ".pt", ".h5", "*"))]


# -- models of sentence-transformers and of open_clip, by name --------------------------------------------------------


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


def test_a_model_of_sentence_transformers(sentence_models: Any, tiny_clip: Path, colored: Path, tmp_path: Path) -> None:
    """The vectors of its CLIP are those of transformers, and a scorer on them is saved and read again."""
    encoder, own = load_encoder(str(sentence_models["clip"])), PretrainedCLIP(tiny_clip)
    assert (encoder.dim, encoder.tunable, type(encoder).__name__) == (24, False, "SentenceTransformers")
    texts = [text for text in TEXTS if text]
    np.testing.assert_allclose(encoder.encode_texts(texts), own.encode_texts(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_images(pictures()), own.encode_images(pictures()), atol=1e-5)
    other = Path(shutil.copytree(sentence_models["clip"], tmp_path / "other"))
    (other / "0_CLIP" / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert load_encoder(str(other)).fingerprint != encoder.fingerprint
    model = ClipScore(model=sentence_models["clip"], device="cpu", normalise="none").fit(colored)
    scores = reloaded(model, tmp_path, colored).score_pairs(colored)
    np.testing.assert_allclose(scores, model.correspondence_, atol=1e-6)
    with pytest.raises(ConfigError, match="tune='lora' trains on"):
        CRCL(encoder=sentence_models["clip"], tune="lora", epochs=1, refine_epochs=()).fit(colored)
    words = r"takes text and no images: .*--set text_encoder="
    assert_raises(ConfigError, words, load_encoder, str(sentence_models["text"]))


DAMAGE: dict[str, tuple[Any, type[CleanpairsError], str]] = {
    "code": (lambda f: edit_modules(f, type="custom.Model"), ConfigError, "custom.Model, which is code of the model's"),
    "pickled": (lambda f: pickled(f / "0_CLIP"), DataError, "pytorch_model.bin is pickled, which could run code"),
    "no weights": (lambda f: (f / "0_CLIP" / "model.safetensors").unlink(), DataError, "cannot be loaded"),
}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_what_cannot_be_loaded_says_why(sentence_models: dict[str, Path], tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(sentence_models["clip"], tmp_path / "model"))
    harm, error, words = DAMAGE[damage]
    harm(folder)
    assert_raises(error, words, load_encoder, str(folder))


def test_a_model_of_open_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file nobody knows the tag: it has QuickGELU where all tags have it, or where the model is named so."""
    library = pytest.importorskip("open_clip", reason="open_clip needs torchvision, which is not installed")
    from safetensors.torch import save_file

    size = {"width": 32, "layers": 1}
    vision = {**size, "head_width": 16, "image_size": 32, "patch_size": 8}
    text = {**size, "heads": 2, "context_length": 77, "vocab_size": 49408}
    (tmp_path / "tiny-of-test.json").write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}))
    library.add_model_config(tmp_path / "tiny-of-test.json")
    model, _, prepare = library.create_model_and_transforms("tiny-of-test")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    monkeypatch.setattr(library, "get_pretrained_cfg", lambda kind, tag: {"quick_gelu": tag == "quick"})
    tags = iter([["quick"], ["quick", "plain"], []])
    monkeypatch.setattr(library, "list_pretrained_tags_by_model", lambda kind: next(tags))
    forced, encoder = (load_encoder(f"open_clip:tiny-of-test/{tmp_path}/weights.safetensors") for _ in range(2))
    assert forced.fingerprint != encoder.fingerprint
    assert not np.allclose(forced.encode_texts(TEXTS), encoder.encode_texts(TEXTS), atol=1e-5)
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
