"""A loader process that is killed, at whatever moment, ends in one line with the fix."""

import multiprocessing
import os
import signal
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hypergrit_common.errors import UserError
from hypergrit_common.processes import ProcessId, machine, start_of
from tests.patience import PATIENCE_S, wait_until
from tests.trainer.small_run import run
from trainer.data.workers import init_worker, next_result, preserve_sigchld_handler
from trainer.training import loop
from trainer.training.step import PendingStep


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, _: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.zeros(1000)


class Gone:
    """A DataLoader whose process died while it sent a batch."""

    class Process:
        def join(self, _: float) -> None:
            pass

        def is_alive(self) -> bool:
            return False

    def __init__(self, error: Exception, alive: bool = False) -> None:
        self.error, self._workers = error, [] if alive else [self.Process()]

    def __next__(self) -> Any:
        raise self.error


def test_a_killed_process_is_a_user_error() -> None:
    with preserve_sigchld_handler():
        results = iter(DataLoader(Slow(), batch_size=None, num_workers=1))
    next_result(results)
    os.kill(results._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"a loader process was killed .* lower data\.workers") as error:
        deque(iter(lambda: next_result(results), None), maxlen=0)
    assert "\n" not in str(error.value)


class Blocking(Dataset[bytes]):
    """Keeps its process busy, or blocked in a put of more than a pipe holds."""

    def __init__(self, busy: bool) -> None:
        self.busy = busy

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, _: int) -> bytes:
        time.sleep(2 * PATIENCE_S if self.busy else 0)
        return bytes(10_000_000)


@pytest.mark.parametrize("busy", [True, False])
def test_no_loader_process_outlives_a_trainer_that_is_killed(busy: bool) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def trainer() -> None:
        initialise = partial(init_worker, os.getpid())
        loader = iter(DataLoader(Blocking(busy), batch_size=None, num_workers=2, worker_init_fn=initialise))
        sender.send([worker.pid for worker in loader._workers])  # type: ignore[attr-defined]
        time.sleep(2 * PATIENCE_S)

    parent = multiprocessing.get_context("fork").Process(target=trainer)
    parent.start()
    workers = [ProcessId(machine(), pid, start_of(pid) or 0) for pid in receiver.recv()]
    time.sleep(1)  # until they are busy or blocked
    assert all(worker.is_alive() for worker in workers)
    parent.kill()
    parent.join()
    wait_until(lambda: not any(worker.is_alive() for worker in workers))


@pytest.mark.parametrize(
    "error", [EOFError(), ConnectionResetError("reset\nby peer"), RuntimeError("unable to open shm")]
)
def test_a_process_that_dies_while_sending_is_a_user_error(error: Exception) -> None:
    with pytest.raises(UserError, match="a loader process was killed"):
        next_result(Gone(error))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        next_result(Gone(error, alive=True))  # type: ignore[arg-type]


@pytest.mark.rest
def test_a_run_whose_loader_process_is_killed_ends_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_step, others = loop.start_step, set(multiprocessing.active_children())

    def kill_then_start(*arguments: Any, **named: Any) -> PendingStep:
        for process in set(multiprocessing.active_children()) - others:
            os.kill(process.pid or 0, signal.SIGKILL)
        return start_step(*arguments, **named)

    monkeypatch.setattr(loop, "start_step", kill_then_start)
    assert run(tmp_path / "run", "data.workers=1", "steps=50") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "loader process" in line]
    assert "a loader process was killed" in line
    assert "repeat the command to resume" in line
