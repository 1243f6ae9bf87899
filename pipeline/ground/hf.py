"""Grounding DINO and OWLv2 of transformers as grounders."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_convert

from common.devices import Precision, resolve_precision, torch_dtype
from common.errors import UserError
from common.images import Image
from pipeline.ground.grounder import Detection, Grounded, PhraseDrop, Span
from pipeline.ground.hub import fetch, parse_hub_name
from pipeline.ground.transfer import OnCpu, pinned, take

SEPARATOR = " . "  # Grounding DINO's, between the phrases of a prompt; its words see only their own phrase
MAX_PHRASE_CHARS = 1000  # longer text is no phrase; tokenising it would only cost time
MAX_ASPECT_RATIO = 20  # of what their image processors are given
HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model"]  # of a repository: no pickles


def load_hf_grounder(
    name: str, device: torch.device, floor: float, *, precision: Precision = "auto", compile: bool = False
) -> "GroundingDino | Owlv2":
    """The model of a folder or hub name, `owner/name` or, pinned, `owner/name@commit`.

    Raises UserError if it is neither there, whole, nor one of the two kinds.
    """
    from transformers import AutoConfig, AutoModelForZeroShotObjectDetection, AutoProcessor

    hub = parse_hub_name(name) if "@" in name else None
    place = str(fetch(hub, HUB_FILES)) if hub else name
    try:
        kind = AutoConfig.from_pretrained(place, trust_remote_code=False).model_type
        if kind not in ("grounding-dino", "owlv2"):
            raise UserError(
                f"ground.grounder={name!r} is a {kind!r} model; known: grounding-dino, owlv2, and GLIP's own folders"
            )
        # safetensors only: a pickle would be executed. float32: they may be stored in half precision.
        model, report = AutoModelForZeroShotObjectDetection.from_pretrained(
            place, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
        processor = AutoProcessor.from_pretrained(place, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # of a damaged folder transformers lets through whatever its parsers raise
        reason = f"{type(error).__name__}: {error!s}".split("\n", 1)[0][:300]
        raise UserError(f"ground.grounder={name!r} is no model folder and cannot be fetched: {reason}") from error
    strange = [key for key, value in model.named_parameters() if not torch.isfinite(value).all()]
    for what, keys in (("lack", sorted(report["missing_keys"])), ("are not finite in", strange)):
        if keys:  # which transformers would fill with random numbers, or carry along
            raise UserError(f"ground.grounder={name!r}: its weights {what} {', '.join(keys[:5])}; {len(keys)} in all")
    model = model.to(device).eval()
    if compile:
        model.compile()
    if precision == "auto" and kind == "grounding-dino":
        precision = "fp32"  # it selects queries by rank and refines boxes: half precision changes both
    dtype = torch_dtype(resolve_precision(precision, device))
    return (Owlv2 if kind == "owlv2" else GroundingDino)(model, processor, floor, dtype)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One call of the network: some images, a text each, and where the phrases stand in it."""

    rows: list[int]
    words: Any  # transformers' BatchEncoding
    places: list[dict[int, list[int]]]  # per row: phrase -> its word pieces (Grounding DINO) or its query (OWLv2)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch as the network reads it."""

    pixels: dict[str, Tensor]
    sides: list[tuple[int, int]]  # height, width of each image
    passes: list[Pass]
    dropped: list[dict[int, PhraseDrop]]


class _HfGrounder:
    """What the two have in common: the loop over passes."""

    def __init__(self, model: Any, processor: Any, floor: float, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.processor, self.floor, self.dtype = model, processor, floor, dtype

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Their image processors pad to the largest image of a batch, so a batch has one size."""
        return height, width

    def _prepared(self, images: Sequence[Image], passes: list[Pass], dropped: list[dict[int, PhraseDrop]]) -> Prepared:
        shown = [_thicken(image) for image in images]
        found = self.processor.image_processor(shown, return_tensors="pt", input_data_format="channels_last")
        pixels = {name: pinned(value, self.model.device) for name, value in found.items()}
        sides = [(image.shape[0], image.shape[1]) for image in shown]
        return Prepared(pixels=pixels, sides=sides, passes=passes, dropped=dropped)

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> tuple[Prepared, list[OnCpu]]:
        """Boxes and logits of each pass."""
        device, is_half = self.model.device, self.dtype != torch.float32
        pixels = {name: value.to(device, non_blocking=True) for name, value in prepared.pixels.items()}
        passes = []
        for part in prepared.passes:
            own = dict(zip(pixels, take(list(pixels.values()), part.rows), strict=True))
            with torch.autocast(device.type, self.dtype if is_half else None, enabled=is_half):
                output = self.model(**own, **part.words.to(device))
            passes.append(OnCpu([output.pred_boxes, output.logits]))
        return prepared, passes

    @torch.inference_mode()
    def collect(self, output: tuple[Prepared, list[OnCpu]]) -> list[Grounded]:
        """The answer for each image."""
        prepared, passes = output
        found: list[list[Detection]] = [[] for _ in prepared.sides]
        for part, tensors in zip(prepared.passes, passes, strict=True):
            centred, logits = tensors.wait()
            boxes = box_convert(centred.float(), "cxcywh", "xyxy")
            probabilities = logits.float().sigmoid()  # [b, boxes, word pieces or queries]
            for k, (row, places) in enumerate(zip(part.rows, part.places, strict=True)):
                for phrase, columns in places.items():
                    scores = probabilities[k][:, columns].mean(dim=1)
                    found[row] += _detections(phrase, self._fit(boxes[k], prepared.sides[row]), scores, self.floor)
        return [Grounded(boxes=b, dropped=d) for b, d in zip(found, prepared.dropped, strict=True)]

    def _fit(self, boxes: Tensor, side: tuple[int, int]) -> Tensor:
        return boxes


class GroundingDino(_HfGrounder):
    """Grounding DINO (Liu et al., ECCV 2024): a phrase's score is the mean probability of its word pieces."""

    @property
    def max_tokens(self) -> int:
        """Word pieces of a prompt."""
        return int(self.model.config.max_text_len)

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Phrases become prompts; one that is too long is cut between phrases, and the rest wait for the next pass."""
        texts = [[c[s:e].lower() for s, e in own] for c, own in zip(captions, spans, strict=True)]
        dropped = [
            {n: reason for n, text in enumerate(own) if (reason := self._unaskable(text)) is not None} for own in texts
        ]
        waiting = [[n for n in range(len(own)) if n not in lost] for own, lost in zip(texts, dropped, strict=True)]
        passes = []
        while any(waiting):
            rows = [row for row, numbers in enumerate(waiting) if numbers]
            prompts = [self._prompt(texts[row], waiting[row]) for row in rows]
            for row, (where, _) in zip(rows, prompts, strict=True):
                waiting[row] = waiting[row][len(where) :]
            passes.append(self._pass(rows, prompts))
        return self._prepared(images, passes, dropped)

    def _unaskable(self, text: str) -> PhraseDrop | None:
        tokenizer = self.processor.tokenizer
        if len(text) > MAX_PHRASE_CHARS:
            return "too_many_word_pieces"
        ids = tokenizer(text + " .", add_special_tokens=False).input_ids[:-1]
        if len(ids) + 3 > self.max_tokens:  # [CLS], the stop and [SEP]
            return "too_many_word_pieces"
        if not ids:
            return "no_word_piece"
        return "unknown_words" if all(i == tokenizer.unk_token_id for i in ids) else None

    def _prompt(self, phrases: Sequence[str], numbers: Sequence[int]) -> tuple[dict[int, Span], str]:
        """As many of the phrases as fit: where each stands in the text, and the text."""
        count = len(numbers)
        while True:
            parts = [phrases[n] for n in numbers[:count]]
            text = SEPARATOR.join(parts) + " ."
            if count == 1 or len(self.processor.tokenizer(text).input_ids) <= self.max_tokens:
                starts = accumulate((len(part) + len(SEPARATOR) for part in parts[:-1]), initial=0)
                return {n: (s, s + len(p)) for n, s, p in zip(numbers, starts, parts, strict=False)}, text
            count = (count + 1) // 2

    def _pass(self, rows: list[int], prompts: Sequence[tuple[dict[int, Span], str]]) -> Pass:
        # The tokenizer apart from the images: only its own answer knows which word piece holds which character.
        words = self.processor.tokenizer(
            [text for _, text in prompts], return_tensors="pt", padding=True, truncation=True,
            max_length=self.max_tokens,
        )  # fmt: skip
        places: list[dict[int, list[int]]] = [{} for _ in rows]
        for k, (where, _) in enumerate(prompts):
            for number, (start, end) in where.items():
                pieces = {words.char_to_token(k, char) for char in range(start, end)} - {None}
                places[k][number] = sorted(pieces)
        return Pass(rows=rows, words=words, places=places)


class Owlv2(_HfGrounder):
    """OWLv2 (Minderer et al., NeurIPS 2023): one text query a phrase."""

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """One pass, whose rows of queries are filled up with empty ones."""
        texts = [[c[s:e] for s, e in own] for c, own in zip(captions, spans, strict=True)]
        dropped = [
            {n: reason for n, text in enumerate(own) if (reason := self._unaskable(text)) is not None} for own in texts
        ]
        kept = [[n for n in range(len(own)) if n not in lost] for own, lost in zip(texts, dropped, strict=True)]
        most = max(map(len, kept), default=0)
        passes = []
        if most:
            queries = [
                query
                for own, numbers in zip(texts, kept, strict=True)
                for query in [*(own[n] for n in numbers), *[""] * (most - len(numbers))]
            ]
            words = self.processor.tokenizer(queries, return_tensors="pt", padding="max_length", truncation=True)
            places = [{n: [column] for column, n in enumerate(numbers)} for numbers in kept]
            passes = [Pass(rows=list(range(len(texts))), words=words, places=places)]
        return self._prepared(images, passes, dropped)

    def _unaskable(self, text: str) -> PhraseDrop | None:
        tokenizer = self.processor.tokenizer
        if len(text) > MAX_PHRASE_CHARS or len(tokenizer(text).input_ids) > tokenizer.model_max_length:
            return "too_many_word_pieces"
        return None if text.strip() else "no_word_piece"

    def _fit(self, boxes: Tensor, side: tuple[int, int]) -> Tensor:
        """Images were padded below and right to a square: fractions of the square become fractions of the image."""
        height, width = side
        return boxes * torch.tensor([max(height, width) / width, max(height, width) / height]).repeat(2)


def _thicken(image: Image) -> Image:
    """A strip with its rows or columns repeated: resizing would leave nothing of its short side. Fractions stay what they are."""
    height, width = image.shape[:2]
    rows, columns = -(-width // (height * MAX_ASPECT_RATIO)), -(-height // (width * MAX_ASPECT_RATIO))
    return image.repeat(rows, axis=0).repeat(columns, axis=1)


def _detections(phrase: int, boxes: Tensor, scores: Tensor, floor: float) -> list[Detection]:
    """Boxes [n 4] of one phrase with their scores [n], those above the floor, inside the image."""
    keep = scores >= floor
    corners, kept = boxes[keep].clamp(0, 1).tolist(), scores[keep].tolist()
    return [Detection(phrase, tuple(box), score) for box, score in zip(corners, kept, strict=True)]
