"""jobs/pipeline/slurm.sh, with programs that stand for those of Slurm and Ray."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "jobs" / "pipeline" / "slurm.sh"
PROGRAMS = {
    "scontrol": 'if [ "$1" = show ]; then printf "node7\\nnode8\\n"; else echo "scontrol $*" >> log; touch requeued; fi',
    "srun": 'shift; "$@"',  # without --no-kill
    "ray": 'echo "ray $*" >> log; echo "${#RAY_AUTH_TOKEN} $RAY_AUTH_MODE" >> log; . ./job',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(folder: Path) -> subprocess.Popen[bytes]:
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "12"}
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", SCRIPT, "job.yaml", "input=in"], cwd=folder, env={**os.environ, **slurm, "PATH": path}
    )


def test_each_machine_starts_ray_with_a_token_and_the_exit_code_is_that_of_the_job(folder: Path) -> None:
    (folder / "job").write_text("exit 3")
    assert start(folder).wait(60) == 3
    assert (folder / "log").read_text().splitlines() == [
        "ray symmetric-run --address node7:6379 --min-nodes 2 -- hypergrit run ray.address=auto job.yaml input=in",
        "64 token",
    ]


def test_a_job_near_its_time_limit_is_queued_again(folder: Path) -> None:
    (folder / "job").write_text("touch started; until [ -e requeued ]; do sleep 0.05; done")
    process = start(folder)
    while not (folder / "started").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 0
    assert "scontrol requeue 12" in (folder / "log").read_text()
