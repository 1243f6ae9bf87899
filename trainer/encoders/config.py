"""Settings of the towers."""

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hypergrit_common.config import check_positive, check_range
from hypergrit_common.errors import UserError

OPEN_CLIP: Final = "open_clip/"  # prefix of open_clip's architecture names
TRANSFORMERS: Final = "transformers"  # name of text towers that are encoders of transformers

# Sizes of the papers (MERU, section 4.1). The small one is MoCo v3's with 12 heads, as released; timm's has 6.
PAPER_VITS: dict[str, dict[str, int]] = {
    "vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """Settings of the image tower.

    `kwargs` are passed to the network's constructor (open_clip: to its `vision_cfg`); with `norm_groups` among them,
    every norm of a timm network becomes a GroupNorm. Pretrained weights expect the pixel statistics of their
    training: `model.pixel_mean` and `model.pixel_std`.
    """

    # network: the papers' vit_small, vit_base or vit_large, a network of timm, or open_clip/NAME
    name: str = "vit_small"
    # initial weights: for a network of timm, a file in timm's layout (safetensors or .pth); for an open_clip/NAME tower, a
    # file, a folder, or one of open_clip's tags; null: random weights
    weights: str | None = None
    # side of the square input image, in pixels
    size_px: int = 224
    # share of the patches, 0 to below 1, that a vision transformer leaves out while training, drawn for each image (FLIP)
    patch_dropout: float = 0.0
    # keep the initial weights of the tower; its projection is trained in any case
    frozen: bool = False
    # further constructor arguments of the network, such as {img_size: 64} for timm networks of a fixed input size
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(self, "size_px")
        check_range(self, "patch_dropout", least=0, below=1)
        if not (self.name in PAPER_VITS or self.name.startswith(OPEN_CLIP) or is_timm_model(self.name)):
            raise UserError(
                f"name is {self.name!r}; give one of {', '.join(PAPER_VITS)}, a model of timm, or {OPEN_CLIP}NAME"
            )


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Settings of the text tower.

    `trainer.config.load_config` fills in the sizes of towers of open_clip and transformers, and for those of transformers
    `pad_id` and `kwargs`, from the config.json and the tokenizer of their folder.
    """

    # network; null: the papers' transformer, of the sizes below; open_clip/NAME; or transformers: an encoder of that
    # library, such as BERT, from a local folder
    name: str | None = None
    # initial weights of an open_clip/NAME tower: a file, a folder, or one of open_clip's tags; of a transformers tower: a
    # folder with config.json, model.safetensors and tokenizer; null: random weights
    weights: str | None = None
    # size of the tokenizer's vocabulary
    vocab_size: int = 49_408
    # maximum number of tokens of a text; longer texts are truncated
    context_length: int = 77
    # number of first positions that keep their embeddings if the initial weights have fewer than context_length: the
    # others are interpolated linearly (Long-CLIP: 20); null: the initial weights must have context_length positions
    stretch_after: int | None = None
    # width of the transformer
    width: int = 512
    # number of transformer blocks
    layers: int = 12
    # attention heads of each block
    heads: int = 8
    # noise on the token embeddings while training (NEFTune, arXiv 2310.05914): uniform in [-a, a], a = embedding_noise /
    # sqrt(tokens * width), of the papers' transformer only. HAC: 0.1
    embedding_noise: float = 0.0
    # keep the initial weights of the tower; its projection is trained in any case
    frozen: bool = False
    # feature of a text in a transformers tower: cls, the state of its first token; mean, the mean of its tokens' states;
    # last, the state of its last token, such as end of text; pooler, the output of the network's own pooler
    pooling: Literal["cls", "mean", "last", "pooler"] = "mean"
    # id of the padding in batches for a transformers tower, which does not attend to it; -1: none of the vocabulary
    pad_id: int = 0
    # configuration of a transformers tower, as in its config.json; keys that are given replace those of the file
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range(self, "stretch_after", least=0)
        check_range(self, "pad_id", least=-1)
        check_range(self, "embedding_noise", least=0, below=math.inf)
        if self.embedding_noise and self.name is not None:
            raise UserError(f"embedding_noise is {self.embedding_noise}, but {self.name} has none; set it to 0")
        check_positive(self, "vocab_size", "context_length", "width", "layers", "heads")
        if self.name == TRANSFORMERS:
            if self.stretch_after is not None:
                raise UserError(f"stretch_after is for other towers than {TRANSFORMERS}; set it to null")
            return
        if self.kwargs or self.pooling != "mean":
            raise UserError(f"pooling and kwargs are for name={TRANSFORMERS}; remove them, or set it")
        if self.width % self.heads:
            raise UserError(f"width is {self.width}; give a multiple of heads, {self.heads}")
        if self.name is not None and not self.name.startswith(OPEN_CLIP):
            raise UserError(
                f"name is {self.name!r}; give {OPEN_CLIP}NAME, {TRANSFORMERS}, or null for the papers' transformer"
            )


def is_timm_model(name: str) -> bool:
    """True if timm has a network of this name. Imports timm, and with it torch."""
    import timm

    return bool(timm.is_model(name))
