"""The state of a job on a cluster, without a cluster: shards that lose their tables, and the tables that are held."""

import pytest
from ray.exceptions import NodeDiedError, ObjectLostError, WorkerCrashedError

from pipeline.config import load_config
from pipeline.read.types import ShardPlan
from pipeline.run.attempts import Attempts, Shard
from pipeline.run.ray_driver import MAX_LOSSES, Call, Failures
from pipeline.run.ray_workers import Cluster, Health, Models
from pipeline.run.steps import Notes
from pipeline.stages.order import STEPS


def plans(*indices: int) -> list[ShardPlan]:
    return [ShardPlan(index, index * 10, 10, ()) for index in indices]


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    """Those of a job with four shards on two nodes."""
    config = load_config(["input=a.csv", "output=out", "ray.retries=1"])
    cluster, health = Cluster(), Health()
    cluster._nodes = {"a": {"CPU": 1}, "b": {"CPU": 1}}
    monkeypatch.setattr(cluster, "poll", lambda now=False: True)
    return Failures(Attempts(plans(*range(4)), STEPS, config.ray.retries), Models(b"", config.ray), cluster, health)


def take(work: Attempts, shard: Shard) -> None:
    """Take a shard out of its queue."""
    for waiting in (*work.tasks.values(), work.for_models):
        if shard in waiting:
            waiting.remove(shard)


def passed(work: Attempts, shard: Shard) -> None:
    """Let a shard pass a step."""
    take(work, shard)
    assert work.has_passed(shard, Notes({}))
    work.keep(shard, "table", Notes({}), 100)


def test_a_shard_waits_for_one_step_after_the_other_and_holds_one_table(failures: Failures) -> None:
    work = failures.attempts
    shard = work.tasks["prepare"][0]
    passed(work, shard)
    assert (list(work.for_models), work.held) == ([shard], 100)
    passed(work, shard)
    assert (list(work.tasks["write"]), work.held) == ([shard], 100)
    work.release(shard)
    assert (shard.state, work.held) == ((), 0)


def test_a_lost_table_is_prepared_again_before_other_shards(failures: Failures) -> None:
    work = failures.attempts
    shard = work.tasks["prepare"][2]
    passed(work, shard)
    take(work, shard)
    failures.judge(Call(shard, None, 60, {}, node="a"), ObjectLostError("0" * 56, None, ""))
    assert work.tasks["prepare"][0] is shard
    assert (shard.attempts, work.held) == (0, 0)


def test_a_death_counts_against_the_shard_only_if_its_node_lives(failures: Failures) -> None:
    work = failures.attempts
    for node, attempts in (("gone", 0), ("a", 1)):
        shard = work.tasks["prepare"].popleft()
        failures.judge(Call(shard, None, 60, {}, node=node), WorkerCrashedError())
        assert shard.attempts == attempts
        assert shard in work.tasks["prepare"]


def test_a_shard_that_loses_too_many_machines_has_failed(failures: Failures) -> None:
    work = failures.attempts
    shard = work.tasks["prepare"].popleft()
    for _ in range(MAX_LOSSES + 1):
        assert not work.failed
        take(work, shard)
        failures.judge(Call(shard, None, 60, {}), NodeDiedError("gone"))
    assert [failed.index for failed in work.failed] == [0]


def test_tables_are_bounded_by_the_bytes_of_the_object_stores() -> None:
    work = Attempts(plans(*range(8)), STEPS, 1)
    first = work.tasks["prepare"][0]
    assert work.has_room(0, 500)
    passed(work, first)
    assert work.has_room(0, 500)
    while work.has_room(1, 500):  # another one is being made
        passed(work, work.tasks["prepare"][0])
    assert work.held == 400
    work.release(first)
    work.release(first)
    assert work.has_room(1, 500)


def test_a_shard_that_was_searched_on_one_machine_keeps_its_attempts_for_other_errors() -> None:
    work = Attempts(plans(0), STEPS, 2, is_local=True)
    (shard,) = work.tasks["prepare"]
    for step, text, is_crash, is_rescued, n_failed in (
        ("infer", "killed", True, True, 0),
        ("write", "the store does not answer", False, False, 0),  # the search has found the rows
        ("infer", "killed", True, True, 0),
        ("infer", "killed", True, True, 1),
    ):
        take(work, shard)
        shard.step = step
        work.count(shard, text, "", is_crash)
        assert (shard.is_rescued, len(work.failed)) == (is_rescued, n_failed)
        assert n_failed or [*work.tasks["prepare"]] == [shard]
