"""Stage `recaption`: a further caption for each image, by a vision-language model behind an OpenAI-compatible endpoint."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from hypergrit_common.config import check_range, reaches, runtime, secret
from hypergrit_common.endpoint import Endpoint, RefusedError, about_image, content_of, parse_endpoint
from pipeline.stages.captions import CaptionsConfig, clean_caption, distinct
from pipeline.stages.stage import Context, Files, Stage, TableFunction
from schemas.files import ANSWERS_FILE
from schemas.status import REASONS
from schemas.table import kept_indices, set_column

KIND: Final = "recaption"
ORIGINAL: Final = "original"
"""Kind of the caption of a row that had one alone."""
BATCHES_PER_STORE: Final = 4
"""Answers are stored after so many times `recaption.concurrency` requests: a kill loses these at most."""

logger = logging.getLogger("hypergrit")


@dataclass(frozen=True, kw_only=True)
class RecaptionConfig:
    """A further caption by a vision-language model; the original stays, and the trainer can draw (data.captions).

    The defaults are choices of this project.

    Raises:
        UserError: a number is out of its range, or `captioner` has another form than openai:URL#MODEL.
    """

    # openai:URL#MODEL, a vision-language model behind an OpenAI-compatible endpoint, such as
    # openai:http://localhost:8000/v1#Qwen/Qwen3-VL-8B-Instruct; null: none
    captioner: str | None = reaches(None)
    # what is asked about each image; {caption} stands for its caption
    prompt: str = "Describe this image in one sentence of at most 40 words. Answer with the sentence alone."
    """Part of what an answer depends on: another prompt asks again."""
    # largest number of tokens of an answer
    max_tokens: int = 128
    """Tokens of the model, at least 1."""
    # key of the endpoint; null: that in the environment variable OPENAI_API_KEY. Never saved, recorded or printed
    api_key: str | None = secret(factory=lambda: None)
    # maximum number of requests that one worker has in flight
    concurrency: int = runtime(16)
    """Requests, at least 1."""
    # further attempts after a broken connection, a time-out, HTTP 429 or 5xx, with pauses of 1, 2, 4, ... seconds; then the
    # job ends
    retries: int = runtime(6)
    """Attempts, at least 0. 6 wait 63 s in all."""

    timeout_s: ClassVar[float] = 120.0
    """Time limit for one attempt."""

    def __post_init__(self) -> None:
        check_range(self, "max_tokens", "concurrency", least=1)
        check_range(self, "retries", least=0)
        if self.captioner is not None:
            parse_endpoint("recaption.captioner", self.captioner)


class Recaption(Stage):
    """Add a caption of kind recaption to `captions`. Takes and returns a CAPTIONED table, and drops no row.

    A row whose image the model refuses, or whose answer is dropped by the rules of `captions`, keeps those that it has.

    Args:
        config: settings with a `captioner`.
        captions: rules by which the answers are cleaned; None: the defaults.
        files: where answers are kept until their shard is written; None: nowhere.

    Raises:
        UserError: in a call, the endpoint gives no answer after all attempts, or refuses the key or the model.
    """

    name, reasons = "recaption", REASONS["recaption"]
    Config = RecaptionConfig

    def __init__(
        self, config: RecaptionConfig, captions: CaptionsConfig | None = None, files: Files | None = None
    ) -> None:
        super().__init__(config)
        self.captions, self.files = captions or CaptionsConfig(), files
        self.endpoint = Endpoint(
            key="recaption.captioner", name=config.captioner or "", api_key=config.api_key,
            concurrency=config.concurrency, retries=config.retries, timeout_s=config.timeout_s,
        )  # fmt: skip

    @classmethod
    def is_used(cls, config: RecaptionConfig) -> bool:
        """Return True for a job with a captioner."""
        return config.captioner is not None

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage, which stores the answers in the output until their shard is written."""
        return cls(context.settings[cls.name], context.settings["captions"], context.files)

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = kept_indices(table)
        if not kept:
            return table
        answers = Answers(self.files, table["key"][0].as_py())
        images, texts, lists = table["image"], table["caption"].to_pylist(), table["captions"].to_pylist()
        names = {i: self._name(images[i].as_py(), texts[i]) for i in kept}
        unknown = list({names[i]: i for i in kept if names[i] not in answers.found}.values())
        size = BATCHES_PER_STORE * self.config.concurrency
        for part in (unknown[start : start + size] for start in range(0, len(unknown), size)):
            replies = self.endpoint.ask([self._body(images[i].as_py(), texts[i]) for i in part])
            texts_of = (None if isinstance(reply, RefusedError) else content_of(reply) for reply in replies)
            answers.add({names[i]: text for i, text in zip(part, texts_of, strict=True)})
        for i in kept:
            first = lists[i] or [{"kind": ORIGINAL, "text": texts[i]}]
            lists[i] = distinct([*first, *self._cleaned(answers.found[names[i]])])
        return set_column(table, "captions", pa.array(lists, table.schema.field("captions").type))

    def _name(self, image: bytes, caption: str) -> str:
        """Return a hash of all that decides an answer."""
        asked = [self.config.captioner, self._question(caption), self.config.max_tokens]
        return hashlib.sha256(json.dumps(asked).encode() + image).hexdigest()

    def _question(self, caption: str) -> str:
        return self.config.prompt.replace("{caption}", caption)

    def _body(self, image: bytes, caption: str) -> Mapping[str, Any]:
        messages = about_image(image, self._question(caption))
        return {"messages": messages, "temperature": 0, "seed": 0, "max_tokens": self.config.max_tokens}

    def _cleaned(self, answer: str | None) -> list[dict[str, Any]]:
        found = clean_caption(answer or "", self.captions)
        return [{"kind": KIND, "text": found["text"]}] if found["drop"] is None else []


class Answers:
    """The answers about the rows of a table, stored in the output by the key of its first row until it is written."""

    def __init__(self, files: Files | None, key: str) -> None:
        self.files, self.file = files, ANSWERS_FILE.format(key)
        stored = files.read(self.file) if files else None
        self.found: dict[str, str | None] = {}
        try:
            self.found |= json.loads(stored or b"{}")
        except (ValueError, TypeError):
            logger.warning("%s is damaged; its answers are asked again", self.file)

    def add(self, found: Mapping[str, str | None]) -> None:
        """Store further answers."""
        self.found |= found
        if self.files:
            self.files.write(self.file, json.dumps(self.found, sort_keys=True))
