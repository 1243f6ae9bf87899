"""Groups of shards that share batches: resumed, killed, with faulty rows, written where their table lies."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from pipeline.config import PipelineConfig
from pipeline.on_ray import failures as failures_module
from pipeline.on_ray.calls import Call
from pipeline.on_ray.groups import Shard
from pipeline.on_ray.work import Work
from pipeline.run import Done
from schemas.manifest import FailedShard
from tests.pipeline.on_ray.jobs import cluster_of, digests, kill_worker, make_driver, make_job, make_tar
from tests.pipeline.poison import Poison

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
N_ROWS = 32
GROUPED = ("ground.batch_shards=4", "ray.gpus_per_model_worker=1")


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tar(tmp_path_factory.mktemp("rows") / "in", N_ROWS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of({"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 1, "num_gpus": 1}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(cluster: Cluster, tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job without faults, in which each shard is written on the node that prepared it."""
    output = tmp_path_factory.mktemp("expected") / "out"
    driver, homes, written = make_driver(make_job(tar, output, *GROUPED)), dict[int, str](), dict[int, str]()
    advance = driver._advance

    def noting(call: Call) -> Done | None:
        step, shard, result = call.shard.step, call.shard, advance(call)
        if step == "write" and result is not None:
            homes[shard.plan.index], written[shard.plan.index] = shard.home, call.node
        return result

    driver._advance = noting  # type: ignore[method-assign]
    assert sorted(done(list(driver.run()))) == list(range(8))
    del driver._advance  # a cycle would keep the driver, and with it the model workers
    assert homes == written
    assert len(homes) == 8
    assert json.loads((output / "_timings" / "00003.json").read_text()).keys() >= {"read", "ground", "score"}
    return output


def done(results: list[Done | FailedShard]) -> dict[int, Done]:
    return {result.manifest["shard"]: result for result in results if isinstance(result, Done)}


def test_a_resumed_group_runs_as_a_whole_and_committed_shards_stay(
    expected: Path, tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_job(tar, tmp_path / "out", *GROUPED)
    prepared: list[int] = []
    note = Work.prepared

    def noting(self: Work, shard: Shard, *arguments: object) -> None:
        prepared.append(shard.plan.index)
        note(self, shard, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Work, "prepared", noting)
    driver = make_driver(config, only={1, 2})
    assert sorted(done(list(driver.run()))) == [1, 2]
    assert set(prepared) == {0, 1, 2, 3}
    found, whole = digests(tmp_path / "out"), digests(expected)  # in which each row tells its group
    assert sorted(found) == sorted(name for name in whole if Path(name).stem in ("00001", "00002"))
    assert found.items() <= whole.items()


def test_killed_workers_change_no_byte_of_a_group(
    expected: Path, tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures_module, "SETTLE_S", 1.0)
    config = make_job(tar, tmp_path / "out", *GROUPED, "ray.retries=20")
    slow = (Poison("parse", -1, "slow"), Poison("ground", -1, "slow"))
    n_killed = 0
    for _ in make_driver(config, *slow).run():
        n_killed += n_killed < 2 and kill_worker(0, "ray::ModelWorker")
    assert n_killed >= 1
    assert digests(tmp_path / "out") == digests(expected)


def test_rows_that_raise_or_crash_in_a_group_are_dropped_alone(
    cluster: Cluster, tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures_module, "SETTLE_S", 1.0)
    config: PipelineConfig = make_job(tar, tmp_path / "out", *GROUPED, "ray.retries=1")
    poisons = (Poison("ground", 6, "raise"), Poison("score", 21, "segfault"), Poison("write", 30, "disk"))
    driver = make_driver(config, *poisons)
    results = list(driver.run())
    found = {fault.key: fault.stage for result in done(results).values() for fault in result.faults}
    assert found == {"000000000006": "ground", "000000000021": "score"}
    (failed,) = [result for result in results if not isinstance(result, Done)]
    assert (failed["shard"], failed["step"]) == (7, "write")
    assert sum(result.manifest["counts"]["kept"] for result in done(results).values()) == N_ROWS - 4 - 2
    assert driver.work.tables.held == 0
