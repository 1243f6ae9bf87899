"""Grounding DINO and OWLv2 of transformers as grounders."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_convert

from pipeline.errors import UserError
from pipeline.ground.grounder import Detection, Grounder, Image, Span

SEPARATOR = " . "  # Grounding DINO's, between the phrases of a prompt; its words see only their own phrase
MAX_SIDE_CHARS = 250  # of one phrase; more would fill the prompt


def load_hf_grounder(name: str, device: str, floor: float) -> Grounder:
    """The model of a folder or hub name.

    Raises UserError if it is neither there nor one of the two kinds.
    """
    from transformers import AutoConfig, AutoModelForZeroShotObjectDetection, AutoProcessor

    try:
        kind = AutoConfig.from_pretrained(name).model_type
        if kind not in ("grounding-dino", "owlv2"):
            raise UserError(
                f"ground.grounder={name!r} is a {kind!r} model; known: grounding-dino, owlv2, and GLIP's own folders"
            )
        # safetensors only: a pickle would be executed.
        model = AutoModelForZeroShotObjectDetection.from_pretrained(name, use_safetensors=True).to(device).eval()
        processor = AutoProcessor.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0][:300]
        raise UserError(f"ground.grounder={name!r} is no model folder and cannot be fetched: {reason}") from error
    return Owlv2(model, processor, floor) if kind == "owlv2" else GroundingDino(model, processor, floor)


class GroundingDino:
    """Grounding DINO (Liu et al., ECCV 2024): a phrase's score is the mean probability of its word pieces."""

    def __init__(self, model: Any, processor: Any, floor: float) -> None:
        self.model, self.processor, self.floor = model, processor, floor
        self.max_tokens = model.config.max_text_len

    @torch.inference_mode()
    def __call__(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[Detection]]:
        found: list[list[Detection]] = [[] for _ in images]
        # A prompt that is too long is cut between phrases: the phrases left over wait for the next pass.
        waiting = [list(range(len(own))) for own in spans]
        while any(waiting):
            rows = [row for row, numbers in enumerate(waiting) if numbers]
            texts, places = [], []
            for row in rows:
                phrases = [captions[row][start:end].lower() for start, end in spans[row]]
                numbers, text, where = self._prompt(phrases, waiting[row])
                waiting[row] = waiting[row][len(numbers) :]
                texts.append(text)
                places.append(dict(zip(numbers, where, strict=True)))
            for row, detections in zip(rows, self._detect([images[row] for row in rows], texts, places), strict=True):
                found[row] += detections
        return found

    def _prompt(self, phrases: Sequence[str], numbers: Sequence[int]) -> tuple[list[int], str, list[Span]]:
        """As many of the phrases as fit: their numbers, the text, and where each stands in it."""
        count = len(numbers)
        while True:
            parts = [phrases[n][:MAX_SIDE_CHARS] for n in numbers[:count]]
            text = SEPARATOR.join(parts) + " ."
            if count == 1 or len(self.processor.tokenizer(text).input_ids) <= self.max_tokens:
                starts = accumulate((len(part) + len(SEPARATOR) for part in parts[:-1]), initial=0)
                return list(numbers[:count]), text, [(s, s + len(p)) for s, p in zip(starts, parts, strict=True)]
            count = (count + 1) // 2

    def _detect(
        self, images: Sequence[Image], texts: Sequence[str], places: Sequence[dict[int, Span]]
    ) -> list[list[Detection]]:
        # Apart, since only the tokenizer's own answer knows which word piece holds which character.
        pixels = self.processor.image_processor(list(images), return_tensors="pt", input_data_format="channels_last")
        words = self.processor.tokenizer(
            list(texts), return_tensors="pt", padding=True, truncation=True, max_length=self.max_tokens
        )
        output = self.model(**pixels.to(self.model.device), **words.to(self.model.device))
        boxes = box_convert(output.pred_boxes.float(), "cxcywh", "xyxy").cpu()
        probabilities = output.logits.float().sigmoid().cpu()  # [b queries tokens]
        found = []
        for row, where in enumerate(places):
            detections = []
            for number, (start, end) in where.items():
                pieces = {words.char_to_token(row, char) for char in range(start, end)} - {None}
                if pieces:
                    scores = probabilities[row][:, sorted(pieces)].mean(dim=1)
                    detections += _detections(number, boxes[row], scores, self.floor)
            found.append(detections)
        return found


class Owlv2:
    """OWLv2 (Minderer et al., NeurIPS 2023): one text query a phrase."""

    def __init__(self, model: Any, processor: Any, floor: float) -> None:
        self.model, self.processor, self.floor = model, processor, floor

    @torch.inference_mode()
    def __call__(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[Detection]]:
        queries = [[caption[start:end] for start, end in own] for caption, own in zip(captions, spans, strict=True)]
        most = max(map(len, queries))
        inputs = self.processor(
            images=list(images), text=[own + [""] * (most - len(own)) for own in queries], return_tensors="pt",
            truncation=True, input_data_format="channels_last",
        )  # fmt: skip
        output = self.model(**inputs.to(self.model.device))
        boxes = box_convert(output.pred_boxes.float(), "cxcywh", "xyxy").cpu()
        probabilities = output.logits.float().sigmoid().cpu()  # [b patches queries]
        found = []
        for row, (image, own) in enumerate(zip(images, queries, strict=True)):
            # Images were padded below and right to a square: fractions of the square become fractions of the image.
            height, width = image.shape[:2]
            scale = torch.tensor([max(height, width) / width, max(height, width) / height]).repeat(2)
            found.append(
                [
                    detection
                    for number in range(len(own))
                    for detection in _detections(number, boxes[row] * scale, probabilities[row][:, number], self.floor)
                ]
            )
        return found


def _detections(phrase: int, boxes: Tensor, scores: Tensor, floor: float) -> list[Detection]:
    """Boxes [n 4] of one phrase with their scores [n], those above the floor, inside the image."""
    keep = scores >= floor
    corners, kept = boxes[keep].clamp(0, 1).tolist(), scores[keep].tolist()
    return [Detection(phrase, tuple(box), score) for box, score in zip(corners, kept, strict=True)]
