"""Signals that ask a run to stop."""

import os
import signal
import time
from multiprocessing import get_context

import pytest

from tests.patience import PATIENCE_S
from trainer.distributed import process as signals
from trainer.distributed.process import stop_signals


def exit_code_after(numbers: list[signal.Signals], pause_s: float) -> int | None:
    """The exit code of a process that receives these signals; 0 if it only records the first."""

    def work() -> None:
        with stop_signals() as request:
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(pause_s)
        assert request.signal_number == numbers[0]

    child = get_context("fork").Process(target=work)
    child.start()
    child.join(PATIENCE_S)
    return child.exitcode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_repeated_signal_is_the_same_request_until_ten_seconds_have_passed(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code_after([number] * 3, 0.01) == 0
    assert exit_code_after([signal.SIGUSR1, signal.SIGTERM], 0.01) == 0
    monkeypatch.setattr(signals, "REPEAT_S", 0.1)
    assert exit_code_after([number] * 2, 0.2) == 128 + number


def test_a_second_ctrl_c_ends_the_process_unless_torchrun_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code_after([signal.SIGINT] * 2, 0.01) == 130
    assert exit_code_after([signal.SIGTERM, signal.SIGINT], 0.01) == 130
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert exit_code_after([signal.SIGINT] * 2, 0.01) == 0
