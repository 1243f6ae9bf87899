import os
from functools import partial
from pathlib import Path

import pytest

from tests.forks import start_process
from tests.trainer.small_run import log_path, run, write_data
from trainer.distributed import config
from trainer.distributed.config import first_host, use_slurm

STEP = {
    "SLURM_JOB_ID": "123456",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu1", "gpu1"), ("gpu[03-04]", "gpu03"), ("a-[7,9-11],b2", "a-7"), ("n1,n2", "n1"), ("r[1-2]n[05-06]", "r1n05")],
)
def test_first_host_of_a_node_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_the_variables_of_a_step_become_those_of_torch() -> None:
    environment = dict(STEP)
    use_slurm(environment)
    added = {name: value for name, value in environment.items() if name not in STEP}
    assert added == {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "gpu03", "MASTER_PORT": "23456",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "node", "cores", "expected"),
    [("4(x2)", "1", "2", "4"), ("3,1(x2),5", "3", "2", "5"), ("4(x2)", "1", "8", None), ("", "0", "2", None)],
)
def test_processes_of_a_node_share_its_cores_unless_each_is_bound_to_its_own(
    counts: str, node: str, cores: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "n_cpus", lambda: 2)
    environment = {**STEP, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node, "SLURM_CPUS_ON_NODE": cores}
    use_slurm(environment)
    assert environment.get("LOCAL_WORLD_SIZE") == expected


@pytest.mark.parametrize(
    "environment",
    [
        {**STEP, "WORLD_SIZE": "2"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        {},
    ],
)
def test_torchrun_a_single_process_and_a_batch_script_are_left_alone(environment: dict[str, str]) -> None:
    before = dict(environment)
    use_slurm(environment)
    assert environment == before


def test_two_processes_of_a_step_train_together(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "run"
    write_data(output)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def work(rank: int) -> None:
        os.environ.update(STEP, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), SLURM_STEP_NUM_TASKS="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
        os._exit(run(output, "steps=3", "batch_size=8"))

    children = [start_process(partial(work, rank), log_path(output, rank)) for rank in range(2)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert '"ranks": 2' in (output / "checkpoints" / "step_00000003" / "state.json").read_text()
