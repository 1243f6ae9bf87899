"""The order of the steps of all shards, and the consequences of failures."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import ray
from ray.exceptions import ObjectLostError, RayActorError

from pipeline import watch
from pipeline.config import PipelineConfig
from pipeline.on_ray.calls import Call, Calls, Shard
from pipeline.on_ray.cluster import POLL_S, Cluster, Resources
from pipeline.on_ray.errors import kind_of, message_of, root, traceback_of
from pipeline.on_ray.health import Health
from pipeline.on_ray.models import CALLS_PER_MODEL, SETTLE_S, Model, Models
from pipeline.read.types import ShardPlan
from pipeline.rescue.child import StepTimeoutError
from pipeline.run import STAGES_OF, Done, Step
from pipeline.write.failed import failed_shard
from schemas.manifest import FailedShard

logger = logging.getLogger("hypergrit")

EXTRA: Final = 2
"""Shards beyond those that keep the cluster busy: their pending tasks show an autoscaler that more CPUs would help."""
RELEASE_S: Final = 5.0
"""Time without progress after which an idle model worker is released, so that tasks get its resources."""
STALL_S: Final = 300.0
"""Time without progress after which requests that wait for resources are logged and made again."""
MAX_LOSSES: Final = 50
"""Losses of machines after which a shard has failed nevertheless."""
NEXT: Final[dict[Step, Step]] = {"prepare": "infer", "infer": "write"}


class Driver:
    """Computes shards on a cluster. `recipe` is a pickled function that returns the steps."""

    def __init__(self, plans: Sequence[ShardPlan], config: PipelineConfig, recipe: bytes) -> None:
        self.config = config
        self.cluster = Cluster()
        self.health = Health()
        self.models = Models(recipe, config, self.health)
        self.calls = Calls(recipe, config)
        self.running: dict[Any, Call] = {}  # by stream
        self.waiting: dict[Step, deque[Shard]] = {step: deque() for step in STAGES_OF}
        self.waiting["prepare"].extend(Shard(plan) for plan in plans)
        self.settling: deque[tuple[float, Call, BaseException]] = deque()
        self.failed: deque[FailedShard] = deque()
        self.n_left = len(plans)
        self.progressed = time.monotonic()

    def run(self) -> Iterator[Done | FailedShard]:
        """Compute all shards; yield each once it is committed or has failed, in order of completion.

        Raises UserError and TooManyFaultsError of a step, and UserError if model workers cannot start.
        """
        self.cluster.poll(now=True)
        while self.n_left:
            self._start_calls()
            for ref in self._wait():
                if ref in self.models.starting:
                    self.models.welcome(ref)
                    self.progressed = time.monotonic()
                elif (done := self._advance(self.running[ref])) is not None:
                    self.n_left -= 1
                    yield done
            self._look_after_the_cluster()
            while self.failed:
                self.n_left -= 1
                yield self.failed.popleft()

    def _start_calls(self) -> None:
        """Start steps, the last ones of a shard first; what does not run yet is pending on the cluster."""
        cpus = self.cluster.total("CPU")
        bound = int(max(CALLS_PER_MODEL * len(self.models.ready), cpus)) + EXTRA
        while self.waiting["write"] and self._may_start_task():
            self._start_task(self.waiting["write"].popleft())
        n_after = len(self.waiting["write"]) + self._n_running("write")
        for shard in [shard for shard in self.waiting["infer"] if shard.is_rescued]:
            self.waiting["infer"].remove(shard)
            self._start_task(shard)
        for model in self.models.free():
            while n_after < bound and model.n_calls < CALLS_PER_MODEL and (prepared := self._shard_for(model)):
                self.waiting["infer"].remove(prepared)
                self._add(self.calls.infer(prepared, model))
        while (
            self.waiting["prepare"]
            and self._n_running("prepare") + len(self.waiting["infer"]) < bound
            and self._may_start_task()
        ):
            self._start_task(self.waiting["prepare"].popleft())
        self.models.grow(self.cluster, len(self.waiting["infer"]), self.n_left)

    def _shard_for(self, model: Model) -> Shard | None:
        """Return the first prepared shard that has not failed at the node of the model, or at those of all models."""
        nodes = {other.node for other in self.models.usable(self.cluster)}
        if model.node not in nodes:
            return None
        shards = self.waiting["infer"]
        return next((shard for shard in shards if model.node not in shard.nodes or nodes <= shard.nodes), None)

    def _may_start_task(self) -> bool:
        limit = self.config.ray.cpu_workers
        return limit is None or sum(call.model is None for call in self.running.values()) < limit

    def _start_task(self, shard: Shard) -> None:
        model = self.models.request(self.cluster)
        # A CPU worker and a model worker without a GPU share a CPU: the model uses most of it, and the CPU worker
        # mostly waits for the network.
        task = {"CPU": 1.0 if "GPU" in model else 0.5}
        request = model if shard.step == "infer" else task
        self._add(self.calls.task(shard, request, self.health.refused(shard.step, shard.nodes, request, self.cluster)))

    def _add(self, call: Call) -> None:
        self.running[call.stream] = call

    def _n_running(self, step: Step) -> int:
        return sum(call.shard.step == step for call in self.running.values())

    def _wait(self) -> list[Any]:
        """Return a call with a new value or a model worker that has started; wait for POLL_S seconds at most."""
        refs = [*self.running, *self.models.starting]
        if not refs:
            time.sleep(POLL_S / 10 if self.settling else POLL_S)
            return []
        ready, _ = ray.wait(refs, num_returns=1, timeout=POLL_S, fetch_local=False)
        return list(ready)

    def _advance(self, call: Call) -> Done | None:
        """Take the next value of a call; return the `Done` of a shard that is committed now."""
        try:
            notes = call.advance()
        except Exception as error:
            self._end(call)
            self._fail(call, error)
            return None
        self.progressed = time.monotonic()
        if notes is None:
            return None
        self._end(call)
        shard = call.shard
        self.health.succeed(call.node, shard.step)
        watch.ended(shard.plan.index, shard.step, None if isinstance(notes, Done) else notes.seconds(shard.step))
        if isinstance(notes, Done):
            return notes
        shard.state, shard.step, shard.is_rescued = call.state(notes), NEXT[shard.step], False
        shard.nodes.clear()
        self.waiting[shard.step].append(shard)
        return None

    def _end(self, call: Call) -> None:
        del self.running[call.stream]
        if call.model is not None:
            call.model.n_calls -= 1

    def _fail(self, call: Call, error: BaseException) -> None:
        """Decide what a failed call means. A death counts against the shard only if its node is still alive."""
        kind = kind_of(error)
        watch.lost(call.shard.plan.index)
        if kind == "job":
            raise root(error) from None
        if call.model is not None and isinstance(root(error), RayActorError):
            self.models.discard(call.model)
        if kind == "crash" and call.node:
            self.settling.append((time.monotonic() + SETTLE_S, call, error))
        elif kind == "shard":
            self._count(call, error)
        else:
            self._lose(call, error)

    def _lose(self, call: Call, error: BaseException) -> None:
        """Queue a shard first that lost its machine: from its start if its table is lost too, else from this step."""
        shard = call.shard
        shard.losses += 1
        if shard.losses > MAX_LOSSES:
            self._give_up(shard, error)
            return
        logger.info("shard %d lost a machine in step %s: %s", shard.plan.index, shard.step, message_of(error))
        if isinstance(root(error), ObjectLostError):
            shard.step, shard.state, shard.is_rescued = "prepare", (), False
            shard.nodes.clear()
        self.waiting[shard.step].appendleft(shard)

    def _count(self, call: Call, error: BaseException, is_crash: bool = False) -> None:
        """Count a failure of a shard: try the step again after the other shards, if possible on another node, or give up.

        After its second crash, the step runs in child processes, which find the rows at fault. A failure for which the
        node is to blame is a loss.
        """
        shard = call.shard
        if call.node:
            shard.nodes.add(call.node)
            if self.health.fail(call.node, shard.step, shard.plan.index, self.cluster):
                self._lose(call, error)
                return
        shard.attempts += 1
        shard.crashes += is_crash
        retries = self.config.ray.retries
        if shard.attempts > retries and (shard.is_rescued or not is_crash):
            self._give_up(shard, error)
            return
        shard.is_rescued = is_crash and shard.crashes > min(1, retries)
        logger.warning("shard %d is tried again: %s in step %s", shard.plan.index, message_of(error), shard.step)
        self.waiting[shard.step].append(shard)

    def _give_up(self, shard: Shard, error: BaseException) -> None:
        texts = message_of(error), traceback_of(error)
        self.failed.append(failed_shard(shard.plan, shard.step, *texts, shard.attempts))

    def _look_after_the_cluster(self) -> None:
        """Judge crashes, stop calls that exceed their time limit, follow the nodes, report what no node can run."""
        now = time.monotonic()
        while self.settling and self.settling[0][0] <= now:
            _, call, error = self.settling.popleft()
            self.cluster.poll(now=True)
            if self.cluster.is_alive(call.node):
                self._count(call, error, is_crash=True)
            else:
                self._lose(call, error)
        if not self.cluster.poll():
            return
        busy = {id(call.model) for call in self.running.values() if call.model is not None and call.node}
        watch.models(len(self.models.ready), len(busy))
        self.models.settle(self.cluster)
        self.models.release_unusable(self.cluster)
        for call in [call for call in self.running.values() if call.deadline < now]:
            self._stop(call)
        for call in self._pending():
            if call.refused and not self.cluster.others_fit(call.resources, call.refused):
                self._withdraw(call)  # the nodes that it does not refuse have gone
        pending = self._pending()
        requests: list[Resources] = [call.resources for call in pending]
        if self.models.starting:
            requests.append(self.models.request(self.cluster))
        self.cluster.warn(requests)
        if time.monotonic() - self.progressed > STALL_S and requests and not self._is_computing():
            self._request_again(pending, requests)
        else:
            self._release_for(pending)

    def _stop(self, call: Call) -> None:
        """Kill the worker of a call that exceeded its time limit, which counts as a crash of the shard."""
        call.stop()
        self._end(call)
        watch.lost(call.shard.plan.index)
        if call.model is not None:
            self.models.discard(call.model)
        self._count(call, StepTimeoutError(f"no result within {call.timeout_s:g} s"), is_crash=True)

    def _pending(self) -> list[Call]:
        """Return the tasks that wait for resources."""
        return [call for call in self.running.values() if not call.node and call.model is None]

    def _is_computing(self) -> bool:
        return any(call.node for call in self.running.values())

    def _request_again(self, pending: Sequence[Call], requests: Sequence[Resources]) -> None:
        """Withdraw all requests that Ray has not met, so that they are made again: one that Ray lost would wait forever.

        Usually, another job uses the cluster, and the log line is what a user needs.
        """
        logger.warning(
            "no progress for %.0f s: %d requests wait for resources, and %s of the cluster are free",
            time.monotonic() - self.progressed,
            len(requests),
            self.cluster.free(),
        )
        for call in pending:
            self._withdraw(call)
        self.models.withdraw()
        self.progressed = time.monotonic()

    def _withdraw(self, call: Call) -> None:
        """Take back a request that has not begun; it is made again with what the cluster has now."""
        call.stop()
        self._end(call)
        self.waiting[call.shard.step].appendleft(call.shard)

    def _release_for(self, pending: Sequence[Call]) -> None:
        """End an idle model worker if tasks wait for resources and nothing runs that would free some."""
        is_stuck = time.monotonic() - self.progressed > RELEASE_S and not self._is_computing()
        idle: list[Model] = self.models.idle()
        if pending and is_stuck and idle:
            logger.info("an idle model worker is released, since tasks wait for CPUs")
            self.models.discard(idle[0])
            self.progressed = time.monotonic()
