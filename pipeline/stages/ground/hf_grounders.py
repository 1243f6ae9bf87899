"""Grounding DINO and OWLv2 of transformers as grounders."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torchvision.ops import box_convert

from hypergrit_common.devices import Precision, resolve_precision, torch_dtype
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_folder_files
from hypergrit_common.images import Image
from pipeline.models import fetch, parse_hub_name
from pipeline.stages.ground.grounder import Detection, Grounded, OnCpu, PhraseDrop, Span, pinned, take

SEPARATOR: Final = " . "
"""Text between the phrases of a Grounding DINO prompt; the words of a phrase do not attend to other phrases."""
MAX_PHRASE_CHARS: Final = 1000
"""Longer phrases are dropped before tokenization."""
MAX_ASPECT_RATIO: Final = 20
"""Maximum aspect ratio of the images that are passed to the image processors."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One call of the network, with some images of the batch and one text for each."""

    rows: list[int]  # indices of the images in the batch
    text: Any  # transformers.BatchEncoding
    columns: list[dict[int, list[int]]]
    """For each row: index of a phrase -> its columns of the logits: word pieces (Grounding DINO) or a query (OWLv2)."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The network's input for a batch."""

    pixels: dict[str, Tensor]
    sizes: list[tuple[int, int]]  # height, width of each image
    passes: list[Pass]
    dropped: list[dict[int, PhraseDrop]]


class _HfGrounder:
    """Base class of both models: process images, run the network, and convert its output to detections."""

    def __init__(self, model: Any, processor: Any, floor: float, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.processor, self.floor, self.dtype = model, processor, floor, dtype

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the image size itself, since the image processors pad each image to the largest one of its batch."""
        return height, width

    def _prepare_batch(
        self, images: Sequence[Image], passes: list[Pass], dropped: list[dict[int, PhraseDrop]]
    ) -> Prepared:
        limited = [_limit_aspect_ratio(image) for image in images]
        processed = self.processor.image_processor(limited, return_tensors="pt", input_data_format="channels_last")
        pixels = {name: pinned(value, self.model.device) for name, value in processed.items()}
        sizes = [(image.shape[0], image.shape[1]) for image in limited]
        return Prepared(pixels=pixels, sizes=sizes, passes=passes, dropped=dropped)

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> tuple[Prepared, list[OnCpu]]:
        """Return the input, and the boxes and logits of each pass."""
        device, is_half = self.model.device, self.dtype != torch.float32
        pixels = {name: value.to(device, non_blocking=True) for name, value in prepared.pixels.items()}
        outputs = []
        for item in prepared.passes:
            images = dict(zip(pixels, take(list(pixels.values()), item.rows), strict=True))
            with torch.autocast(device.type, self.dtype if is_half else None, enabled=is_half):
                output = self.model(**images, **item.text.to(device))
            outputs.append(OnCpu([output.pred_boxes, output.logits]))
        return prepared, outputs

    @torch.inference_mode()
    def collect(self, output: tuple[Prepared, list[OnCpu]]) -> list[Grounded]:
        """Return the result of each image."""
        prepared, outputs = output
        found: list[list[Detection]] = [[] for _ in prepared.sizes]
        for item, tensors in zip(prepared.passes, outputs, strict=True):
            centred, logits = tensors.wait()
            boxes = box_convert(centred.float(), "cxcywh", "xyxy")
            probabilities = logits.float().sigmoid()  # [b, boxes, word pieces or queries]
            for k, (row, phrases) in enumerate(zip(item.rows, item.columns, strict=True)):
                for phrase, columns in phrases.items():
                    scores = probabilities[k][:, columns].mean(dim=1)
                    fitted = self._fit(boxes[k], prepared.sizes[row])
                    found[row] += _detections(phrase, fitted, scores, self.floor)
        return [Grounded(boxes=b, dropped=d) for b, d in zip(found, prepared.dropped, strict=True)]

    def _fit(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert the network's boxes [n, 4] to fractions of the image; `size` is its height and width."""
        return boxes


class GroundingDino(_HfGrounder):
    """Grounding DINO (Liu et al., ECCV 2024). The score of a phrase is the mean probability of its word pieces."""

    @property
    def max_tokens(self) -> int:
        """The maximum number of word pieces of a prompt."""
        return int(self.model.config.max_text_len)

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Join the phrases of each caption into a prompt. Phrases that do not fit into it go into further passes."""
        texts = [[c[s:e].lower() for s, e in row_spans] for c, row_spans in zip(captions, spans, strict=True)]
        dropped = [_dropped(phrases, self._why_dropped) for phrases in texts]
        pending = [[n for n in range(len(row)) if n not in lost] for row, lost in zip(texts, dropped, strict=True)]
        passes = []
        while any(pending):
            rows = [row for row, indices in enumerate(pending) if indices]
            prompts = [self._prompt(texts[row], pending[row]) for row in rows]
            for row, (phrase_spans, _) in zip(rows, prompts, strict=True):
                pending[row] = pending[row][len(phrase_spans) :]
            passes.append(self._pass(rows, prompts))
        return self._prepare_batch(images, passes, dropped)

    def _why_dropped(self, text: str) -> PhraseDrop | None:
        tokenizer = self.processor.tokenizer
        if len(text) > MAX_PHRASE_CHARS:
            return "too_many_word_pieces"
        ids = tokenizer(text + " .", add_special_tokens=False).input_ids[:-1]
        if len(ids) + 3 > self.max_tokens:  # [CLS], the full stop and [SEP]
            return "too_many_word_pieces"
        if not ids:
            return "no_word_piece"
        return "unknown_words" if all(i == tokenizer.unk_token_id for i in ids) else None

    def _prompt(self, phrases: Sequence[str], indices: Sequence[int]) -> tuple[dict[int, Span], str]:
        """Join the first of the phrases `indices` into a prompt; return their spans in it, and the prompt.

        Starts with all phrases and halves their number until the prompt fits.
        """
        count = len(indices)
        while True:
            parts = [phrases[n] for n in indices[:count]]
            text = SEPARATOR.join(parts) + " ."
            if count == 1 or len(self.processor.tokenizer(text).input_ids) <= self.max_tokens:
                starts = accumulate((len(part) + len(SEPARATOR) for part in parts[:-1]), initial=0)
                return {n: (s, s + len(p)) for n, s, p in zip(indices, starts, parts, strict=False)}, text
            count = (count + 1) // 2

    def _pass(self, rows: list[int], prompts: Sequence[tuple[dict[int, Span], str]]) -> Pass:
        # Only the result of the tokenizer, not that of the combined processor, maps characters to word pieces.
        text = self.processor.tokenizer(
            [prompt for _, prompt in prompts], return_tensors="pt", padding=True, truncation=True,
            max_length=self.max_tokens,
        )  # fmt: skip
        columns: list[dict[int, list[int]]] = [{} for _ in rows]
        for k, (phrase_spans, _) in enumerate(prompts):
            for phrase, (start, end) in phrase_spans.items():
                pieces = {text.char_to_token(k, char) for char in range(start, end)} - {None}
                columns[k][phrase] = sorted(pieces)
        return Pass(rows=rows, text=text, columns=columns)


class Owlv2(_HfGrounder):
    """OWLv2 (Minderer et al., NeurIPS 2023). Each phrase is one text query."""

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Prepare a single pass. Images with fewer phrases than others are padded with empty queries."""
        texts = [[c[s:e] for s, e in row_spans] for c, row_spans in zip(captions, spans, strict=True)]
        dropped = [_dropped(phrases, self._why_dropped) for phrases in texts]
        kept = [[n for n in range(len(row)) if n not in lost] for row, lost in zip(texts, dropped, strict=True)]
        most = max(map(len, kept), default=0)
        passes = []
        if most:
            queries = [
                query
                for phrases, indices in zip(texts, kept, strict=True)
                for query in [*(phrases[n] for n in indices), *[""] * (most - len(indices))]
            ]
            text = self.processor.tokenizer(queries, return_tensors="pt", padding="max_length", truncation=True)
            columns = [{n: [column] for column, n in enumerate(indices)} for indices in kept]
            passes = [Pass(rows=list(range(len(texts))), text=text, columns=columns)]
        return self._prepare_batch(images, passes, dropped)

    def _why_dropped(self, text: str) -> PhraseDrop | None:
        tokenizer = self.processor.tokenizer
        if len(text) > MAX_PHRASE_CHARS or len(tokenizer(text).input_ids) > tokenizer.model_max_length:
            return "too_many_word_pieces"
        return None if text.strip() else "no_word_piece"

    def _fit(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert fractions of the padded image to fractions of the image.

        OWLv2's image processor pads images to a square, at the bottom or at the right.
        """
        height, width = size
        return boxes * torch.tensor([max(height, width) / width, max(height, width) / height]).repeat(2)


def _dropped(phrases: Sequence[str], why_dropped: Callable[[str], PhraseDrop | None]) -> dict[int, PhraseDrop]:
    """Return the index of each phrase that cannot be grounded, with the reason."""
    return {n: reason for n, text in enumerate(phrases) if (reason := why_dropped(text)) is not None}


def _limit_aspect_ratio(image: Image) -> Image:
    """Repeat the rows or columns of an image until its aspect ratio is at most MAX_ASPECT_RATIO.

    Otherwise, the image processor would resize the short side of a very narrow image to 0 pixels. Boxes do not change,
    since they are fractions of the image.
    """
    height, width = image.shape[:2]
    rows, columns = -(-width // (height * MAX_ASPECT_RATIO)), -(-height // (width * MAX_ASPECT_RATIO))
    return image.repeat(rows, axis=0).repeat(columns, axis=1)


def _detections(phrase: int, boxes: Tensor, scores: Tensor, floor: float) -> list[Detection]:
    """Return the boxes [n, 4] of a phrase whose scores [n] are at least `floor`, clipped to the image."""
    keep = scores >= floor
    corners, kept = boxes[keep].clamp(0, 1).tolist(), scores[keep].tolist()
    return [Detection(phrase, tuple(box), score) for box, score in zip(corners, kept, strict=True)]


# Load Grounding DINO and OWLv2 models of the transformers library as grounders.

HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model"]
"""Patterns of the files to download from a hub repository. Pickle files are excluded: they could execute code."""


def load_hf_grounder(
    name: str, device: torch.device, floor: float, *, precision: Precision = "auto"
) -> GroundingDino | Owlv2:
    """Load the model of a folder or a hub name, `owner/name` or `owner/name@commit`.

    Raises UserError if the model is not found, is damaged or incomplete, or has an unsupported architecture.
    """
    hub = parse_hub_name(name) if "@" in name else None
    kind, model, processor = _load(name, str(fetch(hub, HUB_FILES)) if hub else name)
    model = model.to(device).eval()
    if precision == "auto" and kind == "grounding-dino":
        precision = "fp32"  # half precision changes the ranking of its queries and the refinement of its boxes
    dtype = torch_dtype(resolve_precision(precision, device))
    return (Owlv2 if kind == "owlv2" else GroundingDino)(model, processor, floor, dtype)


def _load(name: str, path: str) -> tuple[str, Any, Any]:
    """Return the model type, the model and the processor in the folder `path`; error messages contain `name`."""
    from transformers import AutoConfig, AutoModelForZeroShotObjectDetection, AutoProcessor

    try:
        check_folder_files(path)
        kind = AutoConfig.from_pretrained(path, trust_remote_code=False).model_type
        if kind not in ("grounding-dino", "owlv2"):
            raise UserError(
                f"ground.grounder={name!r} is a {kind!r} model; supported are grounding-dino, owlv2 and GLIP folders"
            )
        # safetensors only: a pickle could execute code. float32: weights may be stored in half precision.
        model, report = AutoModelForZeroShotObjectDetection.from_pretrained(
            path, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # its type depends on the file that is damaged
        reason = f"{type(error).__name__}: {error!s}".split("\n", 1)[0][:300]
        raise UserError(
            f"ground.grounder={name!r} is neither a usable model folder nor a hub model that can be fetched: {reason}"
        ) from error
    non_finite = [key for key, value in model.named_parameters() if not torch.isfinite(value).all()]
    for defect, keys in (("missing", sorted(report["missing_keys"])), ("not finite", non_finite)):
        if keys:  # transformers initialises missing weights randomly and accepts NaN and infinity
            raise UserError(
                f"ground.grounder={name!r}: {len(keys)} weights are {defect}, such as {', '.join(keys[:5])}; "
                "download or save the model again"
            )
    return kind, model, processor
