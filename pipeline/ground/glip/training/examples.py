"""What GLIP learns from: images with captions whose phrases own boxes, and batches of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.images import Image
from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.images import batch_images, network_size, normalise, resize
from pipeline.ground.glip.text import Prompter, pad_prompts, positive_map
from pipeline.ground.glip.training.loss import Target
from pipeline.ground.grounder import Span


@dataclass(frozen=True, kw_only=True)
class LabelledPhrase:
    """A phrase of a caption and the boxes that it names; none if the image does not show it."""

    span: Span
    boxes: tuple[int, ...]  # indices into the example's boxes


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image, its caption, and the truth about its phrases. Boxes are xyxy pixels, the far side exclusive."""

    image: Image
    caption: str
    phrases: Sequence[LabelledPhrase]
    boxes: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one step reads."""

    images: Tensor
    ids: Tensor
    mask: Tensor
    targets: list[Target]


def collate(examples: Sequence[Example], prompter: Prompter, config: GlipConfig) -> Batch:
    """A batch of examples, padded to the largest. Phrases past the first prompt's word pieces teach nothing."""
    images, prompts, rows = [], [], []
    for example in examples:
        size = network_size(example.image.shape[0], example.image.shape[1], config.detect)
        images.append(resize(example.image, size))
        plan = prompter.plan(example.caption, [phrase.span for phrase in example.phrases], "caption")
        if not plan.prompts:
            raise ValueError(f"no phrase of the caption {example.caption!r} can be tokenised: {plan.dropped}")
        prompts.append(plan.prompts[0])
        scale = torch.tensor([size[1] / example.image.shape[1], size[0] / example.image.shape[0]] * 2)
        rows.append(torch.tensor(example.boxes, dtype=torch.float32).view(-1, 4) * scale)
    ids, mask = pad_prompts([prompt.ids for prompt in prompts])
    targets = []
    for example, prompt, boxes in zip(examples, prompts, rows, strict=True):
        tokens = torch.zeros(len(boxes), ids.shape[1], dtype=torch.bool)
        maps = positive_map([positions for _, positions in prompt.phrases], ids.shape[1])
        for (index, _), row in zip(prompt.phrases, maps, strict=True):
            for box in example.phrases[index].boxes:
                tokens[box] |= row
        named = tokens.any(dim=1)
        inclusive = boxes - torch.tensor([0.0, 0.0, 1.0, 1.0])
        targets.append(Target(boxes=inclusive[named], tokens=tokens[named]))
    return Batch(
        images=normalise(batch_images(images), [image.shape[:2] for image in images]),
        ids=ids,
        mask=mask,
        targets=targets,
    )


def batches(examples: Iterable[Example], prompter: Prompter, config: GlipConfig, size: int) -> Iterator[Batch]:
    """Batches of `size` consecutive examples; an incomplete last one is left out."""
    waiting: list[Example] = []
    for example in examples:
        waiting.append(example)
        if len(waiting) == size:
            yield collate(waiting, prompter, config)
            waiting = []
