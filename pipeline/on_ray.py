"""The pipeline on Ray: the three steps of run.py in pools of actors, which process one shard at a time.

Of the pipeline, only this module imports Ray. The table of a shard moves between actors through the object store; the
driver holds references only. At most two prepared shards wait for each model worker, which bounds the memory. If a
worker dies, its shard is retried from the input rows; nothing is lost, because the commit is the last step of a shard.
docs/architecture.md explains why this is not written with Ray Data.
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import cv2
import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from common.errors import UserError
from common.local_ray import init_ray
from common.paths import chdir_hook
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.read.types import ShardPlan
from pipeline.run import Infer, Prepare, write
from schemas.manifest import Manifest, Provenance, Timings

logger = logging.getLogger(__name__)

WAITING_PER_MODEL_WORKER: Final = 2
"""Maximum number of prepared shards per model worker: enough to keep it busy, few enough to bound the memory."""


@dataclass(frozen=True)
class WorkerPlan:
    """The number of workers of each kind, and the resources that each requests from Ray."""

    cpu_workers: int
    model_workers: int
    cpus_per_cpu_worker: float
    cpus_per_model_worker: float
    gpus_per_model_worker: float


def plan_workers(cpus: float, gpus: float, n_shards: int, config: RayConfig) -> WorkerPlan:
    """Divide a cluster with this many CPUs and GPUs among the workers.

    Raises UserError if the cluster cannot satisfy the request; Ray would wait indefinitely without a message.
    """
    per_gpu = config.gpus_per_model_worker if gpus else 0.0
    if gpus and not 0 < per_gpu <= gpus:
        raise UserError(
            f"ray.gpus_per_model_worker={per_gpu} does not fit the cluster's {gpus:g} GPUs; "
            f"give a number above 0 and up to {gpus:g}"
        )
    # Without GPUs, a CPU worker and a model worker share each CPU: the model uses most of it, and the CPU worker mostly
    # waits for the network.
    share = 1.0 if gpus else 0.5
    model_workers = config.model_workers or max(1, int(gpus / per_gpu) if gpus else int(cpus))
    model_workers = min(model_workers, n_shards)
    cpu_workers = config.cpu_workers or max(1, min(int((cpus - model_workers * share) / share), 2 * n_shards))
    needed_cpus, needed_gpus = cpu_workers * share + model_workers * share, model_workers * per_gpu
    if needed_cpus > cpus or needed_gpus > gpus:
        raise UserError(
            f"{cpu_workers} CPU workers and {model_workers} model workers need {needed_cpus:g} CPUs and "
            f"{needed_gpus:g} GPUs, but the cluster has {cpus:g} and {gpus:g}, so they would wait indefinitely; "
            "lower ray.cpu_workers or ray.model_workers, or do not set them"
        )
    return WorkerPlan(cpu_workers, model_workers, share, share, per_gpu)


class Worker:
    """The base class of both kinds of workers."""

    @ray.method(max_task_retries=-1)
    def is_ready(self) -> bool:
        """Return True once Ray has restarted the worker after its death; other calls fail until then."""
        return True


class CpuWorker(Worker):
    """An actor that prepares shards and commits them."""

    def __init__(self, config: PipelineConfig, provenance: Provenance) -> None:
        cv2.setNumThreads(1)  # there is one worker per core; Ray limits the threads of torch in the same way
        self.config, self.provenance = config, provenance
        self.steps = Prepare(config)

    @ray.method(num_returns=2)
    def prepare(self, plan: ShardPlan) -> tuple[pa.Table, Timings]:
        return self.steps(plan)

    def write(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> Manifest:
        return write(plan, table, timings, self.config, self.provenance)


class ModelWorker(Worker):
    """An actor that grounds and scores shards."""

    def __init__(self, config: PipelineConfig) -> None:
        cv2.setNumThreads(1)
        self.steps = Infer(config)

    @ray.method(num_returns=2)
    def infer(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> tuple[pa.Table, Timings]:
        return self.steps(plan, table, timings)


def connect(config: RayConfig) -> None:
    """Join the cluster, or start Ray on this machine. Workers import this checkout and use the current folder.

    Raises UserError if there is no cluster at `ray.address`.
    """
    address = config.address or (None if "RAY_ADDRESS" in os.environ else "local")
    try:
        init_ray(
            address,
            runtime_env={
                "env_vars": {"PYTHONPATH": str(repository_root())},
                "worker_process_setup_hook": chdir_hook(os.getcwd()),
            },
            configure_logging=True,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
    except ConnectionError as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}; start one, or do not set ray.address") from None


def run_on_ray(plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance) -> Iterator[Manifest]:
    """Compute the shards on a cluster; yield each manifest once it is committed, in order of completion.

    Raises UserError if the cluster does not exist or is too small, and the exceptions of `Driver.run`.
    """
    connect(config.ray)
    try:
        resources = ray.cluster_resources()
        workers = plan_workers(resources.get("CPU", 0), resources.get("GPU", 0), len(plans), config.ray)
        logger.info("%d CPU workers and %d model workers", workers.cpu_workers, workers.model_workers)
        yield from Driver(plans, config, provenance, workers).run()
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Call:
    """A running or finished step of a shard on a worker; `refs` refer to its return values."""

    step: Literal["prepare", "infer", "write"]
    plan: ShardPlan
    worker: Any
    refs: tuple[Any, ...]


class Driver:
    """Starts the workers and assigns the steps of the shards to idle ones."""

    def __init__(
        self, plans: Sequence[ShardPlan], config: PipelineConfig, provenance: Provenance, workers: WorkerPlan
    ) -> None:
        # Ray restarts a worker that died, but does not repeat the failed call: the driver retries the complete shard.
        cpu_actor: Any = ray.remote(max_restarts=-1, num_cpus=workers.cpus_per_cpu_worker)(CpuWorker)
        model_actor: Any = ray.remote(
            max_restarts=-1, num_cpus=workers.cpus_per_model_worker, num_gpus=workers.gpus_per_model_worker
        )(ModelWorker)
        self.config = config
        self.idle_cpu: list[Any] = [cpu_actor.remote(config, provenance) for _ in range(workers.cpu_workers)]
        self.idle_model: list[Any] = [model_actor.remote(config) for _ in range(workers.model_workers)]
        self.max_prepared = WAITING_PER_MODEL_WORKER * workers.model_workers
        self.queue, self.prepared, self.inferred = deque(plans), deque[Call](), deque[Call]()
        self.running: dict[Any, Call] = {}
        # The failed calls of workers that Ray is restarting, by the reference of their `is_ready`.
        self.restarting: dict[Any, Call] = {}
        self.failures: Counter[int] = Counter()

    def run(self) -> Iterator[Manifest]:
        """Compute all shards; yield each manifest once it is committed, in order of completion.

        Raises the exception of a stage, and UserError for a worker that cannot start or a shard that failed too often.
        """
        while self.queue or self.prepared or self.inferred or self.running:
            self._assign_calls()
            (ready,), _ = ray.wait([*self.running, *self.restarting], num_returns=1)
            if ready in self.restarting:  # if the restart failed, the next call on this worker fails and is retried too
                self._release(self.restarting.pop(ready))
                continue
            call = self.running.pop(ready)
            try:
                result = ray.get(ready)
            except RayTaskError as error:
                raise _cause(error) from None
            except RayError as error:  # the worker died, or its result was lost with a node
                self._retry(call, error)
                continue
            self._release(call)
            match call.step:
                case "prepare":
                    self.prepared.append(call)
                case "infer":
                    self.inferred.append(call)
                case "write":
                    yield result

    def _assign_calls(self) -> None:
        """Start calls on idle workers as long as shards wait for them."""
        while self.idle_cpu and self.inferred:
            done, worker = self.inferred.popleft(), self.idle_cpu.pop()
            self._start(Call("write", done.plan, worker, (worker.write.remote(done.plan, *done.refs),)))
        while self.idle_cpu and self.queue and self._n_prepared() < self.max_prepared:
            plan, worker = self.queue.popleft(), self.idle_cpu.pop()
            self._start(Call("prepare", plan, worker, tuple(worker.prepare.remote(plan))))
        while self.idle_model and self.prepared:
            done, worker = self.prepared.popleft(), self.idle_model.pop()
            self._start(Call("infer", done.plan, worker, tuple(worker.infer.remote(done.plan, *done.refs))))

    def _start(self, call: Call) -> None:
        self.running[call.refs[-1]] = call

    def _release(self, call: Call) -> None:
        """Mark the worker of a call as idle."""
        (self.idle_model if call.step == "infer" else self.idle_cpu).append(call.worker)

    def _n_prepared(self) -> int:
        """Number of shards that are prepared or being prepared, and wait for a model worker."""
        return len(self.prepared) + sum(call.step == "prepare" for call in self.running.values())

    def _retry(self, call: Call, error: RayError) -> None:
        """Put the shard of a failed call first in the queue; its worker gets no calls until Ray has restarted it.

        Raises UserError if the worker cannot start, or if the shard has no `ray.retries` left.
        """
        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise UserError(f"a worker cannot start: {str(error).strip().splitlines()[-1]}") from error
        index = call.plan.index
        self.failures[index] += 1
        if self.failures[index] > self.config.ray.retries:
            raise UserError(
                f"shard {index} failed {self.failures[index]} times, the last time in step {call.step!r}: its worker "
                f"died ({type(error).__name__}), most often for lack of memory; lower rows_per_shard"
            ) from error
        logger.warning("shard %d is retried: %s in step %s", index, type(error).__name__, call.step)
        self.queue.appendleft(call.plan)
        self.restarting[call.worker.is_ready.remote()] = call


def _cause(error: RayTaskError) -> BaseException:
    """The UserError that a worker raised, for which no traceback is printed; for other exceptions `error` itself."""
    cause = error.cause
    return cause if isinstance(cause, UserError) else error
