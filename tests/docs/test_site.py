"""mkdocs.yml: the site of docs/ builds without a warning, has every page, and points to no other server for its parts."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.patience import COMMAND_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-site" / "bin" / "python"
NAVIGATION = re.compile(r"[\w/]+\.md")


def pages() -> set[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return set(NAVIGATION.findall(text[text.index("\nnav:") :]))


def test_the_navigation_has_every_page_of_docs_and_only_pages_that_exist() -> None:
    found = {path.name for path in (ROOT / "docs").glob("*.md")}
    written_by_the_site = {f"reference/{name}.md" for name in ("pipeline", "trainer", "schemas", "models")}
    assert found <= pages()
    missing = {name for name in pages() - found if not (ROOT / name).exists() and not (ROOT / "docs" / name).exists()}
    assert missing == written_by_the_site | {"hierarchy.md"}


def test_the_packages_of_the_site_are_not_in_the_main_environment() -> None:
    lock = (ROOT / "docs" / "requirements.lock").read_text(encoding="utf-8")
    assert re.search(r"^mkdocs-material==", lock, re.MULTILINE)
    assert "://" not in lock
    assert "mkdocs" not in (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.mark.rest
@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import mkdocs"], capture_output=True).returncode:
        pytest.skip("mkdocs is not installed in .venv-site: run `make site`")
    built = subprocess.run(
        [PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    assert "WARNING" not in built.stderr
    html = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    assert {name.replace(".md", ".html").replace("README", "index") for name in pages()} <= html.keys()
    loaded = re.compile(r'<(?:script|img|link rel="(?:stylesheet|icon)")[^>]* (?:src|href)="(https?://[^"]+)')
    assert not [found for text in html.values() for found in loaded.findall(text)]
    assert 'id="trainer.Model.encode_image"' in html["reference/trainer.html"]
    assert "The hierarchy of a picture" in html["hierarchy.html"]
    assert "data:image/png" in html["hierarchy.html"]
    assert 'id="schemas.manifest.Manifest"' in html["reference/schemas.html"]
    assert 'id="trainer.models.hycoclip.HyCoCLIP"' in html["reference/models.html"]
    assert "&gt;&gt;&gt; " in html["reference/pipeline.html"]
