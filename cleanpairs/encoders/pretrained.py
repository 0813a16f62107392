"""Pretrained CLIP and SigLIP, frozen: images and captions to unit vectors of one space. The dot product is the cosine.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021. Zhai et al.,
"Sigmoid Loss for Language Image Pre-Training", ICCV 2023. The networks and the tokenizers are those of ``transformers``
(the extra ``clip``). The pixels are prepared here, by ``preprocessor_config.json``, with Pillow, as in the training.

BLIP (Li et al., ICML 2022), GIT (Wang et al., TMLR 2022) or a ViT with a text decoder write captions for images that no
caption fits. BLIP's head for matching judges pairs.

Only data is read: weights from safetensors, settings from JSON. Code in a model's directory is never run, and pickled
weights are refused.
"""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from cleanpairs.core import ConfigError, DataError, plain_text
from cleanpairs.encoders import model_files as files
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.tokenizer import PackedTokens, TokenTable, packed_batches

MODELS = {  # model_type of config.json -> class of transformers
    "clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "siglip": "SiglipModel", "siglip2": "Siglip2Model",
}  # fmt: skip


class PretrainedCLIP(files.FrozenPair):
    """A frozen CLIP or SigLIP with its tokenizer and its image preparation.

    NaFlex, of type ``siglip2``, takes images in their own shape, so transformers prepares them.

    It is read from a directory as ``save_pretrained`` of transformers writes it, and then nothing is fetched. Or it is
    read from the Hugging Face hub by its name. There ``revision`` is a branch, tag or commit.

    - ``name``: as given. ``model_type``: a key of :data:`MODELS`. ``dim``: dimensions E of the joint space
    - ``max_length``: tokens after which a caption is cut, marks of start and end included
    - ``temperature``: the model's own logit of a pair is the cosine over it. Of SigLIP with a bias
    - ``fingerprint``: SHA-256 over the files that determine the vectors

    Raises ConfigError: transformers is missing, or a kind of model other than CLIP and SigLIP. DataError: there is no
    such model, or its files are missing, damaged or pickled.
    """

    def __init__(self, name_or_path: str | Path, device: str = "cpu", *, revision: str | None = None) -> None:
        self.name, self.device = str(name_or_path), torch.device(device)
        folder, self.model_type = files.folder_and_kind(
            self.name, revision, MODELS, "only {known} can be used: name a CLIP or SigLIP model, like "
            "openai/clip-vit-large-patch14, or a model of sentence-transformers",
        )  # fmt: skip
        flexible = self.model_type == "siglip2"
        self.tunable, self.transform = not flexible, ImageTransform()
        if flexible:
            self.prepare = _flexible(folder)
        else:
            self.transform = ImageTransform.from_config(files.image_settings(folder), self.model_type, folder)
        model, self.tokenizer = files.load_network(folder, MODELS[self.model_type]), files.load_tokenizer(folder)
        config, text = model.config, model.config.text_config
        edge = 0 if flexible else config.vision_config.image_size
        sizes, takes = (*self.transform.output_size, len(self.tokenizer)), (edge, edge, text.vocab_size)
        if sizes[:2] != takes[:2] or sizes[2] > takes[2]:
            raise DataError(
                f"the files of {self.name} are not of one model: they prepare images and tokens of {sizes}, it takes "
                f"{takes}"
            )
        self.model, self.fingerprint = model.eval().requires_grad_(False).to(device), files.fingerprint_of(folder)
        self.max_length = int(text.max_position_embeddings)
        self._siglip = self.model_type.startswith("siglip")
        self.dim = int(text.projection_size or text.hidden_size if self._siglip else config.projection_dim)
        self.temperature = 1 / float(model.logit_scale.exp())
        # SigLIP learned from small letters, its first version without punctuation. Its sentencepiece tokenizer does
        # that, a tokenizer.json does not always. To do it twice changes nothing.
        kind = files.settings_of(folder / "tokenizer_config.json").get("tokenizer_class")
        self._bare = self._siglip and kind == "SiglipTokenizer"
        pad = text.pad_token_id if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        self._pad = int(pad or 0)

    def vectors(self, x: Any) -> Tensor:
        """Unit vectors (n, E) of prepared pixels, or of patches in a table of transformers."""
        inputs = x.to(self.device)
        inputs = {"pixel_values": inputs} if isinstance(inputs, Tensor) else inputs
        return F.normalize(self.model.get_image_features(**inputs).pooler_output, dim=1)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> np.ndarray:
        """Unit vectors (n, E) float32 of n captions, each cut to the model's length. An empty one is encoded too."""
        out = np.empty((len(texts), self.dim), np.float32)
        for rows, tokens in packed_batches(self.encode(texts), batch_size, self.device):
            z = self.model.get_text_features(**self.unpack(tokens)).pooler_output
            out[rows] = F.normalize(z, dim=1).cpu().numpy()
        return out

    def encode(self, texts: Sequence[str]) -> TokenTable:
        """The model's own token numbers of n captions, as a table."""
        rows = self._tokenize(texts)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return TokenTable(np.array([number for row in rows for number in row], dtype=np.int64), offsets)

    def unpack(self, tokens: PackedTokens) -> dict[str, Tensor]:
        """Packed token numbers of B captions as the text network takes them, in the packed order.

        CLIP looks backwards only, so padding is masked. SigLIP learned with its padding.
        """
        packed, siglip = PackedSequence(tokens.ids, tokens.batch_sizes), self._siglip
        ids = pad_packed_sequence(packed, True, self._pad, self.max_length if siglip else None)[0].contiguous()
        place, lengths = torch.arange(ids.shape[1], device=ids.device), tokens.lengths[:, None]
        if siglip and self.tokenizer.padding_side == "left":
            ids = ids.gather(1, (place + lengths) % ids.shape[1])
        present = place < lengths  # (B, L)
        return {"input_ids": ids} | ({} if siglip else {"attention_mask": present.long()})

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of captions, at most ``max_length`` each, with the marks of start and end."""
        clean = list(map(plain_text, texts))
        if self._siglip:
            clean = [text.lower() for text in clean]
        if self._bare:
            bare = str.maketrans("", "", string.punctuation)
            clean = [" ".join(text.translate(bare).split()) for text in clean]
        if not clean:
            return []
        return self.tokenizer(clean, truncation=True, max_length=self.max_length)["input_ids"]


def _flexible(folder: Path) -> Any:
    """The function that cuts whole images into patches, with their shapes, by the model's own JSON."""
    try:
        from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil
    except ImportError as error:
        raise ConfigError(f"a siglip2 model needs a newer transformers: {files.INSTALL}, with --upgrade") from error
    config = files.image_settings(folder)
    fields = "resample", "image_mean", "image_std", "rescale_factor", "patch_size", "max_num_patches"
    processor = Siglip2ImageProcessorPil(**{name: config[name] for name in fields if config.get(name) is not None})
    return lambda images: processor(list(images), return_tensors="pt")


class Captioner:
    """A frozen captioning model. As :class:`PretrainedCLIP`, of ``kinds``: type -> class of transformers."""

    kinds: ClassVar[dict[str, str]] = {
        "vision-encoder-decoder": "VisionEncoderDecoderModel",
        "blip": "BlipForConditionalGeneration",
        "git": "GitForCausalLM",
    }

    wanted = "captions are written by {known}: name one of these, like Salesforce/blip-image-captioning-base"

    def __init__(self, name_or_path: str | Path, device: str = "cpu", *, revision: str | None = None) -> None:
        self.name, self.device = str(name_or_path), torch.device(device)
        folder, kind = files.folder_and_kind(self.name, revision, self.kinds, self.wanted)
        self.transform = ImageTransform.from_config(files.image_settings(folder), kind, folder)
        self.tokenizer = files.load_tokenizer(folder)
        self.model = files.load_network(folder, self.kinds[kind]).eval().requires_grad_(False).to(device)

    @torch.inference_mode()
    def caption(
        self, images: Sequence[Image.Image], captions: Sequence[str] = (), words: Sequence[Sequence[str]] = (), *,
        max_length: int = 30, beams: int = 3, batch_size: int = 16,
    ) -> list[str]:  # fmt: skip
        """A caption for each of n decoded images, of ``max_length`` new tokens at most. Nothing is drawn by chance.

        ``captions`` and ``words`` change nothing: such a model sees the image alone. The same object is seen once.
        """
        generated: list[str] = []
        distinct = list({id(image): image for image in images}.values())
        for start in range(0, len(distinct), batch_size):
            x = self.transform(distinct[start : start + batch_size]).to(self.device)  # (b, 3, H, W)
            how = {"max_new_tokens": max_length, "num_beams": beams, "do_sample": False}
            tokens = self.model.generate(pixel_values=x, return_dict_in_generate=False, **how)
            texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            generated += [" ".join(text.split()) for text in texts]
        by_image = dict(zip(map(id, distinct), generated, strict=True))
        return [by_image[id(image)] for image in images]


class Matcher(Captioner):
    """A frozen BLIP whose head for matching sees image and caption together. Made as :class:`Captioner` is."""

    kinds: ClassVar[dict[str, str]] = {"blip": "BlipForImageTextRetrieval"}
    wanted = "pairs are judged by {known}: name one of these, like Salesforce/blip-itm-base-coco"

    @torch.inference_mode()
    def predict(self, inputs: Sequence[tuple[Image.Image, str]], batch_size: int = 16) -> np.ndarray:
        """P(belongs) (n,) of n pairs of an image and a caption."""
        scores = [np.empty(0, np.float32)]
        longest = self.model.config.text_config.max_position_embeddings
        for start in range(0, len(inputs), batch_size):
            images, texts = zip(*inputs[start : start + batch_size], strict=True)
            clean = list(map(plain_text, texts))
            tokens = self.tokenizer(clean, padding=True, truncation=True, max_length=longest, return_tensors="pt")
            fields = {name: tokens[name].to(self.device) for name in ("input_ids", "attention_mask")}
            score = self.model(pixel_values=self.transform(images).to(self.device), **fields).itm_score  # (b, 2)
            scores.append(score.softmax(dim=1)[:, 1].cpu().numpy())
        return np.concatenate(scores)
