"""One job at a time writes to an output."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.lease import WATCH_S, new_lease
from hypergrit_common.processes import ProcessId, machine, this_process
from pipeline.output import lock as leases
from pipeline.output.lock import Lease, fence, hold_lease, swap
from pipeline.output.store import Store, check_own_files
from schemas.files import LEASE_FILE
from tests.pipeline.output.write.shards import tree


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "out"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HEARTBEAT_S": 0.05, "EXPIRY_S": 1.0, "WATCH_S": 1.0, "POLL_S": 0.02}.items():
        monkeypatch.setattr(f"hypergrit_common.lease.{name}", value)


def dead_process() -> ProcessId:
    """The identity of a process of this machine that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return ProcessId(machine(), child.pid, 1)


def write_lease(store: Store, process: ProcessId, **others: Any) -> None:
    values = {**json.loads(new_lease()), "process": str(process), "pid": process.pid, **others}
    store.write(LEASE_FILE, json.dumps(values))


def files(store: Store) -> list[str]:
    return sorted(path.name for path in Path(store.root).iterdir())


def put(store: Store, *names: str) -> None:
    for name in names:
        path = Path(store.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (["train/00000.tar", "arrow/00017.arrow", "stats.json"], "train/, arrow/, stats.json"),
        (["_index/00001.arrow", "_manifests/notes.json"], "_index/"),
        (["config.yaml", "README.md"], "config.yaml"),
        (["report.html", "_replace/x.json"], "report.html"),
    ],
)
def test_an_output_with_files_of_others_is_refused_and_stays_as_it_is(
    store: Store, names: list[str], places: str
) -> None:
    put(store, *names)
    before = tree(store.root)
    message = (
        f"output {store.root} has files that no run of HyperGRIT wrote where a run writes its own, in {places}; give"
    )
    with pytest.raises(UserError, match=message):
        check_own_files(store)
    assert tree(store.root) == before


@pytest.mark.parametrize(
    "names",
    [
        ["README.md", ".DS_Store", "data/00000.tar", "logs/stats.json", "train/notes.txt", "grit/.hypergrit"],
        ["train/00000.tar", "stats.json", "_manifests/00003.json"],  # of `write_shard`
        ["train/00000.tar", "config.yaml", "_job.json"],  # of a job that was killed in its first shard
        ["grit/00000.tar", "_command.json"],
        ["arrow/00000.arrow", "_replace/00000.json"],
        ["config.yaml", LEASE_FILE],
        ["train/00000.tar.1-2-3.tmp"],
    ],
)
def test_files_beside_those_of_runs_and_what_killed_ones_left_are_no_reason_to_refuse(
    store: Store, names: list[str]
) -> None:
    put(store, *names)
    check_own_files(store)


def test_a_live_holder_is_named_with_host_process_start_and_fix(store: Store) -> None:
    with hold_lease(store):
        assert files(store) == [LEASE_FILE]
        message = (
            rf"in use by a job on host {socket.gethostname()} \(process {os.getpid()}, started 20.*\); "
            "wait for that job, stop it, or give another output="
        )
        with pytest.raises(UserError, match=message), hold_lease(store):
            pass
    assert files(store) == []
    with hold_lease(store):
        pass


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(store: Store) -> None:
    write_lease(store, dead_process())
    began = time.monotonic()
    with hold_lease(store) as lease:
        assert json.loads(lease.content)["pid"] == os.getpid()
    assert time.monotonic() - began < WATCH_S


def test_a_process_number_that_is_used_again_is_not_the_holder(store: Store) -> None:
    mine = this_process()
    write_lease(store, ProcessId(mine.machine, mine.pid, mine.start + 1))
    with hold_lease(store):
        pass


def test_a_file_that_is_no_lease_is_replaced(store: Store) -> None:
    for content in ("", "{}", "[]", '{"process": 1, "heartbeat": null}'):
        store.write(LEASE_FILE, content)
        with hold_lease(store):
            pass


@pytest.mark.parametrize("age", [0.0, 1e6, -1e6])
def test_a_silent_holder_on_another_machine_is_taken_over_whatever_its_clock(
    store: Store, impatient: None, age: float
) -> None:
    write_lease(store, ProcessId("00000000", 1, 1), host="elsewhere", heartbeat=time.time() - age)
    with hold_lease(store):
        pass


@pytest.mark.parametrize("clock", [0.0, 1e6])
def test_a_holder_on_another_machine_that_renews_its_lease_is_not_disturbed(
    store: Store, impatient: None, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    with hold_lease(store) as lease:
        monkeypatch.setattr("hypergrit_common.processes.machine", lambda: "00000000")
        monkeypatch.setattr("hypergrit_common.lease.this_process", lambda: ProcessId("00000000", 1, 1))
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - clock)
        with pytest.raises(UserError, match="in use by a job on host"), hold_lease(store):
            pass
        lease.check()


def test_a_job_that_lost_its_lease_stops(store: Store, impatient: None) -> None:
    with hold_lease(store) as lease:
        lease.check()
        write_lease(store, this_process(), host="another")
        with pytest.raises(UserError, match=r"has lost the output .* to a job on host another"):
            list(lease.guard(time.sleep(0.1) for _ in range(50)))
        with pytest.raises(UserError, match="finished shards are kept"):
            lease.check()
    assert json.loads(store.read(LEASE_FILE) or b"")["host"] == "another"


def test_a_job_that_lost_its_lease_replaces_no_file(store: Store) -> None:
    with hold_lease(store):
        store.write("report.html", "ours")
        Path(store.path(LEASE_FILE)).write_bytes(new_lease())
        Path(store.path("report.html")).write_text("theirs")
        with pytest.raises(UserError, match="this job has lost the output"):
            store.write("report.html", "ours again")
    assert Path(store.path("report.html")).read_text() == "theirs"
    assert files(store) == [LEASE_FILE, "report.html"]


def test_nobody_takes_over_an_output_while_a_file_takes_its_place(store: Store) -> None:
    with hold_lease(store) as lease, ThreadPoolExecutor(1) as pool:
        with fence(store, lease.recheck):
            taken = pool.submit(swap, Store(store.root), LEASE_FILE, lease.content, new_lease())
            assert not wait([taken], 0.2).done
        assert taken.result()


@pytest.mark.parametrize("use", ["renew", "check", "release"])
def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    def swap_without_answer(*arguments: Any) -> bool:
        assert swap(*arguments)
        raise TimeoutError("Read timeout on endpoint URL")

    swap = leases.swap
    with hold_lease(store) as lease:
        before = lease.content
        with monkeypatch.context() as patch:
            patch.setattr(leases, "swap", swap_without_answer)
            with pytest.raises(TimeoutError):
                lease.renew()
        assert store.read(LEASE_FILE) != before == lease.content
        if use == "renew":
            for _ in range(2):
                lease.renew()
                lease.raise_if_lost()
            assert store.read(LEASE_FILE) == lease.content != before
        if use == "check":
            lease.check()
    assert files(store) == []


def test_of_jobs_that_start_at_once_one_gets_the_lease(tmp_path: Path) -> None:
    dead = dead_process()

    def compete(store: Store) -> bool:
        try:
            Lease(store).acquire()
        except UserError:
            return False
        return True

    def winners(stores: Sequence[Store]) -> int:
        with ThreadPoolExecutor(len(stores)) as pool:
            return sum(pool.map(compete, stores))

    for i in range(20):
        stores = [Store(str(tmp_path / str(i)))] * 6
        if i % 2:
            write_lease(stores[0], dead)
        assert winners(stores) == 1
        assert files(stores[0]) == [LEASE_FILE]
