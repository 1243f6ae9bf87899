"""A process that is stopped or killed ends the others, with a message that names it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.forks import replaced, start_process
from tests.patience import PATIENCE_S
from tests.trainer.small_run import Fault, kill, log_path, run, run_forked, write_data
from trainer.distributed import heartbeat
from trainer.distributed.heartbeat import ENDED, Heartbeat


def stop() -> None:
    """Stop this process without ending it, as on a machine that hangs."""
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture
def impatient() -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in (("BEAT_S", 0.2), ("SILENT_S", 6.0), ("DOUBTFUL_S", 3.0)):
            stack.enter_context(replaced(heartbeat, name, value))
        yield


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        (stop, 1),
        (kill, 0),
        pytest.param(stop, 0, marks=pytest.mark.rest),
        pytest.param(kill, 1, marks=pytest.mark.rest),
    ],
)
def test_a_lost_process_ends_the_others_with_its_name(tmp_path: Path, free_port: int, fault: Fault, lost: int) -> None:
    output = tmp_path / "run"
    write_data(output)

    def work(rank: int) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
        os._exit(run(output, at=4, fault=fault if rank == lost else None))

    children = [start_process(partial(work, rank), log_path(output, rank)) for rank in range(2)]
    try:
        children[1 - lost].join(PATIENCE_S)
        assert children[1 - lost].exitcode == 2
    finally:
        for child in children:
            child.kill()
            child.join()
    text = log_path(output, 1 - lost).read_text()
    assert f"process {lost} of 2 (process id {children[lost].pid} on host " in text
    assert "has ended or does not respond" in text
    assert "repeat the command to resume" in text


def fail() -> None:
    """End with an error of this process alone, such as too little memory of its GPU."""
    raise RuntimeError("out of memory")


def hang() -> None:
    """Wait as for a GPU in a collective, which does not notice the end of another process."""
    time.sleep(2 * PATIENCE_S)


@pytest.mark.usefixtures("impatient")
def test_a_process_with_an_error_of_its_own_ends_those_that_wait_for_it(tmp_path: Path, free_port: int) -> None:
    output = tmp_path / "run"
    begin = time.monotonic()
    run_forked(output, port=free_port, faults=(hang, fail), at=4)
    assert time.monotonic() - begin < PATIENCE_S
    assert "process 1 of 2 (process id " in log_path(output, 0).read_text()
    assert "has ended; its own message says why: checkpoints are complete" in log_path(output, 0).read_text()


def test_only_a_silent_process_that_has_not_ended_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeat, "_exchange", lambda self: None)
    monkeypatch.setattr(Heartbeat, "_watch", lambda self: None)
    found = Heartbeat(1, 3)
    now = found.exchanged
    found.values[2] = b"7 process id 3 on host far"
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now + 30)
    found.exchanged = now + 29
    found.times = [now + 28, now, now + 5]
    assert found.lost(40) == ""
    assert found.lost(20) == "process 2 of 3 (process id 3 on host far) has ended or does not respond"
    found.values[2] = ENDED
    assert found.lost(20) == ""
    assert found.find_lost() == "process 2 of 3 has ended; its own message says why"
    found.values[1], found.values[2] = b"8 process id 2 on host near", b"failed process id 3 on host far"
    assert found.lost(20) == "process 2 of 3 (process id 3 on host far) has ended; its own message says why"
    found.times[0] = now  # it may be why the other one has failed
    assert found.lost(20) == "process 0 of 3 has ended or does not respond"
    found.times[0] = now + 28
    found.has_left = True
    assert found.lost(20) == ""
    found.exchanged = now
    assert found.lost(20) == "process 0 of 3 has ended or does not respond"
    found.rank = 0  # it holds the store itself
    assert found.lost(20) == ""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "gpu1")
    for found.rank in range(3):
        assert found.lost(20) == "torchrun on host gpu1, which holds the store, has ended or does not respond"
