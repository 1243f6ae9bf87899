"""The exit code of several processes on a machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypergrit_common.processes import start_of, stat_fields
from tests.patience import PATIENCE_S, wait_until
from tests.trainer.small_run import overrides, write_data
from trainer import torchrun

ROOT = Path(__file__).parents[2]


@contextmanager
def training(tmp_path: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of two processes that has taken its first steps; they log to tmp_path/log. All are killed at the end."""
    output = tmp_path / "run"
    write_data(output)
    ours = ["--nproc-per-node", "2", "--master-port", str(port), "-m", "trainer.train"]
    command = [sys.executable, "-m", "trainer.torchrun", *ours, *overrides(output, "steps=100000", "save.every=100000")]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
        command, cwd=ROOT, stderr=log, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or (output / "metrics.jsonl").exists())
            yield process
        finally:
            process.kill()


def ranks_of(launcher: "subprocess.Popen[bytes]") -> list[int]:
    """The process ids of the two ranks, in their order."""
    ids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    children = [pid for pid in ids if (fields := stat_fields(pid)) and int(fields[1]) == launcher.pid]
    found: dict[int, int] = {}
    for pid in children:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {int(value[5:]): pid for value in variables if value.startswith(b"RANK=")}
    return [found[rank] for rank in range(2)]


@pytest.mark.rest
def test_ctrl_c_saves_a_checkpoint_and_ends_with_130(tmp_path: Path, free_port: int) -> None:
    with training(tmp_path, free_port) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130, (tmp_path / "log").read_text()
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.rest
@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_process_outlives_a_killed_torchrun(tmp_path: Path, free_port: int, is_stopped: bool) -> None:
    with training(tmp_path, free_port) as process:
        ranks = ranks_of(process)
        if is_stopped:  # no handler of its own ends it, and the other one waits for it
            os.kill(ranks[1], signal.SIGSTOP)
        process.kill()
        wait_until(lambda: not any(start_of(pid) for pid in ranks))
    assert is_stopped or list((tmp_path / "run" / "checkpoints").glob("step_*"))


@pytest.mark.rest
def test_a_stopped_process_ends_all_with_its_name(tmp_path: Path, free_port: int) -> None:
    with training(tmp_path, free_port) as process:
        stopped = ranks_of(process)[1]
        os.kill(stopped, signal.SIGSTOP)
        assert process.wait(PATIENCE_S) == 2
        assert not start_of(stopped)
    text = (tmp_path / "log").read_text()
    assert f"process 1 of 2 (process id {stopped} on host " in text
    assert "has ended or does not respond: checkpoints are complete" in text


def test_an_error_of_the_processes_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    for code, expected in ((2, 2), (-9, 137)):
        failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="none")
        monkeypatch.setattr(
            run, "run", lambda _, failure=failure: (_ for _ in ()).throw(ChildFailedError("x", {0: failure}))
        )
        assert torchrun.main(["-m", "trainer.train"]) == expected
