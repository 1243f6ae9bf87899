"""Settings of the towers."""

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hypergrit_common.config import check_positive, check_range, reaches
from hypergrit_common.errors import UserError

OPEN_CLIP: Final = "open_clip/"  # prefix of open_clip's architecture names
TRANSFORMERS: Final = "transformers"  # name of text towers that are encoders of transformers
CACHED: Final = "cached"  # name of towers that are a head over the features of a frozen tower (trainer.encoders.cached)
CACHED_KEYS: Final = frozenset({"width", "hidden", "depth", "model", "sha256", "projected", "patches"})
"""Keys of `kwargs` of such a tower: those of the head, the name and hash of the frozen model, and its stored patches."""

# Sizes of the papers (MERU, section 4.1). The small one is MoCo v3's with 12 heads, as released; timm's has 6.
PAPER_VITS: dict[str, dict[str, int]] = {
    "vit_small": {"embed_dim": 384, "depth": 12, "num_heads": 12},
    "vit_base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "vit_large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """Settings of the image tower (`model.image`). The defaults are MERU's ViT-S/16 (section 4.1).

    `kwargs` are passed to the network's constructor (open_clip: to its `vision_cfg`); with `norm_groups` among them,
    every norm of a timm network becomes a GroupNorm, and with `norm_eps` a LayerNorm with this epsilon. Pretrained
    weights expect the pixel statistics of their training: `model.pixel_mean` and `model.pixel_std`.

    Raises:
        UserError: a value is out of its range, no network has this name, or a head has settings of a trained tower.
    """

    # network: the papers' vit_small, vit_base or vit_large, a network of timm, or open_clip/NAME; with data.features,
    # cached: a head over the frozen tower that made them
    name: str = "vit_small"
    """Network. The smallest of the papers' three by default (MERU, section 4.1)."""
    # initial weights: for a network of timm, a file in timm's layout (safetensors or .pth); for an open_clip/NAME tower, a
    # file, a folder, or one of open_clip's tags; null: random weights. cached: path of the frozen model
    weights: str | None = reaches(None)
    """Path, or tag of open_clip. None, as in MERU and HyCoCLIP: random weights."""
    # side of the square input image, in pixels
    size_px: int = 224
    """Pixels, at least 1. 224 in HyCoCLIP and PHyCLIP."""
    # share of the patches, 0 to below 1, that a vision transformer leaves out while training, drawn for each image (FLIP)
    patch_dropout: float = 0.0
    """Share in [0, 1). 0 in MERU and HyCoCLIP; FLIP (arXiv 2212.00794) takes 0.5 or 0.75."""
    # keep the initial weights of the tower; its projection is trained in any case
    frozen: bool = False
    """False: the papers train the tower. MERU's table 3 freezes it."""
    # further constructor arguments of the network, such as {img_size: 64} for timm networks of a fixed input size; of a
    # head: {hidden: 512, depth: 1}, the width and the number of its hidden layers (depth 0: the projection alone)
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Names and values. Empty: the sizes of the network itself."""

    def __post_init__(self) -> None:
        check_positive(self, "size_px")
        check_range(self, "patch_dropout", least=0, below=1)
        if self.name == CACHED:
            check_head(self.kwargs, self.patch_dropout > 0 or self.frozen)
        elif not (self.name in PAPER_VITS or self.name.startswith(OPEN_CLIP) or is_timm_model(self.name)):
            raise UserError(
                f"name is {self.name!r}; give one of {', '.join(PAPER_VITS)}, a model of timm, or {OPEN_CLIP}NAME"
            )

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of an image in a batch: pixels (3, size_px, size_px), or a cached feature (f,)."""
        return (self.kwargs["width"],) if self.name == CACHED else (3, self.size_px, self.size_px)


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Settings of the text tower (`model.text`). The defaults are CLIP's (Radford et al. 2021, section 2.4).

    `trainer.config.load_config` fills in the sizes of towers of open_clip and transformers, and for those of
    transformers `pad_id` and `kwargs`, from the config.json and the tokenizer of their folder.

    Raises:
        UserError: a value is out of its range, `width` is no multiple of `heads`, no tower has this name, or a setting
            is not one of this tower.
    """

    # network; null: the papers' transformer, of the sizes below; open_clip/NAME; transformers: an encoder of that
    # library, such as BERT, from a local folder; or, with data.features, cached: as in model.image.name
    name: str | None = None
    """Network. None: CLIP's transformer, which MERU, HyCoCLIP, PHyCLIP and PoinCLIP train too."""
    # initial weights of an open_clip/NAME tower: a file, a folder, or one of open_clip's tags; of a transformers tower: a
    # folder with config.json, model.safetensors and tokenizer; null: random weights
    weights: str | None = reaches(None)
    """Path, or tag of open_clip. None, as in MERU and HyCoCLIP: random weights."""
    # size of the tokenizer's vocabulary
    vocab_size: int = 49_408
    """Tokens, at least 1. CLIP's: 512 for bytes, 48,894 merges, start and end of text."""
    # maximum number of tokens of a text; longer texts are truncated
    context_length: int = 77
    """Tokens with start and end of text, at least 1. 77 in MERU, HyCoCLIP and CLIP's released code."""
    # number of first positions that keep their embeddings if the initial weights have fewer than context_length: the
    # others are interpolated linearly (Long-CLIP: 20); null: the initial weights must have context_length positions
    stretch_after: int | None = None
    """Positions, at least 0. Long-CLIP (arXiv 2403.15378, section 3.1) keeps 20 of 77."""
    # width of the transformer
    width: int = 512
    """Numbers of a token's state; a multiple of `heads`. 512 in CLIP, MERU and HyCoCLIP."""
    # number of transformer blocks
    layers: int = 12
    """Blocks, at least 1. 12 in CLIP, MERU and HyCoCLIP."""
    # attention heads of each block
    heads: int = 8
    """Heads, at least 1. 8 in CLIP, with 64 channels each."""
    # noise on the token embeddings while training (NEFTune, arXiv 2310.05914): uniform in [-a, a], a = embedding_noise /
    # sqrt(tokens * width), of the papers' transformer and those of open_clip. HAC: 0.1
    embedding_noise: float = 0.0
    """Factor a of the noise, at least 0. 0 in MERU and HyCoCLIP."""
    # keep the initial weights of the tower; its projection is trained in any case
    frozen: bool = False
    """False: the papers train the tower. MERU's table 3 freezes it."""
    # feature of a text in a transformers tower: cls, the state of its first token; mean, the mean of its tokens' states;
    # last, the state of its last token, such as end of text; pooler, the output of the network's own pooler
    pooling: Literal["cls", "mean", "last", "pooler"] = "mean"
    """How a tower of transformers pools its states. Ours: the mean needs no trained class token."""
    # id of the padding in batches for a transformers tower, which does not attend to it; -1: none of the vocabulary
    pad_id: int = 0
    """Id, at least -1. 0 is the padding of CLIP's tokenizer here, and of BERT."""
    # configuration of a transformers tower, as in its config.json, or of an open_clip/NAME tower, as in its text_cfg; keys
    # that are given replace those of the file or of the architecture; of a head: as model.image.kwargs
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Names and values as in config.json or text_cfg. Empty for the papers' transformer."""

    def __post_init__(self) -> None:
        check_range(self, "stretch_after", least=0)
        check_range(self, "pad_id", least=-1)
        check_range(self, "embedding_noise", least=0, below=math.inf)
        if self.embedding_noise and not (self.name is None or self.name.startswith(OPEN_CLIP)):
            raise UserError(f"embedding_noise is {self.embedding_noise}, but {self.name} has none; set it to 0")
        check_positive(self, "vocab_size", "context_length", "width", "layers", "heads")
        if self.name == TRANSFORMERS:
            if self.stretch_after is not None:
                raise UserError(f"stretch_after is for other towers than {TRANSFORMERS}; set it to null")
            return
        if self.name == CACHED:
            check_head(self.kwargs, self.stretch_after is not None or self.frozen)
            return
        if (self.kwargs and self.name is None) or self.pooling != "mean":
            raise UserError(
                f"pooling and kwargs are for name={TRANSFORMERS}, and kwargs for {OPEN_CLIP}NAME and heads on "
                "data.features; remove them, or give either"
            )
        if self.width % self.heads:
            raise UserError(f"width is {self.width}; give a multiple of heads, {self.heads}")
        if self.name is not None and not self.name.startswith(OPEN_CLIP):
            raise UserError(
                f"name is {self.name!r}; give {OPEN_CLIP}NAME, {TRANSFORMERS}, or null for the papers' transformer"
            )

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of the longest text in a batch: token ids (context_length,), or a cached feature (f,)."""
        return (self.kwargs["width"],) if self.name == CACHED else (self.context_length,)


def check_head(kwargs: dict[str, Any], has_other_settings: bool) -> None:
    """Raise UserError for settings that the head of a cached tower does not have."""
    if unknown := sorted(kwargs.keys() - CACHED_KEYS):
        raise UserError(f"kwargs has no {unknown[0]} for name={CACHED}; the head has hidden and depth")
    if "width" not in kwargs:
        raise UserError(f"name={CACHED} needs the width of the features; give data.features=FOLDER, which sets it")
    for key, least in (("width", 1), ("hidden", 1), ("depth", 0)):
        if not isinstance(value := kwargs.get(key, least), int) or value < least:
            raise UserError(f"kwargs has {key}={value!r}; give a whole number of at least {least}")
    if has_other_settings:
        raise UserError(
            f"patch_dropout, stretch_after and frozen are for a tower that is trained, not for name={CACHED}"
        )


def is_timm_model(name: str) -> bool:
    """True if timm has a network of this name. Imports timm, and with it torch."""
    import timm

    return bool(timm.is_model(name))
