"""docs/ablations.md: its commands are accepted and do what their row says, and its settings are those of the jobs."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.config import last_value, read_layers
from trainer.config import KEYS, as_dict, load_config
from trainer.models.registry import MODELS

pytestmark = pytest.mark.rest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
COMMANDS_OF_TABLES = {
    ("CLIP and MERU", "Table 3"): 10,
    ("CLIP and MERU", "Table 4"): 8,
    ("CLIP and MERU", "Table 5"): 5,
    ("CLIP and MERU", "Sweep of λ"): 5,
    ("HyCoCLIP", "Table 1"): 13,
    ("HyCoCLIP", "Table 4"): 9,
    ("HyCoCLIP", "Table 6"): 6,
    ("HyCoCLIP", "Table 7"): 6,
    ("HyCoCLIP", "Table 8"): 6,
    ("PHyCLIP", "Table 4"): 7,
    ("PoinCLIP", "Tables 3 and 5"): 4,
    ("PoinCLIP", "Table 4"): 20,
}
"""Rows of the papers' tables by model or size; PoinCLIP's results for a weight of 0 are a sentence."""
BASE = re.compile(r"^(?:- )?[\w/ -]+: `(jobs/train/[^`]+)`$", re.MULTILINE)
TABLE = re.compile(r"((?:^\|.*\n)+)", re.MULTILINE)


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| \n").split(" | ")]


def additions(table: str) -> list[str]:
    """The arguments that a table adds to its bases: a column `added`, or the values of one or two keys in rows and columns."""
    (first, *columns), _, *rows = map(cells, table.splitlines())
    if columns[0] == "added":
        return [row[1].strip("`").replace("nothing", "") for row in rows]
    keys = re.findall(r"`([\w.]+)`", first)
    lines = [f"{keys[0]}={row[0]} {keys[1]}=" for row in rows] if len(keys) == 2 else [f"{key}=" for key in keys]
    return [f"{line}{column}" for line in lines for column in columns]


def commands(text: str) -> list[str]:
    """The commands of a section: each table adds its rows to the bases that stand between it and the table before."""
    parts = TABLE.split(text)
    found = [(BASE.findall(prose), additions(table)) for prose, table in zip(parts[::2], parts[1::2], strict=False)]
    return [f"{base} {added}".strip() for bases, rows in found for base in bases for added in rows]


def sections() -> dict[str, str]:
    """The text below each heading of level 2."""
    parts = re.split(r"^## (.*)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def settings() -> Iterator[tuple[str, str]]:
    """Each job and a claim `key=value` about it: the last column of a table of settings, or a paragraph that names a job."""
    for text in sections().values():
        job = re.search(r"The job is\s+`(jobs/train/\w+\.yaml)`", text)
        table = re.search(r"^\| setting \| [\w ]+ \| here \|$(?:\n\|.*)+", text, re.MULTILINE)
        if job and table:
            for row in table[0].splitlines()[2:]:
                for claim in re.findall(r"`([\w.]+=[^`]+)`", row.split(" | ")[-1]):
                    yield job[1], claim
        for name, body in re.findall(r"^- .*; `(jobs/train/\w+\.yaml)`\)(.*(?:\n  .*)*)", text, re.MULTILINE):
            yield from ((name, claim) for claim in re.findall(r"`([\w.]+=[^`]+)`", body))


SETTINGS = list(settings())
COMMANDS = list(dict.fromkeys(commands(TEXT) + re.findall(r"`(jobs/train/(?!vit_)[^`\s]+ [^`\n]+)`", TEXT)))


@cache
def load(arguments: str) -> dict[str, Any]:
    """The configuration of a command line, with paths relative to the repository."""
    words = [str(ROOT / word) if word.startswith("jobs/") else word for word in shlex.split(arguments)]
    return as_dict(load_config(words))


def value_of(config: dict[str, Any], claim: str) -> tuple[Any, Any]:
    """The value of the key of a claim `key=value` in a configuration, and the claimed value."""
    key = claim.partition("=")[0]
    name = KEYS.short.get(key, key)
    return last_value([(config, "")], name), last_value(read_layers([claim], KEYS), name)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_accepted_and_sets_each_argument(command: str) -> None:
    config = load(command)
    for word in command.split():
        found, claimed = value_of(config, word) if "=" in word else (None, None)
        assert found == claimed, word


@pytest.mark.parametrize(("job", "claim"), SETTINGS)
def test_setting_is_that_of_the_job(job: str, claim: str) -> None:
    found, claimed = value_of(load(job), claim)
    assert found == pytest.approx(claimed)


def test_every_row_of_the_papers_tables_has_a_command() -> None:
    found = {}
    for title, text in sections().items():
        parts = re.split(r"^### ([^:\n]*).*$", text, flags=re.MULTILINE)
        found |= {(title, table): len(commands(body)) for table, body in zip(parts[1::2], parts[2::2], strict=True)}
    assert {table: n for table, n in found.items() if n} == COMMANDS_OF_TABLES


def test_every_paper_has_a_table_of_settings() -> None:
    jobs = {Path(job).stem for job, _ in SETTINGS}
    assert jobs == set(MODELS) - {"clip", "hyper3", "taxonomy"}  # the settings of MERU, those of UNCHA, and ours
    assert len(SETTINGS) > 60
