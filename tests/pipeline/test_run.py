"""Checks on every stage: rows, schema, timings, and the note on an exception."""

import pyarrow as pa
import pytest

from pipeline.captions.config import CaptionsConfig
from pipeline.captions.stage import clean_captions
from pipeline.read.types import ShardPlan
from pipeline.run import Stage, run_stages
from schemas.manifest import Timings
from schemas.rows import CAPTIONED
from tests.pipeline.rows import table_after

PLAN = ShardPlan(7, 2100, 2, ())


def captions(table: pa.Table) -> pa.Table:
    return clean_captions(table, CaptionsConfig())


def run(stage: Stage) -> tuple[pa.Table, Timings]:
    rows = [{"caption": " a dog "}, {"status": "dropped", "stage": "download", "reason": "timeout"}]
    return run_stages([("captions", stage)], table_after("download", rows), {}, PLAN)


def test_timings_hold_seconds_and_the_number_of_kept_rows() -> None:
    table, timings = run(captions)
    assert table.schema.equals(CAPTIONED)
    assert table["caption"].to_pylist() == ["a dog", None]
    assert timings["captions"]["rows"] == 1
    assert timings["captions"]["seconds"] > 0


def test_an_error_names_a_stage_that_loses_a_row() -> None:
    with pytest.raises(RuntimeError, match="'captions' received 2 rows and returned 1"):
        run(lambda table: captions(table).slice(1))


def test_an_error_names_a_stage_with_another_schema() -> None:
    with pytest.raises(RuntimeError, match="'captions' returned columns that differ from its schema"):
        run(lambda table: table)


def test_an_exception_in_a_stage_has_a_note_with_stage_and_rows() -> None:
    def fail(table: pa.Table) -> pa.Table:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(fail)
    assert caught.value.__notes__ == ["in stage 'captions', shard 7 (rows 2100 to 2101)"]
