"""Hooks of mkdocs.yml: pages from outside docs/, pages of the API, and links that work on GitHub as in the site."""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks/gpu", "docker", "jobs")
PAGES = ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *(f"{name}/README.md" for name in FOLDERS))
"""Pages of the repository that are in the site too, at the same path."""


def modules_of(folder: str) -> list[str]:
    """Return the modules of a folder whose names do not begin with an underscore."""
    paths = sorted((ROOT / folder).glob("[!_]*.py"))
    return [f"{folder.replace('/', '.')}.{path.stem}" for path in paths if path.stem != "docs"]


API = {
    "pipeline": ["pipeline"], "trainer": ["trainer"], "schemas": modules_of("schemas"),
    "models": [name for part in ("geometry", "losses", "models", "encoders") for name in modules_of(f"trainer/{part}")],
}  # fmt: skip
"""Page below reference/ -> its modules."""
NOTEBOOK = "hierarchy.ipynb"
DOCTEST = re.compile(r"^(>>> .*\n(?:.*\S.*\n?)*)", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


class Doctests(Extension):
    """Show the doctests of docstrings as code."""

    def on_attribute_instance(self, *, attr: Any, **_: Any) -> None:
        """Begin the text of a setting with the comment above it, its help text."""
        lines, end = attr.lines_collection[attr.filepath], (attr.lineno or 1) - 1
        start = end
        while start and lines[start - 1].strip().startswith("#"):
            start -= 1
        if start < end and attr.parent.is_class:
            comment = " ".join(line.strip().lstrip("# ") for line in lines[start:end])
            own = attr.docstring.value if attr.docstring else ""
            attr.docstring = Docstring(f"{comment[:1].upper()}{comment[1:]}. {own}".strip(), parent=attr)

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\1\n```\n", obj.docstring.value + "\n")


def on_files(files: Any, config: Any) -> Any:
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    for name, modules in API.items():
        level = 1 if modules == [name] else 2
        heading = f"# {name}\n\n" if level == 2 else ""
        text = heading + "".join(f"::: {module}\n    options: {{heading_level: {level}}}\n\n" for module in modules)
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, NOTEBOOK.replace(".ipynb", ".md"), content=notebook_page()))
    return files


def notebook_page() -> str:
    """The cells of the notebook as Markdown, with their outputs."""
    parts = []
    for cell in json.loads((ROOT / "docs" / NOTEBOOK).read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to files of the repository, and give code in lists the four spaces that Markdown demands here."""
    here = page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}"

    def target(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[3]))
        found = path if path in PAGES else path.removeprefix("docs/") if path.startswith("docs/") else ""
        if (ROOT / path).exists() and not (found and files.get_file_from_path(found)):  # a file that the site lacks
            return link[2] if "`" in link[2] or link[1] else f"`{path}`"
        found = found or link[3]
        url = posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}[{link[2]}]({url}{link[4] or ''})"

    return re.sub(r"^( {3}| {7}| {11})(?=\S)", r"\1 ", LINK.sub(target, markdown), flags=re.MULTILINE)
