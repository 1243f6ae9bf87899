"""The state of a job on a cluster: shards that wait, calls that run, groups that are at model workers."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from pipeline.on_ray.calls import Call, GroupCall
from pipeline.on_ray.groups import Group, Shard, make_groups
from pipeline.on_ray.tables import Tables
from pipeline.read.types import ShardPlan
from pipeline.run import Step
from schemas.manifest import FailedShard


class Work:
    """The shards of a job. Each is in a queue, in a call, at a model worker with its group, or its death is judged."""

    def __init__(self, plans: Sequence[ShardPlan], mates: Sequence[ShardPlan], group_size: int) -> None:
        self.n_left = len(plans)
        self.tables = Tables()
        self.running: dict[Any, Call] = {}  # by stream
        self.tasks: dict[Step, deque[Shard]] = {"prepare": deque(), "infer": deque(), "write": deque()}
        self.offered: deque[Group] = deque()  # groups whose first shard waits for a model worker
        self.unfed: set[Shard] = set()  # prepared, and not at a model worker
        self.failed: deque[FailedShard] = deque()
        for group in make_groups(plans, mates, group_size):
            self.tasks["prepare"].extend(group.shards)

    def queue(self, shard: Shard, first: bool = False) -> None:
        """Let a shard wait for its next step."""
        if shard.step == "infer" and not shard.is_rescued:
            self.unfed.add(shard)
            self.offer(shard.group, first)
        elif first or shard.group.is_shared:
            self.tasks[shard.step].appendleft(shard)
        else:
            self.tasks[shard.step].append(shard)

    def offer(self, group: Group, first: bool = False) -> None:
        """Let a group wait for a model worker, if it has none and its first shard is prepared."""
        if group.model is None and not group.is_offered and group.next() is not None:
            group.is_offered = True
            (self.offered.appendleft if first else self.offered.append)(group)

    def take(self, group: Group) -> None:
        """Take a group that waits, for a model worker."""
        self.offered.remove(group)
        group.is_offered = False

    def begin(self, call: Call) -> None:
        """Note a call."""
        self.running[call.stream] = call

    def end(self, call: Call) -> None:
        """Note the end of a call."""
        del self.running[call.stream]
        if call.model is not None:
            call.model.n_calls -= 1

    def n_running(self, step: Step) -> int:
        """Return the number of tasks that run a step or wait for resources."""
        return sum(call.model is None and call.shard.step == step for call in self.running.values())

    def prepared(self, shard: Shard, table: Any, notes: Any, nbytes: int, home: str) -> None:
        """Note the table of a shard; its group may have ended meanwhile."""
        if shard.group.is_finished:
            return
        shard.step, shard.prepared, shard.home = "infer", (table, notes), home
        shard.nbytes = nbytes
        self.tables.add(shard, nbytes)
        self.queue(shard)

    def inferred(self, shard: Shard, table: Any, notes: Any) -> None:
        """Note that a shard has left the models; let it be written unless an earlier run of its group did that."""
        if not shard.needs_models:
            return
        shard.step, shard.inferred, shard.is_rescued = "write", (table, notes), False
        shard.nodes.clear()
        self.queue(shard)
        if shard.group.is_shared and not shard.group.is_needed:
            self.finish_group(shard.group)

    def written(self, shard: Shard) -> None:
        """Note that a shard is committed. Its table stays until its group, which may have to run again, has ended."""
        shard.is_mate = True
        if not shard.group.is_shared or shard.group.is_finished:
            self.release(shard)

    def release(self, shard: Shard) -> None:
        """Drop the tables of a shard."""
        shard.prepared, shard.inferred = (), ()
        self.unfed.discard(shard)
        self.tables.drop(shard)

    def finish_group(self, group: Group) -> None:
        """End a group whose results are not needed any more."""
        self.unbind(group)
        group.is_finished = True
        for shard in group.shards:
            if shard.is_mate:
                self.release(shard)

    def unbind(self, group: Group) -> None:
        """Take a group away from its model worker, and from those that wait for one."""
        if group.model is not None:
            group.model.forget(group)
            group.model = None
        if group.is_offered:
            self.take(group)

    def run_again(self, group: Group) -> None:
        """Begin a group again from its first shard; prepare those again whose tables are lost or were released."""
        self.unbind(group)
        group.begin_again()
        for shard in reversed(group.shards):
            if shard.prepared:
                self.unfed.add(shard)
            elif shard.step != "prepare":  # else it waits or runs
                self.prepare_again(shard)
        self.offer(group, first=True)

    def prepare_again(self, shard: Shard) -> None:
        """Let a shard begin again whose table is lost."""
        self.release(shard)
        shard.forget()
        self.queue(shard, first=True)

    def split(self, group: Group) -> None:
        """Let the shards of a group go through the models alone, which shows those at fault."""
        self.unbind(group)
        group.is_finished = True
        group.run += 1  # results that are on their way are stale: their shards wait for a model worker again
        for shard in group.shards:
            if shard.is_mate:
                self.release(shard)
                continue
            shard.group = Group(shard.plan.index, [shard])
            if shard.needs_models and shard.prepared:
                self.unfed.add(shard)
                self.offer(shard.group)

    def leave_group(self, shard: Shard) -> None:
        """Let a group go on without a shard that cannot be prepared."""
        group = shard.group
        if group.is_shared and shard in group.shards[group.n_fed :]:
            group.shards.remove(shard)
            self.offer(group)
            if not group.is_needed:
                self.finish_group(group)

    def has_begun(self, group: Group) -> bool:
        """Return True if a call of the present run of a group has begun and not ended."""
        calls = (call for call in self.running.values() if isinstance(call, GroupCall) and call.group is group)
        return any(call.node and not call.is_stale for call in calls)
