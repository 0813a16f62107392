"""Tiny random CLIPs and SigLIPs, written as transformers writes them; nouns; and a corpus of pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from tests.helpers import csv_rows, encoded, write_table

WORDS = "a photo of the red cat dog and boat .".split()
LENGTH = 16  # tokens that the tiny models take
COLORS = "red green blue yellow black white purple orange".split()
TOKENS = list(dict.fromkeys([*WORDS, *COLORS, "over"]))  # what tokenizers of words know
NOUNS = csv_rows(Path(__file__).parent / "nouns.tsv", delimiter="\t")  # forty, by language


def random_model(kind: str, text: dict[str, int], vision: dict[str, int], **more: Any) -> Any:
    import transformers

    towers = {
        "text_config": {**tower(), **text, "max_position_embeddings": LENGTH},
        "vision_config": {**tower(), **vision, "patch_size": 8},
    }
    return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**towers, **more))


def save_clip(folder: Path, kind: str = "CLIP") -> None:
    from transformers import CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    letters = [chr(k) for k in range(97, 123)] + list(".!")
    vocabulary = [*letters, *(letter + "</w>" for letter in letters), "ca", "cat</w>"]
    ids = {token: k for k, token in enumerate([*vocabulary, "<|startoftext|>", "<|endoftext|>"])}
    CLIPTokenizer(vocab=ids, merges=[("c", "a"), ("ca", "t</w>")]).save_pretrained(folder)
    end = len(ids) - 1
    text = {"vocab_size": len(ids), "bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    random_model(kind, text, {"image_size": 32}, projection_dim=24).save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)


def save_siglip2(folder: Path) -> None:
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    save_siglip(folder, "Siglip2", {"num_patches": 16}, padding_side="left")
    Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16).save_pretrained(folder)


def save_words(folder: Path, *, ends: bool = False, **how: Any) -> int:
    """A tokenizer whose tokens are words, ``ends``: and one at the end; how many there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {w: k for k, w in enumerate(["<pad>", "<s>", "</s>", "<unk>", *TOKENS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **how).save_pretrained(folder)
    return len(ids)


def save_siglip(folder: Path, kind: str = "Siglip", size: dict[str, int] | None = None, **how: Any) -> None:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    text = {"vocab_size": save_words(folder, ends=True, **how), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = random_model(kind, {**text, "projection_size": 32}, size or {"image_size": 32})
    model.logit_scale.data.fill_(2.3)
    model.logit_bias.data.fill_(-3.0)
    model.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)


def save_bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [chr(k) for k in range(97, 123)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + a for a in letters)]
    BertTokenizerFast(vocab={token: k for k, token in enumerate(tokens)}).save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokens), **tower(), max_position_embeddings=40)).save_pretrained(folder)


def tower() -> dict[str, int]:
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def edit(file: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


SAVE: dict[str, Callable[[Path], None]] = {
    "clip": save_clip, "siglip": save_siglip, "metaclip_2": lambda folder: save_clip(folder, "MetaClip2"),
    "siglip2": save_siglip2,
}  # fmt: skip


def made(folder: Path, save: Callable[[Path], None]) -> Path:
    """The folder with a model in it, whose random weights are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> directory."""
    pytest.importorskip("transformers")
    return {kind: made(tmp_path_factory.mktemp(kind), save) for kind, save in SAVE.items()}


@pytest.fixture(scope="session")
def tiny_clip(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["clip"]


def picture(top: str, bottom: str, size: int = 40) -> bytes:
    image = Image.new("RGB", (size, size + 4), top)
    image.paste(bottom, (0, size // 2, size, size + 4))
    image.paste("white", (0, 0, size // 4, size // 4))  # else some would show one colour
    return encoded(image)


def pictures(n: int = 5) -> list[Image.Image]:
    """Noise, each in a size of its own."""
    rng, sizes = np.random.default_rng(0), [(50, 70), (70, 50), (32, 32), (20, 33), (97, 41)]
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes[:n]]


@pytest.fixture(scope="session")
def colored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """56 pictures of two colors, captioned by their names, the first ten twice; one cannot be decoded."""
    rows = [(a, b) for a in COLORS for b in COLORS if a != b]
    images = [picture(a, b) for a, b in rows]
    images[50] = images[50][:60]
    captions = [[f"{a} {b}", f"{a} over {b}"][: 2 if k < 10 else 1] for k, (a, b) in enumerate(rows)]
    path = tmp_path_factory.mktemp("colored") / "colored.parquet"
    return write_table(path, {"image": pa.array(images, pa.binary()), "captions": captions}, row_group_size=16)
