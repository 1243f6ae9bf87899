"""Analyses of embeddings from single papers. The evaluator finds them by name in its catalog."""

from typing import Final

RELATION_NAMES: Final = {
    "text_image": "caption > image",
    "box_text_image": "phrase > box",
    "cross_image": "box > image",
    "cross_text": "phrase > caption",
}
"""Relation of the analysis `order` -> its name in tables and figures."""
