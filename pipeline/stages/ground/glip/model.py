"""The GLIP network: boxes and token logits for a batch of images of the same padded size and their prompts."""

from dataclasses import dataclass
from functools import partial

import timm
import torch
from timm.layers import GroupNorm
from torch import Tensor, nn
from torchvision.ops import batched_nms
from transformers import BertConfig, BertModel

from pipeline.stages.ground.glip.config import ConvConfig, DetectConfig, GlipConfig, SwinConfig, TextConfig
from pipeline.stages.ground.glip.fuse import Fpn, level_sizes
from pipeline.stages.ground.glip.head import GlipHead, decode, inclusive_sides, pyramid_anchors, to_exclusive
from pipeline.stages.ground.glip.swin import Swin

# The language tower: BERT of transformers, under the released key names.


class LanguageBackbone(nn.Module):
    """Hidden states [b, t, d] of word pieces. Padding has hidden states too, but no position attends to it."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        bert = BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_positions,
        )
        self.body = nn.ModuleDict({"model": BertModel(bert, add_pooling_layer=False)})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        # A 4-D mask: for a 2-D mask, transformers checks on the CPU for zeros, which synchronizes with the GPU.
        return self.body["model"](input_ids=ids, attention_mask=mask[:, None, None].bool()).last_hidden_state


# The image tower: Swin for the released models, a small residual network of timm for the miniature.


class ConvBackbone(nn.Module):
    """A residual network of timm with feature maps at strides 8, 16 and 32. Its keys have the prefix `model.`.

    Args:
        config: its sizes.
    """

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.model = timm.create_model(
            "resnet10t",
            pretrained=False,
            features_only=True,
            out_indices=(2, 3, 4),
            norm_layer=partial(GroupNorm, num_groups=config.norm_groups),
            **config.kwargs,
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Compute the feature maps of images.

        Args:
            images: normalised [b 3 h w]; h and w are multiples of 32.

        Returns:
            Maps [b c h/8 w/8], [b c' h/16 w/16] and [b c'' h/32 w/32], with the channels of the configuration.
        """
        return list(self.model(images))


@dataclass(frozen=True, kw_only=True)
class GlipOutput:
    """Predictions for each anchor. Levels are joined fine to coarse; cells are row-major."""

    token_logits: Tensor  # [b, cells, t]
    deltas: Tensor  # [b, cells, 4], see box_coder
    centerness: Tensor  # [b, cells], logits
    anchors: list[Tensor]  # per level [h*w, 4], xyxy pixels of the network's input


class ImageBackbone(nn.Module):
    """Image tower and feature pyramid, under their released key names."""

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        self.body = Swin(config.backbone) if isinstance(config.backbone, SwinConfig) else ConvBackbone(config.backbone)
        self.fpn = Fpn(config.backbone.channels, config.head.channels)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.fpn(self.body(images))


class Glip(nn.Module):
    """The full network (GLIP, Li et al., CVPR 2022).

    The keys of its state dict are those of the released checkpoints without `module.`.

    Args:
        config: architecture.
    """

    def __init__(self, config: GlipConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = ImageBackbone(config)
        self.language_backbone = LanguageBackbone(config.text)
        self.rpn = nn.ModuleDict({"head": GlipHead(config)})

    def forward(self, images: Tensor, ids: Tensor, mask: Tensor) -> GlipOutput:
        """Predict token logits and boxes for each anchor.

        Args:
            images: normalised BGR images, padded to a common size [b 3 h w]; h and w are multiples of 32.
            ids: word pieces [b t] int64 of one prompt for each image.
            mask: int64 [b t], 0 for padding, which does not change the result.

        Returns:
            Predictions in float32.
        """
        return self.ground(self.backbone(images), ids, mask)

    def ground(self, visual: list[Tensor], ids: Tensor, mask: Tensor) -> GlipOutput:
        """Predict from the output of `backbone`, for running several prompts on the same image features.

        Args:
            visual: maps [b c h w] of the pyramid, fine to coarse.
            ids: as in `forward`.
            mask: as in `forward`.

        Returns:
            Predictions in float32.
        """
        lang = self.language_backbone(ids, mask)
        token_logits, deltas, centerness = self.rpn["head"](visual, lang, mask)
        anchors = pyramid_anchors(level_sizes(visual), self.config.anchors, ids.device)
        return GlipOutput(token_logits=token_logits, deltas=deltas, centerness=centerness, anchors=anchors)


# Select the boxes of an image from the network's predictions, as GLIP's released code does.


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Boxes of one image, best first."""

    boxes: Tensor  # [d, 4], xyxy inclusive pixels of the network's input
    scores: Tensor  # [d], sqrt(class probability * centerness)
    labels: Tensor  # [d], row index in the positive map

    def __getitem__(self, keep: Tensor) -> "Detections":
        return Detections(boxes=self.boxes[keep], scores=self.scores[keep], labels=self.labels[keep])


def class_probability(token_logits: Tensor, positive_map: Tensor) -> Tensor:
    """Mean probability [n, labels] of the word pieces of each label; positive_map is bool [labels, t]."""
    weight = positive_map.float() / positive_map.sum(dim=1, keepdim=True).clamp(min=1)
    return token_logits.float().sigmoid() @ weight.T


def detect(
    output: GlipOutput,
    index: int,
    positive_map: Tensor,
    size: tuple[int, int],
    config: DetectConfig,
    floor: float = 0.0,
) -> Detections:
    """Detections of image `index`, whose unpadded size is (width, height), with a score of at least `floor`.

    `floor` is applied before the suppression. This does not change the result, because a box never suppresses one with
    a higher score.
    """
    anchors = torch.cat(output.anchors)
    probability = class_probability(output.token_logits[index], positive_map)
    squared = probability * output.centerness[index].float().sigmoid()[:, None]
    is_candidate = (probability > config.min_class_prob) & (squared.sqrt() >= floor)
    cell, label = is_candidate.nonzero(as_tuple=True)
    squared = squared[cell, label]
    keep = best_per_level(cell, squared, [len(level) for level in output.anchors], config.top_per_level)
    cell, label, squared = cell[keep], label[keep], squared[keep]
    boxes = decode(output.deltas[index][cell], anchors[cell])
    boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([size[0] - 1, size[1] - 1] * 2))
    found = Detections(boxes=boxes, scores=squared.sqrt(), labels=label)
    found = found[(inclusive_sides(boxes) >= 0).all(dim=1)]
    found = found[batched_nms(to_exclusive(found.boxes), found.scores, found.labels, config.nms_iou)]
    if len(found.scores) > config.max_boxes:  # ties with the last box are kept, as in the released code
        found = found[found.scores >= found.scores[config.max_boxes - 1]]
    return found


def best_per_level(cell: Tensor, scores: Tensor, level_cells: list[int], limit: int) -> Tensor:
    """Indices of the `limit` best candidates of each level; `cell`, the cell of each candidate, must be sorted."""
    ends = torch.tensor(level_cells, device=cell.device).cumsum(0)
    counts = torch.searchsorted(cell, ends).diff(prepend=ends.new_zeros(1)).tolist()
    picks: list[Tensor] = []
    start = 0
    for count in counts:
        part = scores[start : start + count]
        best = part.topk(limit).indices if count > limit else torch.arange(count, device=cell.device)
        picks.append(best + start)
        start += count
    return torch.cat(picks)
