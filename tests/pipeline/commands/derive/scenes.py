"""A small finished output with three shards in all formats, made without models."""

from pathlib import Path
from typing import Any

import numpy as np

from hypergrit_common.config import RESOLVED_FILE, to_yaml
from pipeline import load_config, write_shard
from pipeline.images import encode_jpeg
from pipeline.read.types import Piece, ShardPlan
from schemas.files import FILES
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, table

HOSTS = ("img.example.org", "cdn.example.net", "example.com")
"""Hosts of the URLs, in turn."""
ROWS = (4, 4, 2)
"""Rows of each shard; row 5 is dropped by `download`, row 6 by `score`."""


def write_output(output: Path, formats: tuple[str, ...] = tuple(FILES)) -> None:
    """Write the shards and the configuration."""
    config = load_config(["input=in.jsonl", f"output={output}", "rows_per_shard=4", f"formats=[{','.join(formats)}]"])
    output.mkdir(parents=True)
    (output / RESOLVED_FILE).write_text(to_yaml(config))
    first = 0
    for index, n_rows in enumerate(ROWS):
        rows = [make_row(number) for number in range(first, first + n_rows)]
        plan = ShardPlan(index, first, n_rows, (Piece("in.jsonl", first, n_rows, 1000),))
        write_shard(table(rows), plan, config.write, str(output), PROVENANCE)  # type: ignore[arg-type]
        first += n_rows


def make_row(number: int) -> dict[str, Any]:
    """Return a row of SCORED with a URL, an image and a hash of its own."""
    row = dropped_row(number) if number == 5 else kept_row(number)
    row |= {"url": f"http://{HOSTS[number % 3]}/{number}.jpg", "key": f"{number:012d}", "id": f"row {number}"}
    if number == 5:
        return row
    blocks = np.random.default_rng(number).integers(0, 256, (8, 12, 3), np.uint8)
    row |= {"image": encode_jpeg(blocks.repeat(25, 0).repeat(25, 1)), "sha256": f"{number:064x}"}
    if number == 6:
        scores = [{**score, "removed": "low_score"} for score in row["box_scores"]]
        row |= {"status": "dropped", "stage": "score", "reason": "low_score", "image": None, "box_scores": scores}
    return row
