"""Nodes on which every call fails: they are blamed, and shards that fail everywhere are not."""

import logging
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.config import RayConfig
from pipeline.faults import ShardError
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run.provenance import make_provenance
from pipeline.run.ray_driver import Driver
from pipeline.run.ray_workers import MAX_FAILED_STARTS, Cluster, Health, Model, Models
from pipeline.run.steps import Done, Notes, Recipe
from tests.patience import wait_until
from tests.pipeline.poison import LightSteps
from tests.pipeline.run.on_ray.jobs import cluster_of, make_job, make_tar

CPU = {"CPU": 1.0}


@pytest.fixture
def cluster() -> Cluster:
    """Nodes `a`, `b` and `c`, and a head without CPUs."""
    cluster = Cluster()
    cluster._nodes = {"a": CPU, "b": CPU, "c": CPU, "head": {}}
    return cluster


def test_a_node_on_which_several_shards_fail_while_others_succeed_is_blamed(cluster: Cluster) -> None:
    health = Health()
    assert not health.fail("a", "write", 1, cluster)
    assert not health.fail("a", "write", 1, cluster)  # the same shard again
    assert not health.fail("a", "write", 2, cluster)  # on no node has the step succeeded since
    health.succeed("b", "prepare")
    assert not health.fail("a", "write", 3, cluster)
    health.succeed("b", "write")
    assert health.fail("a", "write", 4, cluster)
    health.succeed("a", "write")
    assert not health.fail("a", "write", 5, cluster)


def test_shards_that_fail_on_two_nodes_are_at_fault_themselves(cluster: Cluster) -> None:
    health = Health()
    for shard in (1, 2):
        health.fail("a", "write", shard, cluster)
    health.succeed("b", "write")
    assert health.fail("a", "write", 3, cluster)
    for shard in (1, 2, 3):
        assert not health.fail("b", "write", shard, cluster)
    assert not health.fail("a", "write", 4, cluster)  # the first one there


def test_a_shard_that_failed_is_tried_on_another_node_that_can_run_it(cluster: Cluster) -> None:
    assert {cluster.other(CPU, {"b"}, number) for number in range(9)} == {"a", "c"}
    assert cluster.other(CPU, {"a", "b", "c"}, 0) is None
    assert cluster.other({"GPU": 1.0}, {"a"}, 0) is None


def refuse(models: Models) -> None:
    models.refuse(RuntimeError("uncorrectable ECC error"))  # type: ignore[arg-type]


def test_a_model_worker_that_cannot_start_ends_only_a_job_without_others(tmp_path: Path) -> None:
    models = Models(b"", RayConfig())
    with pytest.raises(UserError, match="cannot start: uncorrectable ECC"):
        refuse(models)
    models.has_started, models.ready, models.failed_starts = True, [Model(SimpleNamespace(), node="b")], 0
    for _ in range(2 * MAX_FAILED_STARTS):
        refuse(models)
    models.ready, models.failed_starts = [], 0
    for _ in range(MAX_FAILED_STARTS):
        refuse(models)
    with pytest.raises(UserError, match="cannot start"):
        refuse(models)


class BadNodeSteps(LightSteps):
    """Steps of which `write` fails on a node with the environment variable BAD_NODE; others wait for its first failure."""

    def write(self, plan: ShardPlan, table: pa.Table, notes: Notes) -> Done:
        marker = Path(f"{self.config.output}.failed")
        if os.environ.get("BAD_NODE"):
            marker.touch()
            raise ShardError("cannot write /scratch/x: No space left on device")
        wait_until(marker.exists)
        marker.touch()
        time.sleep(0.2)
        return super().write(plan, table, notes)


@pytest.mark.rest
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_node_with_a_full_disk_costs_no_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_job(
        make_tar(tmp_path / "in", 80), tmp_path / "out", "ray.model_workers=1"
    )  # leaves CPUs on both nodes
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    make: Any = partial(BadNodeSteps, config, make_provenance(config), ())
    nodes = [{"num_cpus": 1}, {"num_cpus": 1, "env_vars": {"BAD_NODE": "1"}}]
    with cluster_of(*nodes), caplog.at_level(logging.WARNING):
        results = list(Driver(plans, config.ray, Recipe(make, config)).run())
    assert [isinstance(result, Done) for result in results] == [True] * 20
    assert "is tried again: cannot write /scratch/x" in caplog.text
