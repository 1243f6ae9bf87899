"""The driver on clusters of several nodes: faulty rows, killed workers, nodes that join and leave, other jobs."""

import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import ray

from hypergrit_common.errors import UserError
from pipeline.run import ray_driver as failures_module
from pipeline.run import ray_driver as upkeep_module
from pipeline.run import ray_workers as cluster_module
from pipeline.run.progress import Follower, followed_by
from pipeline.run.ray_workers import Cluster
from pipeline.run.steps import Done
from tests.pipeline.poison import Poison
from tests.pipeline.run.on_ray.jobs import cluster_of, digests, kill_worker, make_driver, make_job, make_tar

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
N_ROWS = 48
SLOW = (Poison("parse", -1, "slow"), Poison("ground", -1, "slow"))


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tar(tmp_path_factory.mktemp("rows") / "in", N_ROWS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures_module, "SETTLE_S", 2.0)
    monkeypatch.setattr(upkeep_module, "RELEASE_S", 2.0)


class Events(Follower):
    """The steps that have begun, and their times."""

    def __init__(self) -> None:
        self.begun_steps: Counter[tuple[int, str, int]] = Counter()
        self.seconds: dict[tuple[int, str], float | None] = {}

    def begun(self, index: int, step: str, n_rows: int) -> None:
        self.begun_steps[index, step, n_rows] += 1

    def ended(self, index: int, step: str, seconds: float | None) -> None:
        assert (index, step) not in self.seconds
        self.seconds[index, step] = seconds


@pytest.fixture(scope="module")
def expected(tar: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a job without faults, which reports every step once."""
    output, events = tmp_path_factory.mktemp("expected") / "out", Events()
    with cluster_of({"num_cpus": 2}), followed_by(events):
        results = list(make_driver(make_job(tar, output)).run())
    assert all(isinstance(result, Done) for result in results)
    steps = {(i, step) for i in range(N_ROWS // 4) for step in ("prepare", "infer", "write")}
    assert events.begun_steps == {(*step, 4): 1 for step in steps}
    assert events.seconds.keys() == steps
    assert all((seconds is None) == (step == "write") for (_, step), seconds in events.seconds.items())
    return digests(output)


def test_faulty_rows_are_dropped_by_name_and_the_others_are_kept(tar: Path, tmp_path: Path) -> None:
    config = make_job(tar, tmp_path / "out", "ray.step_timeout_s=15", "ray.retries=1")
    poisons = [
        Poison("download", 1, "kill"),
        Poison("parse", 6, "raise"),
        Poison("ground", 13, "segfault"),
        Poison("score", 22, "hang"),
        Poison("write", 30, "kill"),
    ]
    with cluster_of({"num_cpus": 2}):
        results = list(make_driver(config, *poisons, Poison("write", 41, "disk")).run())
    done = {result.manifest["shard"]: result for result in results if isinstance(result, Done)}
    (failed,) = [result for result in results if not isinstance(result, Done)]
    assert (failed["shard"], failed["rows"], failed["step"]) == (10, 4, "write")
    assert failed["attempts"] >= 2  # a busy machine may cost more
    assert "Input/output error" in failed["error"]
    assert "\x1b" not in failed["traceback"]
    found = {fault.key: (fault.stage, fault.detail) for result in done.values() for fault in result.faults}
    assert found == {
        "000000000001": ("download", "ProcessDiedError: killed by SIGKILL"),
        "000000000006": ("parse", "ZeroDivisionError: a \\x1b[31mbad\\nrow"),
        "000000000013": ("ground", "ProcessDiedError: killed by SIGSEGV"),
        "000000000022": ("score", "StepTimeoutError: no result within 15 s"),
        "000000000030": ("write", "ProcessDiedError: killed by SIGKILL"),
    }
    assert sum(result.manifest["counts"]["kept"] for result in done.values()) == N_ROWS - 4 - 5


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
            nodes.update(call.node for call in driver.work.running.values() if call.node)
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
def test_requests_that_wait_for_another_job_are_logged_and_made_again(
    tar: Path, tmp_path: Path, expected: dict[str, str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(upkeep_module, "STALL_S", 3.0)
    config = make_job(tar, tmp_path / "out", "limit=16")
    with cluster_of({"num_cpus": 1}), caplog.at_level(logging.WARNING):
        other = OtherJob.options(num_cpus=1).remote()
        ray.get(other.ready.remote())
        at_poll(6, monkeypatch, lambda: ray.kill(other))
        assert len(list(make_driver(config).run())) == 4
    assert "requests wait for resources, and neither CPUs nor GPUs of the cluster are free" in caplog.text
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


def test_a_user_error_of_a_worker_ends_the_job_with_its_message(tar: Path, tmp_path: Path) -> None:
    config = make_job(tar, tmp_path / "out")
    with cluster_of({"num_cpus": 2}), pytest.raises(UserError, match="disk full"):
        list(make_driver(config, Poison("parse", 9, "user")).run())


def test_cpu_workers_is_an_upper_limit_on_the_tasks(tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_job(tar, tmp_path / "out", "ray.cpu_workers=1", "ray.model_workers=1", "limit=16")
    with cluster_of({"num_cpus": 4}):
        driver, n_tasks = make_driver(config, *SLOW), []
        wait = driver._wait
        monkeypatch.setattr(
            driver,
            "_wait",
            lambda: (n_tasks.append(sum(c.model is None for c in driver.work.running.values())), wait())[1],
        )
        assert all(isinstance(result, Done) for result in driver.run())
    assert max(n_tasks) == 1
