"""The text of `--help`, generated from the configuration: every key, its default, and the comment above its field."""

import ast
import dataclasses
import inspect
import io
import re
import shutil
import sys
import textwrap
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from hypergrit_common.cli import close_broken_stdout
from hypergrit_common.errors import UserError
from hypergrit_common.text import message

ALL: Final = "all"
"""Topic of `--help` with every key."""
MAX_DEFAULT_CHARS: Final = 80
RUNTIME_MARK: Final = "[runtime]"
RUNTIME_NOTE: Final = f"{RUNTIME_MARK}: may change when the command is run again on the same output"


class Key(NamedTuple):
    """A key of a configuration, as `--help` lists it."""

    name: str
    default: Any
    comment: str
    is_runtime: bool


@cache
def field_comments(cls: type) -> dict[str, str]:
    """Map each field of a dataclass and its base classes to the comment above it, joined to one line."""
    found: dict[str, str] = {}
    for parent in reversed([kind for kind in cls.__mro__ if dataclasses.is_dataclass(kind)]):
        found |= _comments_in(parent)
    return found


def _comments_in(cls: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            first = statement.lineno
            while first - 1 in comments:
                first -= 1
            found[statement.target.id] = " ".join(comments[line] for line in range(first, statement.lineno))
    return found


def list_keys(
    cls: type, prefix: str = "", kinds: Mapping[str, type] | None = None, is_runtime: bool = False
) -> Iterator[Key]:
    """Yield the keys of `cls` and its groups in order of declaration; `kinds` as in `hypergrit_common.config.merge`."""
    comments, hints = field_comments(cls), get_type_hints(cls)
    for item in dataclasses.fields(cls):
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        may_change = is_runtime or bool(item.metadata.get("runtime"))
        nested = (kinds or {}).get(item.name) or (type(default) if dataclasses.is_dataclass(default) else None)
        if nested:
            yield from list_keys(nested, f"{prefix}{item.name}.", is_runtime=may_change)
        else:
            comment = with_choices(comments.get(item.name, ""), hints[item.name])
            yield Key(prefix + item.name, default, comment, may_change)


def with_choices(comment: str, hint: Any) -> str:
    """Append the values of a Literal type to the comment, unless it already names all of them."""
    options = [hint, *get_args(hint)]
    choices = [value for kind in options if get_origin(kind) is Literal for value in get_args(kind)]
    if all(re.search(rf"\b{re.escape(str(value))}\b", comment) for value in choices):
        return comment
    return f"{comment}; one of {', '.join(map(str, choices))}" if comment else f"one of {', '.join(map(str, choices))}"


def format_default(value: Any) -> str:
    """Format a default value as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value) or "(not set)"


def help_topic(arguments: Sequence[str]) -> str | None:
    """Return the word after `--help` on a command line, "" without one; None if the arguments ask for no help."""
    at = next((i for i, item in enumerate(arguments) if item in ("-h", "--help")), None)
    return None if at is None else next((item for item in arguments[at + 1 :] if "=" not in item), "")


def describe(
    usage: str,
    cls: type,
    short: Mapping[str, str] | None = None,
    kinds: Mapping[str, type] | None = None,
    main: Collection[str] = (),
    topic: str = "",
    more: Iterable[Key] = (),
    title: str = "keys",
) -> str:
    """Return the text of `--help`: `usage`, then the keys of `cls` in `main`, or all of them without `main` or of ALL.

    Of another `topic`, the keys of that name or group, also those in `more`, or what `usage` says of it, or the keys that
    mention it. Raises UserError for an unknown topic.
    """
    every = list(list_keys(cls, kinds=kinds))
    if topic not in ("", ALL):
        return describe_topic(topic, [*every, *more], usage, short)
    if not main or topic == ALL:
        return f"{usage}\n{key_lines(every, short, title)}"
    found = [key for key in every if key.name in main]
    note = f"The {len(found)} keys that most jobs set; `--help all` lists all {len(every)}, `--help KEY` a key or a group.\n"
    return f"{usage}\n{note}\n{key_lines(found, short, title)}"


def describe_topic(topic: str, keys: Sequence[Key], usage: str = "", short: Mapping[str, str] | None = None) -> str:
    """Return the keys of a name or a group, or else the lines of `usage` about it, or else the keys that mention it.

    Raises UserError if there are none.
    """
    name = (short or {}).get(topic, topic)
    if found := [key for key in keys if f"{key.name}.".startswith(f"{name}.")]:
        return key_lines(found, short)
    if lines := re.search(rf"^  (\S+, )*{re.escape(topic)}[ ,=].*(\n {{6,}}.*)*", usage, re.MULTILINE):
        return lines[0]
    if found := [key for key in keys if topic.lower() in f"{key.name} {key.comment}".lower()]:
        return key_lines(found, short, f"keys that mention {topic!r}")
    close = ", ".join(get_close_matches(name, [key.name for key in keys], n=3))
    raise UserError(f"there is no key {topic}; {f'similar ones are {close}; ' if close else ''}see --help all")


def key_lines(keys: Sequence[Key], short: Mapping[str, str] | None = None, title: str = "keys") -> str:
    """Return the lines of some keys: their defaults and comments, below a `title`."""
    short_of = {long: name for name, long in (short or {}).items()}
    lines, group = [f"{title} ({RUNTIME_NOTE}):" if any(key.is_runtime for key in keys) else f"{title}:"], ""
    for key in keys:
        head = key.name.split(".")[0] if "." in key.name else ""
        if head != group:
            lines.append("")
            group = head
        name = f"{short_of[key.name]} (= {key.name})" if key.name in short_of else key.name
        value = format_default(key.default)
        if len(value) >= MAX_DEFAULT_CHARS:
            value = f"{value[: MAX_DEFAULT_CHARS - 4]}..."
        lines.append(f"  {name} = {value}{f'   {RUNTIME_MARK}' if key.is_runtime else ''}")
        lines += comment_lines(key.comment)
    return "\n".join(lines)


def comment_lines(comment: str) -> list[str]:
    """Return the lines of the comment of a key: one, or as many as fit between the margins of a terminal."""
    margin = " " * 6
    if not sys.stdout.isatty():
        return [margin + comment] if comment else []
    width = max(shutil.get_terminal_size().columns - len(margin), 40)
    return [margin + line for line in textwrap.wrap(comment, width, break_long_words=False)]


def print_text(text: str) -> None:
    """Print lines of text, with control characters escaped; a closed pipe (`| head`) is not an error."""
    print_lines(text.split("\n"))


def print_lines(lines: Iterable[str]) -> None:
    """Print each text as one line: what a row or a file of strangers has in it can neither end it nor begin another."""
    try:
        print("\n".join(map(message, lines)), flush=True)
    except BrokenPipeError:
        close_broken_stdout()
