"""The order of the steps of all shards."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import ray

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.on_ray.calls import Call, Calls, Ended, GroupCall, Result
from pipeline.on_ray.cluster import POLL_S, Cluster
from pipeline.on_ray.failures import Failures
from pipeline.on_ray.groups import Group, Shard
from pipeline.on_ray.health import Health
from pipeline.on_ray.models import CALLS_PER_MODEL, Model, Models
from pipeline.on_ray.upkeep import Upkeep
from pipeline.on_ray.work import Work
from pipeline.read.types import ShardPlan
from pipeline.run import Done
from schemas.manifest import FailedShard

EXTRA: Final = 2
"""Shards beyond those that keep the cluster busy: their pending tasks show an autoscaler that more CPUs would help."""
BATCH_SHARDS: Final = 16
"""Default of `ground.batch_shards` for model workers with GPUs."""
GROUPS_PER_MODEL: Final = 4
"""Maximum number of groups at a model worker: it takes another one when the next shard of the first is not ready."""


class Driver:
    """Computes shards on a cluster. `recipe` is a pickled function that returns the steps.

    `mates` are plans of the job, of which those are used that share batches with `plans`.
    """

    def __init__(
        self, plans: Sequence[ShardPlan], config: PipelineConfig, recipe: bytes, mates: Sequence[ShardPlan] = ()
    ) -> None:
        self.config = config
        self.cluster = Cluster()
        self.cluster.poll(now=True)
        self.health = Health()
        self.models = Models(recipe, config, self.health)
        self.calls = Calls(recipe, config)
        self.group_size = config.ground.batch_shards or (
            BATCH_SHARDS if "GPU" in self.models.request(self.cluster) else 1
        )
        self.work = Work(plans, mates, self.group_size)
        self.failures = Failures(self.work, self.models, self.cluster, self.health, config)
        self.upkeep = Upkeep(self.work, self.models, self.cluster, self.failures)

    def run(self) -> Iterator[Done | FailedShard]:
        """Compute all shards; yield each once it is committed or has failed, in order of completion.

        Raises UserError and TooManyFaultsError of a step, and UserError if model workers cannot start.
        """
        work = self.work
        while work.n_left:
            self._start_calls()
            for ref in self._wait():
                if ref in self.models.starting:
                    self.models.welcome(ref)
                    self.upkeep.note_progress()
                elif (done := self._advance(work.running[ref])) is not None:
                    work.n_left -= 1
                    yield done
            self.upkeep.look()
            while work.failed:
                work.n_left -= 1
                yield work.failed.popleft()

    def _start_calls(self) -> None:
        """Start steps, the last ones of a shard first; what does not run yet is pending on the cluster."""
        work, cpus = self.work, self.cluster.total("CPU")
        bound = int(max(CALLS_PER_MODEL * self.group_size * len(self.models.ready), cpus)) + EXTRA
        while work.tasks["write"] and self._may_start_task():
            self._start_task(work.tasks["write"].popleft())
        while work.tasks["infer"]:
            self._start_task(work.tasks["infer"].popleft())
        n_after = len(work.tasks["write"]) + work.n_running("write")
        for model in self.models.free():
            while n_after < bound and model.n_calls < CALLS_PER_MODEL and self._feed(model):
                pass
        while work.tasks["prepare"] and self._may_start_task():
            shard = work.tasks["prepare"][0]
            if not shard.group.is_finished and not self._may_prepare(shard, bound, int(cpus) + EXTRA):
                break
            work.tasks["prepare"].popleft()
            if not shard.group.is_finished:
                self._start_task(shard)
        self.models.grow(self.cluster, len(work.offered), work.n_left)

    def _may_prepare(self, shard: Shard, most_shards: int, most_tasks: int) -> bool:
        """Return True if a table more does not exceed the bounds on tables, or if its group waits for this one."""
        n_running = self.work.n_running("prepare")
        if n_running >= most_tasks:
            return False
        if shard.group.is_shared and any(other.prepared for other in shard.group.shards):
            return True
        return len(self.work.unfed) < most_shards and self.work.tables.has_room(n_running, self.cluster)

    def _feed(self, model: Model) -> bool:
        """Queue a call at a model worker: the next shard of its groups, or that of a group that waits for a worker."""
        for group in model.groups:
            if (shard := group.next()) is not None:
                return self._feed_shard(group, shard, model)
            if group.is_fed:
                group.is_finishing = True
                self.work.begin(self.calls.finish(group, model))
                return True
        offered = self._group_for(model)
        if offered is None:
            return False
        self.work.take(offered)
        shard = offered.shards[0]
        if offered.is_shared:
            offered.model = model
            model.groups.append(offered)
            return self._feed_shard(offered, shard, model)
        self.work.unfed.discard(shard)
        self.work.begin(self.calls.infer(shard, model))
        return True

    def _feed_shard(self, group: Group, shard: Shard, model: Model) -> bool:
        self.work.unfed.discard(shard)
        self.work.begin(self.calls.feed(group, shard, model))
        group.n_fed += 1
        return True

    def _group_for(self, model: Model) -> Group | None:
        """Return the first group that has not failed at the node of the model, or at those of all models.

        A worker that has a group takes another one when the first ends, or when it would be idle.
        """
        if not self.work.offered:
            return None
        nodes = {other.node for other in self.models.usable(self.cluster)}
        if model.node not in nodes:
            return None
        has_others = model.n_calls > 0 and any(not group.is_finishing for group in model.groups)
        is_full = has_others or len(model.groups) >= GROUPS_PER_MODEL
        for group in self.work.offered:
            failed = group.shards[0].nodes
            if not (group.is_shared and is_full) and (model.node not in failed or nodes <= failed):
                return group
        return None

    def _may_start_task(self) -> bool:
        limit = self.config.ray.cpu_workers
        return limit is None or sum(call.model is None for call in self.work.running.values()) < limit

    def _start_task(self, shard: Shard) -> None:
        model = self.models.request(self.cluster)
        # A CPU worker and a model worker without a GPU share a CPU: the model uses most of it, and the CPU worker
        # mostly waits for the network.
        task = {"CPU": 1.0 if "GPU" in model else 0.5}
        request = model if shard.step == "infer" else task
        refused = self.health.refused(shard.step, shard.nodes, request, self.cluster)
        home = shard.home if shard.step == "write" and self.cluster.is_alive(shard.home) else ""
        self.work.begin(self.calls.task(shard, request, refused, home))

    def _wait(self) -> list[Any]:
        """Return a call with a new value or a model worker that has started; wait for POLL_S seconds at most."""
        refs = [*self.work.running, *self.models.starting]
        if not refs:
            time.sleep(POLL_S / 10 if self.failures.settling else POLL_S)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_S, fetch_local=False)
        return list(ready)

    def _advance(self, call: Call) -> Done | None:
        """Take the next value of a call; return the `Done` of a shard that is committed now."""
        try:
            result = call.advance()
        except Exception as error:
            self.work.end(call)
            self.failures.judge(call, error)
            return None
        self.upkeep.note_progress()
        if result is None:
            return None
        if isinstance(call, GroupCall):
            self._advance_group(call, result)
            return None
        self.work.end(call)
        shard = call.shard
        self.health.succeed(call.node, shard.step)
        if not shard.is_mate:
            seconds = None if isinstance(result, Done) else result.notes.seconds(shard.step)
            watch.ended(shard.plan.index, shard.step, seconds)
        if isinstance(result, Done):
            self.work.written(shard)
            return result
        shard.is_rescued = False
        shard.nodes.clear()
        if shard.step == "prepare":
            self.work.prepared(shard, result.table, result.notes, result.nbytes, call.node)
        else:
            self.work.inferred(shard, result.table, result.notes)
        return None

    def _advance_group(self, call: GroupCall, result: Result | Ended) -> None:
        """Note a shard that has left the models, or the end of a call."""
        if isinstance(result, Ended):
            self.work.end(call)
            self.health.succeed(call.node, "infer")
            if call.is_end and not call.is_stale and call.group.is_needed:
                raise RuntimeError(f"shard {call.group.index} and its group ended without a result")
        elif not call.is_stale:
            found = next(shard for shard in call.group.shards if shard.plan.index == result.shard)
            if found.needs_models:
                watch.ended(result.shard, "infer", result.notes.seconds("infer"))
            self.work.inferred(found, result.table, result.notes)
