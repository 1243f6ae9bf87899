"""The consequences of failed calls: which shards and groups begin again, which ones have failed."""

import logging
import time
from collections import deque
from typing import Final

from ray.exceptions import ObjectLostError, RayActorError

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.on_ray.calls import Call, GroupCall
from pipeline.on_ray.cluster import Cluster
from pipeline.on_ray.errors import kind_of, message_of, root, traceback_of
from pipeline.on_ray.groups import Group, Shard
from pipeline.on_ray.health import Health
from pipeline.on_ray.models import SETTLE_S, Model, Models
from pipeline.on_ray.work import Work
from pipeline.rescue.child import StepTimeoutError
from pipeline.write.failed import failed_shard

logger = logging.getLogger("hypergrit")

MAX_LOSSES: Final = 50
"""Losses of machines after which a shard has failed nevertheless, and the shards of a group go on alone."""


class Failures:
    """Decides what a failed call means. Deaths are judged after a while, when it is known if the node has died too."""

    def __init__(self, work: Work, models: Models, cluster: Cluster, health: Health, config: PipelineConfig) -> None:
        self.work, self.models, self.cluster, self.health, self.config = work, models, cluster, health, config
        self.settling: deque[tuple[float, Call, BaseException]] = deque()

    def judge(self, call: Call, error: BaseException) -> None:
        """Decide what a failed call means. A death counts against the shard only if its node is still alive.

        Raises the errors of the job.
        """
        kind = kind_of(error)
        watch.lost(call.shard.plan.index)
        if kind == "job":
            raise root(error) from None
        has_begun = isinstance(call, GroupCall) and self.work.has_begun(call.group)
        if call.model is not None and isinstance(root(error), RayActorError):
            self.discard(call.model, call)
        if isinstance(call, GroupCall):
            if self._is_judged(call) or (kind == "crash" and not call.node and has_begun):
                return  # the call that had begun when the worker died tells of it
            self._judge_group(call, kind, error)
        elif kind == "crash" and call.node:
            self.settling.append((time.monotonic() + SETTLE_S, call, error))
        elif kind == "shard":
            self.count(call, error)
        else:
            self.lose(call.shard, error)

    def settle(self) -> None:
        """Judge the deaths of which the time has come."""
        while self.settling and self.settling[0][0] <= time.monotonic():
            _, call, error = self.settling.popleft()
            self.cluster.poll(now=True)
            is_crash = self.cluster.is_alive(call.node)
            if isinstance(call, GroupCall):
                call.group.is_held = False
                if self._is_judged(call):
                    continue  # a lost table has begun the group again
                self._count_group(call, error) if is_crash else self._lose_group(call.group, error)
            elif is_crash:
                self.count(call, error, is_crash=True)
            else:
                self.lose(call.shard, error)

    def stop(self, call: Call) -> None:
        """Kill the worker of a call that exceeded its time limit, which counts as a crash of the shard."""
        call.stop()
        self.work.end(call)
        watch.lost(call.shard.plan.index)
        if call.model is not None:
            self.discard(call.model, call)
        error = StepTimeoutError(f"no result within {call.timeout_s:g} s")
        if not isinstance(call, GroupCall):
            self.count(call, error, is_crash=True)
        elif not self._is_judged(call):
            self._count_group(call, error)

    def discard(self, model: Model, call: Call | None = None) -> None:
        """Remove a model worker. Its groups begin again, except those whose own calls will tell of its death."""
        self.models.discard(model)
        mine = call.group if isinstance(call, GroupCall) else None
        for group in list(model.groups):
            if group is not mine and not self.work.has_begun(group):
                self.work.run_again(group)

    def lose(self, shard: Shard, error: BaseException) -> None:
        """Queue a shard first that lost its machine: from its start if its table is lost too, else from this step."""
        shard.losses += 1
        if shard.losses > MAX_LOSSES:
            self.give_up(shard, error)
            return
        logger.info("shard %d lost a machine in step %s: %s", shard.plan.index, shard.step, message_of(error))
        if isinstance(root(error), ObjectLostError):
            self.forget(shard)
        else:
            self.work.queue(shard, first=True)

    def forget(self, shard: Shard) -> None:
        """Prepare a shard again whose table is lost; let its group run again, if it needs the result."""
        self.work.prepare_again(shard)
        if shard.group.is_shared:
            self.work.run_again(shard.group)

    def count(self, call: Call, error: BaseException, is_crash: bool = False) -> None:
        """Count a failure of a shard: try the step again after the others, if possible on another node, or give up.

        After its second crash, the step runs in child processes, which find the rows at fault. A failure for which the
        node is to blame is a loss.
        """
        shard = call.shard
        if call.node:
            shard.nodes.add(call.node)
            if self.health.fail(call.node, shard.step, shard.plan.index, self.cluster):
                self.lose(shard, error)
                return
        shard.attempts += 1
        shard.crashes += is_crash
        retries = self.config.ray.retries
        if shard.attempts > retries and (shard.is_rescued or not is_crash):
            self.give_up(shard, error)
            return
        shard.is_rescued = is_crash and shard.crashes > min(1, retries)
        logger.warning("shard %d is tried again: %s in step %s", shard.plan.index, message_of(error), shard.step)
        self.work.queue(shard)

    def give_up(self, shard: Shard, error: BaseException) -> None:
        """Record a shard as failed. Its group goes on without it; one that is committed already has not failed."""
        texts = message_of(error), traceback_of(error)
        if shard.is_mate:
            logger.warning("shard %d, which is finished, shares no batches now: %s", shard.plan.index, texts[0])
        else:
            self.work.failed.append(failed_shard(shard.plan, shard.step, *texts, shard.attempts))
        shard.is_mate = True
        if shard.step == "prepare":
            self.work.leave_group(shard)
        if not shard.group.is_shared or shard.group.is_finished:
            self.work.release(shard)

    def _is_judged(self, call: GroupCall) -> bool:
        """Return True if another call has told of the end of this run of the group."""
        return call.is_stale or call.group.is_finished or call.group.is_held

    def _judge_group(self, call: GroupCall, kind: str, error: BaseException) -> None:
        group = call.group
        if kind == "crash" and call.node:
            self.work.unbind(group)
            group.is_held = True
            self.settling.append((time.monotonic() + SETTLE_S, call, error))
        elif kind == "shard":
            logger.warning("shards %s go on alone: %s in step infer", describe(group), message_of(error))
            self.work.split(group)
        elif isinstance(root(error), ObjectLostError):
            self.work.prepare_again(call.shard)
            self._lose_group(group, error)
        else:
            self._lose_group(group, error)

    def _lose_group(self, group: Group, error: BaseException) -> None:
        group.losses += 1
        logger.info("shards %s lost a machine in step infer: %s", describe(group), message_of(error))
        if group.losses > MAX_LOSSES:
            self.work.split(group)
        else:
            self.work.run_again(group)

    def _count_group(self, call: GroupCall, error: BaseException) -> None:
        """Count a death against a group: run it again, if possible on another node; in the end, shard by shard.

        The batches of single shards are others. A group is therefore not split before `ray.retries` further runs, for
        its workers may have been killed from outside.
        """
        group = call.group
        if self.health.fail(call.node, "infer", call.shard.plan.index, self.cluster):
            self._lose_group(group, error)
            return
        group.crashes += 1
        is_again = group.crashes <= self.config.ray.retries
        text = "are tried again" if is_again else "go on alone"
        logger.warning("shards %s %s: %s in step infer", describe(group), text, message_of(error))
        if is_again:
            group.shards[0].nodes.add(call.node)
            self.work.run_again(group)
        else:
            self.work.split(group)


def describe(group: Group) -> str:
    """Name the shards of a group: `16 to 31`."""
    return f"{group.shards[0].plan.index} to {group.shards[-1].plan.index}"
