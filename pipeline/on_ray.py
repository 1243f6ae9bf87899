"""The only file that knows Ray: the three steps of run.py as pools of actors, one shard at a time through each.

A shard's table travels between actors through the object store; the driver holds references only. Back-pressure is a count: no more
than two prepared shards wait for each model worker. A shard whose worker died is begun again from its input rows, which loses
nothing: the commit is the last thing that happens to a shard. docs/architecture.md says why not Ray Data.
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import pyarrow as pa
import ray
from ray.exceptions import RayError, RayTaskError

from common.errors import UserError
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.read import ShardPlan
from pipeline.run import Infer, Prepare, Timings, write

logger = logging.getLogger(__name__)

WAITING_PER_MODEL_WORKER = 2
"""Prepared shards that may wait for each model worker: enough to never starve it, few enough to bound memory."""


@dataclass(frozen=True)
class Crew:
    """How many workers of each kind, and what each asks of Ray."""

    cpu_workers: int
    model_workers: int
    cpus_per_cpu_worker: float
    cpus_per_model_worker: float
    gpus_per_model_worker: float


def plan_crew(cpus: float, gpus: float, n_shards: int, config: RayConfig) -> Crew:
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
    crew = Crew(others, models, share, share, per_gpu)
    need_cpus = others * share + models * share
    if need_cpus > cpus or models * per_gpu > gpus:
        raise UserError(
            f"{others} cpu workers and {models} model workers need {need_cpus:g} CPUs and {models * per_gpu:g} GPUs, the cluster has "
            f"{cpus:g} and {gpus:g}: they would wait for ever. Lower ray.cpu_workers or ray.model_workers, or leave them out."
        )
    return crew


class CpuWorker:
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


class ModelWorker:
    """Grounds and scores shards."""

    def __init__(self, config: PipelineConfig) -> None:
        cv2.setNumThreads(1)
        self.steps = Infer(config)

    @ray.method(num_returns=2)
    def infer(self, plan: ShardPlan, table: pa.Table, timings: Timings) -> tuple[pa.Table, Timings]:
        return self.steps(plan, table, timings)


@dataclass(frozen=True)
class Running:
    """A call under way: which step of which shard, on which worker; `refs` is what it returns."""

    step: str
    plan: ShardPlan
    worker: Any
    refs: tuple[Any, ...]


def connect(config: RayConfig) -> None:
    """Join the cluster, or start a Ray of our own. Workers find this checkout also when the job was started from another folder."""
    address = config.address or (None if "RAY_ADDRESS" in os.environ else "local")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": {"PYTHONPATH": str(repository_root())}},
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
        crew = plan_crew(resources.get("CPU", 0), resources.get("GPU", 0), len(plans), config.ray)
        logger.info("%d cpu workers and %d model workers", crew.cpu_workers, crew.model_workers)
        yield from _drive(plans, config, provenance, crew)
    finally:
        ray.shutdown()


def _drive(
    plans: Sequence[ShardPlan], config: PipelineConfig, provenance: dict[str, Any], crew: Crew
) -> Iterator[dict[str, Any]]:
    # A worker that dies is started again; the shard it held is begun again below, not the call alone.
    cpu_actor: Any = ray.remote(max_restarts=-1, num_cpus=crew.cpus_per_cpu_worker)(CpuWorker)
    model_actor: Any = ray.remote(
        max_restarts=-1, num_cpus=crew.cpus_per_model_worker, num_gpus=crew.gpus_per_model_worker
    )(ModelWorker)
    idle_cpu: list[Any] = [cpu_actor.remote(config, provenance) for _ in range(crew.cpu_workers)]
    idle_model: list[Any] = [model_actor.remote(config) for _ in range(crew.model_workers)]
    todo, prepared, inferred = deque(plans), deque[Running](), deque[Running]()
    running: dict[Any, Running] = {}
    deaths: Counter[int] = Counter()

    def start(call: Running) -> None:
        running[call.refs[-1]] = call

    while todo or prepared or inferred or running:
        while idle_cpu:
            preparing = sum(call.step == "prepare" for call in running.values())
            if inferred:
                done, worker = inferred.popleft(), idle_cpu.pop()
                start(Running("write", done.plan, worker, (worker.write.remote(done.plan, *done.refs),)))
            elif todo and len(prepared) + preparing < WAITING_PER_MODEL_WORKER * crew.model_workers:
                plan, worker = todo.popleft(), idle_cpu.pop()
                start(Running("prepare", plan, worker, tuple(worker.prepare.remote(plan))))
            else:
                break
        while idle_model and prepared:
            done, worker = prepared.popleft(), idle_model.pop()
            start(Running("infer", done.plan, worker, tuple(worker.infer.remote(done.plan, *done.refs))))
        ready, _ = ray.wait(list(running), num_returns=1)
        call = running.pop(ready[0])
        (idle_model if call.step == "infer" else idle_cpu).append(call.worker)
        try:
            result = ray.get(ready[0])
        except RayTaskError as error:
            raise _cause(error) from None
        except RayError as error:
            # The worker died or its result was lost with a node: Ray restarts the worker, the shard begins again.
            deaths[call.plan.index] += 1
            if deaths[call.plan.index] > config.ray.retries:
                raise UserError(
                    f"shard {call.plan.index} ended its worker {deaths[call.plan.index]} times in step {call.step!r} "
                    f"({type(error).__name__}); most often that is memory: lower rows_per_shard"
                ) from error
            logger.warning("shard %d begins again: %s in %s", call.plan.index, type(error).__name__, call.step)
            todo.appendleft(call.plan)
            continue
        if call.step == "prepare":
            prepared.append(call)
        elif call.step == "infer":
            inferred.append(call)
        else:
            yield result


def _cause(error: RayTaskError) -> BaseException:
    """What the worker raised; a UserError keeps its type, so that it is shown without a traceback."""
    cause = error.cause
    return cause if isinstance(cause, UserError) else error
