"""Methods on pretrained networks: frozen with a head, tuned; text alone; any module; vectors of both sides."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from cleanpairs import CRCL, ClipScore, Pairs, load_pairs
from cleanpairs.core import METHODS, ConfigError, DataError
from cleanpairs.encoders import efficientnet_lite
from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0, weights_path
from cleanpairs.encoders.module_encoder import ModuleEncoder
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.encoders.sentences import SentenceEncoder
from cleanpairs.features import encoded_matrix
from tests.encoders.conftest import edit, made, save_bert
from tests.helpers import StopAt, assert_raises, reloaded, sized, vector_column, write_table


def tiny(method: Any, **changes: Any) -> Any:
    """A method at a size that trains in a moment."""
    short = {"epochs": 1, "refine_epochs": (), "freeze": 1, "warmup": 1, "batch_size": 16, "eval_group_size": 16}
    return sized(method, **{**short, "device": "cpu", **changes})


# -- tune=head ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_head_begins_as_the_models_cosine_and_learns(tiny_models: dict[str, Path], colored: Path, kind: str) -> None:
    pairs = load_pairs(colored)
    own = ClipScore(model=tiny_models[kind], device="cpu", normalise="none").fit(pairs)
    model = tiny(CRCL, encoder=tiny_models[kind], lr=1e-12, weight_decay=0.0).fit(pairs)
    whole = np.flatnonzero(np.isfinite(own.correspondence_))
    assert model.quarantined_ == own.quarantined_ and list(model.quarantined_) == [60]
    images, texts = model.encode_images(pairs), model.encode_texts(pairs.captions)
    cosine = np.einsum("ij,ij->i", images[pairs.image_index], texts)[whole]
    np.testing.assert_allclose(cosine, own.correspondence_[whole] * 2 - 1, atol=2e-6)
    learned = tiny(CRCL, encoder=tiny_models[kind], lr=2e-2, epochs=15).fit(pairs)
    assert learned.evaluate(pairs).rsum > model.evaluate(pairs).rsum + 100


@pytest.mark.parametrize(("name", "tune"), [("crcl", "head"), ("pc2", "head"), ("l2rm", "lora"), ("mscn", "lora")])
def test_methods_train_and_come_back(name: str, tune: str, tiny_clip: Path, colored: Path, tmp_path: Path) -> None:
    pairs, meta = load_pairs(colored), write_table(tmp_path / "meta.parquet", pq.read_table(colored).slice(0, 20))
    settings = {"encoder": str(tiny_clip), "tune": tune, "meta": str(meta), "meta_batch": 8, "meta_every": 1}
    model = tiny(METHODS.load(name), **settings).fit(pairs, val=pairs)
    scores = model.score_pairs(pairs)
    assert np.flatnonzero(np.isnan(scores)).tolist() == np.flatnonzero(np.isnan(model.correspondence_)).tolist() == [60]
    assert len(model.rematch(pairs).to_pandas()) == len(pairs)
    unseen = Pairs.from_arrays(["red red", "nothing like it"], images=pairs.images.read([3, 4]))
    assert np.isfinite(model.score_pairs(unseen)).all()
    assert model.evaluate(pairs) == reloaded(model, tmp_path, pairs).evaluate(pairs)
    assert not (tmp_path / "model" / "vocabulary.json").exists()


def test_vectors_that_the_model_has_made_before(tiny_clip: Path, colored: Path) -> None:
    pairs = load_pairs(colored).select(np.arange(40))
    z = ClipScore(model=tiny_clip, device="cpu").fit(pairs).encode_images(pairs)
    given = Pairs.from_arrays(pairs.captions, features=z, image_index=pairs.image_index)
    model = tiny(CRCL, encoder=tiny_clip, image_encoder="features").fit(given)
    looked = tiny(CRCL, encoder=tiny_clip).fit(pairs)
    np.testing.assert_allclose(model.score_pairs(given), looked.score_pairs(pairs), atol=1e-4)
    other = Pairs.from_arrays(pairs.captions, features=z[:, :5], image_index=pairs.image_index)
    assert_raises(DataError, "one vector of 24 dimensions", model.fit, other)
    assert_raises(ConfigError, "the data has vectors only", tiny(CRCL, encoder=tiny_clip).fit, given)


# -- towers that are trained ----------------------------------------------------------------------------------------


KINDS = [("clip", "lora"), ("clip", "full"), ("siglip", "lora"), ("metaclip_2", "blocks:1")]


@pytest.mark.parametrize(("kind", "tune"), KINDS)
def test_tuned_towers_learn(tiny_models: Any, colored: Path, tmp_path: Path, kind: str, tune: str) -> None:
    """They begin as the model."""
    pairs, own = load_pairs(colored).select(np.arange(20)), PretrainedCLIP(tiny_models[kind])
    still = tiny(CRCL, encoder=tiny_models[kind], tune=tune, lr=1e-12, encoder_lr=1e-12, weight_decay=0.0).fit(pairs)
    z = own.encode_texts(pairs.captions)
    np.testing.assert_allclose(still.encode_texts(pairs.captions), z, atol=2e-5)
    model = tiny(CRCL, encoder=tiny_models[kind], tune=tune, encoder_lr=1e-3, epochs=2).fit(pairs)
    assert np.abs(model.encode_texts(pairs.captions) - z).max() > 1e-3
    trained = model.model_.state_dict()
    before = dict(own.model.named_parameters())
    changed = [n for n in trained if n.startswith("network.") and n[8:] in before]
    if tune == "lora":
        assert changed == [] and any("lora_A" in name for name in trained)
    else:
        assert any(bool((trained[n] != before[n[8:]]).any()) for n in changed)
        layers = {n.split("layers.")[1][0] for n in changed if "layers." in n}
        assert layers == ({"1"} if tune == "blocks:1" else {"0", "1"})
        assert any("embeddings" in n for n in changed) == (tune == "full")
    reloaded(model, tmp_path, pairs)


def test_an_interrupted_lora_goes_on_to_the_same(tiny_clip: Path, colored: Path, tmp_path: Path) -> None:
    pairs = load_pairs(colored).select(np.arange(40))
    whole = tiny(CRCL, encoder=tiny_clip, tune="lora", epochs=2).fit(pairs)
    model = tiny(CRCL, encoder=tiny_clip, tune="lora", epochs=2)
    # Behind the first step of the second epoch.
    assert_raises(KeyboardInterrupt, "^$", model.fit, pairs, run_dir=tmp_path, on_step=StopAt(4))
    model.fit(pairs, run_dir=tmp_path, resume=True)
    np.testing.assert_array_equal(model.encode_texts(pairs.captions), whole.encode_texts(pairs.captions))
    # adapters, heads and moments; the frozen towers are not in it
    assert (tmp_path / "checkpoints" / "last.safetensors").stat().st_size < 400_000


def test_checkpointing_changes_no_value(tiny_clip: Path, colored: Path) -> None:
    pairs = load_pairs(colored).select(np.arange(40))
    settings = {"encoder": tiny_clip, "tune": "full"}
    plain, saving = (tiny(CRCL, gradient_checkpointing=flag, **settings).fit(pairs) for flag in (False, True))
    np.testing.assert_allclose(*[model.encode_texts(pairs.captions) for model in (saving, plain)], atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("tune", ["head", "lora", "full"])
def test_on_a_gpu_in_bf16(tiny_clip: Path, colored: Path, tune: str) -> None:
    pairs = load_pairs(colored)
    model = tiny(CRCL, encoder=tiny_clip, tune=tune, epochs=2, device="cuda", precision="bf16").fit(pairs)
    assert np.isfinite(np.delete(model.score_pairs(pairs), 60)).all()


# -- what does not go together, and what has gone -------------------------------------------------------------------


class Odd(nn.Module):
    """It returns an array, or other shapes for other images."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.forward = given


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"image_encoder": "features", "tune": "full"}, "looks at the images itself"),
     ({"text_encoder": "features"}, "leave text_encoder out"), ({"tune": "blocks:3"}, "2 blocks only"),
     ({"encoder": None, "image_encoder": nn.Identity()}, r"image_encoder Identity must map \(B, 3, H, W\)"),
     ({"encoder": None, "image_encoder": nn.Linear(3, 3)}, "image_encoder Linear fails on images")],
)  # fmt: skip
def test_encoders_that_cannot_be(tiny_clip: Path, colored: Path, changes: dict[str, Any], message: str) -> None:
    pairs = load_pairs(colored) if "tune" in changes else Pairs.from_arrays(["a"], images=[None])
    assert_raises(ConfigError, message, tiny(CRCL, **{"encoder": tiny_clip, **changes}).fit, pairs)


def test_a_model_that_has_changed_or_gone_is_noticed(tiny_clip: Path, colored: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_clip, tmp_path / "clip"))
    tiny(CRCL, encoder=folder).fit(load_pairs(colored)).save_pretrained(tmp_path / "model")
    edit(folder / "tokenizer_config.json", x=1)
    assert_raises(DataError, "its files have changed", CRCL.from_pretrained, tmp_path / "model")
    shutil.rmtree(folder)
    assert_raises(DataError, "there is no directory", CRCL.from_pretrained, tmp_path / "model")


# -- text alone -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as sentence-transformers keeps one."""
    path = made(tmp_path_factory.mktemp("bert"), save_bert)
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    for file, settings in (("1_Pooling/config.json", pooling), ("sentence_bert_config.json", {"max_seq_length": 12})):
        (path / file).write_text(json.dumps(settings), encoding="utf-8")
    return path


def test_a_sentence_encoder_is_the_mean_over_the_tokens(sentence_model: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    texts = ["red over blue", "", "a", "letters " * 20, "Red over blue!"]
    encoder = SentenceEncoder(sentence_model, precision=torch.float32)
    z = encoder.encode_texts(texts)
    tokenizer, model = AutoTokenizer.from_pretrained(sentence_model), AutoModel.from_pretrained(sentence_model).eval()
    assert z.shape == (5, 32) and z.dtype == np.float32
    for text, found in zip(texts, z, strict=True):
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=12)
        with torch.no_grad():
            expected = model(**given).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(found, expected / expected.norm(), atol=1e-6)
    assert encoder.encode_texts([]).shape == (0, 32)
    half = SentenceEncoder(sentence_model, precision=torch.bfloat16)
    assert half.cache_key != encoder.cache_key and half.fingerprint == encoder.fingerprint
    assert (half.encode_texts(texts) * z).sum(axis=1).min() > 0.999
    texts = [chr(97 + k) * (1 + k % 5) for k in range(26)]
    together = encoder.encode_texts(texts)
    for k in (0, 7, 25):  # a caption has one vector, whatever goes with it
        np.testing.assert_array_equal(encoder.encode_texts(texts[k : k + 1])[0], together[k])


@pytest.mark.parametrize("backbone", ["mlp", "sgr"])
def test_a_text_encoder_with_learned_words(backbone: str, sentence_model: Path, colored: Path, tmp_path: Path) -> None:
    """Beside them, or in their place."""
    pairs = load_pairs(colored)
    how = {"image_size": 32, "dim": 16, "epochs": 8, "lr": 8e-3, "backbone": backbone, "text_encoder": sentence_model}
    model = tiny(CRCL, **how).fit(pairs)
    assert (type(model.model_).__name__ == "VectorTowers") == (backbone == "sgr")
    assert ("in place of the backbone sgr" in (model._captions or "")) == (backbone == "sgr")
    assert model.evaluate(pairs).rsum > 150  # 56 images: 16 by chance for each direction of R@1, 5, 10
    reloaded(model, tmp_path, pairs)
    beside = (x := pq.read_table(colored)).append_column("image_features", vector_column(np.eye(len(x), dtype="f4")))
    np.testing.assert_array_equal(model.encode_images(beside), model.encode_images(pairs))  # by its own encoder


def test_models_that_are_no_text_encoders(tiny_clip: Path, sentence_model: Path, tmp_path: Path) -> None:
    assert_raises(ConfigError, "name it as the encoder", SentenceEncoder, tiny_clip)
    assert_raises(ConfigError, "only clip, metaclip_2, siglip, siglip2 can be used", PretrainedCLIP, sentence_model)
    folder = Path(shutil.copytree(sentence_model, tmp_path / "bert"))
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}', encoding="utf-8")
    assert_raises(ConfigError, "pools by pooling_mode_max_tokens", SentenceEncoder, folder)


# -- vectors of both sides, made elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize("dim_text", [8, 5])
def test_given_vectors_of_both_sides(dim_text: int, tmp_path: Path) -> None:
    rng, captions = np.random.default_rng(0), [f"caption {i}" for i in range(60)]
    z = rng.normal(size=(60, 8)).astype(np.float32)
    texts = (z @ rng.normal(size=(8, dim_text)).astype(np.float32)) if dim_text != 8 else z + 0.1
    pairs = Pairs.from_arrays(captions, features=z, text_vectors=texts)
    model = tiny(CRCL, text_encoder="features", dim=16, epochs=10, lr=2e-2).fit(pairs)
    assert type(model.model_).__name__ == ("JointHead" if dim_text == 8 else "VectorTowers")
    assert model._captions == "vectors of the data, both sides (--set text_encoder=words: learned words)"
    more = {"features": np.concatenate([z, 9 + z]), "image_index": np.arange(60)}  # no pair shows the others
    bad = {"features": np.concatenate([z, z[:9] * np.nan]), "text_vectors": np.concatenate([texts, 9 + texts[:9]])}
    given = (Pairs.from_arrays(**{"text_vectors": texts, **x}) for x in ({"features": z}, more, bad))
    none, *others = (tiny(CRCL, epochs=1).fit(x) for x in given)
    np.testing.assert_array_equal([other.correspondence_[:60] for other in others], [none.correspondence_] * 2)
    assert none._captions == "vectors of the data, both sides"  # no words could be learned
    assert model.evaluate(pairs).rsum > 400
    again = reloaded(model, tmp_path, pairs)
    assert_raises(ConfigError, "came with the data", again.encode_texts, ["a caption"])
    for error, x in (("the data has none", None), ("and this data has 2", texts[:, :2])):
        assert_raises(DataError, error, again.score_pairs, Pairs.from_arrays(captions, features=z, text_vectors=x))


# -- any module -----------------------------------------------------------------------------------------------------


class Means(nn.Module):
    """Mean colors of a grid: regions, or one vector."""

    def __init__(self, grid: int = 2, flat: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.pool, self.flat = nn.AdaptiveAvgPool2d(grid), flat

    def forward(self, x: Tensor) -> Tensor:
        cells = self.pool(x) * self.scale[:, None, None]
        return cells.flatten(1) if self.flat else cells.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("flat", [False, True])
def test_any_module_as_image_encoder(colored: Path, tmp_path: Path, flat: bool) -> None:
    pairs, module = load_pairs(colored), Means(flat=flat)
    module.pool.eval()
    model = tiny(CRCL, image_encoder=module, dim=32, dim_word=16, epochs=15, lr=6e-3).fit(pairs)
    assert module.training and not module.pool.training and module.scale.requires_grad  # as it was given
    assert model.evaluate(pairs).rsum > 200 and list(model.quarantined_) == [60]
    model.save_pretrained(tmp_path / "model")
    assert_raises(ConfigError, "give it again", CRCL.from_pretrained, tmp_path / "model")
    again = CRCL.from_pretrained(tmp_path / "model", image_encoder=Means(flat=flat))
    np.testing.assert_array_equal(again.score_pairs(pairs), model.score_pairs(pairs))
    nn.init.constant_((other := Means(flat=flat)).scale, 2.0)
    for given in ({"image_encoder": other}, {"image_encoder": module, "image_transform": small}):
        assert_raises(ConfigError, "give it again", CRCL.from_pretrained, tmp_path / "model", **given)


def small(images: Any) -> Tensor:
    pixels = [np.asarray(image.resize((16, 16)), dtype=np.float32) / 255 for image in images]
    return torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2))


def test_a_module_with_a_transform_of_its_own(colored: Path) -> None:
    pairs = load_pairs(colored).select(np.arange(30))
    model = tiny(CRCL, image_encoder=Means(), image_transform=small, dim=8, dim_word=4).fit(pairs)
    assert model.encode_images(np.zeros((2, 3, 20, 20), np.uint8)).shape == (2, 8)
    once, twice = (ModuleEncoder(Means(), lambda images, k=k: k * small(images)) for k in (1, 2))  # of one name
    np.testing.assert_allclose(encoded_matrix(pairs, twice).array, 2 * encoded_matrix(pairs, once).array)
    whole = [np.full((3, 20, 30), 255, np.uint8), np.zeros((3, 9, 8), np.uint8)]  # as workers send them
    assert ModuleEncoder(Means(flat=True), small).encode_pixels(whole).mean(axis=1).tolist() == [1.0, 0.0]
    images = [Image.new("RGB", (9, 9))] * 3
    for module, transform, words in (
        (Odd(lambda x: x.mean((2, 3)).numpy()), small, "a tensor was expected of the module, found ndarray"),
        (Odd(lambda x: x[:, : 1 + len(x) % 2, 0]), small, r"3 became \(3, 2, 16\), and \(B, 1, 16\) was expected"),
        (Means(), lambda images: small(images)[0, 0], "check its transform"),
    ):
        assert_raises(ConfigError, words, lambda m=module, t=transform: ModuleEncoder(m, t).encode_images(images))


@pytest.mark.parametrize("tune", ["", "head", "lora"])
def test_pixels_become_what_pictures_become(tiny_clip: Path, colored: Path, tune: str) -> None:
    pairs = load_pairs(colored).select(np.arange(20))
    encoder = {"encoder": tiny_clip, "tune": tune} if tune else {"image_size": 64}
    model = tiny(CRCL, dim=8, dim_word=4, **encoder).fit(pairs)
    pictures = [Image.open(io.BytesIO(data or b"")) for data in pairs.images.read(range(5))]
    pixels = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures]).transpose(0, 3, 1, 2)
    first = model.encode_images(load_pairs(colored, limit=5))  # batches of other sizes may be rounded otherwise
    np.testing.assert_allclose(model.encode_images(pixels), first, atol=1e-6)
    assert model.encode_images(pixels[:0]).shape == (0, model.model_.dim)


# -- the frozen EfficientNet-Lite0 ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """A palace and a flower: the photographs that come with scikit-learn."""
    return [Image.fromarray(array) for array in load_sample_images().images]


def test_it_classifies_photographs_and_stays_frozen(photos: list[Image.Image]) -> None:
    encoder = EfficientNetLite0().train()
    assert not any(module.training for module in encoder.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    with torch.inference_mode():
        maps = encoder(encoder.transform(photos))
        top = encoder.classifier(maps.mean(dim=(2, 3))).topk(3).indices.tolist()  # (2, 3)
    # ImageNet: 442 bell cote, 663 monastery (a tower of the Summer Palace); 985 daisy (a dahlia has no class)
    assert {442, 663} <= set(top[0]) and top[1][0] == 985


def test_pixels_are_scaled_as_the_weights_expect() -> None:
    x = EfficientNetLite0(64).transform([Image.new("RGB", (50, 30), (255, 127, 0))])
    assert x.shape == (1, 3, 64, 64) and x.dtype == torch.float32
    torch.testing.assert_close(x[0, :, 5, 7], torch.tensor([1.0, 0.0, -127 / 128]))


def test_regions_are_the_cells_row_by_row_whatever_the_batch(photos: list[Image.Image], monkeypatch: Any) -> None:
    encoder = EfficientNetLite0(96)
    images = [*photos, photos[0].rotate(90), photos[1].rotate(180), photos[0].rotate(45)]
    with torch.inference_mode():
        feature_map = encoder(encoder.transform(images)).numpy()
    features = encoder.encode_images(images)
    assert feature_map.shape == (5, 1280, 3, 3) and encoder.shape == (9, 1280) and features.dtype == np.float32
    np.testing.assert_allclose(features, feature_map.reshape(5, 1280, 9).transpose(0, 2, 1), atol=1e-5)
    monkeypatch.setattr(encoder, "batch_size", 2)
    np.testing.assert_allclose(encoder.encode_images(images), features, atol=1e-4)
    assert encoder.encode_images([]).shape == (0, 9, 1280)


@pytest.mark.parametrize("swapped", [False, True])
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swapped: bool) -> None:
    """Swapped: of the same shapes, in another order."""
    state = torch.load(weights_path(), weights_only=True)
    first, second, *_ = (name for name, value in state.items() if value.shape == (32,))
    state = state | {first: state[second], second: state[first]} if swapped else {first: state[first]}
    torch.save(state, tmp_path / "weights.pth")
    monkeypatch.setattr(efficientnet_lite, "weights_path", lambda: tmp_path / "weights.pth")
    assert_raises(ConfigError, r"weights\.pth does not hold its weights", EfficientNetLite0)


def test_unusable_sizes_are_refused() -> None:
    assert_raises(ConfigError, "at least 32 pixels, got 16", EfficientNetLite0, 16)
    assert_raises(DataError, "0x5", EfficientNetLite0(64).encode_images, [Image.new("RGB", (0, 5))])


def test_the_command_notes_the_encoder_it_takes(tiny_clip: Path, colored: Path, tmp_path: Path, output_of: Any) -> None:
    options = [f"--set={s}" for s in "tune=lora epochs=1 refine_epochs=[] batch_size=16 eval_group_size=16".split()]
    fit = ["fit", colored, "--encoder", tiny_clip, *options, "--method", "crcl", "--quiet"]
    output_of(*fit, "--out", tmp_path / "run")
    recipe = (tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"encoder: {tiny_clip}" in recipe and "tune: lora" in recipe
