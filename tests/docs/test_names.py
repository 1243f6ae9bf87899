"""Modules, files and their members that comments, docstrings and messages of the code name do exist."""

import io
import re
import tokenize

import pytest

from tests.docs.test_size import LIMITS, ROOT

PRODUCT = sorted(LIMITS.keys() - {"tests"})
PACKAGES = "|".join(PRODUCT)
NAMED = re.compile(rf"(?<![\w./:<-])(?:(?:{PACKAGES})(?:\.\w+)+|(?:{PACKAGES})(?:/\w+)+\.py|\w+\.py)\b(?![./])")
TEXTS = {tokenize.COMMENT, tokenize.STRING}
FILES = {path.name for package in PRODUCT for path in (ROOT / package).rglob("*.py")}
NO_MODULES = {"schemas.md", "hypergrit.invalid", "hypergrit.safetensors", "trainer.evaluation.tasks.NAME"}


def exists(name: str) -> bool:
    """Whether there is a file of this name, or a module, or a member that a module defines or lists in its `__init__`."""
    if name.endswith(".py"):
        return (ROOT / name).is_file() or name in FILES
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:n])
        if module.is_dir() and n == len(parts):
            return True
        for path in (module.with_suffix(".py"), module / "__init__.py"):
            if path.is_file():
                defined = rf'^(?:(?:def|class) )?{parts[n]}\b|"{parts[n]}"' if n < len(parts) else ""
                return re.search(defined, path.read_text("utf-8"), re.MULTILINE) is not None
    return False


@pytest.mark.parametrize("package", PRODUCT)
def test_what_a_text_of_the_code_names_exists(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {name}"
        for path in (ROOT / package).rglob("*.py")
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        if token.type in TEXTS
        for name in set(NAMED.findall(token.string)) - NO_MODULES
        if not exists(name)
    ]
    assert not wrong
