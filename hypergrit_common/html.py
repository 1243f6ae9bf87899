"""HTML pages from Jinja templates."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from hypergrit_common.text import without_controls


def render_page(
    folder: Path, template: str, filters: Mapping[str, Callable[..., str]] | None = None, /, **values: Any
) -> str:
    """Return the page of a template in `folder`. Texts are escaped if its name ends in .html, and control characters always.

    HTML cannot represent control characters, and texts of the web hold them. Raises jinja2.UndefinedError if the
    template uses a value that is not given.
    """
    environment = make_environment(folder)
    environment.filters |= dict(filters or {})
    return without_controls(environment.get_template(template).render(values))


@cache
def make_environment(folder: Path) -> Environment:
    """Return the environment of the templates in a folder, which it compiles once."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
