"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docker/README.md")]
NAMED = re.compile(
    r"(?<![\w/.])(?:schemas|common|pipeline|trainer|demo|jobs|docs|docker|benchmarks|tests|\.ci)/[\w./]*\w/?"
)
MODULE = re.compile(r"-m ((?:schemas|demo|benchmarks|pipeline|trainer)\.[\w.]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_module_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = {name for name in NAMED.findall(text) if not (ROOT / name).exists()}
    missing |= {name for name in MODULE.findall(text) if not (ROOT / f"{name.replace('.', '/')}.py").exists()}
    assert not missing


@pytest.mark.parametrize("half", ["pipeline", "trainer"])
def test_the_map_names_every_part(half: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = readme[readme.index("## Map of the tree") :]
    parts = [path for path in (ROOT / half).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    assert not {path.name for path in parts if path.name != "__init__.py" and path.name not in tree}
