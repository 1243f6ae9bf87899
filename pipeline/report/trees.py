"""Dependency trees of stored tokens, drawn by displaCy."""

from typing import Any, Final

from markupsafe import Markup, escape

from pipeline.report.samples import Row

MAX_TOKENS: Final = 20
"""More tokens make a tree wider than anyone scrolls."""
OPTIONS: Final = {
    "distance": 92,
    "word_spacing": 30,
    "arrow_spacing": 10,
    "arrow_width": 7,
    "arrow_stroke": 1.5,
    "offset_x": 46,
    "color": "currentcolor",
    "bg": "transparent",
    "font": "inherit",
}


def is_drawable(row: Row) -> bool:
    """Whether the row has a parse that is short enough."""
    return 2 <= len(row["tokens"] or ()) <= MAX_TOKENS


def words_and_arcs(row: Row) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """displaCy's manual form of a stored parse. displaCy escapes the words itself, but not tags and labels."""
    tokens, caption = row["tokens"], row["caption"]
    words = [{"text": caption[token["start"] : token["end"]], "tag": str(escape(token["pos"]))} for token in tokens]
    arcs = [
        {
            "start": min(i, head),
            "end": max(i, head),
            "label": str(escape(token["dep"])),
            "dir": "left" if i < head else "right",
        }
        for i, token in enumerate(tokens)
        if (head := token["head"]) != i
    ]
    return words, arcs


def draw_tree(row: Row, number: int) -> Markup:
    """The SVG of one parse; `number` makes its ids unique on the page."""
    # spaCy takes seconds to import, and the configuration imports this package.
    from spacy.displacy import DependencyRenderer

    words, arcs = words_and_arcs(row)
    svg = DependencyRenderer(OPTIONS).render_svg(f"tree-{number}", words, arcs)
    # displaCy writes labels below their arc, where a short one squeezes the letters; above it they have room.
    return Markup(svg.replace('dy="1.25em"', 'dy="-0.4em"'))
