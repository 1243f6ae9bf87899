"""The state of a job on a cluster, without a cluster: shards that lose their tables, and the tables that are held."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import NodeDiedError, ObjectLostError, WorkerCrashedError

from pipeline.config import load_config
from pipeline.read.types import ShardPlan
from pipeline.run import ray_driver
from pipeline.run.ray_driver import MEMORY_SHARE, Call, Failures, Result, Tables, Work
from pipeline.run.ray_workers import Cluster, Health, Models, Shard


def plans(*indices: int) -> list[ShardPlan]:
    return [ShardPlan(index, index * 10, 10, ()) for index in indices]


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    """Those of a job with four shards on two nodes."""
    config = load_config(["input=a.csv", "output=out", "ray.retries=1"])
    cluster, health = Cluster(), Health()
    cluster._nodes = {"a": {"CPU": 1}, "b": {"CPU": 1}}
    monkeypatch.setattr(cluster, "poll", lambda now=False: True)
    return Failures(Work(plans(*range(4))), Models(b"", config.ray), cluster, health, config.ray)


def take(work: Work, shard: Shard) -> None:
    """Take a shard out of its queue."""
    for waiting in (*work.tasks.values(), work.for_models):
        if shard in waiting:
            waiting.remove(shard)


def passed(work: Work, shard: Shard) -> None:
    """Let a shard pass a step."""
    take(work, shard)
    notes: Any = SimpleNamespace()
    work.advance(shard, Result("table", notes, 100))


def test_a_shard_waits_for_one_step_after_the_other_and_holds_one_table(failures: Failures) -> None:
    work = failures.work
    shard = work.tasks["prepare"][0]
    passed(work, shard)
    assert (list(work.for_models), work.tables.held) == ([shard], 100)
    passed(work, shard)
    assert (list(work.tasks["write"]), work.tables.held) == ([shard], 100)
    work.release(shard)
    assert (shard.state, work.tables.held) == ((), 0)


def test_a_lost_table_is_prepared_again_before_other_shards(failures: Failures) -> None:
    work = failures.work
    shard = work.tasks["prepare"][2]
    passed(work, shard)
    take(work, shard)
    failures.judge(Call(shard, None, 60, {}, node="a"), ObjectLostError("0" * 56, None, ""))
    assert work.tasks["prepare"][0] is shard
    assert (shard.attempts, work.tables.held) == (0, 0)


def test_a_death_counts_against_the_shard_only_if_its_node_lives(failures: Failures) -> None:
    work = failures.work
    for node, attempts in (("gone", 0), ("a", 1)):
        shard = work.tasks["prepare"].popleft()
        failures.judge(Call(shard, None, 60, {}, node=node), WorkerCrashedError())
        assert shard.attempts == attempts
        assert shard in work.tasks["prepare"]


def test_a_shard_that_loses_too_many_machines_has_failed(failures: Failures) -> None:
    work = failures.work
    shard = work.tasks["prepare"].popleft()
    for _ in range(ray_driver.MAX_LOSSES + 1):
        assert not work.failed
        take(work, shard)
        failures.judge(Call(shard, None, 60, {}), NodeDiedError("gone"))
    assert [record["shard"] for record in work.failed] == [0]


def test_tables_are_bounded_by_the_bytes_of_the_object_stores() -> None:
    tables, cluster = Tables(), Cluster()
    cluster._nodes = {"a": {"object_store_memory": 1000.0}}
    shards = [Shard(plan) for plan in plans(*range(8))]
    assert tables.has_room(0, cluster)
    tables.add(shards[0], 100)
    assert tables.has_room(0, cluster)
    n = 1
    while tables.has_room(1, cluster):  # another one is being made
        tables.add(shards[n], 100)
        n += 1
    assert tables.held == MEMORY_SHARE * 1000 - 100
    tables.drop(shards[0])
    tables.drop(shards[0])
    assert tables.has_room(1, cluster)
