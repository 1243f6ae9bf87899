"""Tests that the files, modules and links that the documents mention exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "schemas",
    "hypergrit_common",
    "pipeline",
    "trainer",
    "demo",
    "jobs",
    "docs",
    "docker",
    "benchmarks",
    "tests",
)
# CHANGELOG.md also mentions files that no longer exist.
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "docker/README.md", "jobs/README.md")),
    *(ROOT / name for name in ("demo/weights/MODEL_CARD.md", "demo/world/README.md", "benchmarks/gpu/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FILE = re.compile(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)}|\.ci)/[\w./]*\w/?")
MODULE = re.compile(r"-m ((?:schemas|demo|benchmarks|pipeline|trainer|tests)\.[\w.]+)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
COMMIT = re.compile(r"\b[Cc]ommit [0-9a-f]{8}\b")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def of_today(text: str) -> str:
    """The paragraphs, each with an indented block after it, that name no commit, in which other files exist."""
    return "\n\n".join(part for part in re.split(r"\n\n(?! {4})", text) if not COMMIT.search(part))


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_file_and_module_that_a_document_mentions_exists(document: Path) -> None:
    text = of_today(document.read_text(encoding="utf-8"))
    missing = {name for name in FILE.findall(text) if not (ROOT / name).exists()}
    modules = {name: ROOT / name.replace(".", "/") for name in MODULE.findall(text)}
    missing |= {
        name
        for name, path in modules.items()
        if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists())
    }
    assert not missing


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=relative)
def test_every_relative_link_of_a_document_resolves(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in target]
    assert not [target for target in targets if not (document.parent / target).exists()]


def test_documentation_index_links_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(LINK.findall(index))


def test_layout_names_every_folder_of_the_tree_and_of_the_trainer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layout = text[text.index("## Layout") : text.index("## Stages")]
    packages = [path.parent for path in (ROOT / "trainer").glob("*/__init__.py")]
    folders = {"schemas", "hypergrit", "hypergrit_common", "pipeline", "trainer", "demo", "jobs", "benchmarks", "tests"}
    assert not {name for name in folders | {path.name for path in packages} if f"{name}/" not in layout}


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(LINK, "", title).lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_section_that_a_link_names_exists(document: Path) -> None:
    links = re.findall(r"\]\(([^):#\s]*\.md|)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    assert not [
        (name, section)
        for name, section in links
        if section not in anchors(document.parent / name if name else document)
    ]
