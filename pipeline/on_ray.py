"""The only file of the pipeline that knows Ray: the three steps of run.py as pools of actors, one shard at a time through each.

A shard's table travels between actors through the object store; the driver holds references only. Back-pressure is a count: no more
than two prepared shards wait for each model worker. A shard whose worker died is begun again from its input rows, which loses
nothing: the commit is the last thing that happens to a shard. docs/architecture.md says why not Ray Data.
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from common.errors import UserError
from common.paths import chdir_hook
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.read.types import ShardPlan
from pipeline.run import Infer, Prepare, Timings, write

logger = logging.getLogger(__name__)

WAITING_PER_MODEL_WORKER = 2
"""Prepared shards that may wait for each model worker: enough to never starve it, few enough to bound memory."""


@dataclass(frozen=True)
class WorkerPlan:
    """How many workers of each kind, and what each asks of Ray."""

    cpu_workers: int
    model_workers: int
    cpus_per_cpu_worker: float
    cpus_per_model_worker: float
    gpus_per_model_worker: float


def plan_workers(cpus: float, gpus: float, n_shards: int, config: RayConfig) -> WorkerPlan:
    """Workers for a cluster of that size.

    Raises UserError for a wish that would wait for ever: Ray itself would hang without a word.
    """
    per_gpu = config.gpus_per_model_worker if gpus else 0.0
    if gpus and not 0 < per_gpu <= gpus:
        raise UserError(f"ray.gpus_per_model_worker={per_gpu} does not fit the cluster's {gpus:g} GPUs")
    # Without GPUs both kinds share each CPU: the model keeps it busy, the other mostly waits for the network.
    share = 1.0 if gpus else 0.5
    models = config.model_workers or max(1, int(gpus / per_gpu) if gpus else int(cpus))
    models = min(models, n_shards)
    others = config.cpu_workers or max(1, min(int((cpus - models * share) / share), 2 * n_shards))
    crew = WorkerPlan(others, models, share, share, per_gpu)
    need_cpus = others * share + models * share
    if need_cpus > cpus or models * per_gpu > gpus:
        raise UserError(
            f"{others} cpu workers and {models} model workers need {need_cpus:g} CPUs and {models * per_gpu:g} GPUs, the cluster has "
            f"{cpus:g} and {gpus:g}: they would wait for ever. Lower ray.cpu_workers or ray.model_workers, or leave them out."
        )
    return crew


class Worker:
    """What the driver asks of a worker of either kind."""

    @ray.method(max_task_retries=-1)
    def is_back(self) -> bool:
        """True; a worker that died says it once Ray has started it again, to any other call it is unavailable until then."""
        return True


class CpuWorker(Worker):
    """Prepares shards and commits them."""

    def __init__(self, config: PipelineConfig, provenance: dict[str, Any]) -> None:
        cv2.setNumThreads(1)  # one worker a core; Ray tells torch the same
        self.config, self.provenance = config, provenance
        self.steps = Prepare(config)

    @ray.method(num_returns=2)
    def prepare(self, plan: ShardPlan) -> tuple[pa.Table, Timings]:
        return self.steps(plan)

    def write(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> dict[str, Any]:
        return write(plan, table, timings, self.config, self.provenance)


class ModelWorker(Worker):
    """Grounds and scores shards."""

    def __init__(self, config: PipelineConfig) -> None:
        cv2.setNumThreads(1)
        self.steps = Infer(config)

    @ray.method(num_returns=2)
    def infer(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> tuple[pa.Table, Timings]:
        return self.steps(plan, table, timings)


def connect(config: RayConfig) -> None:
    """Join the cluster, or start a Ray of our own. Workers find this checkout, and relative places, from wherever Ray was started."""
    address = config.address or (None if "RAY_ADDRESS" in os.environ else "local")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(
            address=address,
            runtime_env={
                "env_vars": {"PYTHONPATH": str(repository_root())},
                "worker_process_setup_hook": chdir_hook(os.getcwd()),
            },
            configure_logging=True,
            logging_level=logging.WARNING,
            log_to_driver=True,
            **options,
        )
    except ConnectionError as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}. Start one, or leave ray.address out.") from None


def run_on_ray(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """All shards over the cluster; yields each manifest once it is committed, in order of completion."""
    connect(config.ray)
    try:
        resources = ray.cluster_resources()
        crew = plan_workers(resources.get("CPU", 0), resources.get("GPU", 0), len(plans), config.ray)
        logger.info("%d cpu workers and %d model workers", crew.cpu_workers, crew.model_workers)
        yield from Driver(plans, config, provenance, crew).run()
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Call:
    """A step of a shard under way on a worker; `refs` is what it returns."""

    step: Literal["prepare", "infer", "write"]
    plan: ShardPlan
    worker: Any
    refs: tuple[Any, ...]


class Driver:
    """Starts the crew and hands it the shards, each to an idle worker for one step after the other."""

    def __init__(
        self, plans: Sequence[ShardPlan], config: PipelineConfig, provenance: dict[str, Any], crew: WorkerPlan
    ) -> None:
        # A worker that dies is started again by Ray; the shard it held is begun again here, not the call alone.
        cpu_actor: Any = ray.remote(max_restarts=-1, num_cpus=crew.cpus_per_cpu_worker)(CpuWorker)
        model_actor: Any = ray.remote(
            max_restarts=-1, num_cpus=crew.cpus_per_model_worker, num_gpus=crew.gpus_per_model_worker
        )(ModelWorker)
        self.config = config
        self.idle_cpu: list[Any] = [cpu_actor.remote(config, provenance) for _ in range(crew.cpu_workers)]
        self.idle_model: list[Any] = [model_actor.remote(config) for _ in range(crew.model_workers)]
        self.most_prepared = WAITING_PER_MODEL_WORKER * crew.model_workers
        self.todo, self.prepared, self.inferred = deque(plans), deque[Call](), deque[Call]()
        self.running: dict[Any, Call] = {}
        self.failed: dict[Any, Call] = {}  # calls whose worker is started again, by what it answers then
        self.deaths: Counter[int] = Counter()

    def run(self) -> Iterator[dict[str, Any]]:
        """Each manifest once it is committed, in order of completion.

        Raises what a stage raised, and UserError for a shard whose workers died too often.
        """
        while self.todo or self.prepared or self.inferred or self.running:
            self._employ_idle_workers()
            (ready,), _ = ray.wait([*self.running, *self.failed], num_returns=1)
            if ready in self.failed:  # a worker that is not back after all says so to its next call
                self._release(self.failed.pop(ready))
                continue
            call = self.running.pop(ready)
            try:
                result = ray.get(ready)
            except RayTaskError as error:
                raise _cause(error) from None
            except RayError as error:
                # The worker died, or its result was lost with a node.
                self._begin_again(call, error)
                continue
            self._release(call)
            match call.step:
                case "prepare":
                    self.prepared.append(call)
                case "infer":
                    self.inferred.append(call)
                case "write":
                    yield result

    def _employ_idle_workers(self) -> None:
        while self.idle_cpu and self.inferred:
            done, worker = self.inferred.popleft(), self.idle_cpu.pop()
            self._start(Call("write", done.plan, worker, (worker.write.remote(done.plan, *done.refs),)))
        while self.idle_cpu and self.todo and self._n_prepared() < self.most_prepared:
            plan, worker = self.todo.popleft(), self.idle_cpu.pop()
            self._start(Call("prepare", plan, worker, tuple(worker.prepare.remote(plan))))
        while self.idle_model and self.prepared:
            done, worker = self.prepared.popleft(), self.idle_model.pop()
            self._start(Call("infer", done.plan, worker, tuple(worker.infer.remote(done.plan, *done.refs))))

    def _start(self, call: Call) -> None:
        self.running[call.refs[-1]] = call

    def _release(self, call: Call) -> None:
        """The call's worker is free for another."""
        (self.idle_model if call.step == "infer" else self.idle_cpu).append(call.worker)

    def _n_prepared(self) -> int:
        """Shards that wait for a model worker, or soon will."""
        return len(self.prepared) + sum(call.step == "prepare" for call in self.running.values())

    def _begin_again(self, call: Call, error: RayError) -> None:
        """Put the shard of a failed call first in the queue, and leave its worker alone until it is back.

        Raises UserError for a worker that cannot start, and once `ray.retries` are used up.
        """
        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise UserError(f"a worker cannot start: {str(error).strip().splitlines()[-1]}") from error
        index = call.plan.index
        self.deaths[index] += 1
        if self.deaths[index] > self.config.ray.retries:
            raise UserError(
                f"shard {index} ended its worker {self.deaths[index]} times in step {call.step!r} "
                f"({type(error).__name__}); most often that is memory: lower rows_per_shard"
            ) from error
        logger.warning("shard %d begins again: %s in %s", index, type(error).__name__, call.step)
        self.todo.appendleft(call.plan)
        self.failed[call.worker.is_back.remote()] = call


def _cause(error: RayTaskError) -> BaseException:
    """What the worker raised; a UserError keeps its type, so that it is shown without a traceback."""
    cause = error.cause
    return cause if isinstance(cause, UserError) else error
