"""jobs/pipeline/slurm.sh and jobs/train/slurm.sh, with programs that stand for those of Slurm and Ray."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until

JOBS = Path(__file__).resolve().parents[2] / "jobs"
PROGRAMS = {
    "scontrol": 'if [ "$1" = show ]; then printf "node7\\nnode8\\n"; else echo "scontrol $*" >> log; touch requeued; fi',
    "srun": 'shift 2; "$@"',  # without --no-kill and --cpu-bind
    "python": 'echo "python $*" >> log; . ./job',
    "ray": 'echo "ray $*" >> log; echo "${#RAY_AUTH_TOKEN} $RAY_AUTH_MODE" >> log; . ./job',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(folder: Path, kind: str = "pipeline") -> subprocess.Popen[bytes]:
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "12"}
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", JOBS / kind / "slurm.sh", "job.yaml", "input=in"],
        cwd=folder,
        env={**os.environ, **slurm, "PATH": path},
    )


def test_each_machine_starts_ray_with_a_token_and_the_exit_code_is_that_of_the_job(folder: Path) -> None:
    (folder / "job").write_text("exit 3")
    assert start(folder).wait(PATIENCE_S) == 3
    assert (folder / "log").read_text().splitlines() == [
        "ray symmetric-run --address node7:6379 --min-nodes 2 -- hypergrit run ray.address=auto job.yaml input=in",
        "64 token",
    ]


def test_a_job_near_its_time_limit_is_queued_again(folder: Path) -> None:
    (folder / "job").write_text("touch started; until [ -e requeued ]; do sleep 0.05; done")
    process = start(folder)
    wait_until((folder / "started").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE_S) == 0
    assert "scontrol requeue 12" in (folder / "log").read_text()


@pytest.mark.parametrize(("code", "is_queued_again"), [(0, False), (1, False), (138, True)])
def test_a_training_that_saved_a_checkpoint_at_its_time_limit_is_queued_again(
    folder: Path, code: int, is_queued_again: bool
) -> None:
    (folder / "srun").write_text('#!/bin/bash\necho "srun $1 $2" >> log\nshift 2; "$@"\n')
    (folder / "job").write_text(f"exit {code}")
    assert start(folder, "train").wait(PATIENCE_S) == code
    assert (folder / "log").read_text().splitlines() == [
        "srun --kill-on-bad-exit=0 --wait=300",
        "python -m trainer.train job.yaml input=in",
        *(["scontrol requeue 12"] if is_queued_again else []),
    ]
