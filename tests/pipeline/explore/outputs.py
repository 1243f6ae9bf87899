"""Outputs for tests of the explorer: demo scenes with slightly moved true boxes, judged by the filters of the job."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa

from demo.world.sprites import STYLES
from hypergrit_common.config import to_yaml
from pipeline.config import load_config
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.types import Piece, ShardPlan
from pipeline.stages.score.filters import ScoreConfig
from pipeline.stages.score.stage import Place, Rows, score_table
from schemas.rows import CAPTIONED, GROUNDED, SCORED
from schemas.scores import ScoreEntry
from schemas.table import Drop, add_columns, drop_rows
from tests.pipeline.output.resume.jobs import provenance_of
from tests.pipeline.report.make_output import HOSTILE, make_row, parser, scored_boxes

Row = dict[str, Any]
THRESHOLDS = ScoreConfig(min_side_px=32, size_rule="area", min_score=0.65, min_clip_score=0.65)


class RandomScores:
    """Scores around the thresholds."""

    def __init__(self, seed: int, has_head: bool, has_clip: bool) -> None:
        self.rng, self.has = Random(seed), {"head_score": has_head, "clip_cosine": has_clip}

    def __call__(self, score: ScoreEntry, rows: Rows, places: Sequence[Place]) -> list[float | None]:
        course = {"clip_cosine": (0.31, 0.06), "head_score": (5, 1)}.get(score.column, (0.3, 0.04))
        has_value = self.has.get(score.column, True)
        return [self.rng.gauss(*course) if has_value else None for _ in places]


def make_rows(n: int, thresholds: ScoreConfig = THRESHOLDS, keep_all: bool = False, has_head: bool = False,
              keeps_pairs: bool = False, has_clip: bool = True) -> list[Row]:  # fmt: skip
    """Rows of which every fifth was dropped by the download; others are dropped by the filters of `thresholds`."""
    made = [make_row(i, STYLES[i % len(STYLES)]) for i in range(n)]
    table = pa.Table.from_pylist([row for row, _ in made], schema=CAPTIONED)
    table = parser()(drop_rows(table, "download", {i: Drop("http_error", "404") for i in range(2, n, 5)}))
    found, rng = {}, Random(0)
    for i, row in enumerate(table.to_pylist()):
        if row["status"] == "kept":
            found[i] = {"boxes": [box for box, _ in scored_boxes(row, made[i][1], rng)]}
            if i % 4:
                presence = Random(i)
                found[i]["presence"] = [presence.choice([None, presence.random()]) for _ in row["noun_chunks"]]
    table = add_columns(table, GROUNDED, found)
    table = drop_rows(table, "ground", {i: Drop("no_box") for i, values in found.items() if not values["boxes"]})
    scores = RandomScores(n, has_head, has_clip)
    return cast(list[Row], score_table(table, thresholds, scores, keep_all, keeps_pairs).to_pylist())


def hostile(rows: Sequence[Row]) -> list[Row]:
    """The rows with markup and control characters in all texts that the page shows."""
    texts = {"url": f"http://example.org/{HOSTILE}", "id": HOSTILE, "source": HOSTILE, "caption_original": HOSTILE}
    changed = []
    for row in rows:
        tokens = [token | {"dep": HOSTILE, "lemma": HOSTILE} for token in row["tokens"] or ()]
        # A character beyond the BMP in front: offsets count code points, and those of JavaScript do not.
        chunks = [chunk | {"start": chunk["start"] + 1, "end": chunk["end"] + 1} for chunk in row["noun_chunks"] or ()]
        caption = {"caption": f"\U0001f436{row['caption']}\n{HOSTILE}"} if row["caption"] else {}
        tokens = [token | {"start": token["start"] + 1, "end": token["end"] + 1} for token in tokens]
        lists = {"tokens": tokens, "noun_chunks": chunks} if row["tokens"] else {}
        changed.append(row | texts | lists | caption)
    return changed


def write_output(
    folder: Path, shards: Sequence[Sequence[Row]], *settings: str, thresholds: ScoreConfig = THRESHOLDS
) -> str:
    """Write the shards of a job with these rows, which get new keys; return the folder."""
    names = ("min_score", "min_clip_score", "min_side_px", "size_rule")
    scores = [f"score.{name}={getattr(thresholds, name)}" for name in names]
    config = load_config(["input=/pairs.parquet", f"output={folder}", *scores, *settings])
    provenance = provenance_of(config) | {"thresholds": thresholds.recorded}
    if config.score.head:
        provenance["models"]["head"] = {"name": config.score.head, "sha256": "c" * 64}
    Store(str(folder)).write("config.yaml", to_yaml(config))
    first = 0
    for index, rows in enumerate(shards):
        keys = [{"key": f"{first + i:012d}", "source_row": first + i} for i in range(len(rows))]
        table = pa.Table.from_pylist([row | key for row, key in zip(rows, keys, strict=True)], schema=SCORED)
        plan = ShardPlan(index, first, len(rows), (Piece("/pairs.parquet", first, len(rows), 99),))
        write_shard(table, plan, config.write, str(folder), provenance)
        first += len(rows)
    return str(folder)
