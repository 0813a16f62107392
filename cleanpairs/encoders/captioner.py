"""A pretrained captioning model: images to captions, for pairs that no caption of the corpus fits.

Li et al., "BLIP: Bootstrapping Language-Image Pre-training", ICML 2022 (its CapFilt writes captions and filters them);
GIT (Wang et al., TMLR 2022); ViT with a text decoder (``vision-encoder-decoder``). Read as in
:mod:`cleanpairs.encoders.pretrained`: safetensors and JSON, no code of the model's directory.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from cleanpairs.encoders.model_files import folder_and_kind, load_network, load_tokenizer, load_transform

MODELS = {  # model_type of config.json -> class of transformers
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "blip": "BlipForConditionalGeneration",
    "git": "GitForCausalLM",
}


class Captioner:
    """A frozen captioning model; as :class:`cleanpairs.encoders.pretrained.PretrainedCLIP`, of :data:`MODELS`."""

    def __init__(self, name_or_path: str | Path, device: str = "cpu", *, revision: str | None = None) -> None:
        self.name, self.device = str(name_or_path), torch.device(device)
        folder, kind = folder_and_kind(
            self.name, revision, MODELS,
            "captions are written by {known}: name one of these, like Salesforce/blip-image-captioning-base",
        )  # fmt: skip
        self.transform, self.tokenizer = load_transform(folder, kind), load_tokenizer(folder)
        self.model = load_network(folder, MODELS[kind]).eval().requires_grad_(False).to(device)

    @torch.inference_mode()
    def caption(
        self, images: Sequence[Image.Image], *, max_length: int = 30, beams: int = 3, batch_size: int = 16
    ) -> list[str]:
        """One caption for each of n decoded images, of ``max_length`` new tokens at most; the same ones every time: by
        a beam search, nothing is drawn.
        """
        captions: list[str] = []
        for start in range(0, len(images), batch_size):
            x = self.transform(images[start : start + batch_size]).to(self.device)  # (b, 3, H, W)
            how = {"max_new_tokens": max_length, "num_beams": beams, "do_sample": False}
            tokens = self.model.generate(pixel_values=x, return_dict_in_generate=False, **how)
            texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            captions += [" ".join(text.split()) for text in texts]
        return captions
