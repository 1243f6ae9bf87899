"""Join a Ray cluster, and compute shards on it."""

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import ray
import ray.util

from common.errors import UserError
from common.local_ray import init_ray, python_path
from common.paths import chdir_hook
from pipeline.config import PipelineConfig, RayConfig, repository_root
from pipeline.download.permit_server import PermitServer
from pipeline.model_cache import CACHE, OFFLINE
from pipeline.on_ray.driver import Driver
from pipeline.on_ray.metrics import Metrics
from pipeline.read.types import ShardPlan
from pipeline.run import Done, Steps
from pipeline.watch import followed_by
from schemas.manifest import FailedShard


def compute_on_ray(
    plans: Sequence[ShardPlan],
    config: PipelineConfig,
    make_steps: Callable[..., Steps],
    mates: Sequence[ShardPlan] = (),
) -> Iterator[Done | FailedShard]:
    """Compute the shards on a cluster; yield each when it is committed or has failed. `make_steps` must be picklable.

    `mates` are all plans of the job: a group of shards that share batches goes through the models as a whole, also if
    some of them are committed. Raises UserError if the cluster does not exist, and like `Driver.run`.
    """
    with joined(config.ray):
        # One server counts the requests to each host, because no worker knows those of the others.
        host = ray.util.get_node_ip_address()
        with PermitServer(config.download.concurrency_per_host, host=host) as permits:
            make_worker_steps = partial(make_steps, permits=permits.address)
            with followed_by(Metrics()):
                yield from Driver(plans, config, pickle.dumps(make_worker_steps), mates).run()


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

    Raises UserError if there is no cluster at `ray.address`.
    """
    address = config.address or (None if "RAY_ADDRESS" in os.environ else "local")
    try:
        init_ray(
            address,
            runtime_env={
                "env_vars": worker_variables(),
                "worker_process_setup_hook": chdir_hook(os.getcwd()),
            },
            configure_logging=True,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
    except ConnectionError as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}; start one, or do not set ray.address") from None


def worker_variables() -> dict[str, str]:
    """Return the environment variables of the driver that its workers need on all machines."""
    kept = {name: os.environ[name] for name in (CACHE, OFFLINE) if name in os.environ}
    return {"PYTHONPATH": python_path(str(repository_root())), **kept}
