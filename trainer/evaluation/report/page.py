"""Write summary.md and index.html of an evaluation: one page without scripts and external files."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import PIL.Image
from markupsafe import Markup, escape

from hypergrit_common.disk import atomic_write
from hypergrit_common.html import render_page
from hypergrit_common.images import ImageRejected, decode
from hypergrit_common.samples import LIMITS
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
    """A PNG file as a data URL; empty if it is missing."""
    if not path.is_file():
        return ""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


class Details:
    """Draws the details of a result: tables, lists, and pictures of the images below `data`."""

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.n_pictures = 0

    def draw(self, value: Any) -> Markup:
        """A JSON value as HTML, escaped."""
        if isinstance(value, Mapping):
            return self.draw_mapping(value)
        if isinstance(value, list):
            return self.draw_list(value)
        return escape(brief(value))

    def draw_mapping(self, values: Mapping[str, Any]) -> Markup:
        """A picture with its caption, or scalars as a table and other values as sections that open."""
        if has_image(values):
            return self.draw_picture(values)
        plain = {key: value for key, value in values.items() if not isinstance(value, Mapping | list)}
        parts = [Markup("")]
        if plain:
            parts.append(table(("", ""), [(named(key), value) for key, value in plain.items()]))
        for key, value in values.items():
            if key not in plain and value:
                inner = self.draw(value)
                parts.append(Markup("<details><summary>{}</summary>{}</details>").format(named(key), inner))
        return Markup("").join(parts)

    def draw_list(self, values: list[Any]) -> Markup:
        """Pictures in a grid, objects as a table, and other values separated by semicolons, since captions have commas."""
        if values and all(map(has_image, values)):
            cards = Markup("").join(self.draw_picture(value) for value in values[:MAX_ROWS])
            return Markup('<div class="cards">{}</div>').format(cards)
        if values and all(isinstance(value, Mapping) for value in values):
            names = tuple(dict.fromkeys(key for value in values for key in value))
            return table(names, [[self.draw(value.get(name, "")) for name in names] for value in values])
        if any(isinstance(value, Mapping | list) for value in values):
            items = Markup("").join(Markup("<li>{}</li>").format(self.draw(value)) for value in values[:MAX_ROWS])
            return Markup("<ol>{}</ol>").format(items)
        return escape("; ".join(brief(value) for value in values[:MAX_ROWS]))

    def draw_picture(self, values: Mapping[str, Any]) -> Markup:
        """A picture, with the other entries below it: lists as steps from top to bottom."""
        source = self.thumbnail(str(values["image"]), values.get("box"))
        picture = (
            Markup('<img src="{}" alt="">').format(source)
            if source
            else Markup('<p class="soft">{}</p>').format(Path(str(values["image"])).name)
        )
        lines = []
        for key, value in values.items():
            if key in ("image", "box"):
                continue
            if isinstance(value, list) and not any(isinstance(item, Mapping | list) for item in value):
                steps = Markup("").join(Markup("<li>{}</li>").format(brief(item)) for item in value[:MAX_ROWS])
                lines.append(Markup('<span class="soft">{}</span><ol class="steps">{}</ol>').format(named(key), steps))
            else:
                lines.append(Markup('<p><span class="soft">{}</span> {}</p>').format(named(key), self.draw(value)))
        caption = Markup("").join(lines)
        return Markup("<figure class=card>{}<figcaption>{}</figcaption></figure>").format(picture, caption)

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
    image = PIL.Image.fromarray(cut(decode(path.read_bytes(), LIMITS), box))
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def has_image(value: Any) -> bool:
    """True for an object with the file of an image."""
    return isinstance(value, Mapping) and isinstance(value.get("image"), str)


def named(key: str) -> str:
    """A key of the details as a title."""
    return "number" if key == "n" else key.replace("_", " ")


def brief(value: Any) -> str:
    """A scalar as text of limited length."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "–" if value is None else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table as HTML, escaped. Rows beyond `MAX_ROWS` are counted."""
    head = Markup("").join(Markup("<th>{}</th>").format(named(name)) for name in names)
    head = Markup("<thead><tr>{}</tr></thead>").format(head) if any(names) else Markup("")
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(
                Markup("<td{}>{}</td>").format(Markup(" class=long") if len(text) > 60 else "", text)
                for text in (item if isinstance(item, Markup) else brief(item) for item in line)
            )
        )
        for line in rows[:MAX_ROWS]
    )
    more = f"{len(rows) - MAX_ROWS} more rows are in the JSON file" if len(rows) > MAX_ROWS else ""
    return Markup(
        '<div class="scroll"><table class="plain">{}<tbody>{}</tbody></table></div><p class="soft">{}</p>'
    ).format(head, body, more)
