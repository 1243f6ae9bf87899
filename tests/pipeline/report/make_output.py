"""Write the output of a run for tests of the report: demo scenes with slightly moved true boxes, and dropped rows."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from demo.world.sprites import STYLES, Style
from demo.world.truth import Truth, phrase_of, truth_of
from pipeline.config import WriteConfig
from pipeline.images import encode_jpeg
from pipeline.output.write.stage import write_shard
from pipeline.read.types import Piece, ShardPlan
from pipeline.stages.parse.config import ParseConfig
from pipeline.stages.parse.stage import Parse
from schemas.rows import CAPTIONED, SCORED
from schemas.status import REASONS
from schemas.table import Drop, add_columns, drop_rows

CANVASES = ((448, 336), (336, 448), (384, 384), (320, 240))
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[2J\x85\r'
PROVENANCE: dict[str, Any] = {
    "config_hash": "0" * 64,
    "hypergrit": "0.1.0",
    "packages": {"spacy": "3.8", "torch": "2.15"},
    "models": {
        "scorer": {"name": "miniature"},
        "grounder": {"name": "miniature"},
        "parser": {"name": "en_core_web_sm"},
    },
    "thresholds": {"min_score": 0.65, "min_clip_score": 0.65, "min_side_px": 32, "size_rule": "area"},
}
CONFIG = "input: pairs.parquet\nrows_per_shard: 48\nground:\n  grounder: miniature\nscore:\n  min_score: null\n"
SECONDS = {
    "read": 0.0002,
    "download": 0.004,
    "captions": 0.0001,
    "parse": 0.0014,
    "ground": 0.06,
    "score": 0.03,
    "write": 0.004,
}
DETAILS = {
    "http_error": "404",
    "timeout": "10 s",
    "too_small": "12 px",
    "opted_out": "X-Robots-Tag: noai",
    "too_many_bytes": "26 MB",
}
EARLY_DROPS = [("read", "missing_url"), *(("download", r) for r in REASONS["download"]), ("captions", "empty_caption")]


@cache
def parser() -> Parse:
    """The parser, which takes seconds to load."""
    return Parse(ParseConfig())


def make_row(number: int, style: Style) -> tuple[dict[str, Any], Truth]:
    """A row after `captions`, and its true boxes."""
    width, height = CANVASES[number % len(CANVASES)]
    scene = make_scene(TEST_SEEDS[number], style, WorldConfig(width=width, height=height))
    image = encode_jpeg(scene.image)
    scale = Random(f"size {number}").choice((1, 1.5, 2, 3))
    row = dict.fromkeys(CAPTIONED.names) | {
        "key": f"{number:012d}",
        "source": "pairs.parquet",
        "source_row": number,
        "url": f"http://images{number % 5}.example.org/{style}/{number}.jpg",
        "caption_original": scene.caption,
        "caption": scene.caption,
        "image": image,
        "status": "kept",
        "width": width,
        "height": height,
        "original_width": int(width * scale),
        "original_height": int(height * scale),
        "original_format": "jpeg",
        "sha256": hashlib.sha256(image).hexdigest(),
    }
    return row, truth_of(scene)


def scored_boxes(row: dict[str, Any], truth: Truth, rng: Random) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Boxes of a parsed row with their box_scores: the true boxes slightly moved, some of them removed by a filter."""
    found = []
    for index, chunk in enumerate(row["noun_chunks"]):
        phrase = phrase_of(chunk["start"], chunk["end"], truth)
        if phrase is None or chunk["removed"] is not None:
            continue
        for box in truth.phrases[phrase].boxes:
            x_min, y_min, x_max, y_max = (min(max(edge + rng.gauss(0, 0.006), 0.0), 1.0) for edge in box)
            score, cosine = min(rng.betavariate(9, 2), 0.999), rng.gauss(0.33, 0.05)
            area = (x_max - x_min) * (y_max - y_min) * row["width"] * row["height"]
            removed = (
                "box_too_small"
                if area < 1024
                else "low_score"
                if score < 0.65
                else "low_clip_score"
                if cosine < 0.26
                else None
            )
            corners = {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max}
            box_score = {
                "area_px": area,
                "clip_cosine": None if removed in ("box_too_small", "low_score") else cosine,
                "removed": removed,
            }
            found.append(({"phrase": index, **corners, "score": score}, box_score))
    return sorted(found, key=lambda pair: -pair[0]["score"])


def make_table(first: int, n_rows: int) -> pa.Table:
    """A SCORED table. Every fifth row is dropped before parsing, and rows without a kept box after it."""
    made = [make_row(i, STYLES[i % len(STYLES)]) for i in range(first, first + n_rows)]
    table = pa.Table.from_pylist([row for row, _ in made], schema=CAPTIONED)
    rng = Random(f"drops {first}")
    early = {i: rng.choice(EARLY_DROPS) for i in range(2, n_rows, 5)}
    for stage in ("read", "download", "captions"):
        table = drop_rows(table, stage, {i: Drop(r, DETAILS.get(r, "")) for i, (s, r) in early.items() if s == stage})
    table = parser()(table)
    values, late = {}, {}
    for i, row in enumerate(table.to_pylist()):
        if row["status"] == "kept":
            found = scored_boxes(row, made[i][1], rng)
            boxes, scores = [box for box, _ in found], [score for _, score in found]
            values[i] = {"boxes": boxes, "box_scores": scores, "clip_similarity": rng.gauss(0.3, 0.04)}
            if not any(score["removed"] is None for score in scores):
                late[i] = ("score", scores[-1]["removed"]) if scores else ("ground", "no_box")
    table = add_columns(table, SCORED, values)
    for stage in ("ground", "score"):
        table = drop_rows(table, stage, {i: Drop(reason) for i, (s, reason) in late.items() if s == stage})
    return table


def with_markup(table: pa.Table) -> pa.Table:
    """`table` with HTML markup in all texts that the page shows: captions, URLs, details and labels of the parse."""
    rows = table.to_pylist()
    for row in rows:
        row["url"], row["caption_original"] = f"http://example.org/{HOSTILE}", HOSTILE
        row["detail"] = HOSTILE if row["status"] == "dropped" else None
        for token in row["tokens"] or ():
            token["dep"] = token["pos"] = HOSTILE
        if row["caption"]:
            row["caption"] += HOSTILE
    return pa.Table.from_pylist(rows, schema=SCORED)


def write_output(
    folder: Path, tables: Sequence[pa.Table], config: WriteConfig | None = None, timings: bool = True
) -> str:
    """Write the shards, timings and configuration of a run with these tables, but no stats.json; return the folder."""
    first = 0
    for index, table in enumerate(tables):
        n = table.num_rows
        plan = ShardPlan(index, first, n, (Piece("pairs.parquet", first, n, 0),))
        write_shard(table, plan, config or WriteConfig(), str(folder), PROVENANCE)
        first += n
        if timings:
            (folder / "_timings").mkdir(exist_ok=True)
            times = {stage: {"seconds": per_row * n, "rows": n} for stage, per_row in SECONDS.items()}
            (folder / f"_timings/{index:05d}.json").write_text(json.dumps(times))
    if timings:
        (folder / "_timings/run.json").write_text(json.dumps({"wall_seconds": 12.5, "shards": len(tables)}))
    (folder / "config.yaml").write_text(CONFIG)
    return str(folder)


@cache
def make_tables(n_shards: int, rows_per_shard: int) -> tuple[pa.Table, ...]:
    """SCORED tables of consecutive scenes."""
    return tuple(make_table(i * rows_per_shard, rows_per_shard) for i in range(n_shards))
