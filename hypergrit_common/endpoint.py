"""Ask a model behind an OpenAI-compatible endpoint, such as vLLM's, named openai:URL#MODEL."""

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from hypergrit_common.urls import without_user

OPENAI: Final = "openai:"
API_KEY: Final = "OPENAI_API_KEY"
"""Environment variable with the key of the endpoint, if no setting gives it; it is sent to no other place."""
PAUSE_S: Final = 1.0
"""Pause after the first failure that can pass (429, 5xx, connection, time-out); it doubles with each further one."""
MAX_ANSWER_BYTES: Final = 1 << 20
PASSING: Final = frozenset({408, 409, 425, 429})


class BusyError(Exception):
    """A failure of the endpoint that can pass."""


class RefusedError(ValueError):
    """The endpoint refuses a request for its content."""


def parse_endpoint(key: str, name: str) -> tuple[str, str]:
    """Return URL and model of `openai:URL#MODEL`. Raises UserError for another form, and for a user name or a query.

    >>> parse_endpoint("captioner", "openai:http://localhost:8000/v1#Qwen/Qwen3-VL-8B-Instruct")
    ('http://localhost:8000/v1', 'Qwen/Qwen3-VL-8B-Instruct')
    """
    url, _, model = name.removeprefix(OPENAI).partition("#")
    is_url = name.startswith(OPENAI) and url.startswith(("http://", "https://"))
    if not is_url or not model or without_user(url) != url or "?" in url:
        raise UserError(
            f"{key}={OPENAI}{without_user(url).partition('?')[0]}#{model}: give openai:URL#MODEL without user name and "
            f"query, such as openai:http://localhost:8000/v1#Qwen/Qwen3-VL-8B-Instruct; a key belongs into {API_KEY}"
        )
    return url.rstrip("/"), model


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A client. `key` is the name of the setting with the endpoint, for messages."""

    key: str
    name: str
    retries: int
    timeout_s: float
    api_key: str | None = None
    concurrency: int | None = None  # requests in flight; None: all of a call

    def ask(self, bodies: Sequence[Mapping[str, Any]]) -> list[str | RefusedError]:
        """Return the reply to each request in their order, as text, or its refusal.

        `bodies` are those of chat completions without `model`. Raises UserError if the endpoint cannot be used.
        """
        return asyncio.run(self._ask_all(bodies))

    async def _ask_all(self, bodies: Sequence[Mapping[str, Any]]) -> list[str | RefusedError]:
        secret = self.api_key or os.environ.get(API_KEY)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        timeout, turns = aiohttp.ClientTimeout(total=self.timeout_s), asyncio.Semaphore(self.concurrency or len(bodies))
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            return await asyncio.gather(*(self._try(session, turns, body) for body in bodies))

    async def _try(
        self, session: aiohttp.ClientSession, turns: asyncio.Semaphore, body: Mapping[str, Any]
    ) -> str | RefusedError:
        reason = ""
        for attempt in range(self.retries + 1):
            try:
                async with turns:
                    return await self._post(session, body)
            except (BusyError, aiohttp.ClientError, TimeoutError) as error:
                reason = one_line(error) or type(error).__name__
            if attempt < self.retries:
                await asyncio.sleep(PAUSE_S * 2**attempt)
        raise UserError(f"{self.key}={self.name} gives no answer ({reason}); start its server, or wait for it")

    async def _post(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> str | RefusedError:
        url, model = parse_endpoint(self.key, self.name)
        request = {"model": model, **body}
        async with session.post(f"{url}/chat/completions", json=request, allow_redirects=False) as response:
            content = b""
            while len(content) < MAX_ANSWER_BYTES and (more := await response.content.read(MAX_ANSWER_BYTES)):
                content += more
        answer = content.decode(errors="replace")
        if response.status == 200:
            return answer
        text = " ".join(answer.split())[:200]
        if response.status in PASSING or response.status >= 500:
            raise BusyError(f"{response.status}: {text}")
        if response.status in (400, 413, 422):
            return RefusedError(f"{url} refuses the request: {response.status}: {text}")
        raise UserError(
            f"{self.key}={self.name} refuses requests ({response.status}: {text}); check URL, model and {API_KEY}"
        )


def about_image(jpeg: bytes, text: str) -> list[dict[str, Any]]:
    """The `messages` of a request with an image and a text."""
    url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def content_of(reply: str) -> str | None:
    """The text of a reply of chat completions; None if it has none."""
    try:
        text = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return text.encode(errors="replace").decode() if isinstance(text, str) and text.strip() else None
