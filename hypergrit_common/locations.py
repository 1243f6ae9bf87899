"""Settings that name several files: paths, globs and URLs, with commas, `::`, braces, or as a list."""

import os
import re
from collections.abc import Sequence
from typing import Final

from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line

Locations = str | tuple[str, ...]
"""One text, which `split_locations` divides, or a list, each item of which is one location."""

MAX_PATTERNS: Final = 1_000_000
BRACES: Final = re.compile(r"\\.|\{(?:(-?\d+)\.\.(-?\d+)|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?\d+)?\}|[{},]", re.DOTALL)
INNER: Final = frozenset(
    ("zip", "tar", "libarchive", "simplecache", "filecache", "blockcache", "cached", "dir", "reference", "ftp")
)
"""Protocols of fsspec that read from what follows `::` in a chain, as in `zip://*.tar::s3://bucket/shards.zip`."""

PIPE: Final = "pipe:"
"""Beginning of a location whose rest is a command that writes the file to its output, as in webdataset."""


def split_locations(locations: Locations) -> list[str]:
    """Divide a text at commas, and at `::` as open_clip does, outside braces; the items of a list at `::` alone.

    A local path that exists is one location, whatever its name, and so is a chain of fsspec.

    Args:
        locations: value of a setting.

    Returns:
        The locations in their order, without those that are blank.

    >>> split_locations("a, b::s3://c/{1,2}.tar")
    ['a', 'b', 's3://c/{1,2}.tar']
    >>> split_locations(("cats, dogs", "simplecache::s3://c/d"))
    ['cats, dogs', 'simplecache::s3://c/d']
    """
    if not isinstance(locations, str):
        return [part for item in locations for part in _divide(item, ("::",))]
    return _divide(locations, (",", "::"))


def _divide(text: str, separators: Sequence[str]) -> list[str]:
    if os.path.lexists(text):
        return [text]
    if text.lstrip().startswith(PIPE):  # commas belong to the command
        separators = ("::",)
    found, depth = [""], 0
    for part in re.split(r"(::|[,{}])", text):
        depth += (part == "{") - (part == "}" and depth > 0)
        is_chain = part == "::" and found[-1].strip().partition("://")[0] in INNER
        if part in separators and not depth and not is_chain:
            found.append("")
        else:
            found[-1] += part
    return [text for item in found if (text := item.strip())]


def expand_braces(pattern: str) -> list[str]:
    """Return the paths that a pattern with braces stands for; a local path that exists stands for itself.

    Args:
        pattern: a path or URL.

    Returns:
        The paths, each once.

    Raises:
        UserError: a brace is not closed, or the pattern stands for too many paths.

    >>> expand_braces("data/{08..10}.tar")
    ['data/08.tar', 'data/09.tar', 'data/10.tar']
    """
    if "{" not in pattern or os.path.lexists(pattern):
        return [pattern]
    from braceexpand import braceexpand  # which a machine that trains may lack

    try:
        if (n := count_paths(pattern)) > MAX_PATTERNS:
            shown = str(n) if n < 10**20 else "more than 10**20"
            raise UserError(f"{pattern!r:.200} stands for {shown} files; give a glob or a folder")
        return list(dict.fromkeys(braceexpand(pattern)))
    except ValueError as error:
        raise UserError(f"{pattern!r}: {one_line(error)}; close each brace, as in data/{{00..99}}.tar") from None


def count_paths(pattern: str) -> int:
    """Return the number of paths of a pattern with braces, as if the steps of ranges were 1.

    Raises ValueError for an end of a range with thousands of digits.
    """
    groups = [[0, 1]]  # of each open brace: the paths before its last comma, and after it
    for found in BRACES.finditer(pattern):
        first, last, letter, other = found.groups()
        if first or letter:
            groups[-1][1] *= abs(int(last) - int(first) if first else ord(other) - ord(letter)) + 1
        elif found[0] == "{":
            groups.append([0, 1])
        elif found[0] == "}" and len(groups) > 1:
            inner = sum(groups.pop())
            groups[-1][1] *= inner
        elif found[0] == "," and len(groups) > 1:
            groups[-1] = [sum(groups[-1]), 1]
    return groups[0][1]


def as_text(locations: Locations) -> str:
    """Return locations as one text, for records and messages."""
    return locations if isinstance(locations, str) else ", ".join(locations)
