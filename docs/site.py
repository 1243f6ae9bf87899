"""Hooks of mkdocs.yml: pages from outside docs/, pages of the API, and links that work on GitHub as in the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks/gpu", "docker", "jobs")
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *(f"{name}/README.md" for name in FOLDERS))
"""Pages of the repository that are in the site too, at the same path."""
API = {
    "pipeline": ["pipeline"], "trainer": ["trainer"],
    "schemas": [f"schemas.{path.stem}" for path in sorted((ROOT / "schemas").glob("[!_]*.py")) if path.stem != "docs"],
}  # fmt: skip
"""Page below reference/ -> its modules."""
DOCTEST = re.compile(r"^(>>> .*\n(?:.*\S.*\n?)*)", re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


class Doctests(Extension):
    """Show the doctests of docstrings as code."""

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
    return files


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
