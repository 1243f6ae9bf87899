"""Soak test of the driver on Ray: killed workers and lost nodes change no byte of the output."""

from pathlib import Path
from random import Random

import pytest

from pipeline.run.steps import Done
from tests.pipeline.poison import Poison
from tests.pipeline.run.on_ray.jobs import cluster_of, digests, kill_worker, make_driver, make_job, make_tar

N_KILLS, N_LOSSES, N_SHARDS = 100, 20, 150  # not each shard ends while a worker is there to be killed
SLOW = (Poison("parse", -1, "slow"), Poison("ground", -1, "slow"))


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.timeout(7200)
def test_100_killed_workers_and_20_lost_nodes_change_no_byte(soak_seed: int, tmp_path: Path) -> None:
    rng = Random(f"cluster {soak_seed}")
    tar = make_tar(tmp_path / "in", 4 * N_SHARDS)
    with cluster_of({"num_cpus": 2}) as cluster:
        list(make_driver(make_job(tar, tmp_path / "expected")).run())
        lost_at = set(rng.sample(range(N_KILLS), N_LOSSES))
        spot, n_killed = cluster.add_node(num_cpus=2), 0
        driver = make_driver(make_job(tar, tmp_path / "out", "ray.retries=1000"), *SLOW)
        for n, result in enumerate(driver.run()):
            assert isinstance(result, Done)
            n_killed += n_killed < N_KILLS and kill_worker(rng.randrange(1000))
            if n in lost_at:
                cluster.remove_node(spot, allow_graceful=False)
                spot = cluster.add_node(num_cpus=2)
    assert n_killed == N_KILLS
    assert digests(tmp_path / "out") == digests(tmp_path / "expected")
