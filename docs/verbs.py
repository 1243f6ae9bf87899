"""Write docs/verbs.md, the texts of `hypergrit VERB --help all` with their keys in tables: `python -m docs.verbs`."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from hypergrit.__main__ import VERBS, main

TARGET = Path(__file__).with_name("verbs.md")
KEY = re.compile(r"^  ([a-z]\S*(?: \(= \S+\))?) = (.*)(?:\n {6}(.*))?", re.MULTILINE)
HEAD = """\
# Verbs and keys

Generated from the code by `python -m docs.verbs`. On the terminal, `hypergrit VERB --help` prints the keys that most
people set, `--help all` all of them, and `--help KEY` one. Keys with † may change when the command is run again on the
same output. The verbs:

"""


def help_of(verb: str) -> str:
    """Return the text of `hypergrit VERB --help all`."""
    out = io.StringIO()
    with redirect_stdout(out):
        main([verb, "--help", "all"])
    return out.getvalue().rstrip()


def table(text: str) -> Iterator[str]:
    """Yield the lines of a table for the lines of keys: ` NAME = DEFAULT`, and a comment below each."""
    yield "| key | default | meaning |\n|---|---|---|"
    for name, value, comment in KEY.findall(text):
        value, mark, _ = value.partition("   [runtime]")
        comment = re.sub(r"(`[^`]*`)|([<*])", lambda found: found[1] or f"\\{found[2]}", comment)
        cells = (f"`{name}`{' †' if mark else ''}", "" if value == "(not set)" else f"`{value}`", comment)
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def render() -> str:
    """Return the page."""
    parts = [HEAD + "".join(f"- [{name}](#{name}): {verb.line}\n" for name, verb in VERBS.items())]
    for verb in VERBS:
        usage, *keys = re.split(r"^keys\b(.*):$", help_of(verb), flags=re.MULTILINE)
        parts.append(f"## {verb}\n\n```text\n{usage.rstrip()}\n```\n")
        for title, lines in zip(keys[::2], keys[1::2], strict=True):
            title = f"Keys{title.partition(' (')[0]}:\n\n" if len(keys) > 2 else ""
            parts.append(title + "\n".join(table(lines)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
