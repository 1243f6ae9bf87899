"""Join a Ray cluster, and compute shards on it."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import ray
import ray.util
from ray.util.metrics import Counter, Gauge

from hypergrit_common.local_ray import divert_worker_lines, init_ray, python_path
from hypergrit_common.paths import chdir_hook, repository_root
from hypergrit_common.progress import has_bar
from pipeline.config import RayConfig
from pipeline.models import CACHE, OFFLINE
from pipeline.read.types import ShardPlan, Task
from pipeline.run.progress import Follower, followed_by
from pipeline.run.ray_driver import Driver
from pipeline.run.steps import Recipe, Result
from pipeline.stages.download.permits import PermitServer

logger = logging.getLogger("hypergrit")

# Metrics of a job for Prometheus, through Ray: each node of the cluster exports those of its processes.
#
# The driver counts them, so that the counts of a shard that is computed twice are not added up.

WINDOW_S: Final = 30.0
"""Time over which rates and shares are averaged."""


class Metrics(Follower):
    """Follows the events of a job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = Counter("hypergrit_rows", "Rows of finished shards, by result", tag_keys=("result",))
        self.drops = Counter("hypergrit_dropped_rows", "Rows dropped", tag_keys=("stage", "reason"))
        self.prepared = Counter("hypergrit_step_rows", "Rows that have passed a step", tag_keys=("step",))
        self.shards = Counter("hypergrit_shards", "Finished and failed shards", tag_keys=("result",))
        self.rate = Gauge("hypergrit_images_per_second", f"Rows that passed the models, over {WINDOW_S:.0f} s")
        self.busy = Gauge(
            "hypergrit_model_busy_share", f"Share of the model workers that compute, over {WINDOW_S:.0f} s"
        )
        self.workers = Gauge("hypergrit_model_workers", "Model workers that are ready")
        self.clock = clock
        self._sizes: dict[int, int] = {}
        self._since, self._passed, self._samples = clock(), 0, list[tuple[int, int]]()

    def begun(self, index: int, step: str, n_rows: int) -> None:
        """Note the size of a shard."""
        self._sizes[index] = n_rows

    def ended(self, index: int, step: str, seconds: float | None = None) -> None:
        """Count the rows of a step."""
        n_rows = self._sizes.get(index, 0)
        self._add(self.prepared, n_rows, step=step)
        self._passed += n_rows if step == "infer" else 0

    def finished(self, result: Result) -> None:
        """Count the rows of a shard."""
        self._sizes.pop(result.index, None)
        self._add(self.shards, 1, result=result.outcome)
        for outcome, n in result.rows.items():
            self._add(self.rows, n, result=outcome)
        for stage, reasons in result.drops.items():
            for reason, n in reasons.items():
                self._add(self.drops, n, stage=stage, reason=reason)

    def models(self, n: int, n_busy: int) -> None:
        """Take a sample of the model workers; set the averages at the end of each window."""
        self.workers.set(n)
        self._samples.append((n, n_busy))
        elapsed = self.clock() - self._since
        if elapsed < WINDOW_S:
            return
        n_samples = sum(n for n, _ in self._samples)
        self.rate.set(self._passed / elapsed)
        self.busy.set(sum(n_busy for _, n_busy in self._samples) / n_samples if n_samples else 0.0)
        self._since, self._passed, self._samples = self.clock(), 0, []

    def _add(self, counter: Counter, n: int, **tags: str) -> None:
        if n > 0:  # Ray refuses 0
            counter.inc(n, tags)


def compute_on_ray(plans: Sequence[ShardPlan | Task], config: RayConfig, recipe: Recipe) -> Iterator[Any]:
    """Compute shards on a cluster; yield the result of each, or that it has `Failed`, in order of completion.

    Raises UserError if the cluster does not exist, and like `Driver.run`.
    """
    with joined(config), ExitStack() as stack:
        if recipe.job is not None:
            # One server counts the requests to each host, because no worker knows those of the others.
            host, limit = ray.util.get_node_ip_address(), recipe.job.download.concurrency_per_host
            permits = stack.enter_context(PermitServer(limit, host=host))
            recipe = dataclasses.replace(recipe, make=partial(recipe.make, permits=permits.address))
            stack.enter_context(followed_by(Metrics()))
        yield from Driver(plans, config, recipe).run()


@contextmanager
def joined(config: RayConfig) -> Iterator[None]:
    """Be part of the cluster for the `with` block; within another such block, nothing changes. Raises like `connect`."""
    if ray.is_initialized():
        yield
        return
    connect(config)
    try:
        yield
    finally:
        ray.shutdown()


def connect(config: RayConfig) -> None:
    """Join the cluster, or start Ray on this machine. Workers import this checkout and use the current folder.

    Raises UserError if the cluster cannot be joined.
    """
    init_ray(
        config.address,
        runtime_env={
            "env_vars": worker_variables(),
            "worker_process_setup_hook": chdir_hook(os.getcwd(), config.variables()),
        },
        configure_logging=True,
        logging_level=logging.WARNING,
        log_to_driver=True,
    )
    if has_bar():
        logger.info("lines of Ray's workers are in %s", divert_worker_lines())


def worker_variables() -> dict[str, str]:
    """Return the environment variables of the driver that its workers need on all machines."""
    kept = {name: os.environ[name] for name in (CACHE, OFFLINE) if name in os.environ}
    return {"PYTHONPATH": python_path(str(repository_root())), **kept}
