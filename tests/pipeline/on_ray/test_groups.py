"""Groups of shards in the driver, without a cluster: their order, failures, and the tables that are held."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ObjectLostError, WorkerCrashedError

from pipeline.config import load_config
from pipeline.on_ray import failures as failures_module
from pipeline.on_ray.calls import GroupCall, Result
from pipeline.on_ray.cluster import Cluster
from pipeline.on_ray.driver import Driver
from pipeline.on_ray.failures import Failures
from pipeline.on_ray.groups import Group, Shard, make_groups
from pipeline.on_ray.health import Health
from pipeline.on_ray.models import Model, Models
from pipeline.on_ray.tables import MEMORY_SHARE, Tables
from pipeline.on_ray.work import Work
from pipeline.read.types import ShardPlan
from schemas.attempts import index_of


def plans(*indices: int) -> list[ShardPlan]:
    return [ShardPlan(index, index * 10, 10, ()) for index in indices]


def indices(groups: list[Group]) -> list[list[tuple[int, bool]]]:
    return [[(shard.plan.index, shard.is_mate) for shard in group.shards] for group in groups]


def test_groups_depend_on_the_indices_alone_and_committed_mates_complete_them() -> None:
    every = plans(*range(10))
    assert [[i for i, _ in group] for group in indices(make_groups(every, every, 4))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    resumed = make_groups([every[5], every[9]], every, 4)
    assert indices(resumed) == [[(4, True), (5, False), (6, True), (7, True)], [(8, True), (9, False)]]
    assert indices(make_groups([every[5], every[9]], every, 1)) == [[(5, False)], [(9, False)]]


def test_a_group_with_a_shard_that_failed_before_comes_last() -> None:
    every = plans(*range(8))
    ordered = [*every[:1], *every[2:], every[1]]  # shard 1 failed in an earlier run
    assert [group.index for group in make_groups(ordered, (), 4)] == [4, 0]


def test_attempts_of_retry_share_no_batches_with_the_job() -> None:
    groups = make_groups(plans(1, 2, index_of(1, 1), index_of(1, 3), index_of(2, 1)), (), 4)
    assert [len(group.shards) for group in groups] == [2, 2, 1]


class Driven:
    """A driver's state with one model worker, whose calls the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int = 4, mates: int = 0, retries: int = 1) -> None:
        every = plans(*range(n + mates))
        self.config = load_config(["input=a.csv", "output=out", f"ray.retries={retries}"])
        self.cluster, self.health = Cluster(), Health()
        self.cluster._nodes = {"a": {"CPU": 1, "GPU": 1}, "b": {"CPU": 1, "GPU": 1}}
        monkeypatch.setattr(self.cluster, "poll", lambda now=False: True)
        monkeypatch.setattr(failures_module, "SETTLE_S", 0.0)
        monkeypatch.setattr(ray, "kill", lambda actor: None)
        self.work = Work(every[:n], every, n + mates)
        self.models = Models(b"", self.config, self.health)
        self.forgotten: list[tuple[int, int]] = []
        self.model = self.new_model("a")
        self.failures = Failures(self.work, self.models, self.cluster, self.health, self.config)
        self.group = self.work.tasks["prepare"][0].group

    def new_model(self, node: str) -> Model:
        forget = SimpleNamespace(remote=self.forgotten.append)
        model = Model(SimpleNamespace(forget=forget), node=node)
        self.models.ready.append(model)
        return model

    def prepare(self) -> list[int]:
        """Prepare all shards that wait for it."""
        done = []
        while self.work.tasks["prepare"]:
            shard = self.work.tasks["prepare"].popleft()
            self.work.prepared(shard, f"table {shard.plan.index}", "notes", 100, "a")
            done.append(shard.plan.index)
        return done

    def feed(self, model: Model, node: str = "") -> GroupCall:
        """Feed the next shard of the group; the call has begun if `node` is given."""
        if self.group.is_offered:
            self.work.take(self.group)
            self.group.model = model
            model.groups.append(self.group)
        shard = self.group.next()
        assert shard is not None
        stream: Any = object()
        call = GroupCall(shard, stream, 60, {}, model, node=node, group=self.group, run=self.group.run)
        self.work.begin(call)
        model.n_calls += 1
        self.work.unfed.discard(shard)
        self.group.n_fed += 1
        return call

    def fail(self, call: GroupCall, error: BaseException) -> None:
        self.work.end(call)
        self.failures.judge(call, error)
        self.failures.settle()


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    return Driven(monkeypatch)


def test_shards_are_fed_in_order_also_if_they_are_prepared_in_another(driven: Driven) -> None:
    shards = list(driven.work.tasks["prepare"])
    driven.work.tasks["prepare"].clear()
    driven.work.prepared(shards[1], "table", "notes", 100, "a")
    assert not driven.work.offered
    driven.work.prepared(shards[0], "table", "notes", 100, "a")
    assert list(driven.work.offered) == [driven.group]
    assert [driven.feed(driven.model).shard for _ in range(2)] == shards[:2]
    assert driven.group.next() is None
    assert not driven.group.is_fed


def test_tables_stay_until_the_group_has_ended(driven: Driven) -> None:
    driven.prepare()
    shards = driven.group.shards
    for _ in shards:
        driven.feed(driven.model)
    assert driven.group.is_fed
    for shard in shards[:3]:
        driven.work.inferred(shard, "thin", "notes")
        driven.work.written(shard)
    assert driven.work.tables.held == 400
    driven.work.inferred(shards[3], "thin", "notes")
    assert driven.group.is_finished
    assert driven.forgotten == [(0, 0)]
    assert driven.work.tables.held == 100
    driven.work.written(shards[3])
    assert driven.work.tables.held == 0


def test_a_dead_worker_begins_the_group_again_and_the_second_time_its_shards_go_on_alone(driven: Driven) -> None:
    driven.prepare()
    first, second = driven.feed(driven.model, node="a"), driven.feed(driven.model)
    done = driven.group.shards[0]
    driven.work.inferred(done, "thin", "notes")
    driven.fail(second, ActorDiedError())  # it was queued: the other call tells of the death
    assert driven.group.run == 0
    driven.fail(first, ActorDiedError())
    assert (driven.group.run, driven.group.n_fed, driven.group.crashes) == (1, 0, 1)
    assert driven.models.ready == []
    assert list(driven.work.tasks["write"]) == [done]
    assert done.nodes | driven.group.shards[0].nodes == {"a"}
    driven.fail(driven.feed(driven.new_model("b"), node="b"), WorkerCrashedError())
    assert driven.group.is_finished
    assert [group.shards[0].plan.index for group in driven.work.offered] == [1, 2, 3]
    assert not any(group.is_shared for group in driven.work.offered)


def test_two_calls_that_had_begun_tell_of_one_death(driven: Driven) -> None:
    driven.prepare()
    for run, model in enumerate([driven.model, driven.new_model("b")]):
        calls = [driven.feed(model, node=model.node) for _ in range(2)]
        for call in calls:
            driven.work.end(call)
            driven.failures.judge(call, ActorDiedError())
        assert len(driven.failures.settling) == 1
        driven.failures.settle()
        assert driven.group.crashes == run + 1
    assert [group.shards[0].plan.index for group in driven.work.offered] == [0, 1, 2, 3]


def test_a_group_whose_node_is_lost_begins_again_without_being_blamed(driven: Driven) -> None:
    driven.prepare()
    call = driven.feed(driven.model, node="a")
    del driven.cluster._nodes["a"]
    driven.fail(call, ActorDiedError())
    assert (driven.group.run, driven.group.crashes, driven.group.losses) == (1, 0, 1)
    assert list(driven.work.offered) == [driven.group]


def test_a_stage_that_raises_lets_the_shards_go_on_alone_at_once(driven: Driven) -> None:
    driven.prepare()
    driven.fail(driven.feed(driven.model, node="a"), ZeroDivisionError())
    assert len(driven.work.offered) == 4
    assert driven.models.ready == [driven.model]


def test_a_result_that_comes_after_its_group_was_split_is_not_taken(driven: Driven) -> None:
    driven.prepare()
    late, failing = driven.feed(driven.model, node="a"), driven.feed(driven.model, node="a")
    driven.fail(failing, ZeroDivisionError())
    Driver._advance_group(driven, late, Result("thin", "notes", shard=0))  # type: ignore[arg-type]
    assert late.shard.step == "infer"
    assert not driven.work.tasks["write"]
    assert [group.shards[0].plan.index for group in driven.work.offered] == [0, 1, 2, 3]


def test_a_table_lost_after_its_group_was_split_concerns_its_shard_alone(driven: Driven) -> None:
    driven.prepare()
    first = driven.group.shards[0]
    driven.work.inferred(first, "thin", "notes")
    driven.fail(driven.feed(driven.model, node="a"), ZeroDivisionError())
    driven.work.tasks["write"].clear()
    driven.failures.lose(first, ObjectLostError("0" * 56, None, ""))
    assert list(driven.work.tasks["prepare"]) == [first]
    driven.prepare()
    assert [group.shards[0].plan.index for group in driven.work.offered] == [1, 2, 3, 0]


def test_a_lost_table_is_prepared_again_and_its_group_begins_again(driven: Driven) -> None:
    driven.prepare()
    driven.feed(driven.model, node="a")
    call = driven.feed(driven.model)
    driven.fail(call, ObjectLostError("0" * 56, None, ""))
    assert driven.group.run == 1
    assert driven.prepare() == [1]
    assert [driven.feed(driven.model).shard.plan.index for _ in range(4)] == [0, 1, 2, 3]


def test_a_table_lost_before_it_is_written_runs_the_whole_group_again(driven: Driven) -> None:
    driven.prepare()
    shards = list(driven.group.shards)
    for shard in shards:
        driven.feed(driven.model)
        driven.work.inferred(shard, "thin", "notes")
    driven.work.tasks["write"].clear()
    for shard in shards[:3]:
        driven.work.written(shard)
    driven.failures.lose(shards[3], ObjectLostError("0" * 56, None, ""))
    assert driven.prepare() == [0, 1, 2, 3]
    for shard in shards:
        driven.feed(driven.model)
        driven.work.inferred(shard, "thin", "notes")
    assert list(driven.work.tasks["write"]) == [shards[3]]  # the others are committed
    driven.work.written(shards[3])
    assert driven.work.tables.held == 0


def test_a_shard_that_cannot_be_prepared_leaves_its_group(driven: Driven) -> None:
    lost = driven.work.tasks["prepare"].popleft()
    driven.prepare()
    assert not driven.work.offered
    driven.failures.give_up(lost, OSError("no such file"))
    assert [record["shard"] for record in driven.work.failed] == [0]
    assert list(driven.work.offered) == [driven.group]
    assert [driven.feed(driven.model).shard.plan.index for _ in range(3)] == [1, 2, 3]
    assert driven.group.is_fed


def test_a_group_ends_when_only_committed_shards_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(monkeypatch, n=1, mates=2)
    assert [shard.is_mate for shard in driven.group.shards] == [False, True, True]
    first = driven.work.tasks["prepare"].popleft()
    driven.work.prepared(first, "table", "notes", 100, "a")
    driven.feed(driven.model)
    driven.work.inferred(first, "thin", "notes")
    assert driven.group.is_finished
    driven.prepare()  # of the mates ended too late
    driven.work.written(first)
    assert driven.work.tables.held == 0
    assert driven.work.n_left == 1


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
