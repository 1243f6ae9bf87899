"""Each sentence of the guarantees has a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = ("docs/guarantees.md", "SECURITY.md")


def names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 5
    missing = [(file, name) for file, name in named if not (ROOT / file).exists() or name not in names_of(ROOT / file)]
    assert missing == []


def test_each_row_of_the_guarantees_names_its_test() -> None:
    text = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8").partition("## The test of sequences")[0]
    lines = [
        line for line in text.splitlines() if line.startswith("|") and set(line) - set("|- ") and "test |" not in line
    ]
    assert len(lines) > 40
    assert [line for line in lines if not NAMED.search(line)] == []


def test_each_vulnerability_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("are vulnerabilities:")[2]
    items = re.split(r"\n- ", text.strip().partition("\n\n")[0])
    assert len(items) > 5
    assert [item for item in items if not NAMED.search(item)] == []
