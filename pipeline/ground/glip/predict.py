"""GLIP as the pipeline's grounder: images, captions and character spans in, scored boxes out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from pipeline.ground.glip.images import batch_images, network_size, padded_size, resize
from pipeline.ground.glip.load import load_glip
from pipeline.ground.glip.model import Glip, GlipOutput
from pipeline.ground.glip.postprocess import Detections, detect
from pipeline.ground.glip.text import Prompt, Prompter, PromptStyle, pad_prompts, positive_map
from pipeline.ground.grounder import Detection, Image, Span


class GlipGrounder:
    """Boxes that score at least `floor`, after GLIP's own suppression within each phrase.

    The fuse layers attend to padded cells too, so only images of one padded size share a batch: what an image gets never depends on its
    neighbours. A caption longer than the text tower becomes several prompts on the same image.
    """

    def __init__(self, model: Glip, prompter: Prompter, device: str, floor: float, style: PromptStyle) -> None:
        self.model = model.to(device).eval()
        self.prompter, self.device, self.floor, self.style = prompter, torch.device(device), floor, style

    def __call__(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[Detection] | None]:
        config, found = self.model.config.detect, [list[Detection]() for _ in images]
        sizes = [network_size(image.shape[0], image.shape[1], config) for image in images]
        resized = [resize(image, size) for image, size in zip(images, sizes, strict=True)]
        plans = [self.prompter.plan(caption, row, self.style) for caption, row in zip(captions, spans, strict=True)]
        jobs = [(i, prompt) for i, plan in enumerate(plans) for prompt in plan.prompts]
        for batch in _batches(jobs, [padded_size(size) for size in sizes], len(images)):
            ids, mask = pad_prompts([prompt.ids for _, prompt in batch])
            output = self._forward([resized[i] for i, _ in batch], ids, mask)
            for row, (i, prompt) in enumerate(batch):
                labels = positive_map([tokens for _, tokens in prompt.phrases], ids.shape[1]).to(self.device)
                height, width = sizes[i]
                found[i] += self._detections(
                    detect(output, row, labels, (width, height), config), prompt, width, height
                )
        return [boxes if plan.prompts else None for boxes, plan in zip(found, plans, strict=True)]

    @torch.inference_mode()
    def _forward(self, images: list[Image], ids: torch.Tensor, mask: torch.Tensor) -> GlipOutput:
        pixels = batch_images(images).to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(pixels, ids.to(self.device), mask.to(self.device))

    def _detections(self, found: Detections, prompt: Prompt, width: int, height: int) -> list[Detection]:
        found = found[found.scores >= self.floor]
        plain = torch.cat([found.boxes[:, :2], found.boxes[:, 2:] + 1], dim=1)  # inclusive pixels to edges
        boxes = (plain / plain.new_tensor([width, height] * 2)).clamp(0, 1).tolist()
        rows = zip(found.labels.tolist(), boxes, found.scores.tolist(), strict=True)
        return [Detection(prompt.phrases[label][0], tuple(box), score) for label, box, score in rows]


def load_glip_grounder(path: Path, device: str, floor: float, style: PromptStyle) -> GlipGrounder:
    """The grounder in a folder (config.json, model.safetensors, vocab.txt), or of a weight file with vocab.txt beside it.

    Raises CheckpointError or FileNotFoundError naming what is missing.
    """
    model = load_glip(path)
    folder = path if path.is_dir() else path.parent
    return GlipGrounder(model, Prompter(folder / "vocab.txt", model.config.text), device, floor, style)


def _batches(
    jobs: Sequence[tuple[int, Prompt]], padded: Sequence[tuple[int, int]], size: int
) -> Iterator[list[tuple[int, Prompt]]]:
    """Jobs of one padded size together, at most `size` of them."""
    by_size: dict[tuple[int, int], list[tuple[int, Prompt]]] = {}
    for job in jobs:
        by_size.setdefault(padded[job[0]], []).append(job)
    for group in by_size.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]
