"""A job on parquet whose rows one actor reads for all workers: same shards with it, without it, and if it is killed."""

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from pipeline.config import PipelineConfig
from pipeline.output.inputs import plan_history
from pipeline.output.record import plans_of as record_plans
from pipeline.read.config import ReadConfig
from pipeline.read.listing import input_folders, list_files
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run import ray_workers as row_reader
from pipeline.run.ray_driver import Driver
from pipeline.run.ray_workers import RowReader, RowsAhead, fetch_rows
from pipeline.run.steps import Done, Recipe
from tests.pipeline.poison import light_steps
from tests.pipeline.run.on_ray.jobs import digests, make_job

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_cluster")]
N_ROWS = 40


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a parquet file of one row group, whose images are files."""
    folder = tmp_path_factory.mktemp("rows")
    picture = folder / "picture.jpg"
    cv2.imwrite(str(picture), np.zeros((32, 32, 3), np.uint8))
    (folder / "in").mkdir()
    rows = {"image_path": [str(picture)] * N_ROWS, "caption": [f"a dog {i}" for i in range(N_ROWS)]}
    pq.write_table(pa.table(rows), folder / "in" / "a.parquet")
    return folder


@pytest.fixture(autouse=True)
def read_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "FIRST", 0)


def read_config(table: Path) -> ReadConfig:
    return ReadConfig(image_roots=(str(table),))


def job(table: Path, output: Path) -> PipelineConfig:
    return make_job(table / "in", output, f"read.image_roots=[{table}]")


def plans_of(config: PipelineConfig) -> list[ShardPlan]:
    """The plans of a job, which name the versions of the files."""
    files = list_files(config.input)
    batches, folders = plan_history(files, None, config).batches, input_folders(config.input, (), files)
    return list(record_plans(batches, config.rows_per_shard, folders))


def without_version(plan: ShardPlan) -> ShardPlan:
    return replace(plan, pieces=tuple(replace(piece, version="") for piece in plan.pieces))


def run(table: Path, output: Path) -> tuple[dict[str, str], RowsAhead]:
    """Run the job; return the digests of its files, and the client of the reader."""
    config = job(table, output)
    driver = Driver(plans_of(config), config.ray, Recipe(light_steps(config), config))
    assert all(isinstance(result, Done) for result in driver.run())
    return digests(output), driver.calls.rows


@pytest.fixture(scope="module")
def expected(ray_cluster: Any, table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the job whose workers read all rows themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reader, "can_be_ahead", lambda plan: False)
        found, rows = run(table, tmp_path_factory.mktemp("expected") / "out")
    assert rows.actor is None
    return found


@pytest.mark.rest
def test_shards_of_rows_that_the_reader_read_are_the_same(
    table: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    found, rows = run(table, tmp_path / "out")
    assert found == expected
    assert rows.last == N_ROWS // 4 - 1


@pytest.mark.rest
def test_a_job_goes_on_without_its_reader(
    table: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RowsAhead.of

    def of(self: RowsAhead, plan: Any) -> list[Any]:
        found = real(self, plan)
        if plan.index == 3:
            ray.kill(self.actor)  # for good
        return found

    monkeypatch.setattr(RowsAhead, "of", of)
    assert run(table, tmp_path / "out")[0] == expected


def test_a_reader_is_asked_for_each_shard_once_and_in_order(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = plans_of(job(table, table / "out"))
    rows = RowsAhead(read_config(table))
    assert [len(rows.of(plans[i])) for i in (0, 2, 1, 2, 3)] == [1, 1, 0, 0, 1]
    monkeypatch.setattr(row_reader, "FIRST", 2)
    later = RowsAhead(read_config(table))
    assert [len(later.of(plan)) for plan in plans[:4]] == [0, 0, 1, 1]
    assert later.of(without_version(plans[4])) == []


def test_workers_read_shards_themselves_while_the_reader_is_behind(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_reader, "MAX_WAITING", 2)
    plans, rows = plans_of(job(table, table / "out")), RowsAhead(read_config(table))
    begun = [rows.of(plan) for plan in plans[:2]]
    ray.get([reference for found in begun for reference in found])
    assert rows.of(plans[2])  # two are finished
    assert not rows.is_behind()
    rows.waiting = deque([sleep.remote(), sleep.remote()])
    assert rows.of(plans[3]) == []
    for reference in rows.waiting:
        ray.cancel(reference, force=True)


@pytest.mark.rest
def test_a_lost_reader_is_started_again(table: Path) -> None:
    plans, rows = plans_of(job(table, table / "out")), RowsAhead(read_config(table))
    assert fetch_rows(rows.of(plans[0]))
    ray.kill(rows.actor, no_restart=False)
    found = [fetch_rows(rows.of(plan)) for plan in plans[1:] if not time.sleep(1)]
    assert found[-1]


@ray.remote(num_cpus=0)
def sleep() -> None:
    time.sleep(600)


def test_a_worker_waits_less_after_a_slow_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "_wait_s", 0.2)
    reference = sleep.remote()
    assert fetch_rows([reference]) is None
    assert row_reader._wait_s == row_reader.SLOW_FETCH_S
    assert fetch_rows([ray.put([b"rows"])]) == [b"rows"]
    assert row_reader._wait_s == row_reader.FETCH_S
    ray.cancel(reference, force=True)


def test_a_reader_leaves_damaged_files_and_those_with_images_to_the_workers(table: Path, tmp_path: Path) -> None:
    (plan, *_) = plans_of(job(table, table / "out"))
    reader = RowReader(read_config(table))
    assert reader.read(plan)
    pq.write_table(pa.table({"image": [b"jpeg"], "caption": ["a dog"]}), tmp_path / "a.parquet")
    (with_image,) = plan_shards(str(tmp_path), 4, None, ReadConfig())
    (tmp_path / "a.parquet").write_bytes(b"PAR1 damaged PAR1")
    assert reader.read(with_image) is None
    assert not reader.left_to_workers
    pq.write_table(pa.table({"image": [b"jpeg"], "caption": ["a dog"]}), tmp_path / "a.parquet")
    assert reader.read(with_image) is None
    assert reader.left_to_workers == {with_image.pieces[0].path}
    assert reader.read(plan)
