"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docker/README.md")]
NAMED = re.compile(r"(?<![\w/.])(?:schemas|pipeline|trainer|demo|jobs|docs|docker|benchmarks|tests|\.ci)/[\w./]*\w/?")
MODULE = re.compile(r"-m ((?:schemas|demo|benchmarks|pipeline)\.[\w.]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_module_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = {name for name in NAMED.findall(text) if not (ROOT / name).exists()}
    missing |= {name for name in MODULE.findall(text) if not (ROOT / f"{name.replace('.', '/')}.py").exists()}
    assert not missing


def test_the_map_names_every_part_of_the_pipeline() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = [path for path in (ROOT / "pipeline").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    missing = {
        f"pipeline/{path.name}"
        for path in parts
        if path.name != "__init__.py" and f"pipeline/{path.name}" not in readme
    }
    assert not missing


def test_the_containers_copy_what_is_there() -> None:
    for file in (ROOT / "docker" / "Dockerfile", ROOT / "docker" / "Dockerfile.gpu"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("COPY") and "--from" not in line:
                *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
                assert all((ROOT / source).exists() for source in sources), line
