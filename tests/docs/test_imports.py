"""The layout is what CONTRIBUTING.md says: who may import whom, and where Ray is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "schemas": set(),
    "common": {"schemas"},
    "pipeline": {"schemas", "common"},
    "trainer": {"schemas", "common"},
    "demo": {"schemas", "common", "pipeline", "trainer"},
}
CROSSING = {("pipeline/score/scorers.py", "trainer")}
RAY = {"pipeline/on_ray.py", "trainer/on_ray.py"}


def imports(package: str) -> Iterator[tuple[str, str]]:
    """(file, top-level package that it imports), imports within functions included."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            yield from ((path.relative_to(ROOT).as_posix(), name.partition(".")[0]) for name in names)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    own = MAY_IMPORT.keys() | {"tests", "benchmarks"}
    wrong = {(file, name) for file, name in imports(package) if name in own - MAY_IMPORT[package] - {package}}
    assert wrong - CROSSING == set()


def test_ray_is_imported_in_one_file_of_each_half() -> None:
    assert {file for package in MAY_IMPORT for file, name in imports(package) if name == "ray"} == RAY
