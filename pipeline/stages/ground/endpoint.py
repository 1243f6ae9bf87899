"""A vision-language model behind an OpenAI-compatible endpoint, such as vLLM's, as a grounder: openai:URL#MODEL.

Its scores are what the model says of itself, so they are not calibrated, and its answers may differ from run to run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from hypergrit_common.endpoint import Endpoint, RefusedError, about_image, content_of
from hypergrit_common.images import Image
from pipeline.images import encode_jpeg
from pipeline.stages.ground.grounder import Box, Detection, Grounded, Span

KEY: Final = "grounder"
"""The setting that names the endpoint."""
SCALE: Final = 1000
"""Coordinates of the answers go from 0 to this number, as those on which Qwen3-VL and Gemma were trained."""
RETRIES: Final = 3
TIMEOUT_S: Final = 300.0
MAX_TOKENS: Final = 2048
PROMPT: Final = """\
Locate these phrases of the caption in the image. Give a box for each object that a phrase names, none for a phrase whose
object the image does not show. A box is [x_min, y_min, x_max, y_max] in integers from 0 to 1000, where 1000 is the full
width or height. The score is your confidence from 0 to 1. Answer with JSON: {"boxes": [{"phrase": 0, "box": [0, 0, 1000,
1000], "score": 0.5}]}

Caption: %s
Phrases:
%s"""
BOX_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "phrase": {"type": "integer"},
        "box": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4},
        "score": {"type": "number"},
    },
    "required": ["phrase", "box", "score"],
    "additionalProperties": False,
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"boxes": {"type": "array", "items": BOX_SCHEMA}},
    "required": ["boxes"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Question:
    """The request about one image, and its number of phrases."""

    body: Mapping[str, Any]
    n_phrases: int


class EndpointGrounder:
    """Asks a vision-language model for the boxes of all phrases of an image in one request.

    Args:
        name: openai:URL#MODEL.
        floor: smallest score of a box, in [0, 1].
    """

    def __init__(self, name: str, floor: float) -> None:
        self.endpoint = Endpoint(key=KEY, name=name, retries=RETRIES, timeout_s=TIMEOUT_S)
        self.floor, self.has_answered = floor, False

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the same bucket for all sizes, since each image is a request of its own."""
        return 0, 0

    def prepare(
        self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[Question]:
        """Return the question about each image."""
        rows = zip(images, captions, spans, strict=True)
        return [self._question(image, caption, [caption[s:e] for s, e in found]) for image, caption, found in rows]

    def _question(self, image: Image, caption: str, phrases: Sequence[str]) -> Question:
        listed = "\n".join(f"{n}: {json.dumps(phrase, ensure_ascii=False)}" for n, phrase in enumerate(phrases))
        text = PROMPT % (json.dumps(caption, ensure_ascii=False), listed)
        body = {
            "messages": about_image(encode_jpeg(image), text),
            "temperature": 0,
            "seed": 0,
            "max_tokens": MAX_TOKENS,
            "response_format": {"type": "json_schema", "json_schema": {"name": "boxes", "schema": SCHEMA}},
        }
        return Question(body, len(phrases))

    def forward(self, prepared: list[Question]) -> list[tuple[Question, str | RefusedError]]:
        """Ask all questions at once.

        Args:
            prepared: questions of `prepare`.

        Returns:
            Each question with the reply, or its refusal.

        Raises:
            UserError: the endpoint gives no answer, or refuses the key or the model, which ends the job.
            RefusedError: it refuses all of several requests, and has answered none before, which ends the job.
        """
        replies = self.endpoint.ask([question.body for question in prepared])
        refusals = [reply for reply in replies if isinstance(reply, RefusedError)]
        if len(refusals) == len(replies) > 1 and not self.has_answered:
            raise refusals[0]
        self.has_answered |= len(refusals) < len(replies)
        return list(zip(prepared, replies, strict=True))

    def collect(self, output: list[tuple[Question, str | RefusedError]]) -> list[Grounded]:
        """Read the answers.

        Args:
            output: result of `forward`.

        Returns:
            The boxes of each image. All phrases of an image are dropped as `refused_request` if its request was
                refused, as `unreadable_answer` if the answer is not the JSON that was asked for.
        """
        return [self._grounded(answer, question.n_phrases) for question, answer in output]

    def _grounded(self, answer: str | RefusedError, n_phrases: int) -> Grounded:
        if isinstance(answer, RefusedError):
            return Grounded(boxes=[], dropped=dict.fromkeys(range(n_phrases), "refused_request"))
        try:
            found = [parse_box(item) for item in json.loads(content_of(answer) or "")["boxes"]]
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return Grounded(boxes=[], dropped=dict.fromkeys(range(n_phrases), "unreadable_answer"))
        boxes = [d for d in found if d is not None and d.phrase < n_phrases and d.score >= self.floor]
        return Grounded(boxes=boxes)


def parse_box(item: Any) -> Detection | None:
    """Return a box of an answer, clipped to the image; None if it is empty. Raises what `float` raises if malformed."""
    phrase, score = item["phrase"], float(item["score"])
    corners = [float(value) / SCALE for value in item["box"]]
    if not isinstance(phrase, int) or phrase < 0 or len(corners) != 4 or not all(map(isfinite, [score, *corners])):
        raise ValueError(f"{item} is not a box")
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in corners)
    box: Box = (x_min, y_min, x_max, y_max)
    return Detection(phrase, box, min(max(score, 0.0), 1.0)) if x_min < x_max and y_min < y_max else None
