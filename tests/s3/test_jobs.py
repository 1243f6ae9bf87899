"""The pipeline and the trainer with a local S3 server: input, output and shards in buckets."""

import json
from itertools import islice
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3fs import S3FileSystem

from hypergrit_common.shards import list_shards
from pipeline import grit
from pipeline.commands import explore
from pipeline.output.store import Store
from pipeline.output.write.tar import TarWriter
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from schemas.files import FILES, INDEX_FOLDER, MANIFEST_FOLDER
from tests.patience import PATIENCE_S
from tests.trainer.data.samples import TOKENIZER, jpeg
from tests.trainer.small_run import overrides
from trainer import train
from trainer.data.config import DataConfig
from trainer.data.loader import Loader

N_ROWS = 5
CHEAP = ("rows_per_shard=2", "ray.runner=local", "score.min_clip_score=0")


@pytest.fixture(scope="module")
def bucket(server: str) -> S3FileSystem:
    """A bucket with in/pairs.tar, rows/pairs.parquet and lines/pairs.jsonl.

    The tar holds five images, each with one box in the format of GRIT around its left half. The rows of the other two
    files have URLs that cannot be reached.
    """
    fs = fsspec.filesystem("s3")
    fs.mkdir("mine")
    columns = {"caption": "a cat and a dog", "noun_chunks": [[0, 5, 0.0, 0.0, 0.5, 1.0, 0.9]], "ref_exps": []}
    with fs.open("mine/in/pairs.tar", "wb") as file, TarWriter(file) as tar:
        for i in range(N_ROWS):
            files = [("jpg", jpeg(100 + i, 256, 192)), ("json", json.dumps(columns).encode())]
            tar.add_sample(f"{i:03d}", files)
    rows = [{"url": f"http://127.0.0.1:9/{i}.jpg", "caption": f"a cat {i}"} for i in range(N_ROWS)]
    with fs.open("mine/rows/pairs.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pylist(rows), file)
    fs.pipe_file("mine/lines/pairs.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return fs


def run(source: str, output: str, *more: str) -> int:
    return grit.main([f"input={source}", f"output={output}", *CHEAP, *more])


@pytest.fixture(scope="module")
def finished(bucket: S3FileSystem) -> str:
    assert run("s3://mine/in/pairs.tar", "s3://mine/out/") == 0
    return "s3://mine/out"


def etags(bucket: S3FileSystem) -> dict[str, tuple[str, str]]:
    """(ETag, time of modification) by name of the files that are the same in every run."""
    bucket.invalidate_cache()
    found = bucket.find("mine/out", detail=True)
    return {
        name: (facts["ETag"], str(facts["LastModified"]))
        for name, facts in found.items()
        if name.split("/")[2] in (*FILES, INDEX_FOLDER, MANIFEST_FOLDER)
    }


def test_a_job_from_bucket_to_bucket_writes_shards_statistics_and_report(bucket: S3FileSystem, finished: str) -> None:
    stats = json.loads(bucket.cat_file("mine/out/stats.json"))
    assert (stats["rows"]["read"], stats["rows"]["kept"]) == (N_ROWS, N_ROWS)
    assert b"</html>" in bucket.cat_file("mine/out/report.html")
    names = {name.removeprefix("mine/out/") for name in bucket.find("mine/out")}
    assert {"train/00000.tar", "train/00002.tar", "grit/00001.parquet", "arrow/00002.arrow", "config.yaml"} <= names
    assert not [name for name in names if "//" in name or ".tmp" in name or "writable" in name]


def test_a_job_computes_only_the_shard_without_a_manifest(
    bucket: S3FileSystem, finished: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = etags(bucket)
    bucket.rm_file("mine/out/_manifests/00001.json")
    with caplog.at_level("INFO", logger="hypergrit"):
        assert run("s3://mine/in", finished) == 0
    assert "2 finished before" in caplog.text
    after = etags(bucket)
    assert {name: tag for name, (tag, _) in after.items()} == {name: tag for name, (tag, _) in before.items()}
    assert {name for name in after if after[name] != before[name]} == {name for name in after if "/00001." in name}


def test_the_output_in_a_bucket_and_on_a_disk_has_the_same_bytes(
    bucket: S3FileSystem, finished: str, tmp_path: Path
) -> None:
    assert run("s3://mine/in/pairs.tar", str(tmp_path)) == 0
    for name in etags(bucket):
        assert (tmp_path / name.removeprefix("mine/out/")).read_bytes() == bucket.cat_file(name), name


@pytest.mark.parametrize("path", ["rows/pairs.parquet", "rows", "*/*.jsonl", "lines/pairs.jsonl"])
def test_rows_are_read_from_files_folders_and_globs(bucket: S3FileSystem, path: str) -> None:
    plans = plan_shards(f"s3://mine/{path}", 2, None, ReadConfig())
    read = [caption for plan in plans for caption in read_shard(plan, ReadConfig())["caption_original"].to_pylist()]
    assert read == [f"a cat {i}" for i in range(N_ROWS)]


@pytest.mark.timeout(PATIENCE_S)  # without a buffer, copying a block for every line takes minutes
def test_many_lines_are_read_as_fast_as_from_a_disk(bucket: S3FileSystem) -> None:
    line = json.dumps({"url": "http://127.0.0.1:9/a.jpg", "caption": "a cat " * 20}).encode() + b"\n"
    bucket.pipe_file("mine/many/pairs.jsonl", line * 100_000)
    (plan,) = plan_shards("s3://mine/many", 100_000, None, ReadConfig())
    assert plan.n_rows == 100_000


def test_files_that_other_machines_write_are_listed(bucket: S3FileSystem) -> None:
    store = Store("s3://mine/seen")
    store.write("_manifests/00000.json", "{}")
    assert store.names("_manifests") == ["00000.json"]
    S3FileSystem(skip_instance_cache=True).pipe_file("mine/seen/_manifests/00001.json", b"{}")
    assert store.names("_manifests") == ["00000.json", "00001.json"]


def test_the_report_of_a_bucket_can_be_written_again(bucket: S3FileSystem, finished: str) -> None:
    bucket.rm_file("mine/out/report.html")
    assert explore.main([finished, "report=true"]) == 0
    assert bucket.exists("mine/out/report.html")


def test_an_output_within_the_input_is_refused(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("s3://mine/in", "s3a://mine/in/out") == 2
    assert "within the input" in capsys.readouterr().err


def loader(shards: str, workers: int = 0) -> Loader:
    config = DataConfig(shards=shards, workers=workers)
    return Loader(config, tokenizer=TOKENIZER, size_px=16, batch=2, needs=frozenset({"boxes"}))


def keys(source: Loader, n: int) -> list[list[str]]:
    found = [list(batch.keys) for batch in islice(iter(source), n)]
    source.close()
    return found


def test_the_trainer_lists_folders_and_globs_of_a_bucket(finished: str) -> None:
    expected = [f"s3://mine/out/train/{i:05d}.tar" for i in range(3)]
    for shards in (finished, f"{finished}/train", f"{finished}/train/", f"{finished}/train/*.tar"):
        assert list_shards(shards) == expected


def test_the_trainer_reads_a_bucket_like_a_disk_and_resumes_at_the_same_position(
    bucket: S3FileSystem, finished: str, tmp_path: Path
) -> None:
    bucket.get("mine/out/train/", f"{tmp_path}/train/", recursive=True)
    expected = keys(loader(finished), 6)
    assert expected == keys(loader(f"{tmp_path}/train"), 6)
    assert expected == keys(loader(finished, workers=1), 6)
    first = loader(finished)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    resumed = loader(finished)
    resumed.load_state_dict(state)
    assert keys(resumed, 3) == expected[3:]


def test_a_model_trains_on_a_bucket_and_resumes(finished: str, tmp_path: Path) -> None:
    settings = [f"shards={finished}", "batch_size=2", "log.every=1", "data.workers=0"]
    settings.append("optim.warmup_steps=0")
    assert train.main(overrides(tmp_path / "run", *settings, "steps=2")) == 0
    assert train.main(overrides(tmp_path / "run", *settings, "steps=3", "resume=anyway")) == 0
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
