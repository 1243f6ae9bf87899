"""Tests that the early stages drop exactly the expected rows of the demo's input, for the expected reasons."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from demo.make_input import InputRow, write_input
from pipeline.config import PipelineConfig, load_config
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from pipeline.stages.captions import clean_captions
from pipeline.stages.download.config import DownloadConfig
from pipeline.stages.download.stage import Download
from pipeline.stages.parse.stage import Parse
from tests.e2e.world import serving
from tests.patience import PATIENCE_S

DEMO = Path(__file__).resolve().parents[2] / "jobs" / "demo.yaml"


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[InputRow], pa.Table, PipelineConfig]]:
    """Return the special rows of the input, their table after `parse`, and the demo's configuration."""
    folder = tmp_path_factory.mktemp("input")
    with serving() as images:
        rows = write_input(folder, 1, images.port)
        overrides = [f"input={folder / 'pairs.parquet'}", f"output={folder / 'out'}", "rows_per_shard=1000"]
        config = load_config([str(DEMO), *overrides])
        (plan,) = plan_shards(config.input, config.rows_per_shard, None, config.read)
        table = download(read_shard(plan, config.read), rows, config.download)
        yield rows, Parse(config.parse)(clean_captions(table, config.captions)), config


def download(table: pa.Table, rows: list[InputRow], config: DownloadConfig) -> pa.Table:
    """Download rows that must time out with a short limit, and the others with one that a busy server keeps."""
    is_late = pa.array([row.expected_drop == ("download", "timeout") for row in rows])
    parts = [(is_late, 0.4), (pc.invert(is_late), PATIENCE_S)]
    limited = [
        Download(replace(config, timeout_s=seconds, deadline_s=seconds))(table.filter(chosen))
        for chosen, seconds in parts
    ]
    return pa.concat_tables(limited).sort_by("key")


def test_each_row_is_kept_or_dropped_as_expected(parsed: tuple[list[InputRow], pa.Table, PipelineConfig]) -> None:
    rows, table, _ = parsed
    ends = zip(table["stage"].to_pylist(), table["reason"].to_pylist(), strict=True)
    found = {row.id: None if end == (None, None) else end for row, end in zip(rows, ends, strict=True)}
    assert found == {row.id: row.expected_drop for row in rows}


def test_ground_truth_refers_to_the_cleaned_caption(parsed: tuple[list[InputRow], pa.Table, PipelineConfig]) -> None:
    rows, table, _ = parsed
    for row, caption in zip(rows, table["caption"].to_pylist(), strict=True):
        if row.truth:
            assert caption == row.truth.caption


def test_nearly_all_true_phrases_are_noun_chunks(parsed: tuple[list[InputRow], pa.Table, PipelineConfig]) -> None:
    rows, table, _ = parsed
    hits: Counter[bool] = Counter()
    for row, chunks in zip(rows, table["noun_chunks"].to_pylist(), strict=True):
        spans = {(chunk["start"], chunk["end"]) for chunk in chunks or [] if not chunk["removed"]}
        hits.update((p.start, p.end) in spans for p in (row.truth.phrases if row.truth else ()) if p.boxes)
    assert hits[True] > 0.9 * hits.total()


def test_repeated_rows_share_a_shard_under_the_demos_configuration() -> None:
    assert load_config([str(DEMO)]).rows_per_shard >= 4
