"""`--help`, made from the configuration itself: every key, its default, and the comment beside it."""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

from pipeline.config import SHORT, PipelineConfig

USAGE = """\
usage: python pipeline/grit.py [CONFIG.yaml] [key=value ...]

Turns image-text pairs into grounded training shards: downloads the images, finds the phrases of each caption, grounds them to boxes,
filters the boxes, writes shards and a report. Finished shards are skipped, so the same command goes on where a killed job stopped.

  python pipeline/grit.py jobs/demo.yaml input=pairs.parquet output=out/mine limit=1000
  ray job submit --working-dir . -- python pipeline/grit.py jobs/demo.yaml input=/data/pairs output=/data/shards

Exit code: 0 done, 1 a bug or a failed machine, 2 something you can mend (the message says what).
"""


def field_comments(cls: type) -> dict[str, str]:
    """The comments beside each field of a dataclass, read from its source; those of a field over several lines are joined."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            found[statement.target.id] = " ".join(comments[line] for line in lines if line in comments)
    return found


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(key, default, explanation) of every leaf below `cls`, in order of declaration."""
    comments = field_comments(cls)
    for item in dataclasses.fields(cls):
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if dataclasses.is_dataclass(default):
            yield from keys(type(default), f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, default, comments.get(item.name, "")


def shown(value: Any) -> str:
    """A default as it would be written on the command line."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return "[" + ",".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value) or "(required)"


def help_text() -> str:
    """The whole of --help."""
    short = {long: name for name, long in SHORT.items()}
    lines, group = [USAGE, "keys:"], ""
    for key, default, comment in keys(PipelineConfig):
        head = key.split(".")[0] if "." in key else ""
        if head != group:
            lines.append("")
            group = head
        name = f"{short[key]} (= {key})" if key in short else key
        value = shown(default)
        lines.append(f"  {name} = {value}" if len(value) < 80 else f"  {name} = {value[:76]}...")
        if comment:
            lines.append(f"      {comment}")
    return "\n".join(lines)
