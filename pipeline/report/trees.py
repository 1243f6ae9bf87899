"""Draw the dependency trees of stored tokens with displaCy."""

from typing import Any, Final

from markupsafe import Markup, escape

from pipeline.report.samples import Row

MAX_TOKENS: Final = 60
"""Maximum number of tokens of a tree; wide ones scroll."""
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
    """True if the row has a parse with a suitable number of tokens."""
    return 2 <= len(row["tokens"] or ()) <= MAX_TOKENS


def words_and_arcs(row: Row) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return the words and arcs of a stored parse, in displaCy's manual format.

    Tags and labels are escaped here; displaCy escapes only the words.
    """
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
    """Return a parse as SVG; `number` makes its ids unique on the page."""
    # Importing spaCy takes seconds, and loading the configuration imports this package.
    from spacy.displacy import DependencyRenderer

    words, arcs = words_and_arcs(row)
    svg = DependencyRenderer(OPTIONS).render_svg(f"tree-{number}", words, arcs)
    # displaCy puts labels below their arcs, where a short arc leaves too little space; this moves them above.
    return Markup(svg.replace('dy="1.25em"', 'dy="-0.4em"'))
