"""Resuming an output in a bucket: by listing, and by the ETags of the input."""

import dataclasses
from collections import Counter
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3fs import S3FileSystem

from hypergrit_common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.output.finished import find_damaged
from pipeline.output.store import Store
from pipeline.run.job import run_job
from schemas.files import FILES, INDEX_FOLDER
from tests.pipeline.output.resume.jobs import compute, compute_all, configure, overwriting, plan, provenance_of, run

N_ROWS = 60


@pytest.fixture
def bucket(server: str) -> S3FileSystem:
    fs = fsspec.filesystem("s3")
    fs.makedirs("resume", exist_ok=True)
    for path in fs.find("resume"):
        fs.rm_file(path)
    write(fs, "b", "a cat")
    return fs


@pytest.fixture
def config(bucket: S3FileSystem) -> PipelineConfig:
    return configure("s3://resume/in", "s3://resume/out", "formats=[train]")


def write(fs: S3FileSystem, name: str, caption: str) -> None:
    rows = [{"url": f"http://127.0.0.1:9/{i}.jpg", "caption": f"{caption} {i}"} for i in range(N_ROWS)]
    with fs.open(f"resume/in/{name}.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pylist(rows), file)


def test_finished_shards_are_found_without_a_request_per_shard(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(run(config)) == 20
    Store(config.output).remove(["_manifests/00003.json", "train/00005.tar"])
    requests: Counter[str] = Counter()
    request = S3FileSystem._call_s3

    async def count(fs: S3FileSystem, method: str, *arguments: Any, **options: Any) -> Any:
        requests[method] += 1
        return await request(fs, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", count)
    assert [shard.index for shard in plan(config).unfinished] == [3, 5]
    assert requests.total() < 26, requests  # eight of them look for a table of Delta or Iceberg around the input


def test_a_truncated_object_of_a_finished_shard_is_found(config: PipelineConfig) -> None:
    run(config)
    store = Store(config.output)
    plans = plan(config).plans
    provenance = provenance_of(config)
    assert find_damaged(store, plans, config, provenance) == []
    store.fs.pipe_file(store.path("train/00002.tar"), b"short")
    store.remove(["train/00004.tar"])
    assert [damage.plan.index for damage in find_damaged(store, plans, config, provenance)] == [2, 4]


def test_a_changed_object_is_named_and_a_new_one_becomes_new_shards(
    config: PipelineConfig, bucket: S3FileSystem
) -> None:
    config = dataclasses.replace(config, rows_per_shard=40)
    assert run(config) == [0, 1]
    write(bucket, "a", "a dog")
    assert run(config) == [2, 3]
    write(bucket, "b", "a cow")
    with pytest.raises(UserError, match=r"2 finished shards .*in/b.parquet: changed: another content"):
        run(config)
    assert run(overwriting(config)) == [0, 1]


def test_an_object_that_changes_between_planning_and_reading_is_noticed(
    config: PipelineConfig, bucket: S3FileSystem
) -> None:
    work = plan(config)
    write(bucket, "b", "a cow")
    with pytest.raises(UserError, match=r"in/b\.parquet has changed since the job was planned"):
        compute(work.plans[0], config, provenance_of(config))


def test_only_files_of_the_formats_that_are_asked_for_are_judged_and_all_formats_are_mended(
    config: PipelineConfig, bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run.job.make_provenance", provenance_of)
    monkeypatch.setattr("pipeline.run.loop.pick_runner", lambda _: compute_all)
    everything = configure(config.input, config.output, "formats=[train,grit,arrow]", "rows_per_shard=30")
    train = configure(config.input, config.output, "formats=[train]", "rows_per_shard=30", "report.summary=false")
    assert run_job(everything).n_failures == 0
    store = Store(config.output)
    names = bucket.find("resume/out")
    before = {name: bucket.info(name)["ETag"] for name in names if name.rsplit("/", 2)[1] in (*FILES, INDEX_FOLDER)}
    assert len(before) == 2 * 5
    store.remove(["grit/00000.tar"])
    assert run_job(train).n_failures == 0
    bucket.invalidate_cache()
    left = set(bucket.find("resume/out"))
    assert before.keys() - left == {"resume/out/grit/00000.tar"}
    store.fs.pipe_file(store.path("train/00000.tar"), b"short")
    store.remove(["train/00001.tar", "_index/00001.arrow"])
    assert run_job(train).n_failures == 0
    bucket.invalidate_cache()
    assert {name: bucket.info(name)["ETag"] for name in before} == before
