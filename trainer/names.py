"""Patterns that select parameters of a model by name."""

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(pattern: str, name: str) -> bool:
    """True if `pattern` is the name of a parameter or of a module around it.

    A pattern may contain `*`, `?` and `[...]`, as in the shell: `visual.blocks.[0-5]`, `*.bias`, `textual`.
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(len(parts), 0, -1))


def longest_match(patterns: Iterable[str], name: str) -> str | None:
    """The longest of the patterns that match a parameter, the first in alphabetical order among several; else None."""
    return min((item for item in patterns if matches(item, name)), key=lambda item: (-len(item), item), default=None)


def check_matched(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise ValueError for a pattern that matches no parameter, with the names of the parts of the model."""
    found = list(names)
    unknown = [pattern for pattern in patterns if not any(matches(pattern, name) for name in found)]
    if unknown:
        parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in found))
        raise ValueError(f"{unknown[0]!r} matches no parameter; the parts of the model are {parts}")
