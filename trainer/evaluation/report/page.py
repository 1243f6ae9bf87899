"""Write summary.md and index.html of an evaluation: one page without scripts and external files."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import PIL.Image
from markupsafe import Markup

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import read_limited
from hypergrit_common.html import render_page
from hypergrit_common.images import ImageRejected, decode
from hypergrit_common.samples import LIMITS, MAX_SAMPLE_BYTES
from hypergrit_common.text import without_controls
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.report.tables import (
    Results,
    build_table,
    contamination_text,
    heading,
    markdown,
    notes_of,
    show,
)
from trainer.evaluation.sets.pictures import cut

FOLDER: Final = Path(__file__).resolve().parent
MAX_ROWS: Final = 60
"""Rows of a table of details on the page; the JSON file holds all."""
MAX_PICTURES: Final = 48
"""Pictures in the details of a task and model."""
MAX_TEXT: Final = 300
THUMBNAIL_PX: Final = 220
PNG: Final = b"\x89PNG\r\n\x1a\n"


def write_pages(results: Results, tasks: Sequence[str], output: Path, data: Path, failed: Mapping[str, str]) -> None:
    """Write summary.md and index.html to the folder `output`. Pictures are read from below `data` only.

    `failed` holds the errors of the models that could not be loaded.
    """
    for name, text in (
        ("summary.md", without_controls(markdown(tasks, results, failed))),
        ("index.html", page(results, tasks, output, data, failed)),
    ):
        with atomic_write(output / name) as draft:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")


def page(results: Results, tasks: Sequence[str], output: Path, data: Path, failed: Mapping[str, str]) -> str:
    """The page as HTML."""
    sections = [section(task, results, output, data) for task in tasks]
    models = {label: next(iter(parts.values()))["model"] for label, parts in results.items() if parts}
    return render_page(
        FOLDER,
        "page.html",
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        models=models,
        failed=failed,
        sections=sections,
        n_done=sum(bool(part["table"].lines) and not part["all_failed"] for part in sections),
        n_images=sum(content.get("n_used", 0) for parts in results.values() for content in parts.values()),
    )


def section(task: str, results: Results, output: Path, data: Path) -> dict[str, Any]:
    """The values of one task for the template."""
    done = {label: parts[task] for label, parts in results.items() if "metrics" in parts.get(task, {})}
    return {
        "task": task,
        "about": TASKS[task],
        "table": build_table(task, results),
        "notes": notes_of(task, results),
        "all_failed": not done,
        "models": [
            {
                "label": label,
                "content": content,
                "figures": [
                    {"title": figure["title"], "source": inline_file(output / label / figure["file"])}
                    for figure in content["figures"]
                ],
                "metrics": [
                    (" / ".join(heading(name)), show(task, name, value), show(task, name, content["chance"].get(name)))
                    for name, value in content["metrics"].items()
                ],
                "contamination": contamination_text(content["contamination"]) if content.get("contamination") else "",
                "details": Details(data).draw(
                    {k: v for k, v in content["details"].items() if k not in ("missing", "malformed")}
                ),
            }
            for label, content in done.items()
        ],
    }


def inline_file(path: Path) -> str:
    """A PNG file of at most `MAX_SAMPLE_BYTES` as a data URL; empty if it is missing, no such file, or a link."""
    try:
        content = b"" if path.is_symlink() else read_limited(path, MAX_SAMPLE_BYTES)
    except (OSError, ValueError):
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content.startswith(PNG) else ""


class Details:
    """Draws the details of a result: tables, lists, and pictures of the images below `data`."""

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.n_pictures = 0

    def draw(self, value: Any) -> Markup:
        """A JSON value as HTML, escaped."""
        filters = {"brief": brief, "named": named, "file_name": lambda path: Path(path).name}
        values = {"value": value, "kind_of": kind_of, "thumbnail": self.thumbnail, "max_rows": MAX_ROWS}
        return Markup(render_page(FOLDER, "details.html", filters, **values).strip())

    def thumbnail(self, name: str, box: Any = None) -> str:
        """A small JPEG of an image below the data folder as a data URL; empty if it cannot be shown."""
        try:
            path = (self.data / name).resolve()
            if self.n_pictures >= MAX_PICTURES or not path.is_relative_to(self.data):
                return ""
            found = thumbnail(path, None if box is None else tuple(map(float, box)))
        except (OSError, ImageRejected, ValueError, TypeError, OverflowError, SystemError):
            return ""
        self.n_pictures += 1
        return found


@lru_cache(maxsize=4096)  # the pages are written after each task
def thumbnail(path: Path, box: tuple[float, ...] | None) -> str:
    """A small JPEG of an image, or of the part in a box, as a data URL.

    Raises OSError, ImageRejected, ValueError and SystemError.
    """
    if box is not None and len(box) != 4:
        raise ValueError(f"box {box} is not (left, top, width, height)")
    image = PIL.Image.fromarray(cut(decode(read_limited(path, MAX_SAMPLE_BYTES), LIMITS), box))
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def kind_of(value: Any) -> Literal["text", "texts", "list", "picture", "pictures", "object", "objects"]:
    """The form in which the details show a JSON value."""
    if isinstance(value, Mapping):
        return "picture" if isinstance(value.get("image"), str) else "object"
    if not isinstance(value, list):
        return "text"
    kinds = {kind_of(item) for item in value}
    if kinds <= {"text"}:
        return "texts"
    if kinds <= {"picture", "object"}:
        return "objects" if "object" in kinds else "pictures"
    return "list"


def named(key: str) -> str:
    """A key of the details as a title."""
    return "number" if key == "n" else key.replace("_", " ")


def brief(value: Any) -> str:
    """A scalar as text of limited length."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "–" if value is None else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
