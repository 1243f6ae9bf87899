"""What holds for every stage: it hands on every row, in its schema, and its failure says where."""

import pyarrow as pa
import pytest

from pipeline.captions.config import CaptionsConfig
from pipeline.captions.stage import clean_captions
from pipeline.read.types import ShardPlan
from pipeline.run import Stage, Timings, run_stages
from schemas.rows import CAPTIONED
from tests.pipeline.rows import table_after

PLAN = ShardPlan(7, 2100, 2, ())


def captions(table: pa.Table) -> pa.Table:
    return clean_captions(table, CaptionsConfig())


def run(stage: Stage) -> tuple[pa.Table, Timings]:
    rows = [{"caption": " a dog "}, {"status": "dropped", "stage": "download", "reason": "timeout"}]
    return run_stages([("captions", stage)], table_after("download", rows), {}, PLAN)


def test_the_rows_still_kept_are_counted_beside_the_seconds() -> None:
    table, timings = run(captions)
    assert table.schema.equals(CAPTIONED)
    assert table["caption"].to_pylist() == ["a dog", None]
    assert timings["captions"]["rows"] == 1
    assert timings["captions"]["seconds"] > 0


def test_a_stage_that_loses_a_row_is_named() -> None:
    with pytest.raises(RuntimeError, match="'captions' got 2 rows and handed on 1"):
        run(lambda table: captions(table).slice(1))


def test_a_stage_that_breaks_its_schema_is_named() -> None:
    with pytest.raises(RuntimeError, match="'captions' handed on columns that are not its schema's"):
        run(lambda table: table)


def test_an_error_within_a_stage_says_which_rows_it_had() -> None:
    def fail(table: pa.Table) -> pa.Table:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(fail)
    assert caught.value.__notes__ == ["in stage 'captions', shard 7 (rows 2100 to 2101)"]
