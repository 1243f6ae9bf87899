"""Small outputs of two jobs with different settings, rows and texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from pipeline.read.types import Piece, ShardPlan
from tests.pipeline.output.write import shards

HOSTILE = '<script>alert("x")</script>\x1b[2J\n\u202e'


def write(folder: Path, rows: Sequence[dict[str, Any]], config: str = "", formats: Sequence[str] = ("arrow",)) -> Path:
    """Write one shard of these rows, its timings and a configuration."""
    keyed = [row | {"key": f"{i:012d}"} for i, row in enumerate(rows)]
    plan = ShardPlan(0, 0, len(rows), (Piece("in.jsonl", 0, len(rows), 1000),))
    write_shard(shards.table(keyed), plan, WriteConfig(formats=tuple(formats)), str(folder), shards.PROVENANCE)
    timings = {"ground": {"seconds": 2.0, "rows": len(rows)}}
    (folder / "_timings").mkdir()
    (folder / "_timings/00000.json").write_text(json.dumps(timings))
    (folder / "config.yaml").write_text(config)
    return folder


def with_caption(row: dict[str, Any], caption: str, **changes: Any) -> dict[str, Any]:
    """A kept row whose only phrase is the whole caption."""
    chunks = [{"start": 0, "end": len(caption), "root": 0, "removed": None}]
    return row | {"caption": caption, "noun_chunks": chunks, "ref_exps": [], "boxes": [shards.box(0, 0.2, 0.9)],
                  "box_scores": [shards.box_score()], **changes}  # fmt: skip


def write_a(folder: Path) -> Path:
    """Three kept rows and one that a host refused."""
    return write(folder, shards.rows(), "limit: null\nscore:\n  min_score: 0.5\n")


def write_b(folder: Path) -> Path:
    """A kept row, one with a hostile caption, and six drops for two reasons."""
    refused = shards.dropped_row(0) | {"url": f"http://{HOSTILE}example.org/a.jpg"}
    late = shards.dropped_row(0) | {"reason": "timeout", "detail": "15 s", "url": "http://slow.example.org/a.jpg"}
    kept = [shards.kept_row(0), with_caption(shards.kept_row(1), f"a {HOSTILE} dog")]
    return write(
        folder, [*kept, *[refused] * 2, *[late] * 4], f"limit: 8\nscore:\n  min_score: {json.dumps(HOSTILE)}\n"
    )
