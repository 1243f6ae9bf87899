"""Docstrings of the public names of some packages: Google's sections name every argument, result and exception.

A function or class is public if its name has no leading underscore and a module outside its package, or a Python block
of a page of docs/, imports it or reads it from its module (`lorentz.distance`); also public are the names of `API`. A
method is public if its class is, another file names it too, and no base class in `PACKAGES` has it: docstrings are
inherited.

A public function has an entry in `Args:` for each argument, `Returns:` or `Yields:` unless it returns None, and an entry
in `Raises:` for each exception that its own body raises by name. Properties need a docstring alone, and the methods of
a protocol none. Each field of a public dataclass or NamedTuple has a comment, which `--help` shows for settings, a
docstring, or an entry in `Attributes:`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from trainer.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "trainer/geometry",
    "trainer/inference",
    "trainer/losses",
    "trainer/models",
    "trainer/encoders",
    "pipeline/stages",
)
"""Folders whose public names have these docstrings."""
API = {
    "trainer.geometry.poincare.distance",
    "trainer.losses.chunked.contrastive",
    "trainer.losses.functional.contrastive",
    "trainer.losses.sigmoid.sigmoid_contrastive",
    "trainer.models.config.ConesConfig",
    "trainer.models.levels.level_contrast",
    *(entry.location.replace(":", ".") for entry in MODELS.values()),
    *(f"{entry.config.__module__}.{entry.config.__name__}" for entry in MODELS.values()),
}
"""Names that are public although no import shows it: formulas, and what the registry of models lists."""
USERS = ("benchmarks", "demo", "hypergrit", "pipeline", "trainer")
"""Folders whose imports make a name public."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?:(?= |$)", re.MULTILINE)


class Public(NamedTuple):
    """A public function, method or class, and the lines of its file."""

    name: str
    node: Function | ast.ClassDef
    lines: list[str]


@cache
def trees(folder: str) -> dict[str, tuple[ast.Module, list[str]]]:
    """The syntax tree and the lines of each module of a folder, by its dotted name."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name] = (ast.parse(text), text.splitlines())
    return found


@cache
def named(tree: ast.Module) -> frozenset[str]:
    """The dotted names that a module imports, or reads as attributes of what it imports."""
    nodes = list(ast.walk(tree))
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    read = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return frozenset(
        {*modules.values(), *(f"{modules[node.value.id]}.{node.attr}" for node in read if node.value.id in modules)}
    )


@cache
def used_in() -> dict[str, set[str]]:
    """The files that define a function of each name, or read an attribute of that name; a page of docs/ is a file."""
    found = defaultdict(set)
    code = {name: tree for user in USERS for name, (tree, _) in trees(user).items()}
    for name, tree in (code | blocks()).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | Function):
                found[node.attr if isinstance(node, ast.Attribute) else node.name].add(name)
    return found


@cache
def blocks() -> dict[str, ast.Module]:
    """The Python blocks of docs/ that import something, by page and number."""
    pages = {
        page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs").glob("*.md"))
    }
    return {f"{page}:{i}": ast.parse(b) for page, found in pages.items() for i, b in enumerate(found) if "import " in b}


@cache
def names_outside(package: str) -> frozenset[str]:
    """The dotted names of `package` that other code and the pages name."""
    prefix = package.replace("/", ".") + "."
    code = [tree for user in USERS for name, (tree, _) in trees(user).items() if not name.startswith(prefix)]
    code += blocks().values()
    return frozenset(name for tree in code for name in named(tree) if name.startswith(prefix)) | API


def members(node: ast.ClassDef) -> dict[str, Function]:
    return {item.name: item for item in node.body if isinstance(item, Function)}


@cache
def classes() -> dict[str, ast.ClassDef]:
    """The classes of all packages by name."""
    found = [trees(package).values() for package in PACKAGES]
    return {n.name: n for trees_ in found for tree, _ in trees_ for n in tree.body if isinstance(n, ast.ClassDef)}


def inherited(node: ast.ClassDef) -> set[str]:
    """The names of the methods of the base classes in `PACKAGES`."""
    bases = [classes()[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes()]
    return {name for base in bases for name in (*members(base), *inherited(base))}


@cache
def public(package: str) -> tuple[Public, ...]:
    return tuple(
        found for name, (tree, lines) in trees(package).items() for found in public_of(package, name, tree, lines)
    )


def public_of(package: str, module: str, tree: ast.Module, lines: list[str]) -> Iterator[Public]:
    names = names_outside(package)
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name[0] == "_" or f"{module}.{node.name}" not in names:
            continue
        yield Public(f"{module}.{node.name}", node, lines)
        if isinstance(node, ast.ClassDef):
            for name, member in members(node).items():
                is_used = used_in()[name] - {module}
                if is_used and not name.startswith("_") and name not in inherited(node):
                    yield Public(f"{module}.{node.name}.{name}", member, lines)


def sections(node: ast.AST) -> dict[str, str]:
    return dict(SECTION.findall((ast.get_docstring(node) or "") + "\n"))  # type: ignore[arg-type]


def entries(node: ast.AST, section: str) -> set[str]:
    return set(ENTRY.findall(sections(node).get(section, "")))


def decorators(node: Function | ast.ClassDef) -> set[str]:
    """The names of the decorators, without their modules and arguments."""
    return {ast.unparse(item).partition("(")[0].rpartition(".")[2] for item in node.decorator_list}


def arguments(node: Function) -> set[str]:
    args = node.args
    found = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return {arg.arg for arg in found} - {"self", "cls"}


def raised(node: Function) -> set[str]:
    """The names of the exceptions that the body raises; functions within it are part of it."""
    errors = [item.exc for item in ast.walk(node) if isinstance(item, ast.Raise)]
    calls = [error.func if isinstance(error, ast.Call) else error for error in errors]
    return {call.id for call in calls if isinstance(call, ast.Name) and call.id[0].isupper()}


def missing_in_function(node: Function) -> set[str]:
    if not ast.get_docstring(node):
        is_of_protocol = ast.unparse(node.body[-1]) == "..." and "abstractmethod" not in decorators(node)
        return set() if is_of_protocol else {"docstring"}
    if decorators(node) & {"property", "cached_property"}:
        return set()
    found = sections(node).keys()
    missing = {f"Args: {name}" for name in arguments(node) ^ entries(node, "Args")}
    missing |= {f"Raises: {name}" for name in raised(node) - entries(node, "Raises")}
    returns = ast.unparse(node.returns) if node.returns else "None"
    return missing if returns == "None" or found & {"Returns", "Yields"} else missing | {"Returns"}


def missing_in_class(node: ast.ClassDef, lines: list[str]) -> set[str]:
    if not ast.get_docstring(node):
        return {"docstring"}
    init, bases = members(node).get("__init__"), {ast.unparse(base) for base in node.bases}
    documented = entries(node, "Args") | (entries(init, "Args") if init else set())
    own = arguments(init) if init and "__init__" not in inherited(node) else set()
    missing = {f"Args: {name}" for name in own - documented}
    if "dataclass" not in decorators(node) and "NamedTuple" not in bases:
        return missing
    return missing | {f"field: {name}" for name in undocumented_fields(node, lines)}


def undocumented_fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    described = entries(node, "Attributes") | entries(node, "Args")
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        has_docstring = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        above, here = lines[item.lineno - 2].strip(), lines[item.end_lineno - 1]  # type: ignore[operator]
        if not (item.target.id in described or has_docstring or above.startswith("#") or "  # " in here):
            yield item.target.id


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_all_sections(package: str) -> None:
    found = public(package)
    assert found
    missing = {
        name: sorted(missing_in_class(node, lines) if isinstance(node, ast.ClassDef) else missing_in_function(node))
        for name, node, lines in found
    }
    assert {name: what for name, what in missing.items() if what} == {}


def test_every_name_of_the_api_exists() -> None:
    assert {item.name for package in PACKAGES for item in public(package)} >= API


def test_what_is_missing_is_found() -> None:
    function = ast.parse(
        '''
def f(x: int, *y: int, z: int = 0) -> int:
    """First line.

    Args:
        x: a number.
        w (int): no argument.

    Raises:
        ValueError: never.
    """
    if x:
        raise KeyError(x)
    raise ValueError
'''
    ).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert missing_in_function(function) == {"Args: w", "Args: y", "Args: z", "Raises: KeyError", "Returns"}
    code = "@dataclass(frozen=True)\nclass C:\n    '''C.'''\n    x: int\n    # why\n    y: int\n    z: int  # why\n"
    kind = ast.parse(code).body[0]
    assert isinstance(kind, ast.ClassDef)
    assert missing_in_class(kind, code.splitlines()) == {"field: x"}
