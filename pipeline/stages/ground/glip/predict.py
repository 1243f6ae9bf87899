"""GLIP as a grounder of the pipeline: scored boxes for images, captions and character spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypergrit_common.devices import Precision, autocast, resolve_precision, torch_dtype
from hypergrit_common.images import Image
from pipeline.stages.ground.glip.config import DetectConfig
from pipeline.stages.ground.glip.head import to_exclusive
from pipeline.stages.ground.glip.load import find_vocabulary, find_weights, load_glip
from pipeline.stages.ground.glip.model import Detections, Glip, GlipOutput, detect
from pipeline.stages.ground.glip.text import PhraseTokens, Plan, Prompt, Prompter, pad_prompts, positive_map
from pipeline.stages.ground.grounder import Detection, Grounded, OnCpu, Span, pinned, take

# Prepare images for GLIP: resize by the shorter side, pad to a common size, convert to BGR, normalise.

MEAN_BGR = (103.530, 116.280, 123.675)  # of ImageNet, for values from 0 to 255
STD_BGR = (57.375, 57.120, 58.395)
DIVISOR = 32  # padded heights and widths are multiples of it: the coarsest stride of the image tower

Size = tuple[int, int]
"""Height and width, in pixels."""


def network_size(height: int, width: int, config: DetectConfig) -> Size:
    """Return the size to which an image is resized for the network.

    Args:
        height: height of the image, in pixels.
        width: its width.
        config: limits.

    Returns:
        Height and width: the shorter side is `short_side_px`, or less if the longer would exceed `max_side_px`.
    """
    short, long = min(height, width), max(height, width)
    target = config.short_side_px
    if long / short * target > config.max_side_px:
        target = max(round(config.max_side_px * short / long), 1)
    # The aspect ratio is not preserved if the shorter side shrinks to one pixel.
    scaled = min(int(target * long / short), config.max_side_px)
    return (target, scaled) if height <= width else (scaled, target)


def padded_size(size: Size) -> Size:
    """Return height and width, rounded up to multiples of 32, the coarsest stride of the image tower.

    Args:
        size: height and width, in pixels.

    Returns:
        Height and width.
    """
    return -(-size[0] // DIVISOR) * DIVISOR, -(-size[1] // DIVISOR) * DIVISOR


def resize_bilinear(image: Image, size: Size) -> Image:
    """Resize to (height, width) with antialiasing, as PIL's bilinear filter does."""
    if image.shape[:2] == size:
        return image
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    out = torch.nn.functional.interpolate(pixels, size=size, mode="bilinear", antialias=True, align_corners=False)
    return out[0].permute(1, 2, 0).numpy()


def batch_images(images: Sequence[Image]) -> Tensor:
    """Stack RGB images into uint8 [b, 3, h, w], BGR, zero-padded at the right and bottom to a common padded size."""
    height, width = padded_size((max(image.shape[0] for image in images), max(image.shape[1] for image in images)))
    batch = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    for row, image in zip(batch, images, strict=True):
        for channel, plane in enumerate(row):
            plane[: image.shape[0], : image.shape[1]] = torch.from_numpy(image[:, :, 2 - channel])
    return batch


def normalise(pixels: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Normalise the result of `batch_images` to float32, and set the padding of each image to 0."""
    batch = pixels.float()
    # The means are Python numbers, because copying a tensor of means to a GPU would synchronize with it.
    for channel, (mean, std) in enumerate(zip(MEAN_BGR, STD_BGR, strict=True)):
        batch[:, channel].sub_(mean).div_(std)
    for row, (height, width) in zip(batch, sizes, strict=True):
        row[:, height:] = 0
        row[:, :, width:] = 0
    return batch


class ImagePrompt(NamedTuple):
    """A prompt, and the index in the batch of the image that it belongs to."""

    image: int
    prompt: Prompt


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The network's input for a batch."""

    sizes: list[Size]  # of each resized image, without padding
    plans: list[Plan]  # of each caption
    groups: list[tuple[list[int], Tensor]]  # per padded size: indices of the images, and their pixels (batch_images)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Output of the network for a batch; copies from a GPU may still be in progress."""

    prepared: Prepared
    passes: list[tuple[list[ImagePrompt], OnCpu]]  # tensors of GlipOutput; one row per prompt


class GlipGrounder:
    """A GLIP model as a grounder. Returns the boxes that score at least `floor` after suppression within each phrase.

    Only images of the same padded size share a batch, because the fusion layers also attend to padding. The result of
    an image therefore does not depend on the other images. A caption that is too long for the text tower is split into
    several prompts; the image tower still runs once per image. In half precision, the sampling of deformable
    convolutions, softmaxes, logits and boxes stay in float32.

    Args:
        model: the network, which is moved to `device` and set to evaluation mode.
        prompter: tokenizer with the vocabulary of its text tower.
        device: device of the network.
        floor: smallest score of a box, in [0, 1].
        precision: number format; "auto" is bf16 on GPUs that have it, else fp32.
    """

    def __init__(
        self, model: Glip, prompter: Prompter, device: torch.device, floor: float, precision: Precision = "auto"
    ) -> None:
        self.model = model.to(device).eval()
        self.prompter, self.device, self.floor = prompter, device, floor
        self.dtype = torch_dtype(resolve_precision(precision, device))

    def bucket(self, height: int, width: int) -> Size:
        """Return the padded size of an image. Only images of the same padded size can share a batch.

        Args:
            height: height of the stored image, in pixels.
            width: its width.

        Returns:
            Height and width of the network's input, multiples of 32.
        """
        return padded_size(network_size(height, width, self.model.config.detect))

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Tokenize captions and resize images; pixels are in pinned memory if the network is on a GPU.

        Args:
            images: as in `Grounder`.
            captions: as in `Grounder`.
            spans: as in `Grounder`.

        Returns:
            Prompts, and uint8 BGR pixels of the images that have one.
        """
        sizes = [network_size(image.shape[0], image.shape[1], self.model.config.detect) for image in images]
        plans = [self.prompter.plan(caption, row) for caption, row in zip(captions, spans, strict=True)]
        by_size: dict[Size, list[int]] = {}
        for i, plan in enumerate(plans):
            if plan.prompts:
                by_size.setdefault(padded_size(sizes[i]), []).append(i)
        groups = []
        for indices in by_size.values():
            pixels = batch_images([resize_bilinear(images[i], sizes[i]) for i in indices])
            groups.append((indices, pinned(pixels, self.device)))
        return Prepared(sizes=sizes, plans=plans, groups=groups)

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> Predictions:
        """Run the image tower once per image, then the other layers once per prompt, in batches of the same size.

        Args:
            prepared: a result of `prepare`.

        Returns:
            Predictions, whose copies from a GPU may still be in progress.
        """
        passes = []
        for indices, pixels in prepared.groups:
            images = normalise(pixels.to(self.device, non_blocking=True), [prepared.sizes[i] for i in indices])
            with autocast(self.device, self.dtype):
                visual = self.model.backbone(images)
            jobs = [
                (row, ImagePrompt(i, prompt)) for row, i in enumerate(indices) for prompt in prepared.plans[i].prompts
            ]
            for start in range(0, len(jobs), len(indices)):
                part = jobs[start : start + len(indices)]
                output = self._ground(visual, [row for row, _ in part], [item.prompt for _, item in part])
                tensors = OnCpu([output.token_logits, output.deltas, output.centerness, *output.anchors])
                passes.append(([item for _, item in part], tensors))
        return Predictions(prepared=prepared, passes=passes)

    def _ground(self, visual: list[Tensor], rows: list[int], prompts: Sequence[Prompt]) -> GlipOutput:
        """Run the layers after the image tower on these rows of the feature pyramid, with one prompt per row."""
        ids, mask = (pinned(part, self.device) for part in pad_prompts([prompt.ids for prompt in prompts]))
        with autocast(self.device, self.dtype):
            return self.model.ground(
                take(visual, rows), ids.to(self.device, non_blocking=True), mask.to(self.device, non_blocking=True)
            )

    @torch.inference_mode()
    def collect(self, predictions: Predictions) -> list[Grounded]:
        """Select the boxes of each image, on the CPU.

        Args:
            predictions: a result of `forward`.

        Returns:
            Boxes and dropped phrases of each image.
        """
        prepared, config = predictions.prepared, self.model.config.detect
        found: list[list[Detection]] = [[] for _ in prepared.sizes]
        for items, tensors in predictions.passes:
            logits, deltas, centerness, *anchors = tensors.wait()
            output = GlipOutput(token_logits=logits, deltas=deltas, centerness=centerness, anchors=anchors)
            for k, (i, prompt) in enumerate(items):
                height, width = prepared.sizes[i]
                for phrases in filter(None, (prompt.phrases, prompt.overlapping)):
                    labels = positive_map([tokens for _, tokens in phrases], logits.shape[2])
                    boxes = detect(output, k, labels, (width, height), config, self.floor)
                    found[i] += to_detections(boxes, phrases, height, width)
        return [
            Grounded(boxes=boxes, dropped=dict(plan.dropped)) for boxes, plan in zip(found, prepared.plans, strict=True)
        ]


def to_detections(found: Detections, phrases: Sequence[PhraseTokens], height: int, width: int) -> list[Detection]:
    """Convert boxes of phrases in inclusive pixels to fractions of the image; `height` and `width` are its resized size."""
    edges = to_exclusive(found.boxes)
    boxes = (edges / edges.new_tensor([width, height] * 2)).clamp(0, 1).tolist()
    rows = zip(found.labels.tolist(), boxes, found.scores.tolist(), strict=True)
    return [Detection(phrases[label].phrase, tuple(box), score) for label, box, score in rows]


def load_glip_grounder(
    name: str | Path,
    device: torch.device,
    floor: float,
    *,
    vocabulary: str | None = None,
    precision: Precision = "auto",
) -> GlipGrounder:
    """Load the grounder of a folder, weight file or hub name (see `load.find_weights`).

    Args:
        name: as in `load_glip`.
        device: device of the network.
        floor: smallest score of a box, in [0, 1].
        vocabulary: path, URL or hub name of a vocab.txt; None: the one beside the weights.
        precision: number format.

    Returns:
        The grounder, in evaluation mode.

    Raises:
        UserError: a file is missing or invalid; the message names it.
    """
    path = find_weights(name)
    vocab = find_vocabulary(vocabulary, path)
    model = load_glip(path)
    prompter = Prompter(vocab, model.config.text)
    return GlipGrounder(model, prompter, device, floor, precision)
