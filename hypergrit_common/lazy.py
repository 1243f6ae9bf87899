"""Imports by name: lazy exports of a package, and classes of the user's own packages (plug-ins), named `module:Class`."""

import inspect
import re
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash

PLUGIN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def lazy_exports(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package (PEP 562); `exports` maps each name to its module."""

    def __getattr__(name: str) -> Any:  # noqa: N807 (the name that Python looks up)
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(exports[name]), name)

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(exports)

    return __getattr__, __dir__


def is_plugin(name: object) -> bool:
    """Return True for the name of a plug-in, `module:Class`."""
    return isinstance(name, str) and PLUGIN.fullmatch(name) is not None


def load_plugin(name: str, base: type, key: str) -> Any:
    """Import the class `name`, the value of the setting `key`, which runs the code of its module.

    Callers pass only names from the command line or a job file of the user, never from a file of an output. Raises
    UserError if it cannot be imported or is no `base`.
    """
    module, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise UserError(f"{key}={name} names no class; give module:Class, such as my_package.colours:FewColours")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"{key}={name}: there is no module {error.name!r} on {socket.gethostname()}; install its package, or "
                "give its folder in PYTHONPATH"
            ) from None
        raise UserError(f"{key}={name}: {module} cannot be imported: {error}; install it") from error
    except Exception as error:  # whatever the code of the user raises
        raise UserError(f"{key}={name}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    if found is None:
        raise UserError(f"{key}={name}: the module {module} has no class {attribute!r}")
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise UserError(
            f"{key}={name} is no {base.__name__}; make it a class with {base.__module__}:{base.__name__} as base"
        )
    if missing := getattr(found, "__abstractmethods__", ()):
        raise UserError(f"{key}={name} lacks methods of {base.__name__}: {', '.join(sorted(missing))}")
    return found


def plugin_hash(name: str) -> str:
    """Return the SHA-256 of the file with the module of `module:Class`, without importing it. Raises UserError."""
    try:
        spec = find_spec(name.partition(":")[0])
        return file_hash(spec.origin or "") if spec else ""
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"the file of {name} cannot be read on {socket.gethostname()}: {error}") from error
