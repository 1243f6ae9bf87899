"""The driver on clusters of several nodes: faulty rows, killed workers, nodes that join and leave, other jobs."""

import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray

from hypergrit_common.errors import UserError
from pipeline.read.plan import plan_shards
from pipeline.run import attempts, ray_driver
from pipeline.run import ray_workers as cluster_module
from pipeline.run.progress import Follower, followed_by
from pipeline.run.ray_driver import Driver
from pipeline.run.ray_workers import Cluster
from pipeline.run.steps import Done, Failed, Recipe
from tests.pipeline.poison import Poison
from tests.pipeline.run.downloads import N_ROWS as ROWS_PER_SHARD
from tests.pipeline.run.downloads import Switch, downloading_steps, make_rows
from tests.pipeline.run.on_ray.jobs import cluster_of, digests, kill_worker, make_driver, make_job, make_tar

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
N_ROWS = 48
SLOW = (Poison("parse", -1, "slow"), Poison("ground", -1, "slow"))


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tar(tmp_path_factory.mktemp("rows") / "in", N_ROWS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "RELEASE_S", 2.0)
    monkeypatch.setattr(attempts, "PAUSE_S", 0.01)


class Events(Follower):
    """The steps that have begun, and their times."""

    def __init__(self) -> None:
        self.begun_steps: Counter[tuple[int, str, int]] = Counter()
        self.seconds: dict[tuple[int, str], float | None] = {}

    def begun(self, index: int, step: str, n_rows: int) -> None:
        self.begun_steps[index, step, n_rows] += 1

    def ended(self, index: int, step: str, seconds: float | None = None) -> None:
        assert (index, step) not in self.seconds
        self.seconds[index, step] = seconds


@pytest.fixture(scope="module")
def expected(ray_cluster: Any, tar: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a job without faults, which reports every step once."""
    output, events = tmp_path_factory.mktemp("expected") / "out", Events()
    with followed_by(events):
        results = list(make_driver(make_job(tar, output)).run())
    assert all(isinstance(result, Done) for result in results)
    steps = {(i, step) for i in range(N_ROWS // 4) for step in ("prepare", "infer", "write")}
    assert events.begun_steps == {(*step, 4): 1 for step in steps}
    assert events.seconds.keys() == steps
    assert all((seconds is None) == (step == "write") for (_, step), seconds in events.seconds.items())
    return digests(output)


ALLOWED = "download.allowed_private_hosts=[127.0.0.1]"
FAULTS = {
    Poison("download", 1, "kill"): "ProcessDiedError: killed by SIGKILL",
    Poison("parse", 6, "raise"): "ZeroDivisionError: a \\x1b[31mbad\\nrow",
    Poison("ground", 13, "segfault"): "ProcessDiedError: killed by SIGSEGV",
    Poison("score", 22, "hang"): "StepTimeoutError: no result within 15 s",
    Poison("write", 30, "kill"): "ProcessDiedError: killed by SIGKILL",
}


@pytest.mark.rest
@pytest.mark.usefixtures("ray_cluster")
def test_faulty_rows_are_dropped_by_name_and_the_others_are_kept(tar: Path, tmp_path: Path) -> None:
    config = make_job(tar, tmp_path / "out", "ray.step_timeout_s=15", "ray.retries=1")
    poisons = list(FAULTS)
    results = list(make_driver(config, *poisons, Poison("write", 41, "disk")).run())
    done = {result.manifest["shard"]: result for result in results if isinstance(result, Done)}
    (failed,) = [result.record for result in results if isinstance(result, Failed)]
    assert (failed["shard"], failed["rows"], failed["step"]) == (10, 4, "write")
    assert failed["attempts"] >= 2  # a busy machine may cost more
    assert "Input/output error" in failed["error"]
    assert "\x1b" not in failed["traceback"]
    found = {fault.key: (fault.stage, fault.detail) for result in done.values() for fault in result.faults}
    assert found == {f"{poison.row:012d}": (poison.stage, FAULTS[poison]) for poison in poisons}
    assert sum(result.manifest["counts"]["kept"] for result in done.values()) == N_ROWS - 4 - len(poisons)


@pytest.mark.rest
def test_five_killed_workers_and_a_lost_node_change_no_byte(
    tar: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    config = make_job(tar, tmp_path / "out", "ray.retries=20")
    with cluster_of({"num_cpus": 2}) as cluster:
        lost = cluster.add_node(num_cpus=2)
        n_killed = 0
        for n, _ in enumerate(make_driver(config, *SLOW).run()):
            if n == 4:
                cluster.remove_node(lost, allow_graceful=False)
            elif n >= 1 and n_killed < 5:  # at some results, no worker is alive yet after the last kill
                n_killed += kill_worker(n)
    assert n_killed == 5
    assert digests(tmp_path / "out") == expected


def at_poll(number: int, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Do something when the driver warns for the given time; nodes can be added in the main thread only."""
    warn, calls = Cluster.warn, count(1)

    def act(self: Cluster, requests: Any) -> None:
        warn(self, requests)
        if next(calls) == number:
            action()

    monkeypatch.setattr(Cluster, "warn", act)


@pytest.mark.rest
def test_a_job_waits_for_the_first_node_says_so_and_uses_nodes_that_join(
    tar: Path, tmp_path: Path, expected: dict[str, str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = make_job(tar, tmp_path / "out")
    with cluster_of() as cluster, caplog.at_level(logging.WARNING):
        at_poll(2, monkeypatch, lambda: cluster.add_node(num_cpus=1))
        both = tmp_path / "both"  # every shard waits for a call on the second node, which joins after one on the first
        driver, nodes = make_driver(config, Poison("ground", 0, "held", str(both))), set()
        wait = driver._wait

        def watch() -> Any:
            known = len(nodes)
            nodes.update(call.node for call in driver.calls.running.values() if call.node)
            if not known and nodes:
                cluster.add_node(num_cpus=2)
            elif len(nodes) == 2:
                both.touch()
            return wait()

        monkeypatch.setattr(driver, "_wait", watch)
        list(driver.run())
    assert "no node of the cluster has 0.5 CPU" in caplog.text
    assert len(nodes) == 2
    assert digests(tmp_path / "out") == expected


@pytest.mark.rest
def test_a_request_that_no_node_can_meet_is_logged_and_met_by_a_node_that_joins(
    tar: Path, tmp_path: Path, expected: dict[str, str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster_module, "WARN_S", 1.0)
    config = make_job(tar, tmp_path / "out", "ray.gpus_per_model_worker=2")
    with cluster_of({"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 1, "num_gpus": 1}) as cluster:
        at_poll(5, monkeypatch, lambda: cluster.add_node(num_cpus=0, num_gpus=2))
        list(make_driver(config).run())
    assert caplog.text.count("no node of the cluster has 2 GPU; the largest has 2 CPU and 1 GPU") >= 2
    assert digests(tmp_path / "out") == expected


@ray.remote(num_cpus=1.5)
class OtherJob:
    """Holds CPUs of the cluster."""

    def ready(self) -> None: ...


@pytest.mark.rest
def test_a_job_shares_the_cluster_with_another_that_leaves_half_a_cpu(
    tar: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    config = make_job(tar, tmp_path / "out", "limit=16")
    with cluster_of({"num_cpus": 2}):
        other = OtherJob.remote()
        ray.get(other.ready.remote())
        assert len(list(make_driver(config).run())) == 4
    assert digests(tmp_path / "out").items() <= expected.items()


@pytest.mark.rest
def test_a_frozen_worker_is_killed_at_the_deadline(
    tar: Path, tmp_path: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog in the worker cannot help there, so the driver does."""
    monkeypatch.setattr("pipeline.run.ray_driver.GRACE_S", 1.0)
    config = make_job(tar, tmp_path / "out", "ray.step_timeout_s=20")  # it counts the imports of a new worker
    once = Poison("parse", 9, "freeze", str(tmp_path / "marker"))
    with cluster_of({"num_cpus": 2}):
        list(make_driver(config, once).run())
    assert digests(tmp_path / "out") == expected


@pytest.mark.usefixtures("ray_cluster")
def test_a_user_error_of_a_worker_ends_the_job_with_its_message(tar: Path, tmp_path: Path) -> None:
    config = make_job(tar, tmp_path / "out")
    with pytest.raises(UserError, match="disk full"):
        list(make_driver(config, Poison("parse", 9, "user")).run())


@pytest.mark.rest
@pytest.mark.usefixtures("ray_cluster")
def test_shards_without_answers_are_computed_again_until_their_server_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the local runner (test_breaker.py), with the same bytes; and `ray.cpu_workers` limits the tasks."""
    n_tasks = []
    wait = Driver._wait

    def count_tasks(driver: Driver) -> list[Any]:
        n_tasks.append(sum(call.model is None for call in driver.calls.running.values()))
        return wait(driver)

    monkeypatch.setattr(Driver, "_wait", count_tasks)
    with Switch() as web:
        rows = make_rows(tmp_path / "rows.jsonl", web.port, 2)
        arguments = (f"rows_per_shard={ROWS_PER_SHARD}", "download.retries=0", "ray.cpu_workers=1", ALLOWED)

        class Watch(Follower):
            lost_shards: ClassVar[list[int]] = []

            def lost(self, index: int) -> None:
                self.lost_shards.append(index)
                if len(self.lost_shards) == 2:
                    web.start()

        for name in ("later", "plain"):
            config = make_job(rows, tmp_path / name, *arguments)
            plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
            with followed_by(Watch()):
                results = list(Driver(plans, config.ray, Recipe(downloading_steps(config), config)).run())
            assert [result.manifest["counts"]["kept"] for result in results] == [ROWS_PER_SHARD] * 2
    assert len(Watch.lost_shards) == 2
    assert max(n_tasks) == 1
    assert digests(tmp_path / "later") == digests(tmp_path / "plain")
