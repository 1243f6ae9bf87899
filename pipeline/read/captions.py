"""One caption of a row that has several."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pipeline.read.config import ReadConfig
from pipeline.read.types import BadRowError


def choose_caption(values: Iterable[Any], url: str | None, config: ReadConfig) -> str | None:
    """Return the caption of a row by the rule `read.captions`; `values` are texts and lists of texts.

    Empty texts do not count. Of equally long captions the first is the longest. A random one depends on
    `captions_seed`, the URL and the captions, and not on the place of the row. Raises BadRowError for other types, and
    if there is no rule.
    """
    if config.captions is None:
        raise BadRowError("the caption is a list, not text; set read.captions=first, longest, join or random")
    found = [text for value in values for text in _texts(value) if text.strip()]
    if len(found) <= 1:
        return found[0] if found else None
    match config.captions:
        case "first":
            return found[0]
        case "longest":
            return max(found, key=len)
        case "join":
            return " ".join(text.strip() for text in found)
        case "random":
            content = json.dumps([config.captions_seed, url, found]).encode()
            return found[int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % len(found)]


def _texts(value: Any) -> list[str]:
    """Return the captions of a value. Raises BadRowError unless it is a text, a list of texts, or null."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        value = [value]
    texts = [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in value]
    if wrong := next((text for text in texts if text is not None and not isinstance(text, str)), None):
        raise BadRowError(f"the caption is a {type(wrong).__name__}, not text")
    return [text for text in texts if isinstance(text, str)]
