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
COMMANDS = list(dict.fromkeys(re.findall(r"\| `(jobs/train/[^`]+)` \|", TEXT)))
ROWS_OF_TABLES = {
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
    ("PoinCLIP", "Table 4"): 21,
    ("Hyper3-CLIP", "Table 5"): 8,
}
"""Rows of the papers' tables; PoinCLIP's results for a weight of 0 are one row."""


def sections() -> dict[str, str]:
    """The text below each heading of level 2."""
    parts = re.split(r"^## (.*)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def settings() -> Iterator[tuple[str, str]]:
    """Each job and a claim `key=value` about it, from the last column of the tables of settings."""
    for text in sections().values():
        job = re.search(r"The job is\s+`(jobs/train/\w+\.yaml)`", text)
        table = re.search(r"^\| setting \| [\w ]+ \| here \|$(?:\n\|.*)+", text, re.MULTILINE)
        if job and table:
            for row in table[0].splitlines()[2:]:
                for claim in re.findall(r"`([\w.]+=[^`]+)`", row.split(" | ")[-1]):
                    yield job[1], claim


SETTINGS = list(settings())


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
def test_command_is_accepted_and_each_argument_changes_its_setting(command: str) -> None:
    words = command.split()
    files, overrides = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    job, config = load(" ".join(files)), load(command)
    for word in overrides:
        found, claimed = value_of(config, word)
        assert found == claimed, word
        assert value_of(job, word)[0] != claimed, f"{word} is the value of the job"


@pytest.mark.parametrize(("job", "claim"), SETTINGS)
def test_setting_is_that_of_the_job(job: str, claim: str) -> None:
    found, claimed = value_of(load(job), claim)
    assert found == pytest.approx(claimed)


def test_every_row_of_the_papers_tables_has_a_command() -> None:
    found = {}
    for title, text in sections().items():
        parts = re.split(r"^### ([^:\n]*).*$", text, flags=re.MULTILINE)
        for table, body in zip(parts[1::2], parts[2::2], strict=True):
            found[title, table] = len(re.findall(r"\| `jobs/train/", body))
    assert found == ROWS_OF_TABLES


def test_every_paper_has_a_table_of_settings() -> None:
    jobs = {Path(job).stem for job, _ in SETTINGS}
    assert jobs == set(MODELS) - {"clip", "hyper3", "taxonomy"}  # the settings of MERU, those of UNCHA, and ours
    assert len(SETTINGS) > 60
