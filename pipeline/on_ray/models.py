"""The pool of model workers: it grows while shards wait for a model, and gives workers back to a cluster in need."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError

from common.errors import UserError
from pipeline.config import PipelineConfig
from pipeline.on_ray.cluster import Cluster, Resources
from pipeline.on_ray.errors import kind_of, message_of, root
from pipeline.on_ray.groups import Group
from pipeline.on_ray.health import Health, selector_of
from pipeline.on_ray.remote import ModelWorker

logger = logging.getLogger("hypergrit")

CALLS_PER_MODEL: Final = 2
"""Maximum number of calls at a model worker: Ray fetches the table of the second while the first is computed."""
CPU_SHARE: Final = 0.5
"""CPUs of a model worker without a GPU; the other half is for the tasks. One with a GPU requests no CPU."""
MAX_FAILED_STARTS: Final = 3
"""Failed starts in a row with which a job ends that has no worker."""
MAX_LOST_STARTS: Final = 50
"""Starts in a row that may be lost with their node."""
SETTLE_S: Final = 5.0
"""Time from the death of a worker to the verdict: by then it is known if its node has died too."""
UNAVAILABLE_S: Final = 60.0
"""The same if Ray only knows that it cannot reach the worker; it takes up to a minute to declare a node dead."""


@dataclass(eq=False)
class Model:
    """A model worker with the number of its unfinished calls and its groups. `node` is empty until it runs.

    It was not allowed to start on the nodes `refused`.
    """

    actor: Any
    n_calls: int = 0
    node: str = ""
    refused: Collection[str] = ()
    groups: list[Group] = field(default_factory=list)

    def kill(self) -> None:
        """End the worker; its calls fail."""
        ray.kill(self.actor)

    def forget(self, group: Group) -> None:
        """Drop the present run of a group."""
        self.groups.remove(group)
        self.actor.forget.remote(group.key)


class Models:
    """The model workers, those that wait for resources or load their models (`starting`, by stream) and the others."""

    def __init__(self, recipe: bytes, config: PipelineConfig, health: Health | None = None) -> None:
        self.recipe, self.config, self.health = recipe, config, health or Health()
        self.starting: dict[Any, Model] = {}
        self.ready: list[Model] = []
        self.resources: Resources | None = None
        self.failed_starts = self.lost_starts = 0
        self.has_started = False
        self.settling: list[tuple[float, Model, RayError]] = []

    def request(self, cluster: Cluster) -> Resources:
        """Return the resources of a model worker; they are decided once, when the cluster has nodes."""
        if self.resources is None:
            gpus = self.config.ray.gpus_per_model_worker
            if gpus is None:
                gpus = 1.0 if cluster.total("GPU") else 0.0
            decided = {"GPU": gpus} if gpus else {"CPU": CPU_SHARE}
            if not cluster.total("CPU") and not cluster.total("GPU"):
                return decided
            self.resources = decided
        return self.resources

    def grow(self, cluster: Cluster, n_waiting: int, n_left: int) -> None:
        """Request workers for prepared shards that wait while all workers are busy; the first one in any case.

        Requests that cannot be met yet show an autoscaler what the job could use.
        """
        resources = self.request(cluster)
        if self.resources is None:
            return  # no nodes yet; the pending tasks show the demand
        limit = min(self.config.ray.model_workers or n_left, n_left)
        if "CPU" in resources:  # half of the CPUs are for the tasks
            limit = min(limit, max(1, int(cluster.total("CPU"))))
        is_busy = all(model.n_calls >= CALLS_PER_MODEL for model in self.ready)
        while (
            is_busy
            and len(self) < limit
            and len(self.starting) < max(1, n_waiting // 2)
            and (n_waiting or not self.ready)
        ):
            avoided = self.health.avoided("load")
            refused = self.health.refused("infer", avoided, resources, cluster)
            if self.ready and not refused and any(map(cluster.is_alive, avoided)):
                return  # starts fail on the only node for them, which has other workers
            self.start(resources, refused)

    def start(self, resources: Resources, refused: Collection[str] = ()) -> None:
        """Request one worker; the nodes `refused` may not run it."""
        actor_class: Any = ray.remote(ModelWorker)
        options: dict[str, Any] = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        options |= {"label_selector": selector_of(refused)} if refused else {}
        actor = actor_class.options(max_restarts=0, max_task_retries=0, **options).remote(
            self.recipe, self.config.ray.step_timeout_s
        )
        self.starting[actor.load.options(num_returns="streaming").remote()] = Model(actor, refused=refused)

    def welcome(self, stream: Any) -> None:
        """Note the node of a worker that begins to load, and add one that has. Raises like `refuse`."""
        model = self.starting[stream]
        try:
            node = ray.get(next(stream))
        except RayError as error:
            del self.starting[stream]
            model.kill()
            kind = kind_of(error)
            if kind in ("job", "shard") or (isinstance(error, RayActorError) and error.actor_init_failed):
                self.refuse(model, error)
                return
            settle_s = SETTLE_S if kind == "crash" else UNAVAILABLE_S
            self.settling.append((time.monotonic() + settle_s, model, error))
        else:
            if node is not None:
                model.node = node
                return
            del self.starting[stream]
            self.failed_starts = self.lost_starts = 0
            self.has_started = True
            self.health.succeed(model.node, "load")
            self.ready.append(model)

    def refuse(self, model: Model, error: RayError) -> None:
        """Avoid the node of a worker that cannot load its models.

        Raises UserError, or another error of the job, if no worker has ever started and none is loading,
        or if the job has no worker after several failed starts.
        """
        self.failed_starts += 1
        is_first = not self.has_started and not any(other.node for other in self.starting.values())
        if not self.ready and (is_first or self.failed_starts > MAX_FAILED_STARTS):
            if kind_of(error) == "job":
                raise root(error) from None
            raise cannot_start(error) from error
        logger.warning("a model worker cannot start: %s", message_of(error))
        if model.node:
            self.health.avoid(model.node, "load", "a model worker cannot start there")

    def settle(self, cluster: Cluster) -> None:
        """Judge the workers that died while they started, after a poll of the cluster.

        Raises UserError for several whose nodes are alive if there are no others.
        """
        for entry in list(self.settling):
            deadline, model, error = entry
            is_alive = bool(model.node) and cluster.is_alive(model.node)
            if is_alive and time.monotonic() < deadline:
                continue
            self.settling.remove(entry)
            self.failed_starts += is_alive
            self.lost_starts += not is_alive
            if (self.failed_starts > MAX_FAILED_STARTS and not self.ready) or self.lost_starts > MAX_LOST_STARTS:
                raise cannot_start(error) from error
            logger.warning("a model worker died while it started: %s", message_of(error))
            if is_alive:
                self.health.avoid(model.node, "load", "a model worker died there while it started")

    def withdraw(self) -> None:
        """End the workers that have not started."""
        while self.starting:
            self.starting.popitem()[1].kill()

    def withdraw_refused(self, cluster: Cluster) -> None:
        """Take back requests whose allowed nodes have gone; they are made again with those that the cluster has now."""
        for stream, model in list(self.starting.items()):
            if model.refused and not model.node and not cluster.others_fit(self.request(cluster), model.refused):
                del self.starting[stream]
                model.kill()

    def discard(self, model: Model) -> None:
        """Remove a worker that died, or end it."""
        if model in self.ready:
            self.ready.remove(model)
        model.kill()

    def usable(self, cluster: Cluster) -> list[Model]:
        """Return the workers that are not on avoided nodes; all if no other node could hold one."""
        avoided = self.health.avoided("infer") & {model.node for model in self.ready}
        if not avoided or not cluster.others_fit(self.request(cluster), avoided):
            return self.ready
        return [model for model in self.ready if model.node not in avoided]

    def idle_unusable(self, cluster: Cluster) -> list[Model]:
        """Return the idle workers on avoided nodes, which end so that others start elsewhere."""
        usable = self.usable(cluster)
        return [model for model in self.idle() if model not in usable]

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
