"""The import rules of CONTRIBUTING.md: what each package and file may import, and which modules import Ray."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "hypergrit_common": {"schemas"},
    "pipeline": {"schemas", "hypergrit_common"},
    "trainer": {"schemas", "hypergrit_common"},
    "hypergrit": {"schemas", "hypergrit_common", "pipeline", "trainer"},
    "demo": {"schemas", "hypergrit", "hypergrit_common", "pipeline", "trainer"},
}
"""Package -> the other packages that it may import."""

EXCEPTIONS = {("pipeline.stages.score.scorers", "trainer")}
"""(module, package) of imports that are allowed although MAY_IMPORT forbids them."""

RAY_MODULES = {
    "hypergrit_common.local_ray",
    "pipeline.run.ray",
    "pipeline.run.ray_driver",
    "pipeline.run.ray_workers",
    "trainer.training.on_ray",
}

FLOORS: dict[str, list[set[str]]] = {
    "trainer": [
        {"geometry", "text"},
        {"batch", "encoders"},
        {"distributed"},
        {"data", "losses"},
        {"models"},
        {"optim"},
        {"checkpoints"},
        {"evaluation"},
        {"analyses", "config", "evaluate", "features", "metrics"},
        {"inference"},
        {"training", "__init__"},
        {"train", "torchrun"},
    ],
    "pipeline": [
        {"faults", "images", "models"},
        {"read", "stages"},
        {"config", "summary"},
        {"output"},
        {"report"},
        {"run"},
        {"explore"},
        {"commands", "__init__"},
        {"grit"},
    ],
}
"""Files and folders of a package from the ground floor up. Each may import only those of lower floors."""


class Import(NamedTuple):
    """An import statement, at any level of a module: `module` imports `target`."""

    module: str
    target: str


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name; a package's own file is PACKAGE.__init__."""
    return {module_name(path): path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")}


def resolve(name: str) -> str:
    """The module that the dotted name of a module or of a package refers to; other names are returned unchanged."""
    return f"{name}.__init__" if f"{name}.__init__" in modules() else name


@cache
def imports() -> tuple[Import, ...]:
    """All imports of all modules, including those within functions."""
    return tuple(
        Import(module, target)
        for module, path in modules().items()
        for target in targets(ast.parse(path.read_text(encoding="utf-8")), module)
    )


def targets(tree: ast.Module, module: str) -> Iterator[str]:
    """The modules that `module` imports: `from package import name` gives package.name if that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (resolve(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: write absolute imports"
            source = str(node.module)
            for alias in node.names:
                inner = resolve(f"{source}.{alias.name}")
                yield inner if inner in modules() else resolve(source)


def package_of(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    forbidden = (MAY_IMPORT.keys() | {"tests", "benchmarks"}) - MAY_IMPORT[package] - {package}
    wrong = {
        (module, package_of(target))
        for module, target in imports()
        if package_of(module) == package and package_of(target) in forbidden
    }
    assert wrong - EXCEPTIONS == set()


def test_only_the_on_ray_modules_import_ray() -> None:
    importing = {module for module, target in imports() if package_of(target) == "ray"}
    assert importing == RAY_MODULES


def find_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """A cycle in a directed graph, from a node back to itself; empty if the graph has no cycles."""
    finished: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in finished:
            return []
        for target in sorted(graph.get(node, ())):
            if cycle := visit(target, [*path, node]):
                return cycle
        finished.add(node)
        return []

    return next(filter(None, (visit(node, []) for node in sorted(graph))), [])


def test_no_modules_import_each_other_in_a_cycle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in imports():
        if target in modules() and target != module:
            graph[module].add(target)
    assert find_cycle(graph) == []


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c", "b"]


def part_of(module: str) -> str:
    """The file or folder directly below the package that a module belongs to."""
    return module.split(".")[1]


@pytest.mark.parametrize("package", FLOORS)
def test_every_part_of_a_package_has_a_floor(package: str) -> None:
    declared = [part for floor in FLOORS[package] for part in floor]
    assert len(declared) == len(set(declared))
    assert set(declared) == {part_of(module) for module in modules() if package_of(module) == package}


@pytest.mark.parametrize("package", FLOORS)
def test_a_part_of_a_package_imports_only_from_lower_floors(package: str) -> None:
    floor_of = {part: number for number, floor in enumerate(FLOORS[package]) for part in floor}
    inner = [pair for pair in imports() if package_of(pair.module) == package_of(pair.target) == package]
    upward = [
        pair
        for pair in inner
        if part_of(pair.module) != part_of(pair.target)
        and floor_of[part_of(pair.module)] <= floor_of[part_of(pair.target)]
    ]
    assert inner
    assert upward == []
