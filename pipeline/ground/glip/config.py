"""Configurations of GLIP: the three released graphs and the miniature are one set of modules with other numbers."""

import dataclasses
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

MAX_DEPTH = 100


@dataclass(frozen=True, kw_only=True)
class SwinConfig:
    """Swin transformer v1 (Liu et al., ICCV 2021)."""

    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    drop_path: float = 0.2  # of the last block; linear over depth

    @property
    def channels(self) -> tuple[int, ...]:
        """Widths of the outputs at strides 8, 16 and 32."""
        return tuple(self.embed_dim * 2**stage for stage in (1, 2, 3))


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A small residual network of timm, for the miniature."""

    layers: tuple[int, ...] = (1, 1, 1, 1)  # blocks of two convolutions, per stage
    widths: tuple[int, ...] = (48, 96, 160, 192)
    stem_width: int = 16
    norm_groups: int = 8  # GroupNorm: an image's result must not depend on its batch

    @property
    def channels(self) -> tuple[int, ...]:
        """Widths of the outputs at strides 8, 16 and 32."""
        return self.widths[1:]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keywords of `timm.create_model("resnet10t", ...)`, but for the norm; such a CLIP tower can start this one."""
        return {
            "layers": list(self.layers),
            "channels": list(self.widths),
            "stem_type": "deep",
            "stem_width": self.stem_width,
            "avg_down": True,
        }


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """BERT, and how captions become its input."""

    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    max_tokens: int = 256  # word pieces of a prompt, [CLS] and [SEP] included
    dropout: float = 0.1
    ignored_words: tuple[str, ...] = ()  # of a phrase; the miniature learns no score for its determiners


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The tower (fuse, text layer, DyConv), the box and token heads."""

    channels: int = 256
    rounds: int = 6
    fuse: bool = True  # GLIP-T(A) has none: the words never see the image
    fuse_width: int = 2048
    fuse_heads: int = 8
    fuse_dropout: float = 0.1
    norm_groups: int = 16
    dyrelu_reduction: int = 4
    deformable: bool = True
    # Offsets of DyConv.0 belong to the finer level. The released weights were trained with a kernel that read the map's
    # flat memory with the coarser level's pitch; training from scratch resizes the map.
    coarse_offsets: Literal["flat_memory", "resize"] = "flat_memory"
    unused_classes: int = 80  # width of `cls_logits`, a layer that the released files carry and no result depends on
    log_scale: float = 0.0  # start of the log temperature of the token logits; smaller is sharper
    prior: float = 0.01  # start of every token's probability


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """One square anchor a cell."""

    strides: tuple[int, ...] = (8, 16, 32, 64, 128)
    size: float = 8.0  # side, in strides


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """ATSS, token focal loss and box losses (released training configurations)."""

    candidates: int = 9  # anchors per level and box, by centre distance
    focal_alpha: float = 0.25
    focal_gamma: float = 2.0
    box_weight: float = 2.0


@dataclass(frozen=True, kw_only=True)
class DetectConfig:
    """From logits to boxes, as GLIP does it; the last is where the pipeline draws the line."""

    short_side_px: int = 800
    max_side_px: int = 1333
    min_class_prob: float = 0.05  # before centerness enters the score
    top_per_level: int = 1000
    max_boxes: int = 100
    nms_iou: float = 0.6  # among boxes of one phrase
    score_threshold: float = 0.65  # GRIT (Kosmos-2, section 2.1)


@dataclass(frozen=True, kw_only=True)
class GlipConfig:
    """One GLIP model."""

    backbone: SwinConfig | ConvConfig = field(default_factory=SwinConfig)
    text: TextConfig = field(default_factory=TextConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    drop_block: float = 0.3  # probability, before two of the FPN's 3x3 layers, in training

    def __post_init__(self) -> None:
        if len(self.anchors.strides) != 5:
            raise ValueError(f"anchors.strides must hold five strides (P3 to P7), got {self.anchors.strides}")
        blocks = self.backbone.depths if isinstance(self.backbone, SwinConfig) else self.backbone.layers
        if max(sum(blocks), self.text.layers, self.head.rounds) > MAX_DEPTH:  # a configuration may come with weights
            raise ValueError(f"no tower may be deeper than {MAX_DEPTH} blocks")


_SWIN_L = SwinConfig(embed_dim=192, depths=(2, 2, 18, 2), heads=(6, 12, 24, 48), window=12, drop_path=0.4)

MINIATURE = GlipConfig(
    backbone=ConvConfig(),
    text=TextConfig(
        vocab_size=1400, hidden_size=96, layers=2, heads=4, intermediate_size=384, max_positions=128, max_tokens=128,
        dropout=0.0, ignored_words=("a", "an", "the"),
    ),
    head=HeadConfig(
        channels=64, rounds=2, fuse_width=128, fuse_heads=4, fuse_dropout=0.0, coarse_offsets="resize",
        unused_classes=0, log_scale=-2.5,
    ),
    anchors=AnchorConfig(size=4.0),
    detect=DetectConfig(short_side_px=224, max_side_px=448, score_threshold=0.40),
    drop_block=0.0,
)  # fmt: skip

CONFIGS = MappingProxyType(
    {
        "glip_t_a": GlipConfig(head=HeadConfig(fuse=False)),
        "glip_t": GlipConfig(),
        "glip_l": GlipConfig(backbone=_SWIN_L, head=HeadConfig(rounds=8)),
        "miniature": MINIATURE,
    }
)


def to_dict(config: GlipConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> GlipConfig:
    """The configuration of `to_dict`'s dictionary; an unknown key is an error that names it."""
    backbone = values.get("backbone", {}) if isinstance(values, dict) else {}
    kind = ConvConfig if isinstance(backbone, dict) and "widths" in backbone else SwinConfig
    return _build(GlipConfig, values, {"backbone": kind}, "")


def _build(cls: Any, values: Any, kinds: dict[str, Any], path: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(
            f"GLIP config: `{path.rstrip('.') or 'the whole'}` must be a mapping, got {type(values).__name__}"
        )
    hints = get_type_hints(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise ValueError(f"GLIP config: unknown key {path}{unknown[0]}; known: {', '.join(sorted(hints))}")
    return cls(**{key: _field(kinds.get(key, hints[key]), value, f"{path}{key}") for key, value in values.items()})


def _field(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, {}, f"{path}.")
    choices = get_args(hint)
    if choices[1:] == (...,):
        if not isinstance(value, list | tuple):
            raise ValueError(f"GLIP config: {path} must be a list, got {value!r}")
        return tuple(_field(choices[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ValueError(f"GLIP config: {path} is {value!r}; choose one of {', '.join(choices)}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise ValueError(f"GLIP config: {path} must be {hint.__name__}, got {value!r}")
    return value
