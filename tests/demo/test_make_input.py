"""The demo's input says truly what it holds."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from demo.make_input import EARLY_STAGES, Row, expected_drops, make_rows, write_input
from demo.serve import PORT
from demo.world.sprites import HELD_OUT_STYLE
from demo.world.truth import Truth
from schemas.status import check_reason


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return make_rows(120, PORT)


def test_there_are_as_many_rows_as_asked_for_and_no_id_twice(rows: list[Row]) -> None:
    assert len(rows) == len({row.id for row in rows}) == 120


def test_a_small_input_still_holds_every_special_row(rows: list[Row]) -> None:
    special = {row.id for row in rows if not row.id.startswith("scene-")}
    assert special == {row.id for row in make_rows(1, PORT) if not row.id.startswith("scene-")}
    assert sum(row.fate is not None for row in rows) >= 30


def test_every_fate_is_on_the_closed_list(rows: list[Row]) -> None:
    for row in rows:
        if row.fate:
            check_reason(*row.fate)


def test_a_row_has_either_a_truth_or_a_fate(rows: list[Row]) -> None:
    assert all((row.truth is None) != (row.fate is None) for row in rows)


def test_true_spans_hold_the_same_words_whatever_surrounds_the_caption(rows: list[Row]) -> None:
    for row in rows:
        for phrase in row.truth.phrases if row.truth else ():
            text = row.truth.caption[phrase.start : phrase.end]
            assert text == text.strip()
            assert text in row.caption
            assert text.endswith(row.truth.caption[phrase.noun_start : phrase.noun_end])


def test_repeated_rows_follow_their_original_within_the_demos_first_shard(rows: list[Row]) -> None:
    assert [row.id for row in rows[:4]] == ["scene-0000", "repeat-exact-1", "repeat-exact-2", "repeat-other-caption"]
    assert len({row.url for row in rows[:4]}) == 1
    assert rows[0].caption == rows[1].caption == rows[2].caption != rows[3].caption


def test_a_share_of_the_scenes_is_in_the_style_no_model_was_trained_on(rows: list[Row]) -> None:
    styles = Counter(row.truth.style for row in rows if row.truth)
    assert 0.15 < styles[HELD_OUT_STYLE] / styles.total() < 0.35
    assert len(styles) == 4


def test_files_hold_the_rows_and_are_the_same_every_time(rows: list[Row], tmp_path: Path) -> None:
    for out in (tmp_path / "a", tmp_path / "b"):
        write_input(out, 120, PORT)
    table = pq.read_table(tmp_path / "a" / "pairs.parquet").to_pydict()
    assert table == {name: [getattr(row, name) for row in rows] for name in ("url", "caption", "id")}
    truth = json.loads((tmp_path / "a" / "truth.json").read_text("utf-8"))
    assert {id_: Truth.from_json(value) for id_, value in truth.items()} == {r.id: r.truth for r in rows if r.truth}
    for name in ("pairs.parquet", "truth.json", "expected.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_expected_drops_count_the_fates(rows: list[Row]) -> None:
    expected = expected_drops(rows)
    assert tuple(expected) == EARLY_STAGES
    assert expected["download"]["duplicate"] == 2
    assert sum(n for reasons in expected.values() for n in reasons.values()) == sum(
        row.fate is not None for row in rows
    )
