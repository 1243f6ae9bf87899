"""The examples of docs/extending.md as a package, for the tests of the page."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import config_class
from pipeline.read import listing
from trainer.data.text_streams import STREAMS
from trainer.models import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (my_package/\w+\.py)\n(.*?)```\n", PAGE, re.DOTALL))
FEW = "stages=[my_package.colours:FewColours]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package of the page, which processes of this test can import."""
    for name, code in EXAMPLES.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    before = [(registered, dict(registered)) for registered in (listing.FORMATS, registry.ENTRIES, STREAMS)]
    yield tmp_path / "code"
    for registered, entries in before:
        registered.clear()  # type: ignore[attr-defined]
        registered.update(entries)  # type: ignore[attr-defined]
    config_class.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def command(verb: str, word: str) -> list[str]:
    """The `key=value` arguments of the command of the page that contains `word`, without input and output."""
    (line,) = [line for line in re.findall(rf"^    hypergrit {verb} (.*)$", PAGE, re.MULTILINE) if word in line]
    return [item for item in shlex.split(line) if "=" in item and not item.startswith(("input=", "output=", "shards="))]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def dropped(output: Path) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = read_json(output / "stats.json")["rows"]["dropped"]
    return counts
