"""A loader process that is killed, at whatever moment, ends in one line with the fix."""

import os
import signal
import time
from collections import deque
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from common.errors import UserError
from trainer.data.loader import next_result, preserve_sigchld_handler


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


@pytest.mark.parametrize(
    "error", [EOFError(), ConnectionResetError("reset\nby peer"), RuntimeError("unable to open shm")]
)
def test_a_process_that_dies_while_sending_is_a_user_error(error: Exception) -> None:
    with pytest.raises(UserError, match="a loader process was killed"):
        next_result(Gone(error))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        next_result(Gone(error, alive=True))  # type: ignore[arg-type]
