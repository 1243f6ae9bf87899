"""Configurations of GLIP: the three released architectures, and a miniature built from the same modules."""

import dataclasses
import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast

from hypergrit_common.config import flatten, from_plain, without_keys
from hypergrit_common.errors import UserError

TRAINING_KEYS = ("loss", "drop_block", "drop_path", "dropout", "fuse_dropout")
"""Keys of a config.json that only the training read. Commit 5af35950 is the last that has it."""
MAX_DEPTH = 100  # a config.json is read from untrusted repositories and must not build a huge network


@dataclass(frozen=True, kw_only=True)
class SwinConfig:
    """Swin transformer v1 (Liu et al., ICCV 2021). The defaults are Swin-T of GLIP-T.

    Attributes:
        embed_dim: channels of the first stage; each further one has twice as many.
        depths: blocks of the four stages.
        heads: attention heads of the four stages.
        window: side of an attention window, in cells.
    """

    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of the feature maps at strides 8, 16 and 32."""
        return tuple(self.embed_dim * 2**stage for stage in (1, 2, 3))


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A small residual network of timm, for the miniature."""

    # blocks of two convolutions, per stage
    layers: tuple[int, ...] = (1, 1, 1, 1)
    # channels, per stage
    widths: tuple[int, ...] = (48, 96, 160, 192)
    stem_width: int = 16
    # groups of GroupNorm, which unlike BatchNorm makes the result of an image independent of its batch
    norm_groups: int = 8

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of the feature maps at strides 8, 16 and 32."""
        return self.widths[1:]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `timm.create_model("resnet10t", ...)` except `norm_layer`."""
        return {
            "layers": list(self.layers),
            "channels": list(self.widths),
            "stem_type": "deep",
            "stem_width": self.stem_width,
            "avg_down": True,
        }


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """BERT, and the conversion of captions to its input. The defaults are bert-base-uncased, with GLIP's prompt length.

    Attributes:
        vocab_size: word pieces; the vocabulary may have fewer.
        hidden_size: width d of the hidden states; a multiple of `heads`.
        layers: transformer blocks.
        heads: attention heads of each block.
        intermediate_size: width of the hidden layers of the MLPs.
        max_positions: position embeddings, at least `max_tokens`.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    # maximum number of word pieces of a prompt, including [CLS] and [SEP]
    max_tokens: int = 256
    # words of a phrase that do not contribute to its score; the miniature ignores articles
    ignored_words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The tower (fusion, text layer, DyConv), and the box and token predictors."""

    channels: int = 256
    rounds: int = 6
    # deep fusion of image and text; GLIP-T(A) has none
    fuse: bool = True
    fuse_width: int = 2048
    fuse_heads: int = 8
    norm_groups: int = 16
    dyrelu_reduction: int = 4
    deformable: bool = True
    # Conversion of a level's offsets to the size of the next coarser level. flat_memory reproduces a property of the
    # kernel that the released weights were trained with (see `dyconv.flat_memory`); the miniature has resize.
    coarse_offsets: Literal["flat_memory", "resize"] = "flat_memory"
    # channels of `cls_logits`, a layer that the released files contain but no result depends on
    unused_classes: int = 80
    # initial logarithm of the temperature of the token logits
    log_scale: float = 0.0
    # initial probability of each token
    prior: float = 0.01


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """One square anchor per cell."""

    # strides of the levels P3 to P7, in pixels
    strides: tuple[int, ...] = (8, 16, 32, 64, 128)
    # side of an anchor, as a multiple of its level's stride
    size: float = 8.0


@dataclass(frozen=True, kw_only=True)
class DetectConfig:
    """Image size, and selection of boxes from the logits. The defaults, except the score threshold, are GLIP's.

    Attributes:
        short_side_px: shorter side of the network's input, in pixels.
        max_side_px: largest longer side; if it would be exceeded, both sides are smaller.
        top_per_level: candidates of a level of the pyramid that go into the suppression.
        max_boxes: boxes of an image.
    """

    short_side_px: int = 800
    max_side_px: int = 1333
    # minimum class probability of a box, before its centerness is taken into account
    min_class_prob: float = 0.05
    top_per_level: int = 1000
    max_boxes: int = 100
    # IoU above which a box suppresses another box of the same phrase
    nms_iou: float = 0.6
    # minimum score of the boxes that the pipeline keeps; GRIT uses 0.65 (Kosmos-2, section 2.1)
    score_threshold: float = 0.65


@dataclass(frozen=True, kw_only=True)
class GlipConfig:
    """The configuration of a GLIP network."""

    backbone: SwinConfig | ConvConfig = field(default_factory=SwinConfig)
    text: TextConfig = field(default_factory=TextConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)

    def __post_init__(self) -> None:
        for key, value in flatten(dataclasses.asdict(self)).items():
            for number in value if isinstance(value, list) else [value]:
                least = 0 if key.endswith("unused_classes") or isinstance(number, float) else 1
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                if is_number and not (math.isfinite(number) and (number >= least or key.endswith("log_scale"))):
                    raise UserError(f"{key} is {number}; give {least} or more")
        if len(self.anchors.strides) != 5:
            raise UserError(f"anchors.strides must hold five strides (P3 to P7), got {self.anchors.strides}")
        blocks = self.backbone.depths if isinstance(self.backbone, SwinConfig) else self.backbone.layers
        if max(sum(blocks), self.text.layers, self.head.rounds) > MAX_DEPTH:
            raise UserError(f"backbone, text tower and head must not be deeper than {MAX_DEPTH} blocks")


_SWIN_L = SwinConfig(embed_dim=192, depths=(2, 2, 18, 2), heads=(6, 12, 24, 48), window=12)

MINIATURE = GlipConfig(
    backbone=ConvConfig(),
    text=TextConfig(
        vocab_size=1400, hidden_size=96, layers=2, heads=4, intermediate_size=384, max_positions=128, max_tokens=128,
        ignored_words=("a", "an", "the"),
    ),
    head=HeadConfig(
        channels=64, rounds=2, fuse_width=128, fuse_heads=4, coarse_offsets="resize",
        unused_classes=0, log_scale=-2.5,
    ),
    anchors=AnchorConfig(size=4.0),
    detect=DetectConfig(short_side_px=224, max_side_px=448, score_threshold=0.40),
)  # fmt: skip

CONFIGS = MappingProxyType(
    {
        "glip_t_a": GlipConfig(head=HeadConfig(fuse=False)),
        "glip_t": GlipConfig(),
        "glip_l": GlipConfig(backbone=_SWIN_L, head=HeadConfig(rounds=8)),
        "miniature": MINIATURE,
    }
)


def from_dict(values: dict[str, Any]) -> GlipConfig:
    """Build a configuration from the values of `dataclasses.asdict`. Keys of the training are ignored.

    Raises UserError naming the first key that is unknown or has a value of the wrong type.
    """
    backbone = values.get("backbone")
    kind = ConvConfig if isinstance(backbone, dict) and "widths" in backbone else SwinConfig
    return cast(
        GlipConfig, from_plain(GlipConfig, without_keys(values, TRAINING_KEYS), "GLIP config", {"backbone": kind})
    )
