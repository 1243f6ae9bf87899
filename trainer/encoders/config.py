"""Settings of the towers."""

from dataclasses import dataclass, field
from typing import Any, Final

import timm

from common.errors import UserError
from common.load import check_positive

OPEN_CLIP: Final = "open_clip/"  # before the names of open_clip's architectures

# The papers' sizes (MERU, section 4.1: the small one is MoCo v3's, of 12 heads, as released; timm's own has 6).
PAPER_VITS: dict[str, dict[str, int]] = {
    "vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """An image tower. `name` is one of the papers' (vit_small, vit_base, vit_large), a model of timm, or open_clip/NAME.

    `kwargs` go to the network's constructor (open_clip: its `vision_cfg`); `norm_groups` among them makes every norm of a timm
    network a GroupNorm. Weights that were trained elsewhere expect the pixels of that training: `pixel_mean`, `pixel_std`.
    """

    # network of the image tower: the papers' vit_small, vit_base or vit_large, a network of timm, or open_clip/NAME
    name: str = "vit_small"
    # weights of an open_clip/NAME tower to start from: a file, a folder, or a tag of open_clip; none: random ones
    weights: str | None = None
    size_px: int = 224  # side of the square image that the tower sees, in pixels
    frozen: bool = False  # whether the image tower keeps the weights it starts with; its projection learns all the same
    # further arguments for the constructor of the network, such as {img_size: 64} where timm's has to be told size_px
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(self, "size_px")
        if not (self.name in PAPER_VITS or self.name.startswith(OPEN_CLIP) or timm.is_model(self.name)):
            raise UserError(
                f"name is {self.name!r}, which is neither one of {', '.join(PAPER_VITS)} nor a model of timm, nor {OPEN_CLIP}NAME"
            )


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A text tower. That of open_clip has the sizes of its architecture; `trainer.config.load_config` fills them in."""

    # network of the text tower; none: the papers' transformer, of the sizes below; or open_clip/NAME
    name: str | None = None
    # weights of an open_clip/NAME tower to start from: a file, a folder, or a tag of open_clip; none: random ones
    weights: str | None = None
    vocab_size: int = 49_408  # tokens that the tokenizer knows
    context_length: int = 77  # most tokens of a text; longer texts are cut
    width: int = 512  # width of the text tower's states
    layers: int = 12  # blocks of the text tower
    heads: int = 8  # attention heads of each block of the text tower
    frozen: bool = False  # whether the text tower keeps the weights it starts with; its projection learns all the same

    def __post_init__(self) -> None:
        check_positive(self, "vocab_size", "context_length", "width", "layers", "heads")
        if self.width % self.heads:
            raise UserError(f"width is {self.width}; give a multiple of heads, {self.heads}")
        if self.name is not None and not self.name.startswith(OPEN_CLIP):
            raise UserError(f"name is {self.name!r}; give {OPEN_CLIP}NAME, or null for the papers' transformer")
