"""The version of HyperGRIT."""

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def hypergrit_version() -> str:
    """Return the version in the pyproject.toml of this checkout, or else the version of the installed package."""
    return version_in(Path(__file__).resolve().parent.parent)


def version_in(root: Path) -> str:
    """Return the version in the pyproject.toml of `root`, or without one that of the installed package."""
    file = root / "pyproject.toml"
    if not file.is_file():
        return package_version("hypergrit")
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])


def package_version(name: str) -> str:
    """Return the installed version of a distribution, or 'absent'."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
