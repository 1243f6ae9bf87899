"""How work is spread over a cluster: plans that fit, refusals of those that would wait for ever, workers that die."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from common.errors import UserError
from pipeline import on_ray
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.on_ray import Driver, Worker, WorkerPlan, plan_workers
from pipeline.read.types import ShardPlan


def needed(crew: WorkerPlan) -> tuple[float, float]:
    cpus = crew.cpu_workers * crew.cpus_per_cpu_worker + crew.model_workers * crew.cpus_per_model_worker
    return cpus, crew.model_workers * crew.gpus_per_model_worker


@pytest.mark.parametrize("cpus", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("n_shards", [1, 2, 1000])
def test_the_default_crew_always_fits(cpus: int, gpus: int, n_shards: int) -> None:
    if gpus >= cpus:
        pytest.skip("no cluster has as many GPUs as CPUs")
    crew = plan_workers(cpus, gpus, n_shards, RayConfig())
    need_cpus, need_gpus = needed(crew)
    assert need_cpus <= cpus
    assert need_gpus <= gpus
    assert crew.cpu_workers >= 1
    assert crew.model_workers >= 1


def test_each_gpu_gets_a_model_worker() -> None:
    assert plan_workers(32, 4, 1000, RayConfig()).model_workers == 4
    assert plan_workers(32, 4, 1000, RayConfig(gpus_per_model_worker=0.5)).model_workers == 8


def test_without_a_gpu_each_cpu_gets_a_model_worker() -> None:
    crew = plan_workers(2, 0, 1000, RayConfig())
    assert (crew.model_workers, crew.gpus_per_model_worker) == (2, 0)


def test_few_shards_need_few_workers() -> None:
    assert plan_workers(64, 0, 3, RayConfig()).model_workers == 3


@pytest.mark.parametrize(
    "config",
    [
        RayConfig(cpu_workers=100),
        RayConfig(model_workers=9),
        RayConfig(gpus_per_model_worker=3.0),
    ],
)
def test_a_crew_that_would_wait_for_ever_is_refused_with_the_mend(config: RayConfig) -> None:
    with pytest.raises(UserError, match=r"wait for ever|does not fit"):
        plan_workers(4, 2, 1000, config)


class MortalWorker(Worker):
    """Works on the number of a shard alone, and is killed when it first prepares shard 1."""

    def __init__(self, config: PipelineConfig, grave: str) -> None:
        self.grave = Path(grave)

    @ray.method(num_returns=2)
    def prepare(self, plan: ShardPlan) -> tuple[int, None]:
        if plan.index == 1 and not self.grave.exists():
            self.grave.touch()
            os._exit(1)
        return plan.index, None

    def write(self, plan: ShardPlan, table: int, timings: None) -> dict[str, Any]:
        return {"shard": table}


class QuietWorker(Worker):
    def __init__(self, config: PipelineConfig) -> None: ...

    @ray.method(num_returns=2)
    def infer(self, plan: ShardPlan, table: int, timings: None) -> tuple[int, None]:
        return table, None


class LameWorker(QuietWorker):
    def __init__(self, config: PipelineConfig) -> None:
        raise FileNotFoundError("weights/glip is not on this machine")


@pytest.fixture
def cluster() -> Iterator[None]:
    paths = {"PYTHONPATH": str(repository_root())}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
    yield
    ray.shutdown()


def drive(grave: Path, monkeypatch: pytest.MonkeyPatch, model_worker: type[Worker]) -> list[dict[str, Any]]:
    """The manifests of four shards, whose workers may die once."""
    monkeypatch.setattr(on_ray, "CpuWorker", MortalWorker)
    monkeypatch.setattr(on_ray, "ModelWorker", model_worker)
    config = PipelineConfig(input="in", output="out", ray=RayConfig(retries=1))
    plans = [ShardPlan(i, i, 1, ()) for i in range(4)]
    return list(Driver(plans, config, str(grave), WorkerPlan(1, 1, 0.5, 0.5, 0.0)).run())  # type: ignore[arg-type]


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_once_costs_its_shard_one_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = drive(tmp_path / "grave", monkeypatch, QuietWorker)
    assert sorted(manifest["shard"] for manifest in manifests) == [0, 1, 2, 3]
    assert (tmp_path / "grave").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot start.*weights/glip is not on this machine"):
        drive(tmp_path, monkeypatch, LameWorker)
