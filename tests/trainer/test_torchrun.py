"""The exit code of several processes on a machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.small_run import overrides, write_data
from trainer import torchrun

ROOT = Path(__file__).parents[2]


def test_ctrl_c_saves_a_checkpoint_and_ends_with_130(tmp_path: Path, free_port: int) -> None:
    output = tmp_path / "run"
    write_data(output)
    ours = ["--nproc-per-node", "2", "--master-port", str(free_port), "-m", "trainer.train"]
    command = [sys.executable, "-m", "trainer.torchrun", *ours, *overrides(output, "steps=100000", "save.every=100000")]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
        command, cwd=ROOT, stderr=log, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:  # fmt: skip
        try:
            while process.poll() is None and not (output / "metrics.jsonl").exists():
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) == 130, (tmp_path / "log").read_text()
        finally:
            process.kill()
    assert list((output / "checkpoints").glob("step_*"))
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_an_error_of_the_processes_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    for code, expected in ((2, 2), (-9, 137)):
        failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="none")
        monkeypatch.setattr(
            run, "run", lambda _, failure=failure: (_ for _ in ()).throw(ChildFailedError("x", {0: failure}))
        )
        assert torchrun.main(["-m", "trainer.train"]) == expected
