"""docs/verbs.md, the page of all verbs and keys, is what the code says."""

import re

from docs.verbs import TARGET, render
from hypergrit.__main__ import VERBS
from hypergrit_common.config_help import list_keys
from pipeline.config import PipelineConfig


def test_the_page_is_up_to_date_and_has_every_verb_and_key() -> None:
    page = render()
    assert TARGET.read_text(encoding="utf-8") == page, "run `python -m docs.verbs`"
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == VERBS.keys()
    rows = {verb: re.findall(r"^\| `(?:\w+ \(= )?([\w.]+)", text, re.MULTILINE) for verb, text in sections.items()}
    assert all(rows.values())
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in page.splitlines() if line.startswith("| ")} == {4}
    assert rows["run"] == [key.name for key in list_keys(PipelineConfig)]
