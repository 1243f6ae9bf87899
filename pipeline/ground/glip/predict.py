"""GLIP as the pipeline's grounder: images, captions and character spans in, scored boxes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.devices import Precision, resolve_precision, torch_dtype
from common.images import Image
from pipeline.ground.glip.images import batch_images, network_size, normalise, padded_size, resize
from pipeline.ground.glip.load import VOCAB, find, find_vocabulary, load_glip
from pipeline.ground.glip.model import Glip, GlipOutput
from pipeline.ground.glip.postprocess import Detections, detect
from pipeline.ground.glip.text import Plan, Prompt, Prompter, PromptStyle, pad_prompts, positive_map
from pipeline.ground.grounder import Detection, Grounded, Span
from pipeline.ground.transfer import OnCpu, pinned, take

Size = tuple[int, int]  # height, width
MAX_COMPILED_SIZES = 128  # more than the padded sizes between 800 x 800 and 800 x 1333, both ways up


Job = tuple[int, Prompt]  # the number of an image, and one of its prompts


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch as the network reads it."""

    sizes: list[Size]  # each image's in the network, without padding
    plans: list[Plan]
    groups: list[tuple[list[int], Tensor]]  # numbers of the images of one padded size, and their bytes [b, 3, h, w]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What the network says of a batch, perhaps still on the way."""

    prepared: Prepared
    passes: list[tuple[list[Job], OnCpu]]  # GlipOutput's tensors


class GlipGrounder:
    """Boxes that score at least `floor`, after GLIP's own suppression within each phrase.

    The fuse layers attend to padded cells too, so only images of one padded size share a batch: what an image gets never
    depends on its neighbours. A caption longer than the text tower becomes several prompts on the same image, whose tower
    runs once. In half precision the sampling of deformable convolutions, softmaxes, logits and boxes stay in float32.
    """

    def __init__(
        self,
        model: Glip,
        prompter: Prompter,
        device: torch.device,
        floor: float,
        style: PromptStyle,
        precision: Precision = "auto",
    ) -> None:
        self.model = model.to(device).eval()
        self.prompter, self.device, self.floor, self.style = prompter, device, floor, style
        self.dtype = torch_dtype(resolve_precision(precision, device))

    def bucket(self, height: int, width: int) -> Size:
        """Images that agree in it share a pass through the network: their padded size."""
        return padded_size(network_size(height, width, self.model.config.detect))

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Word pieces, and pixels of the network's size in memory that a GPU can read from."""
        sizes = [network_size(image.shape[0], image.shape[1], self.model.config.detect) for image in images]
        plans = [self.prompter.plan(caption, row, self.style) for caption, row in zip(captions, spans, strict=True)]
        by_size: dict[Size, list[int]] = {}
        for i, plan in enumerate(plans):
            if plan.prompts:
                by_size.setdefault(padded_size(sizes[i]), []).append(i)
        groups = []
        for numbers in by_size.values():
            pixels = batch_images([resize(images[i], sizes[i]) for i in numbers])
            groups.append((numbers, pinned(pixels, self.device)))
        return Prepared(sizes=sizes, plans=plans, groups=groups)

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> Output:
        """The image tower once an image, the rest once a prompt, as many together as there are images."""
        passes = []
        for numbers, pixels in prepared.groups:
            images = normalise(pixels.to(self.device, non_blocking=True), [prepared.sizes[i] for i in numbers])
            with self._autocast():
                visual = self.model.backbone(images)
            jobs = [(row, i, prompt) for row, i in enumerate(numbers) for prompt in prepared.plans[i].prompts]
            for start in range(0, len(jobs), len(numbers)):
                part = jobs[start : start + len(numbers)]
                output = self._ground(visual, [row for row, _, _ in part], [prompt for _, _, prompt in part])
                tensors = OnCpu([output.token_logits, output.deltas, output.centerness, *output.anchors])
                passes.append(([(i, prompt) for _, i, prompt in part], tensors))
        return Output(prepared=prepared, passes=passes)

    def _ground(self, visual: list[Tensor], rows: list[int], prompts: Sequence[Prompt]) -> GlipOutput:
        """Of these rows of the pyramid, a prompt each."""
        ids, mask = (pinned(part, self.device) for part in pad_prompts([prompt.ids for prompt in prompts]))
        with self._autocast():
            return self.model.ground(
                take(visual, rows), ids.to(self.device, non_blocking=True), mask.to(self.device, non_blocking=True)
            )

    @torch.inference_mode()
    def collect(self, output: Output) -> list[Grounded]:
        """Boxes and dropped phrases of each image, chosen on the CPU."""
        prepared, config = output.prepared, self.model.config.detect
        found: list[list[Detection]] = [[] for _ in prepared.sizes]
        for jobs, tensors in output.passes:
            logits, deltas, centerness, *anchors = tensors.wait()
            said = GlipOutput(token_logits=logits, deltas=deltas, centerness=centerness, anchors=anchors)
            for k, (i, prompt) in enumerate(jobs):
                height, width = prepared.sizes[i]
                labels = positive_map([tokens for _, tokens in prompt.phrases], logits.shape[2])
                boxes = detect(said, k, labels, (width, height), config, self.floor)
                found[i] += to_detections(boxes, prompt, height, width)
        return [
            Grounded(boxes=boxes, dropped=dict(plan.dropped)) for boxes, plan in zip(found, prepared.plans, strict=True)
        ]

    def _autocast(self) -> torch.autocast:
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if enabled else None, enabled=enabled)


def to_detections(found: Detections, prompt: Prompt, height: int, width: int) -> list[Detection]:
    """Boxes as fractions of the image; inclusive pixels become edges."""
    plain = torch.cat([found.boxes[:, :2], found.boxes[:, 2:] + 1], dim=1)
    boxes = (plain / plain.new_tensor([width, height] * 2)).clamp(0, 1).tolist()
    rows = zip(found.labels.tolist(), boxes, found.scores.tolist(), strict=True)
    return [Detection(prompt.phrases[label][0], tuple(box), score) for label, box, score in rows]


def load_glip_grounder(
    name: str | Path,
    device: torch.device,
    floor: float,
    style: PromptStyle,
    *,
    vocabulary: str | None = None,
    precision: Precision = "auto",
    compile: bool = False,
) -> GlipGrounder:
    """The grounder of a folder (config.json, model.safetensors, vocab.txt), weight file or hub name (`load.find`).

    The word pieces are `vocabulary`, a file or hub name, or vocab.txt beside the weights. Raises UserError naming what is
    missing.
    """
    path = find(name)
    vocab = find_vocabulary(vocabulary) if vocabulary else (path if path.is_dir() else path.parent) / VOCAB
    model = load_glip(path)
    prompter = Prompter(vocab, model.config.text)
    if compile:
        compile_image_tower(model)
    return GlipGrounder(model, prompter, device, floor, style, precision)


def compile_image_tower(model: Glip) -> None:
    """Have torch.compile make the backbone's code, once for each padded size and batch size.

    Not the head: its shapes follow the prompt's length too, and tracing it with symbolic shapes takes minutes.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_COMPILED_SIZES)
    model.backbone.compile(dynamic=False)  # in place, so that keys and hooks stay
