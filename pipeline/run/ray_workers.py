"""What the driver of a job on Ray works with, and the code that runs in Ray's workers.

Here are, in this order, the nodes of the cluster, the meaning of failed calls, nodes on which steps fail, the actor that
reads rows ahead, the code of a step, and the pool of model workers.
"""

import faulthandler
import logging
import os
import pickle
import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import cv2
import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from hypergrit_common.cli import notify
from hypergrit_common.errors import UserError
from pipeline.config import RayConfig
from pipeline.faults import BROKEN, BrokenProcessError, RemoteError, ShardError, TooManyFaultsError, describe
from pipeline.read.config import ReadConfig
from pipeline.read.parquet import Packed, can_be_ahead, pack_rows, provided
from pipeline.read.types import ShardPlan
from pipeline.run.local import Rescue
from pipeline.stages.order import Step

# The nodes of the cluster, and requests that none of them can meet.

logger = logging.getLogger("hypergrit")

POLL_S: Final = 2.0
WARN_S: Final = 60.0

Resources = Mapping[str, float]


class Cluster:
    """The live nodes, looked up every POLL_S seconds: nodes join and leave while the job runs."""

    def __init__(self) -> None:
        self._nodes: dict[str, Resources] = {}
        self._polled = self._warned = float("-inf")

    def poll(self, now: bool = False) -> bool:
        """Look up the nodes if it is time, or `now`; return True if it was done."""
        if not now and time.monotonic() - self._polled < POLL_S:
            return False
        self._nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._polled = time.monotonic()
        return True

    def is_alive(self, node: str) -> bool:
        """Return True if the node was alive at the last poll."""
        return node in self._nodes

    def other(self, request: Resources, failed: Collection[str], number: int) -> str | None:
        """Return the id of a live node that is large enough for the request and not in `failed`; None if there is none.

        Of several, consecutive values of `number` choose one after the other.
        """
        found = sorted(node for node, has in self._nodes.items() if node not in failed and fits(request, has))
        return found[number % len(found)] if found else None

    def total(self, resource: str) -> float:
        """Return the amount of a resource in the cluster, used or not."""
        return sum(node.get(resource, 0.0) for node in self._nodes.values())

    def warn(self, requests: Iterable[Resources]) -> None:
        """Log requests that no node can meet, once a minute: an autoscaler may add such a node, or never."""
        unmet = [request for request in requests if not any(fits(request, node) for node in self._nodes.values())]
        if unmet and time.monotonic() - self._warned >= WARN_S:
            largest = max(self._nodes.values(), key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={})
            logger.warning(
                "no node of the cluster has %s; the largest has %s. The job waits for one that does; "
                "or lower ray.gpus_per_model_worker",
                " or ".join(sorted({text(request) for request in unmet})),
                text({name: largest.get(name, 0) for name in ("CPU", "GPU")}),
            )
            self._warned = time.monotonic()


def fits(request: Resources, node: Resources) -> bool:
    """Return True if an empty node could meet the request."""
    return all(node.get(name, 0.0) >= amount for name, amount in request.items())


def text(resources: Resources) -> str:
    """Format resources: `0.5 CPU and 1 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount) or "neither CPUs nor GPUs"


# The meaning of a failed call: an error of the job, of its shard, or only of the machine.

COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
Kind = Literal["job", "shard", "crash", "lost"]
FOR_JOB: Final = (UserError, TooManyFaultsError)
CRASHES: Final = (WorkerCrashedError, OutOfMemoryError, RayActorError, TaskCancelledError)
LOSSES: Final = (ObjectLostError, NodeDiedError, LocalRayletDiedError, ActorUnavailableError)
"""Losses of a machine or of what it held. `ObjectLostError` includes objects that cannot be reconstructed."""


def root(error: BaseException) -> BaseException:
    """Return the error behind a RayTaskError: Ray also wraps its own, such as that of a lost argument of a call."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def kind_of(error: BaseException) -> Kind:
    """Classify an error: it ends the job, counts against the shard, ended a worker, or came from a lost machine."""
    error = root(error)
    if isinstance(error, FOR_JOB):
        return "job"
    if isinstance(error, LOSSES):
        return "lost"
    return "crash" if isinstance(error, CRASHES) else "shard"


def message_of(error: BaseException) -> str:
    """Return an error in one line, for records and logs."""
    cause = root(error)
    if isinstance(cause, RayError):
        lines = str(cause).strip().splitlines()
        return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    return describe(cause)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception in a worker; empty for those that need none."""
    cause = root(error)
    if isinstance(cause, ShardError):
        return ""
    if isinstance(cause, RemoteError):
        return cause.traceback
    return COLOR.sub("", str(error)) if isinstance(error, RayTaskError) else ""


# Nodes on which steps fail that succeed on others: these failures do not count against the shards.

MIN_SHARDS: Final = 2
"""Shards that have to fail on a node, with no success among them, before the node is blamed."""


@dataclass
class Streak:
    """The shards that have failed in a step on a node since the last success there, and the times of both."""

    shards: set[int] = field(default_factory=set)
    began: float = 0.0
    succeeded: float = float("-inf")


class Health:
    """The failures of each step on each node."""

    def __init__(self) -> None:
        self._streaks: dict[tuple[str, Step], Streak] = {}

    def succeed(self, node: str, step: Step) -> None:
        """Note that a step has succeeded on a node."""
        self._streaks[node, step] = Streak(succeeded=time.monotonic())

    def fail(self, node: str, step: Step, shard: int, cluster: Cluster) -> bool:
        """Note that a step has failed on a node; return True if that is the fault of the node, not of the shard.

        It is if several shards have failed there since the last success, while the step succeeded on another live node
        on which it does not fail in the same way. A shard that fails on a second node is at fault itself.
        """
        others = [
            s for (name, of), s in self._streaks.items() if of == step and name != node and cluster.is_alive(name)
        ]
        failed_too = [other for other in others if shard in other.shards]
        if failed_too:
            for other in failed_too:
                other.shards.discard(shard)
            return False
        streak = self._streaks.setdefault((node, step), Streak())
        if not streak.shards:
            streak.began = time.monotonic()
        streak.shards.add(shard)
        is_to_blame = len(streak.shards) >= MIN_SHARDS and any(
            other.succeeded >= streak.began and len(other.shards) < MIN_SHARDS for other in others
        )
        if is_to_blame and len(streak.shards) == MIN_SHARDS:
            logger.warning("step %s fails on node %s and succeeds on others", step, node[:12])
        return is_to_blame


# An actor that reads the rows of parquet files for all workers, so that each row group is decoded once.

FIRST: Final = 32
"""Shards that workers read themselves before a reader is started: a small job ends sooner without one."""
MAX_WAITING: Final = 64
"""Shards that wait for the reader at most. Workers read the others themselves, such as at the start of a large job."""
RESTARTS: Final = 20
"""Number of times that Ray starts a lost reader again, on any node."""
FETCH_S: Final = 60.0
"""Time that a worker waits for the rows of a shard before it reads them itself."""
SLOW_FETCH_S: Final = 1.0
"""The same after a shard for which it waited in vain."""

_wait_s = FETCH_S


class RowReader:
    """Reads the rows of shards in their order. It leaves files to the workers that have images or large rows."""

    def __init__(self, config: ReadConfig) -> None:
        self.config = config
        self.left_to_workers: set[str] = set()

    def read(self, plan: ShardPlan) -> Packed | None:
        """Return the rows of a shard, or None: then its worker reads them, and reports what is wrong with them."""
        paths = {piece.path for piece in plan.pieces}
        if paths & self.left_to_workers:
            return None
        try:
            packed = pack_rows(plan, self.config)
        except Exception as error:
            logger.debug("shard %d is read by its worker: %s", plan.index, error)
            return None
        if packed is None:
            self.left_to_workers |= paths
        return packed


class RowsAhead:
    """Asks a `RowReader` for the rows of parquet files. Each shard is asked for once, since a reader never goes back."""

    def __init__(self, config: ReadConfig) -> None:
        self.config = config
        self.actor: Any = None
        self.n_seen = 0
        self.last = -1
        self.waiting: deque[Any] = deque()

    def of(self, plan: ShardPlan) -> list[Any]:
        """Return a list with a reference to the rows of a shard, or none. A list is passed on by Ray without a wait."""
        if plan.index <= self.last or not can_be_ahead(plan):
            return []
        self.last = plan.index
        self.n_seen += 1
        if self.n_seen <= FIRST or self.is_behind():
            return []
        if self.actor is None:
            actor_class: Any = ray.remote(RowReader)
            self.actor = actor_class.options(num_cpus=0, max_restarts=RESTARTS).remote(self.config)
        self.waiting.append(self.actor.read.remote(plan))
        return [self.waiting[-1]]

    def is_behind(self) -> bool:
        """Return True if the reader has as many shards to read as may wait; it reads them in their order."""
        while self.waiting and ray.wait([self.waiting[0]], timeout=0, fetch_local=False)[0]:
            self.waiting.popleft()
        return len(self.waiting) >= MAX_WAITING


def fetch_rows(rows: Sequence[Any]) -> Packed | None:
    """Return the rows that `RowsAhead.of` refers to; None if the reader has none, was lost or takes too long."""
    global _wait_s
    if not rows:
        return None
    try:
        found: Packed | None = ray.get(rows[0], timeout=_wait_s)
    except GetTimeoutError:
        _wait_s = SLOW_FETCH_S
        return None
    except RayError as error:
        logger.debug("the rows of a shard are not there: %s", error)
        return None
    _wait_s = FETCH_S
    return found


# The code that runs in Ray's workers. A step is a generator: its first value, the node, tells that it has begun.

RESCUE_TIMEOUTS: Final = 20.0
"""Time limit of a search for faulty rows, in time limits of a step."""
LEAVING: Final = ("prepare", "infer")
"""Steps that leave a table to the next one."""


class Left(NamedTuple):
    """The result of a step that leaves a table: notes, bytes of the table, and in the driver the reference to it."""

    notes: Any  # Notes
    nbytes: int
    table: Any = None


@contextmanager
def deadline(timeout_s: float) -> Iterator[None]:
    """End this process, with the stacks of its threads in the log, if the block takes longer.

    The watchdog of `faulthandler` also ends a process that hangs in C code.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
    try:
        yield
    except BrokenProcessError as error:
        notify(f"the process ends: {error}")
        os._exit(BROKEN)
    finally:
        faulthandler.cancel_dump_traceback_later()


@lru_cache(maxsize=1)
def load_steps(make: bytes) -> Any:
    """Return the steps, which stay loaded in this process. `make` is a pickled function that makes them."""
    cv2.setNumThreads(1)  # there is one worker per core; Ray limits the threads of torch in the same way
    steps: Any = pickle.loads(make)()
    return steps


def run_step(
    make: bytes, limit_s: float, step: Step, plan: Any, *state: Any, rows: Sequence[Any] = (), rescue: Any = None
) -> Iterator[Any]:
    """Run a step. Yield the node, the table, then what is `Left`; after the last the node, None, and the result.

    `state` is what the step before has left: table and notes. `rows` refers to what `RowReader` has read for `prepare`.
    `rescue`, the last arguments of `Rescue`, runs it in child processes, to find the rows that end its process.
    """
    yield ray.get_runtime_context().get_node_id()
    with deadline(limit_s), provided(plan, fetch_rows(rows)):
        if rescue is None:
            result = getattr(load_steps(make), step)(plan, *state)
        else:
            result = Rescue(pickle.loads(make), *rescue).run(step, plan, *state)
    has_table = step in LEAVING
    yield result[0] if has_table else None  # no `yield from`: Ray sends values into the generator
    yield Left(result[1], result[0].nbytes) if has_table else result


class ModelWorker:
    """An actor that grounds and scores shards, one at a time, after `load`."""

    def __init__(self, make: bytes, timeout_s: float) -> None:
        self.make, self.timeout_s = make, timeout_s

    def load(self) -> Iterator[Any]:
        """Yield the node, then load the models and yield None."""
        yield ray.get_runtime_context().get_node_id()
        with deadline(self.timeout_s):
            load_steps(self.make).load("infer")
        yield None

    def infer(self, plan: ShardPlan, *state: Any) -> Iterator[Any]:
        """Run the step `infer` on a shard."""
        yield from run_step(self.make, self.timeout_s, "infer", plan, *state)


CALLS_PER_MODEL: Final = 2
"""Maximum number of calls at a model worker: Ray fetches the table of the second while the first is computed."""
CPU_SHARE: Final = 0.5
"""CPUs of a model worker without a GPU; the other half is for the tasks. One with a GPU requests no CPU."""
MAX_FAILED_STARTS: Final = 3
"""Failed starts in a row with which a job ends that has no worker."""
MAX_LOST_STARTS: Final = 50
"""Starts in a row that may be lost with their node."""


@dataclass(eq=False)
class Model:
    """A model worker with the number of its unfinished calls. `node` is empty until it runs."""

    actor: Any
    n_calls: int = 0
    node: str = ""

    def kill(self) -> None:
        """End the worker; its calls fail."""
        ray.kill(self.actor)


class Models:
    """The model workers, those that wait for resources or load their models (`starting`, by stream) and the others."""

    def __init__(self, make: Any, config: RayConfig) -> None:
        self.make, self.config = make, config
        self.starting: dict[Any, Model] = {}
        self.ready: list[Model] = []
        self.resources: Resources | None = None
        self.failed_starts = self.lost_starts = 0
        self.has_started = False

    def request(self, cluster: Cluster) -> Resources:
        """Return the resources of a model worker; they are decided once, when the cluster has nodes."""
        if self.resources is None:
            gpus = self.config.gpus_per_model_worker
            if gpus is None:
                gpus = 1.0 if cluster.total("GPU") else 0.0
            decided = {"GPU": gpus} if gpus else {"CPU": CPU_SHARE}
            if not cluster.total("CPU") and not cluster.total("GPU"):
                return decided
            self.resources = decided
        return self.resources

    def grow(self, cluster: Cluster, n_waiting: int, n_left: int) -> None:
        """Request workers for prepared shards that wait while all workers are busy; the first one in any case.

        Requests that cannot be met yet show an autoscaler what the job could use. Beside others, no more are requested
        after MAX_FAILED_STARTS.
        """
        resources = self.request(cluster)
        if self.resources is None:
            return  # no nodes yet; the pending tasks show the demand
        limit = min(self.config.model_workers or n_left, n_left)
        if "CPU" in resources:  # half of the CPUs are for the tasks
            limit = min(limit, max(1, int(cluster.total("CPU"))))
        is_busy = all(model.n_calls >= CALLS_PER_MODEL for model in self.ready)
        is_wanted = bool(n_waiting and self.failed_starts <= MAX_FAILED_STARTS) or not self.ready
        while is_busy and is_wanted and len(self) < limit and len(self.starting) < max(1, n_waiting // 2):
            self.start(resources)

    def start(self, resources: Resources) -> None:
        """Request one worker."""
        actor_class: Any = ray.remote(ModelWorker)
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        actor = actor_class.options(max_restarts=0, max_task_retries=0, **options).remote(
            self.make, self.config.step_timeout_s
        )
        self.starting[actor.load.options(num_returns="streaming").remote()] = Model(actor)

    def welcome(self, stream: Any, cluster: Cluster) -> None:
        """Note the node of a worker that begins to load, and add one that has. Raises like `refuse`."""
        model = self.starting[stream]
        try:
            node = ray.get(next(stream))
        except RayError as error:
            del self.starting[stream]
            model.kill()
            cluster.poll(now=True)
            kind, is_init = kind_of(error), isinstance(error, RayActorError) and error.actor_init_failed
            if kind == "lost" or (kind == "crash" and not is_init and not cluster.is_alive(model.node)):
                self.lose(error)
            else:
                self.refuse(error)
        else:
            if node is not None:
                model.node = node
                return
            del self.starting[stream]
            self.failed_starts = self.lost_starts = 0
            self.has_started = True
            self.ready.append(model)

    def refuse(self, error: RayError) -> None:
        """Count a worker that cannot load its models, or died meanwhile.

        Without other workers, it raises UserError, or another error of the job: after MAX_FAILED_STARTS, and at once
        for an exception if no worker has ever started and none is loading.
        """
        self.failed_starts += 1
        is_first = not self.has_started and not any(other.node for other in self.starting.values())
        is_clear = kind_of(error) != "crash"  # the death of a process may be an accident
        if not self.ready and ((is_first and is_clear) or self.failed_starts > MAX_FAILED_STARTS):
            if kind_of(error) == "job":
                raise root(error) from None
            raise cannot_start(error) from error
        logger.warning("a model worker cannot start: %s", message_of(error))

    def lose(self, error: RayError) -> None:
        """Count a worker that was lost with its node while it started. Raises UserError for too many in a row."""
        self.lost_starts += 1
        if self.lost_starts > MAX_LOST_STARTS:
            raise cannot_start(error) from error
        logger.warning("a model worker was lost while it started: %s", message_of(error))

    def discard(self, model: Model) -> None:
        """Remove a worker that died, or end it."""
        if model in self.ready:
            self.ready.remove(model)
        model.kill()

    def idle(self) -> list[Model]:
        """Return the workers without calls."""
        return [model for model in self.ready if not model.n_calls]

    def free(self) -> list[Model]:
        """Return the workers that can take a call, those with the fewest calls first."""
        return sorted((m for m in self.ready if m.n_calls < CALLS_PER_MODEL), key=lambda model: model.n_calls)

    def __len__(self) -> int:
        return len(self.starting) + len(self.ready)


def cannot_start(error: RayError) -> UserError:
    """Return the error of a job whose model workers cannot start."""
    return UserError(f"a worker cannot start: {str(error).strip().splitlines()[-1]}")
