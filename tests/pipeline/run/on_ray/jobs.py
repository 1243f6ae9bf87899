"""Jobs with light steps on a Ray cluster of several nodes on this machine."""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

from hypergrit_common.disk import SUFFIX
from pipeline.config import PipelineConfig, RayConfig, load_config
from pipeline.output.write.tar import TarWriter
from pipeline.read.plan import plan_shards
from pipeline.run.ray import connect
from pipeline.run.ray_driver import Driver
from pipeline.run.steps import Recipe
from tests.pipeline.jobs import hash_output
from tests.pipeline.poison import Poison, light_steps

TITLES = ("ray::run_step", "ray::ModelWorker")


def make_tar(folder: Path, n_rows: int) -> Path:
    """A folder with a tar of small images with captions."""
    folder.mkdir()
    jpeg = cv2.imencode(".jpg", np.zeros((32, 32, 3), np.uint8))[1].tobytes()
    with (folder / "0.tar").open("wb") as file, TarWriter(file) as tar:
        for i in range(n_rows):
            tar.add_sample(f"{i:03d}", [("jpg", jpeg), ("txt", b"a dog")])
    return folder


def make_job(tar: Path, output: Path, *arguments: str) -> PipelineConfig:
    """The configuration of a job with shards of 4 rows."""
    return load_config([f"input={tar}", f"output={output}", "rows_per_shard=4", "formats=[arrow]", *arguments])


def make_driver(config: PipelineConfig, *poisons: Poison, only: Collection[int] | None = None) -> Driver:
    """A driver of the job with light steps, for the shards `only`."""
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    chosen = [plan for plan in plans if only is None or plan.index in only]
    return Driver(chosen, config.ray, Recipe(light_steps(config, *poisons), config))


def digests(output: Path) -> dict[str, str]:
    """SHA-256 of the shards and manifests by name, without what killed workers left: the job removes it at its end."""
    return {name: digest for name, digest in hash_output(output).items() if not name.endswith(SUFFIX)}


@contextmanager
def cluster_of(*nodes: dict[str, Any], head_cpus: int = 0) -> Iterator[Cluster]:
    """A cluster, whose head runs no tasks by default, and the connection of this process to it, not to another one."""
    before = ray.get_runtime_context().gcs_address if ray.is_initialized() else None
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus})
    try:
        for node in nodes:
            cluster.add_node(**node)
        connect(RayConfig(address=cluster.address))
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        if before is not None:
            connect(RayConfig(address=before))


def workers(titles: str | tuple[str, ...] = TITLES) -> list[int]:
    """The process ids of Ray's workers below this process that run a step or hold a model, or have other `titles`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = "".join(process.cmdline()[:1])
        except psutil.Error:
            continue
        if title.startswith(titles):
            found.append(process.pid)
    return found


def kill_worker(number: int, titles: str | tuple[str, ...] = TITLES) -> bool:
    """Kill one of the workers; return False without workers."""
    pids = sorted(workers(titles))
    if pids:
        os.kill(pids[number % len(pids)], signal.SIGKILL)
    return bool(pids)
