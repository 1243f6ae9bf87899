"""Outputs whose samples have different numbers of boxes, and the keys of their rows."""

from pathlib import Path
from typing import Any, Final

from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, plan, table

KEYS: Final = [f"{i:012d}" for i in (10, 12, 13, 20)]
BOXES: Final = [1, 4, 2, 3]
"""Numbers of boxes of the samples of `train/`, referring expressions included."""


def row_with(number: int, boxes: tuple[int, ...]) -> dict[str, Any]:
    """A kept row with some of the boxes of `kept_row`."""
    row = kept_row(number)
    return row | {name: [row[name][i] for i in boxes] for name in ("boxes", "box_scores")}


def write_uneven(folder: Path) -> Path:
    """Two shards with rows of one to four boxes, and a dropped row."""
    first = [row_with(10, (0,)), dropped_row(11), row_with(12, (0, 2, 3)), row_with(13, (0, 3))]
    write_shard(table(first), plan(index=0), WriteConfig(), str(folder), PROVENANCE)
    write_shard(table([row_with(20, (0, 2))]), plan(index=1, n_rows=1), WriteConfig(), str(folder), PROVENANCE)
    return folder


def write_pairs(folder: Path) -> Path:
    """Two rows without boxes, as jobs/pipeline/pairs.yaml writes them."""
    rows = [{**row_with(number, ()), "noun_chunks": [], "ref_exps": []} for number in (10, 12)]
    config = WriteConfig(formats=("grit", "arrow"))
    write_shard(table(rows), plan(index=0, n_rows=2), config, str(folder), PROVENANCE)
    return folder
