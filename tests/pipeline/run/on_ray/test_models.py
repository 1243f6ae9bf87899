"""Model workers that die while they load: with their node, and alone."""

import os
import pickle
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster

from hypergrit_common.errors import UserError
from pipeline.config import PipelineConfig, load_config
from pipeline.run import ray_workers as models_module
from pipeline.run.ray_workers import Cluster, Models
from tests.patience import PATIENCE_S
from tests.pipeline.poison import LightSteps
from tests.pipeline.run.on_ray.jobs import cluster_of, workers

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


class EndlessSteps(LightSteps):
    """Steps that never finish loading."""

    def load(self, step: str) -> None:
        time.sleep(600)


def endless_steps(config: PipelineConfig) -> EndlessSteps:
    return EndlessSteps(config, {"config_hash": "0", "models": {}}, ())


def load_and_die(models: Models, cluster: Cluster, kill: str, nodes: RayCluster) -> None:
    """Start a model worker, and end it while it loads."""
    cluster.poll(now=True)
    models.start({"CPU": 0.5})
    (stream,) = models.starting
    (model,) = models.starting.values()
    assert ray.wait([stream], timeout=PATIENCE_S)[0]
    models.welcome(stream, cluster)
    assert cluster.is_alive(model.node)
    if kill == "node":
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    else:
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
    assert ray.wait([stream], timeout=PATIENCE_S)[0]
    models.welcome(stream, cluster)
    assert not len(models)


@pytest.mark.rest
def test_starts_whose_node_is_lost_are_not_counted_and_those_that_die_alone_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "MAX_FAILED_STARTS", 0)
    config = load_config([f"input={tmp_path}", f"output={tmp_path / 'out'}"])
    make = pickle.dumps(partial(endless_steps, config))
    with cluster_of({"num_cpus": 1}) as nodes:
        models, cluster = Models(make, config.ray), Cluster()
        load_and_die(models, cluster, "node", nodes)
        assert (models.lost_starts, models.failed_starts) == (1, 0)
        nodes.add_node(num_cpus=1)
        with pytest.raises(UserError, match="a worker cannot start"):
            load_and_die(models, cluster, "worker", nodes)
