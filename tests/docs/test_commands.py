"""Every `hypergrit` command of the documents names a verb, and keys that the verb has."""

import re
import shlex
from pathlib import Path

import pytest

from hypergrit.__main__ import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^ *|`|&& )(?:[A-Z_]+=\S+ )?hypergrit ([^`\n]*)", re.MULTILINE)
KEY = re.compile(r"[a-z][\w.]*(?==)")
ELSEWHERE = {("run", "reasons"), ("run", "few_colours.min")}
"""Keys in the help of `run retry=true`, and of the plug-in in docs/extending.md."""


def commands(page: Path) -> set[tuple[str, tuple[str, ...]]]:
    """Return the verbs of the commands of a page, each with the keys that it sets."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = (re.split(r"\s#|\s{3,}|&&|[|;]", line)[0] for line in COMMAND.findall(text))
    words = (shlex.split(line) for line in found if line[:1].islower() or not line)
    return {(word[0], tuple(key[0] for item in word[1:] if (key := KEY.match(item)))) for word in words if word}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_have_known_verbs_and_keys(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(page)
    wrong = {verb for verb, _ in found} - VERBS.keys()
    asked = {(verb, key) for verb, keys in found if verb in VERBS for key in keys} - ELSEWHERE
    wrong |= {f"{verb} {key}" for verb, key in sorted(asked) if main([verb, "--help", key])}
    assert not wrong
