"""Checks on every stage: rows, schema, timings, and the note on an exception."""

import pyarrow as pa
import pytest

from pipeline.read.types import ShardPlan
from pipeline.run.steps import Notes, run_stages
from pipeline.stages.captions import CaptionsConfig, clean_captions
from pipeline.stages.stage import TableFunction
from schemas.rows import CAPTIONED
from schemas.table import kept_indices, set_column
from tests.pipeline.rows import table_after

PLAN = ShardPlan(7, 2100, 2, ())


def captions(table: pa.Table) -> pa.Table:
    return clean_captions(table, CaptionsConfig())


def run(stage: TableFunction) -> tuple[pa.Table, Notes]:
    rows = [{"caption": " a dog "}, {"status": "dropped", "stage": "download", "reason": "timeout"}]
    return run_stages([("captions", stage)], table_after("download", rows), Notes({}), PLAN)


def test_timings_hold_seconds_and_the_number_of_kept_rows() -> None:
    table, notes = run(captions)
    assert table.schema.equals(CAPTIONED)
    assert table["caption"].to_pylist() == ["a dog", None]
    assert notes.timings["captions"]["rows"] == 1
    assert notes.timings["captions"]["seconds"] > 0


def test_an_error_names_a_stage_that_loses_a_row_or_has_another_schema() -> None:
    with pytest.raises(RuntimeError, match="'captions' received 2 rows and returned 1"):
        run(lambda table: captions(table).slice(1))
    with pytest.raises(RuntimeError, match="'captions' returned columns that differ from its schema"):
        run(lambda table: table)


def test_an_exception_in_a_stage_has_a_note_with_stage_and_rows() -> None:
    def fail(table: pa.Table) -> pa.Table:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(fail)
    assert caught.value.__notes__ == ["in stage 'captions', shard 7 (rows 2100 to 2101)"]


def test_a_row_on_which_a_stage_raises_is_dropped_and_the_others_are_computed_together() -> None:
    calls = []

    def fail(table: pa.Table) -> pa.Table:
        calls.append(table["key"].to_pylist())
        kept = [table["caption_original"][i].as_py() for i in kept_indices(table)]
        if "bad" in kept:
            raise ValueError("not today")
        return captions(table)

    table = table_after("download", [{"caption": text} for text in ("a", "b", "bad", "d", "e")])
    result, notes = run_stages([("captions", fail)], table, Notes({}), PLAN)
    assert result["caption"].to_pylist() == ["a", "b", None, "d", "e"]
    assert result["status"].to_pylist() == ["kept", "kept", "dropped", "kept", "kept"]
    assert (result["stage"][2].as_py(), result["reason"][2].as_py()) == ("captions", "internal_error")
    assert result["detail"][2].as_py() == "ValueError: not today"
    assert calls[-1] == table["key"].to_pylist()
    assert [fault.key for fault in notes.faults] == ["000000000002"]
    assert "not today" in notes.faults[0].traceback


def test_a_row_for_which_a_stage_returns_a_number_that_is_none_is_dropped_alone() -> None:
    def sized(table: pa.Table) -> pa.Table:
        sides = [0 if table["caption_original"][i].as_py() == "bad" else 9 for i in range(table.num_rows)]
        kept = [
            side if status == "kept" else None for side, status in zip(sides, table["status"].to_pylist(), strict=True)
        ]
        return set_column(captions(table), "width", pa.array(kept, pa.int32()))

    table = table_after("download", [{"caption": text} for text in ("a", "bad", "c")])
    result, notes = run_stages([("captions", sized)], table, Notes({}), PLAN)
    assert result["status"].to_pylist() == ["kept", "dropped", "kept"]
    assert notes.faults[0].detail == "ValueError: row 0 has a width below 1"


def test_an_exception_that_no_row_causes_is_raised() -> None:
    def fail(table: pa.Table) -> pa.Table:
        if table.num_rows == 4:
            raise OSError("a transient error")
        return captions(table)

    table = table_after("download", [{"caption": text} for text in "abcd"])
    with pytest.raises(OSError, match="transient"):
        run_stages([("captions", fail)], table, Notes({}), PLAN)
