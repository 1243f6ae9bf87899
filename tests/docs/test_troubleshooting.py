"""docs/troubleshooting.md quotes messages that the code still has."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUOTES = re.findall(r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
PACKAGES = ("schemas", "hypergrit_common", "pipeline", "trainer", "hypergrit")
VALUE = "\0"
"""Stands for a value within a message."""


def messages(source: str) -> Iterator[str]:
    """Yield the string literals of a module without its docstrings, with VALUE for each value of an f-string."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.fixture(scope="module")
def literals() -> list[str]:
    """The string literals of the product, and those of Ray about tokens."""
    ray = Path(find_spec("ray").submodule_search_locations[0])
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    files.append(ray / "_private" / "authentication" / "authentication_constants.py")
    return [text for path in files for text in messages(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_message_is_in_the_code(quote: str, literals: list[str]) -> None:
    pattern = re.compile(".*".join(map(re.escape, re.split(r" ?\.\.\. ?", quote))), re.DOTALL)
    assert any(pattern.search(text) for text in literals)


def test_the_page_quotes_the_messages_that_users_meet_most() -> None:
    assert len(QUOTES) == len(set(QUOTES)) >= 35
