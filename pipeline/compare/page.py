"""The comparison as a web page: one file without scripts, which a browser opens from disk without network access."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from markupsafe import Markup

from common.html import render_page
from pipeline.compare.contents import Contents
from pipeline.compare.figures import Difference, Section
from pipeline.compare.overlay import overlays
from pipeline.compare.text import amount, change, percent
from pipeline.report import html

TEMPLATES: Final = Path(__file__).resolve().parent


def render(
    a: Contents,
    b: Contents,
    sections: Sequence[Section],
    settings: Sequence[Difference],
    versions: Sequence[Difference],
) -> str:
    """Return the page as HTML. All texts of the outputs are escaped."""
    return render_page(
        TEMPLATES,
        "compare.html",
        {"amount": amount, "percent": percent, "change": change, "shortened": html.shortened},
        style=Markup(
            (html.TEMPLATES / "style.css").read_text("utf-8") + (TEMPLATES / "compare.css").read_text("utf-8")
        ),
        outputs=(("A", a), ("B", b)),
        sections=sections,
        charts=list(overlays(a.stats, b.stats)),
        settings=settings,
        versions=versions,
    )
