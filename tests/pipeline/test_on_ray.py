"""The pipeline on Ray: worker plans that fit the cluster, errors for those that do not, retries after worker deaths."""

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


def needed(plan: WorkerPlan) -> tuple[float, float]:
    """The CPUs and GPUs of all workers."""
    cpus = plan.cpu_workers * plan.cpus_per_cpu_worker + plan.model_workers * plan.cpus_per_model_worker
    return cpus, plan.model_workers * plan.gpus_per_model_worker


@pytest.mark.parametrize("cpus", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("n_shards", [1, 2, 1000])
def test_the_default_plan_always_fits_the_cluster(cpus: int, gpus: int, n_shards: int) -> None:
    if gpus >= cpus:
        pytest.skip("clusters have more CPUs than GPUs")
    plan = plan_workers(cpus, gpus, n_shards, RayConfig())
    needed_cpus, needed_gpus = needed(plan)
    assert needed_cpus <= cpus
    assert needed_gpus <= gpus
    assert plan.cpu_workers >= 1
    assert plan.model_workers >= 1


def test_each_gpu_gets_a_model_worker() -> None:
    assert plan_workers(32, 4, 1000, RayConfig()).model_workers == 4
    assert plan_workers(32, 4, 1000, RayConfig(gpus_per_model_worker=0.5)).model_workers == 8


def test_without_a_gpu_each_cpu_gets_a_model_worker() -> None:
    plan = plan_workers(2, 0, 1000, RayConfig())
    assert (plan.model_workers, plan.gpus_per_model_worker) == (2, 0)


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
def test_a_request_that_the_cluster_cannot_satisfy_is_an_error_with_the_fix(config: RayConfig) -> None:
    with pytest.raises(UserError, match=r"wait indefinitely; lower ray\.cpu_workers|does not fit .* give a number"):
        plan_workers(4, 2, 1000, config)


class DyingWorker(Worker):
    """A CPU worker that passes shard indices as tables, and dies while it prepares shard 1 unless `marker` exists."""

    def __init__(self, config: PipelineConfig, marker: str) -> None:
        self.marker = Path(marker)

    @ray.method(num_returns=2)
    def prepare(self, plan: ShardPlan) -> tuple[int, None]:
        if plan.index == 1 and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return plan.index, None

    def write(self, plan: ShardPlan, table: int, timings: None) -> dict[str, Any]:
        return {"shard": table}


class ModelStub(Worker):
    """A model worker without models."""

    def __init__(self, config: PipelineConfig) -> None: ...

    @ray.method(num_returns=2)
    def infer(self, plan: ShardPlan, table: int, timings: None) -> tuple[int, None]:
        return table, None


class MissingWeights(ModelStub):
    """A model worker that cannot start."""

    def __init__(self, config: PipelineConfig) -> None:
        raise FileNotFoundError("weights/glip is not on this machine")


@pytest.fixture
def cluster() -> Iterator[None]:
    paths = {"PYTHONPATH": str(repository_root())}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
    yield
    ray.shutdown()


def drive(marker: Path, monkeypatch: pytest.MonkeyPatch, model_worker: type[Worker]) -> list[dict[str, Any]]:
    """The manifests of four shards, computed with one retry."""
    monkeypatch.setattr(on_ray, "CpuWorker", DyingWorker)
    monkeypatch.setattr(on_ray, "ModelWorker", model_worker)
    config = PipelineConfig(input="in", output="out", ray=RayConfig(retries=1))
    plans = [ShardPlan(i, i, 1, ()) for i in range(4)]
    return list(Driver(plans, config, str(marker), WorkerPlan(1, 1, 0.5, 0.5, 0.0)).run())  # type: ignore[arg-type]


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_shard_of_a_worker_that_died_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = drive(tmp_path / "marker", monkeypatch, ModelStub)
    assert sorted(manifest["shard"] for manifest in manifests) == [0, 1, 2, 3]
    assert (tmp_path / "marker").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
def test_the_error_of_a_worker_that_cannot_start_has_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot start.*weights/glip is not on this machine"):
        drive(tmp_path, monkeypatch, MissingWeights)
