"""Malformed entries of a file: few are skipped, counted and named; many are an error."""

from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from trainer.evaluation.report.tables import notes_of_model
from trainer.evaluation.tasks.examples import MAX_NAMED, Problems

FILE = Path("data/captions.json")


def parse(entry: int) -> int:
    if entry < 0:
        raise UserError(f"{FILE}, entry {-entry}: 'caption' is missing")
    return 2 * entry


def test_few_malformed_entries_are_skipped_counted_and_named() -> None:
    problems, entries = Problems(), list(range(1000))
    for number in range(100, 900, 100):
        entries[number] = -number
    found = problems.entries(FILE, entries, parse)
    assert found == [2 * entry for entry in entries if entry >= 0]
    assert problems.skipped == {"malformed entry of captions.json": 8}
    assert list(problems.malformed) == [f"captions.json, item {100 * i}" for i in range(1, MAX_NAMED + 1)]
    notes = notes_of_model({"skipped": problems.skipped, "details": problems.details()})
    assert notes[0] == "captions.json, item 100 is not evaluated: data/captions.json, entry 100: 'caption' is missing"
    assert notes[-1] == "8 skipped: malformed entry of captions.json"


@pytest.mark.parametrize("entries", [[*range(97), -1, -2], [*range(98), -1], [-1], [-1, -2]])
def test_more_malformed_entries_are_an_error_that_names_the_first(entries: list[int]) -> None:
    problems = Problems()
    with pytest.raises(UserError, match="entry 1: 'caption' is missing"):
        problems.entries(FILE, entries, parse)
    assert problems.details() == {"missing": {}, "malformed": {}}
    assert not problems.skipped


def test_one_of_a_hundred_entries_is_skipped() -> None:
    assert len(Problems().entries(FILE, [*range(99), -1], parse)) == 99


def test_long_reasons_are_one_short_line() -> None:
    problems = Problems()
    with problems.of("coco"):
        raise UserError(f"{FILE}: {'x' * 10**6}\nforged")
    assert len(problems.malformed["coco"]) < 5000
    assert "\n" not in problems.malformed["coco"]
