"""The size of each package, and the number of settings: Python files, lines and settings may only become fewer.

A commit that needs more raises the number here, and says in its message what it added and what went for it. A commit
that takes code away lowers the number.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_imports import FLOORS

ROOT = Path(__file__).resolve().parents[2]


class Size(NamedTuple):
    """Python files and lines of a package, and the layers of tests/docs/test_imports.py."""

    files: int
    lines: int
    layers: int = 0


LIMITS = {
    "schemas": Size(13, 1_956),
    "hypergrit": Size(3, 83),
    "hypergrit_common": Size(42, 6_635),
    "pipeline": Size(153, 33_844, 9),
    "trainer": Size(193, 28_631, 12),
    "demo": Size(33, 4_310),
    "benchmarks": Size(30, 4_534),
    "tests": Size(622, 67_966),
}
"""Package -> its largest size. A change may add as many lines of tests as it adds to the packages."""

MAX_SETTINGS = 320
"""Keys of all verbs, as docs/verbs.md lists them: those of `train` for its default model."""


def size_of(package: str) -> Size:
    paths = list((ROOT / package).rglob("*.py"))
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in paths)
    return Size(len(paths), lines, len(FLOORS.get(package, ())))


@pytest.mark.parametrize("package", LIMITS)
def test_a_package_does_not_grow(package: str) -> None:
    size, limit = size_of(package), LIMITS[package]
    assert size.files <= limit.files
    assert size.lines <= limit.lines
    assert size.layers <= limit.layers


def test_the_number_of_settings_does_not_grow() -> None:
    page = (ROOT / "docs" / "verbs.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| `", page, re.MULTILINE)) <= MAX_SETTINGS


def test_every_package_has_a_limit() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert {name for name in found if not name.startswith(".")} - {"docs", "out"} == LIMITS.keys()
