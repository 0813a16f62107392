"""A pretrained CLIP or SigLIP inside the trained model: LoRA, the last blocks, or all of it.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, by the package ``peft`` (the extra
``clip``). Only what is trained is saved: of LoRA the adapters and the heads, of full tuning every weight.
"""

import copy
from typing import Any

from torch import Tensor, nn

from cleanpairs.core.errors import ConfigError, needing
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.joint_head import HEAD_RATE, ResidualHead
from cleanpairs.encoders.model_files import INSTALL
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.encoders.tokenizer import PackedTokens


class TunedCLIP(DualEncoder):
    """Both towers, with a :class:`cleanpairs.encoders.joint_head.ResidualHead` behind each.

    Images are pixels (B, 3, H, W) uint8 as the model's own preparation cuts them. Captions are its tokens.

    - ``pretrained`` PretrainedCLIP: its network is copied
    - ``tune``: ``lora``, ``blocks:N`` (the last N blocks of both towers and what follows them) or ``full``
    - ``rank``: of LoRA's matrices
    - ``encoder_lr``: learning rate of the pretrained weights and the adapters. 1e-5, of LoRA 2e-4, when None
    - ``checkpointing``: gradient checkpointing: a third more time for much less memory

    Raises ConfigError: LoRA's package is missing, or a tower has fewer blocks.
    """

    registered = "tuned_clip"

    def __init__(
        self, pretrained: PretrainedCLIP, *, tune: str, rank: int, encoder_lr: float | None, checkpointing: bool
    ) -> None:
        super().__init__()
        self.config = {"tune": tune, "rank": rank, "encoder_lr": encoder_lr, "checkpointing": checkpointing}
        self.dim = pretrained.dim
        self.encoder_lr = encoder_lr or (2e-4 if tune == "lora" else 1e-5)  # the weights of CLIP break at 1e-4
        self._standardise, self._unpack = pretrained.transform.standardise, pretrained.unpack
        self.network: Any = copy.deepcopy(pretrained.model).cpu().requires_grad_(False)
        if tune == "lora":
            self._add_lora(rank)
        else:
            self.network.requires_grad_(True)
            if tune != "full":
                self._freeze_below(int(tune.removeprefix("blocks:")), pretrained.name)
        for name in ("logit_scale", "logit_bias"):  # temperature and bias are the objective's
            if hasattr(self.network, name):
                getattr(self.network, name).requires_grad_(False)
        if checkpointing:
            # renamed in transformers 5.20. The old name warns
            old = self.network.gradient_checkpointing_enable
            getattr(self.network, "activation_checkpointing_enable", old)({"use_reentrant": False})
        self.image, self.text = ResidualHead(self.dim), ResidualHead(self.dim)
        learned = {name for name, p in self.named_parameters() if p.requires_grad}
        self._frozen = frozenset(super().state_dict()) - learned
        self.register_load_state_dict_post_hook(_forgive_frozen)

    def _add_lora(self, rank: int) -> None:
        with needing("tune='lora'", INSTALL):
            from peft import LoraConfig, inject_adapter_in_model
        projections = ["q_proj", "v_proj"]  # of the paper. Both towers of CLIP and SigLIP have them
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=projections)
        inject_adapter_in_model(config, self.network)  # in place. Only the adapters ask for a gradient

    def _freeze_below(self, blocks: int, name: str) -> None:
        """Freeze all that comes before the last blocks of each tower."""
        for tower in (self.network.vision_model, self.network.text_model):
            first = len(layers := tower.encoder.layers) - blocks
            if first < 0:
                raise ConfigError(f"tune='blocks:{blocks}': a tower of {name} has {len(layers)} blocks only")
            before = (tower.embeddings, getattr(tower, "pre_layrnorm", None), *layers[:first])  # transformers' spelling
            for part in filter(None, before):
                part.requires_grad_(False)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Unit vectors (B, E) of pixels (B, 3, H, W) from 0 to 255."""
        z = self.network.get_image_features(pixel_values=self._standardise(images)).pooler_output  # (B, E)
        return self.image(nn.functional.normalize(z.float(), dim=1))

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        z = self.network.get_text_features(**self._unpack(tokens)).pooler_output  # (B, E)
        return self.text(nn.functional.normalize(z.float(), dim=1))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Parameter groups of an optimizer: the heads at a fifth of ``lr``, the rest at ``encoder_lr``."""
        heads = [*self.image.parameters(), *self.text.parameters()]
        tuned = [p for p in self.network.parameters() if p.requires_grad]
        return [{"params": heads, "lr": lr * HEAD_RATE}, {"params": tuned, "lr": self.encoder_lr}]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The learned weights. The frozen ones come from the pretrained model."""
        state = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", "")
        for name in self._frozen:
            state.pop(prefix + name, None)
        return state


def _forgive_frozen(module: Any, incompatible: Any) -> None:
    """Do not report frozen weights as missing from a loaded state."""
    missing = incompatible.missing_keys
    missing[:] = [key for key in missing if not any(key == f or key.endswith("." + f) for f in module._frozen)]
