"""Tests of the demo's input: rows, ground truth and expected drops."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from demo.make_input import EARLY_STAGES, InputRow, expected_drops, make_rows, write_input
from demo.serve import PORT
from demo.world.sprites import HELD_OUT_STYLE
from demo.world.truth import Truth
from schemas.status import check_reason

N = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input")


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[InputRow]:
    return write_input(folder, N, PORT)


def test_input_has_the_requested_number_of_rows_and_unique_ids(rows: list[InputRow]) -> None:
    assert len(rows) == len({row.id for row in rows}) == N


def test_small_input_contains_all_special_rows(rows: list[InputRow]) -> None:
    special = {row.id for row in rows if not row.id.startswith("scene-")}
    assert special == {row.id for row in make_rows(1, PORT) if not row.id.startswith("scene-")}
    assert sum(row.expected_drop is not None for row in rows) >= 30


def test_every_expected_drop_is_a_known_reason(rows: list[InputRow]) -> None:
    for row in rows:
        if row.expected_drop:
            check_reason(*row.expected_drop)


def test_row_has_either_a_ground_truth_or_an_expected_drop(rows: list[InputRow]) -> None:
    assert all((row.truth is None) != (row.expected_drop is None) for row in rows)


def test_spans_are_adjusted_to_text_added_around_the_caption(rows: list[InputRow]) -> None:
    for row in rows:
        for phrase in row.truth.phrases if row.truth else ():
            text = row.truth.caption[phrase.start : phrase.end]
            assert text == text.strip()
            assert text in row.caption
            assert text.endswith(row.truth.caption[phrase.noun_start : phrase.noun_end])


def test_repeated_rows_follow_their_original_in_the_first_shard(rows: list[InputRow]) -> None:
    assert [row.id for row in rows[:4]] == ["scene-0000", "repeat-exact-1", "repeat-exact-2", "repeat-other-caption"]
    assert len({row.url for row in rows[:4]}) == 1
    assert rows[0].caption == rows[1].caption == rows[2].caption != rows[3].caption


def test_about_a_quarter_of_the_scenes_uses_the_held_out_style(rows: list[InputRow]) -> None:
    styles = Counter(row.truth.style for row in rows if row.truth)
    assert 0.15 < styles[HELD_OUT_STYLE] / styles.total() < 0.35
    assert len(styles) == 4


def test_files_contain_the_rows_and_are_reproducible(rows: list[InputRow], folder: Path, tmp_path: Path) -> None:
    table = pq.read_table(folder / "pairs.parquet").to_pydict()
    assert table == {name: [getattr(row, name) for row in rows] for name in ("url", "caption", "id")}
    options = csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""])
    parsing = csv.ParseOptions(newlines_in_values=True)
    assert csv.read_csv(folder / "pairs.csv", None, parsing, options).to_pydict() == table
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    assert {id_: Truth.from_json(value) for id_, value in truth.items()} == {r.id: r.truth for r in rows if r.truth}
    write_input(tmp_path, N, PORT)
    for name in ("pairs.parquet", "pairs.csv", "truth.json", "expected.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_expected_drops_are_counted_by_stage_and_reason(rows: list[InputRow]) -> None:
    expected = expected_drops(rows)
    assert tuple(expected) == EARLY_STAGES
    assert expected["download"]["duplicate"] == 2
    assert sum(n for reasons in expected.values() for n in reasons.values()) == sum(
        row.expected_drop is not None for row in rows
    )


def test_only_good_input_consists_of_ordinary_scenes() -> None:
    rows = make_rows(10, PORT, only_good=True)
    assert [row.id for row in rows] == [f"scene-{i:04d}" for i in range(10)]
    assert all(row.truth and row.url and not row.expected_drop for row in rows)
