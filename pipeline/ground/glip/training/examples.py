"""Training examples (an image, its caption, and the boxes of its phrases), and batches of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.images import Image
from pipeline.ground.glip.box_coder import to_inclusive
from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.images import batch_images, network_size, normalise, resize_bilinear
from pipeline.ground.glip.text import Prompt, Prompter, pad_prompts, positive_map
from pipeline.ground.glip.training.loss import Target
from pipeline.ground.grounder import Span


@dataclass(frozen=True, kw_only=True)
class LabelledPhrase:
    """A phrase of a caption and its boxes; a phrase that the image does not show has no boxes."""

    span: Span
    boxes: tuple[int, ...]  # indices into the boxes of the example


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image, its caption, and the true boxes of its phrases: xyxy in pixels, right and bottom exclusive."""

    image: Image
    caption: str
    phrases: Sequence[LabelledPhrase]
    boxes: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The input of one training step."""

    images: Tensor  # [b, 3, h, w], normalised and padded
    ids: Tensor  # [b, t]
    mask: Tensor  # [b, t], 0 for padding
    targets: list[Target]


def collate(examples: Sequence[Example], prompter: Prompter, config: GlipConfig) -> Batch:
    """Build a batch, padded to its largest image and longest prompt.

    If a caption is split into several prompts, only the first one is used. Raises ValueError for a caption without a
    phrase that can be tokenized.
    """
    images, prompts, scaled = [], [], []
    for example in examples:
        size = network_size(example.image.shape[0], example.image.shape[1], config.detect)
        images.append(resize_bilinear(example.image, size))
        plan = prompter.plan(example.caption, [phrase.span for phrase in example.phrases], "caption")
        if not plan.prompts:
            raise ValueError(f"no phrase of the caption {example.caption!r} can be tokenized: {plan.dropped}")
        prompts.append(plan.prompts[0])
        scale = torch.tensor([size[1] / example.image.shape[1], size[0] / example.image.shape[0]] * 2)
        scaled.append(torch.tensor(example.boxes, dtype=torch.float32).view(-1, 4) * scale)
    ids, mask = pad_prompts([prompt.ids for prompt in prompts])
    return Batch(
        images=normalise(batch_images(images), [image.shape[:2] for image in images]),
        ids=ids,
        mask=mask,
        targets=[
            make_target(example, prompt, boxes, ids.shape[1])
            for example, prompt, boxes in zip(examples, prompts, scaled, strict=True)
        ],
    )


def make_target(example: Example, prompt: Prompt, boxes: Tensor, length: int) -> Target:
    """Return the boxes of the prompt's phrases; `boxes` are those of the example in pixels of the network's input."""
    tokens = torch.zeros(len(boxes), length, dtype=torch.bool)
    maps = positive_map([item.tokens for item in prompt.phrases], length)
    for item, row in zip(prompt.phrases, maps, strict=True):
        for box in example.phrases[item.phrase].boxes:
            tokens[box] |= row
    is_named = tokens.any(dim=1)
    return Target(boxes=to_inclusive(boxes)[is_named], tokens=tokens[is_named])


def batches(examples: Iterable[Example], prompter: Prompter, config: GlipConfig, size: int) -> Iterator[Batch]:
    """Yield batches of `size` consecutive examples; an incomplete last batch is dropped."""
    waiting: list[Example] = []
    for example in examples:
        waiting.append(example)
        if len(waiting) == size:
            yield collate(waiting, prompter, config)
            waiting = []
