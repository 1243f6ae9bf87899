"""A vision-language model behind an OpenAI-compatible endpoint, such as vLLM's, as a grounder: openai:URL#MODEL.

Its scores are what the model says of itself, so they are not calibrated, and its answers may differ from run to run.
"""

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import aiohttp

from hypergrit_common.errors import UserError
from hypergrit_common.images import Image
from hypergrit_common.text import one_line
from hypergrit_common.urls import without_user
from pipeline.images import encode_jpeg
from pipeline.stages.ground.grounder import Box, Detection, Grounded, Span

OPENAI: Final = "openai:"
"""Prefix of the grounders of this file."""
API_KEY: Final = "OPENAI_API_KEY"
"""Environment variable with the key of the endpoint; it is sent to no other place and never recorded."""
SCALE: Final = 1000
"""Coordinates of the answers go from 0 to this number, as those on which Qwen3-VL and Gemma were trained."""
TRIES: Final = 4
PAUSE_S: Final = 1.0
"""Pause after the first failure that can pass (429, 5xx, connection, time-out); it doubles with each further one."""
TIMEOUT_S: Final = 300.0
MAX_TOKENS: Final = 2048
MAX_ANSWER_BYTES: Final = 1 << 20
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


class BusyError(Exception):
    """A failure of the endpoint that can pass."""


@dataclass(frozen=True)
class Question:
    """The request about one image, and its number of phrases."""

    body: Mapping[str, Any]
    n_phrases: int


def parse_endpoint(name: str) -> tuple[str, str]:
    """Return URL and model of `openai:URL#MODEL`. Raises UserError for another form, and for a user name or a query."""
    url, _, model = name.removeprefix(OPENAI).partition("#")
    if not url.startswith(("http://", "https://")) or not model or without_user(url) != url or "?" in url:
        raise UserError(
            f"grounder={OPENAI}{without_user(url).partition('?')[0]}#{model}: give openai:URL#MODEL without user name and "
            f"query, such as openai:http://localhost:8000/v1#Qwen/Qwen3-VL-8B-Instruct; a key belongs into {API_KEY}"
        )
    return url.rstrip("/"), model


class EndpointGrounder:
    """Asks a vision-language model for the boxes of all phrases of an image in one request."""

    def __init__(self, name: str, floor: float) -> None:
        self.url, self.model = parse_endpoint(name)
        self.floor = floor

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
        data = base64.b64encode(encode_jpeg(image)).decode()
        listed = "\n".join(f"{n}: {json.dumps(phrase, ensure_ascii=False)}" for n, phrase in enumerate(phrases))
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
            {"type": "text", "text": PROMPT % (json.dumps(caption, ensure_ascii=False), listed)},
        ]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "seed": 0,
            "max_tokens": MAX_TOKENS,
            "response_format": {"type": "json_schema", "json_schema": {"name": "boxes", "schema": SCHEMA}},
        }
        return Question(body, len(phrases))

    def forward(self, prepared: list[Question]) -> list[tuple[Question, str]]:
        """Ask all questions at once. Raises UserError if the endpoint cannot be used, ValueError if it refuses one."""
        return asyncio.run(self._ask_all(prepared))

    async def _ask_all(self, questions: Sequence[Question]) -> list[tuple[Question, str]]:
        key = os.environ.get(API_KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            answers = await asyncio.gather(*(self._ask(session, question) for question in questions))
        return list(zip(questions, answers, strict=True))

    async def _ask(self, session: aiohttp.ClientSession, question: Question) -> str:
        for attempt in range(TRIES):
            try:
                return await self._post(session, question)
            except (BusyError, aiohttp.ClientError, TimeoutError) as error:
                reason = one_line(error)
            if attempt < TRIES - 1:
                await asyncio.sleep(PAUSE_S * 2**attempt)
        raise UserError(
            f"{self.url} gives no answer ({reason}); start the server of grounder={OPENAI}..., or wait for it"
        )

    async def _post(self, session: aiohttp.ClientSession, question: Question) -> str:
        async with session.post(f"{self.url}/chat/completions", json=question.body, allow_redirects=False) as response:
            content = await response.content.read(MAX_ANSWER_BYTES)
            while len(content) < MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                content += more
        answer = content.decode(errors="replace")
        text = " ".join(answer.split())[:200]
        match response.status:
            case 200:
                return answer
            case 401 | 403 | 404:
                raise UserError(
                    f"{self.url} refuses the model {self.model} ({response.status}: {text}); check URL, model and {API_KEY}"
                )
            case status if status in (408, 409, 429) or status >= 500:
                raise BusyError(f"{status}: {text}")
            case status:
                raise ValueError(f"{self.url} refuses the request: {status}: {text}")

    def collect(self, output: list[tuple[Question, str]]) -> list[Grounded]:
        """Return the boxes of each image; all its phrases are dropped if the answer is not what was asked for."""
        return [self._grounded(answer, question.n_phrases) for question, answer in output]

    def _grounded(self, answer: str, n_phrases: int) -> Grounded:
        try:
            content = json.loads(answer)["choices"][0]["message"]["content"]
            found = [parse_box(item) for item in json.loads(content)["boxes"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            return Grounded(boxes=[], dropped=dict.fromkeys(range(n_phrases), "unreadable_answer"))
        boxes = [d for d in found if d is not None and d.phrase < n_phrases and d.score >= self.floor]
        return Grounded(boxes=boxes)


def parse_box(item: Any) -> Detection | None:
    """Return a box of an answer, clipped to the image; None if it is empty. Raises ValueError or TypeError if malformed."""
    phrase, score = item["phrase"], float(item["score"])
    corners = [float(value) / SCALE for value in item["box"]]
    if not isinstance(phrase, int) or phrase < 0 or len(corners) != 4 or not all(map(isfinite, [score, *corners])):
        raise ValueError(f"{item} is not a box")
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in corners)
    box: Box = (x_min, y_min, x_max, y_max)
    return Detection(phrase, box, min(max(score, 0.0), 1.0)) if x_min < x_max and y_min < y_max else None
