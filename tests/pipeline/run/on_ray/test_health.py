"""Nodes on which every call fails: they are blamed, avoided and tried again, and shards that fail everywhere are not."""

import logging
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray

from hypergrit_common.errors import UserError
from pipeline.config import RayConfig
from pipeline.faults import ShardError
from pipeline.read.plan import plan_shards
from pipeline.read.types import ShardPlan
from pipeline.run.provenance import make_provenance
from pipeline.run.ray_driver import Driver, Upkeep, Work
from pipeline.run.ray_workers import MAX_FAILED_STARTS, NODE_LABEL, Cluster, Health, Model, Models, selector_of
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


def test_a_node_on_which_several_shards_fail_while_others_succeed_is_blamed_and_avoided(cluster: Cluster) -> None:
    health = Health()
    assert not health.fail("a", "write", 1, cluster)
    assert not health.fail("a", "write", 1, cluster)  # the same shard again
    assert not health.fail("a", "write", 2, cluster)  # on no node has the step succeeded since
    health.succeed("b", "prepare")
    assert not health.fail("a", "write", 3, cluster)
    health.succeed("b", "write")
    assert health.fail("a", "write", 4, cluster)
    assert health.avoided("write") == {"a"}
    assert health.avoided("prepare") == set()
    health.succeed("a", "write")
    assert health.avoided("write") == set()


def test_shards_that_fail_on_two_nodes_are_at_fault_themselves(cluster: Cluster) -> None:
    health = Health()
    for shard in (1, 2):
        health.fail("a", "write", shard, cluster)
    health.succeed("b", "write")
    assert health.fail("a", "write", 3, cluster)
    for shard in (1, 2, 3):
        assert not health.fail("b", "write", shard, cluster)
    assert health.avoided("write") == set()


def test_a_request_whose_allowed_nodes_have_gone_is_made_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "poll", lambda now=False: True)
    monkeypatch.setattr(cluster, "warn", lambda requests: None)
    work = Work([])
    models: Any = SimpleNamespace(starting={}, ready=[], idle=list)
    failures: Any = SimpleNamespace(settle=lambda: None)
    upkeep = Upkeep(work, models, cluster, failures)
    stopped: list[str] = []

    def add(name: str, refused: list[str]) -> None:
        call = SimpleNamespace(
            stream=name, node="", model=None, refused=refused, resources=CPU, deadline=float("inf"),
            shard=SimpleNamespace(step="write"), stop=lambda: stopped.append(name),
        )  # fmt: skip
        work.running[name] = call  # type: ignore[assignment]

    add("on b or c", ["a"])
    add("on c", ["a", "b"])
    add("anywhere", [])
    del cluster._nodes["c"]
    models.settle = models.withdraw_refused = lambda cluster: None
    models.idle_unusable = lambda cluster: []
    upkeep.look()
    assert stopped == ["on c"]
    assert list(work.running) == ["on b or c", "anywhere"]
    assert len(work.tasks["write"]) == 1


def test_a_request_for_a_model_worker_whose_allowed_nodes_have_gone_is_withdrawn(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda actor: killed.append(actor))
    killed: list[str] = []
    models = Models(b"", RayConfig(gpus_per_model_worker=0))
    models.starting = {
        "on b or c": Model("on b or c", refused=["a"]),
        "on c": Model("on c", refused=["a", "b"]),
        "loads on c": Model("loads on c", node="c", refused=["a", "b"]),
        "anywhere": Model("anywhere"),
    }
    models.withdraw_refused(cluster)
    assert killed == []
    del cluster._nodes["c"]
    models.withdraw_refused(cluster)
    assert killed == ["on c"]
    assert list(models.starting) == ["on b or c", "loads on c", "anywhere"]


def test_a_call_is_placed_on_other_nodes_unless_none_can_run_it(cluster: Cluster) -> None:
    health = Health()
    assert selector_of(health.refused("write", (), CPU, cluster)) == {}
    assert selector_of(health.refused("write", {"b", "gone"}, CPU, cluster)) == {NODE_LABEL: "!in(b)"}
    health.avoid("a", "write", "broken")
    assert selector_of(health.refused("write", {"b"}, CPU, cluster)) == {NODE_LABEL: "!in(a,b)"}
    assert selector_of(health.refused("write", {"b", "c"}, CPU, cluster)) == {NODE_LABEL: "!in(b,c)"}
    assert selector_of(health.refused("write", {"a", "b", "c"}, CPU, cluster)) == {}


def refuse(models: Models, node: str) -> None:
    models.refuse(Model(None, node=node), RuntimeError("uncorrectable ECC error"))  # type: ignore[arg-type]


def test_a_model_worker_that_cannot_start_ends_only_a_job_without_others(tmp_path: Path) -> None:
    models = Models(b"", RayConfig())
    with pytest.raises(UserError, match="cannot start: uncorrectable ECC"):
        refuse(models, "a")
    models.has_started, models.ready, models.failed_starts = True, [Model(SimpleNamespace(), node="b")], 0
    for _ in range(2 * MAX_FAILED_STARTS):
        refuse(models, "a")
    assert models.health.avoided("load") == {"a"}
    models.ready, models.failed_starts = [], 0
    for _ in range(MAX_FAILED_STARTS):
        refuse(models, "a")
    with pytest.raises(UserError, match="cannot start"):
        refuse(models, "a")


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
