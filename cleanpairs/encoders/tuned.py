"""A pretrained CLIP or SigLIP inside the trained model: LoRA, the last blocks, or all of it.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, by the package ``peft`` (the extra
``clip``). What is trained is what is saved: of LoRA the adapters and the heads, of full tuning every weight.
"""

import copy
from typing import Any

from torch import Tensor, nn

from cleanpairs.core.errors import ConfigError
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.joint_head import HEAD_RATE, ResidualHead
from cleanpairs.encoders.model_files import INSTALL
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.encoders.tokenizer import PackedTokens

LEARNING_RATES = {"lora": 2e-4, "blocks": 1e-5, "full": 1e-5}  # of pretrained weights; those of CLIP break at 1e-4
LORA_TARGETS = ["q_proj", "v_proj"]  # of the paper; both towers of CLIP and SigLIP have them


def parse_tune(tune: Any) -> tuple[str, int] | None:
    """``head``, ``lora``, ``full`` or ``blocks:N`` as (kind, N); None for anything else."""
    if not isinstance(tune, str):
        return None
    kind, colon, number = tune.partition(":")
    if kind == "blocks" and number.isdecimal() and int(number) > 0:
        return kind, int(number)
    return (kind, 0) if kind in ("head", "lora", "full") and not colon else None


class TunedCLIP(DualEncoder):
    """Both towers, with a :class:`cleanpairs.encoders.joint_head.ResidualHead` behind each.

    Images are pixels (B, 3, H, W) uint8 as the model's own preparation cuts them; captions are its tokens.

    - ``pretrained`` PretrainedCLIP: its network is copied
    - ``tune``: ``lora``, ``blocks:N`` (the last N blocks of both towers and what follows them) or ``full``
    - ``rank``: of LoRA's matrices
    - ``encoder_lr``: learning rate of the pretrained weights and the adapters; 1e-5, of LoRA 2e-4, when None. The
      heads' is a fifth of the training's
    - ``checkpointing``: gradient checkpointing: a third more time for much less memory

    Raises ConfigError: ``tune`` is none of these, asks for more blocks than there are, or needs a package that is
    missing.
    """

    registered = "tuned_clip"

    def __init__(
        self,
        pretrained: PretrainedCLIP,
        *,
        tune: str,
        rank: int = 8,
        encoder_lr: float | None = None,
        checkpointing: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        parsed = parse_tune(tune)
        if parsed is None or parsed[0] == "head":
            raise ConfigError(f"tune must be lora, blocks:N or full, found {tune!r}")
        kind, blocks = parsed
        self.config = {
            "tune": tune, "rank": rank, "encoder_lr": encoder_lr, "checkpointing": checkpointing, "dropout": dropout,
        }  # fmt: skip
        self.dim = pretrained.dim
        self.encoder_lr = encoder_lr or LEARNING_RATES[kind]
        self._standardise, self._unpack = pretrained.transform.standardise, pretrained.unpack
        self.network: Any = copy.deepcopy(pretrained.model).cpu().requires_grad_(False)
        if kind == "lora":
            self._add_lora(rank)
        elif kind == "full":
            self.network.requires_grad_(True)
        else:
            self._thaw(blocks, pretrained.name)
        for name in ("logit_scale", "logit_bias"):  # temperature and bias are the objective's
            if hasattr(self.network, name):
                getattr(self.network, name).requires_grad_(False)
        if checkpointing:
            # renamed in transformers 5.20; the old name warns
            old = self.network.gradient_checkpointing_enable
            getattr(self.network, "activation_checkpointing_enable", old)({"use_reentrant": False})
        self.image = ResidualHead(self.dim, self.dim, dropout)
        self.text = ResidualHead(self.dim, self.dim, dropout)
        learned = {name for name, p in self.named_parameters() if p.requires_grad}
        self._frozen = frozenset(super().state_dict()) - learned
        self.register_load_state_dict_post_hook(_forgive_frozen)

    def _add_lora(self, rank: int) -> None:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise ConfigError(f"tune='lora' needs the package {error.name or 'peft'}, run: {INSTALL}") from error
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS)
        inject_adapter_in_model(config, self.network)  # in place; only the adapters ask for a gradient

    def _thaw(self, blocks: int, name: str) -> None:
        """The last blocks of both towers, and what follows them."""
        for tower in (self.network.vision_model, self.network.text_model):
            layers = tower.encoder.layers
            if blocks > len(layers):
                raise ConfigError(f"tune='blocks:{blocks}': a tower of {name} has {len(layers)} blocks only")
            for layer in layers[len(layers) - blocks :]:
                layer.requires_grad_(True)
            for after in ("post_layernorm", "final_layer_norm", "head"):
                if isinstance(module := getattr(tower, after, None), nn.Module):
                    module.requires_grad_(True)
        for projection in ("visual_projection", "text_projection"):
            if hasattr(self.network, projection):
                getattr(self.network, projection).requires_grad_(True)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Unit vectors (B, E) of pixels (B, 3, H, W) from 0 to 255."""
        z = self.network.get_image_features(pixel_values=self._standardise(images)).pooler_output  # (B, E)
        return self.image(nn.functional.normalize(z.float(), dim=1))

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        z = self.network.get_text_features(**self._unpack(tokens)).pooler_output  # (B, E)
        return self.text(nn.functional.normalize(z.float(), dim=1))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """What is learned, as an optimizer takes it: the heads at a fifth of ``lr``, the rest at ``encoder_lr``."""
        heads = [*self.image.parameters(), *self.text.parameters()]
        tuned = [p for p in self.network.parameters() if p.requires_grad]
        return [{"params": heads, "lr": lr * HEAD_RATE}, {"params": tuned, "lr": self.encoder_lr}]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """What is learned; the frozen weights come from the pretrained model."""
        state = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", "")
        for name in self._frozen:
            state.pop(prefix + name, None)
        return state


def _forgive_frozen(module: Any, incompatible: Any) -> None:
    """Frozen weights are not missed in a state that is loaded."""
    missing = incompatible.missing_keys
    missing[:] = [key for key in missing if not any(key == f or key.endswith("." + f) for f in module._frozen)]
