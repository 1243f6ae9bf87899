"""Metrics as functions of scores, labels and points, and their names in words."""

import re
from typing import Final

RELATION_NAMES: Final = {
    "text_image": "caption > image",
    "box_text_image": "phrase > box",
    "cross_image": "box > image",
    "cross_text": "phrase > caption",
    "syntax_edge": "word > head",
    "syntax_word": "word alone > word",
}
"""Entailment relation, as metrics and settings name it -> the general and the specific point in words."""


def in_words(name: str) -> str:
    """Return the name of a metric, followed by its relation in words if it has one.

    >>> in_words("entailment/cross_image/order")
    'entailment/cross_image/order (box > image)'
    """
    words = next((RELATION_NAMES[part] for part in re.split("[ /]", name) if part in RELATION_NAMES), "")
    return f"{name} ({words})" if words else name
