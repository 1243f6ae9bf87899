"""Thresholds of an output with a stage of the user's own after `score`, whose code is not loaded."""

from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.commands.rewrite_rows import Part, filter_table, late_stages
from pipeline.read.types import ShardPlan
from pipeline.stages.score.filters import Thresholds
from schemas.manifest import Provenance
from schemas.rows import SCORED
from tests.pipeline.commands.derive.outputs import configure, provenance_of
from tests.pipeline.commands.derive.test_combined import scored

LATE = {"name": "my:Late", "sha256": "0", "stage": "late", "after": "score", "reasons": {"bad": "it is bad"}}
PLACE = {"source": "/pairs/0.parquet", "source_row": 0}


def made(tmp_path: Path, min_score: float, **columns: object) -> pa.Table:
    provenance: Provenance = {
        **provenance_of(configure("/pairs", tmp_path / "out", "score.keep_all=true")), "plugins": [LATE]  # type: ignore[list-item]
    }  # fmt: skip
    thresholds = Thresholds(**{**provenance["thresholds"], "min_score": min_score})
    row = scored(0, 0.6) | {"key": f"{0:012d}", **PLACE, **columns}
    source = {"output": "out", "shard": 0, "manifest": ""}
    part = Part(source, 0, ShardPlan(0, 0, 1, ()), provenance, 0, None, thresholds, keep_all=True)  # type: ignore[arg-type]
    return filter_table(pa.Table.from_pylist([row], schema=SCORED), part)


def test_a_row_that_the_stage_has_not_seen_does_not_come_back(tmp_path: Path) -> None:
    low = {"status": "dropped", "stage": "score", "reason": "low_score", "detail": "0.6"}
    assert made(tmp_path, 0.9, **low)["reason"].to_pylist() == ["low_score"]
    with pytest.raises(UserError, match="late after score have not seen it"):
        made(tmp_path, 0.1, **low)


def test_a_row_that_the_stage_dropped_stays_dropped(tmp_path: Path) -> None:
    bad = {"status": "dropped", "stage": "late", "reason": "bad", "image": None}
    for least in (0.1, 0.9):
        assert made(tmp_path, least, **bad).select(["stage", "reason"]).to_pylist() == [
            {"stage": "late", "reason": "bad"}
        ]


def test_stages_after_a_late_stage_are_late_too() -> None:
    plugins = [
        {"stage": "early", "after": "download"},
        LATE,
        {"stage": "last", "after": "late"},
        {"name": "my:Grounder"},
    ]
    assert late_stages({"plugins": plugins}) == ["write", "late", "last"]  # type: ignore[typeddict-item]
