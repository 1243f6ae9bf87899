"""Finished shards with damaged files: what is restored, what is computed again, and that nothing else is lost."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.config import PipelineConfig, RayConfig, WriteConfig
from pipeline.output.commit import find_content
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.types import ShardPlan
from pipeline.run.job import run_job
from pipeline.run.steps import Done, Recipe
from schemas.files import INDEX_SUBREDDITS
from tests.pipeline.jobs import hash_output
from tests.pipeline.output.resume.jobs import compute_all, configure, plan, provenance_of, write_rows
from tests.pipeline.output.write import shards


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that the job computes, without models."""
    indices: list[int] = []

    def runner(plans: Sequence[ShardPlan], config: RayConfig, recipe: Recipe) -> Iterator[Done]:
        indices.extend(shard.index for shard in plans if recipe.job is not None)
        return compute_all(plans, config, recipe)

    monkeypatch.setattr("pipeline.run.job.make_provenance", provenance_of)
    monkeypatch.setattr("pipeline.run.loop.pick_runner", lambda _: runner)
    return indices


@pytest.fixture
def config(tmp_path: Path, computed: list[int]) -> PipelineConfig:
    """A finished job with four shards in all formats."""
    write_rows(tmp_path / "in" / "a.jsonl", "a", 11)
    config = configure(tmp_path / "in", tmp_path / "out", "formats=[grit,train,arrow]", "report.summary=false")
    assert run_job(config).n_failures == 0
    assert computed == [0, 1, 2, 3]
    computed.clear()
    return config


def narrowed(config: PipelineConfig, formats: str) -> PipelineConfig:
    return configure(config.input, config.output, f"formats=[{formats}]", "report.summary=false")


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_a_lost_index_is_restored_and_nothing_is_computed(
    config: PipelineConfig, computed: list[int], content: bytes | None
) -> None:
    before = hash_output(Path(config.output))
    path = Path(config.output, "_index/00001.arrow")
    path.unlink() if content is None else path.write_bytes(content)
    assert run_job(narrowed(config, "train")).n_failures == 0
    assert computed == []
    assert hash_output(Path(config.output)) == before


def test_a_shard_whose_index_cannot_be_restored_is_computed_again_with_all_its_formats(
    config: PipelineConfig, computed: list[int]
) -> None:
    before = hash_output(Path(config.output))
    Path(config.output, "_index/00001.arrow").unlink()
    tar = Path(config.output, "grit/00001.tar")
    tar.write_bytes(b"x" * tar.stat().st_size)
    assert run_job(narrowed(config, "train")).n_failures == 0
    assert computed == [1]
    assert hash_output(Path(config.output)) == before


def test_a_damaged_shard_keeps_the_formats_that_are_not_asked_for(
    config: PipelineConfig, computed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    before = hash_output(Path(config.output))
    Path(config.output, "train/00001.tar").unlink()
    Path(config.output, "train/00002.tar").write_bytes(b"short")
    Path(config.output, "grit/00003.tar").unlink()  # not asked for
    assert run_job(narrowed(config, "train")).n_failures == 0
    assert "2 finished shards with missing or truncated files" in caplog.text
    assert computed == [1, 2]
    computed.clear()
    assert run_job(config).n_failures == 0
    assert computed == [3]
    assert hash_output(Path(config.output)) == before


def test_files_that_a_listing_misses_are_looked_up_before_a_shard_is_discarded(
    config: PipelineConfig, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.contents
    monkeypatch.setattr(Store, "contents", lambda store, name: ({}, []) if name == "arrow" else real(store, name))
    assert plan(config).outdated == []
    assert plan(config).unfinished == []
    assert len(list(Path(config.output, "_manifests").iterdir())) == 4


@pytest.mark.parametrize("formats", [("train", "grit"), ("grit", "train"), ("train",), ("arrow", "grit")])
@pytest.mark.parametrize("extra", ["{}", '{"subreddit": "aww"}'])
def test_a_restored_index_has_the_bytes_of_the_lost_one(tmp_path: Path, formats: tuple[str, ...], extra: str) -> None:
    rows = [*shards.rows()[:3], shards.kept_row(13) | {"key": "k" * 120, "extra": extra}]
    config = WriteConfig(formats=formats)
    manifest = write_shard(shards.table(rows), shards.plan(), config, str(tmp_path), shards.PROVENANCE)
    manifest = json.loads(json.dumps(manifest))
    content = (tmp_path / "_index/00001.arrow").read_bytes()
    facts = manifest["files"]["_index/00001.arrow"]
    assert find_content(Store(str(tmp_path)), manifest, formats, facts["sha256"]) == content
    assert (INDEX_SUBREDDITS.encode() in content) == ("subreddit" in extra)
