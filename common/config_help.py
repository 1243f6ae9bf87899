"""`--help`, made from the configuration itself: every key, its default, and the comment beside it."""

import ast
import dataclasses
import inspect
import io
import os
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints


def field_comments(cls: type) -> dict[str, str]:
    """The comments above and beside each field of a dataclass, read from its source and its parents', joined."""
    found: dict[str, str] = {}
    for parent in reversed([kind for kind in cls.__mro__ if dataclasses.is_dataclass(kind)]):
        found |= _own_comments(parent)
    return found


def _own_comments(cls: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {number for number, line in enumerate(source.splitlines(), 1) if line.lstrip().startswith("#")}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            first = statement.lineno
            while first - 1 in alone:
                first -= 1
            lines = range(first, (statement.end_lineno or statement.lineno) + 1)
            found[statement.target.id] = " ".join(comments[line] for line in lines if line in comments)
    return found


def keys(cls: type, prefix: str = "", kinds: Mapping[str, type] | None = None) -> Iterator[tuple[str, Any, str]]:
    """(key, default, explanation) of every leaf below `cls`, in order of declaration; `kinds` as in `common.load.merge`."""
    comments, hints = field_comments(cls), get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        nested = (kinds or {}).get(item.name) or (type(default) if dataclasses.is_dataclass(default) else None)
        if nested:
            yield from keys(nested, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, default, with_choices(comments.get(item.name, ""), hints[item.name])


def with_choices(comment: str, hint: Any) -> str:
    """The comment, and the values that the type allows where it does not name them all."""
    options = [hint, *get_args(hint)]
    choices = [value for kind in options if get_origin(kind) is Literal for value in get_args(kind)]
    if all(re.search(rf"\b{re.escape(str(value))}\b", comment) for value in choices):
        return comment
    return f"{comment}; one of {', '.join(map(str, choices))}" if comment else f"one of {', '.join(map(str, choices))}"


def shown(value: Any) -> str:
    """A default as it would be written on the command line."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value) or "(not set)"


def describe(usage: str, cls: type, short: Mapping[str, str], kinds: Mapping[str, type] | None = None) -> str:
    """The whole of --help: `usage`, then every key."""
    short_of = {long: name for name, long in short.items()}
    lines, group = [usage, "keys:"], ""
    for key, default, comment in keys(cls, kinds=kinds):
        head = key.split(".")[0] if "." in key else ""
        if head != group:
            lines.append("")
            group = head
        name = f"{short_of[key]} (= {key})" if key in short_of else key
        value = shown(default)
        lines.append(f"  {name} = {value}" if len(value) < 80 else f"  {name} = {value[:76]}...")
        if comment:
            lines.append(f"      {comment}")
    return "\n".join(lines)


def show(text: str) -> None:
    """Print. A reader that leaves early, as `head` does, has seen enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would complain
