"""Settings of distributed training, and the processes that SLURM starts."""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final, Literal

from hypergrit_common.config import check_range
from hypergrit_common.processes import n_cpus


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Several processes, started by torchrun or by Ray Train."""

    # distribution of the model: ddp, each process holds a copy; fsdp, each process holds a shard
    strategy: Literal["ddp", "fsdp"] = "ddp"
    # with fsdp, the number of processes that share the shards of a model, such as the GPUs of a machine; groups of so many
    # hold copies of each other (HSDP); null: all processes
    shard_group: int | None = None
    # limit of a single exchange between live processes, in seconds; a lost process is noticed within a minute
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_range(self, "timeout_s", least=1, most=10**9)
        check_range(self, "shard_group", least=1)


ALLOCATOR: Final = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Variable for CUDA: lengths of texts and numbers of boxes change in each step, and fixed segments would fragment."""

# Processes started by SLURM's `srun`: their ranks, as the variables that torchrun sets.

VARIABLES: Final = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
"""Variables of torch.distributed, and those of a step of SLURM with the same values."""
FIRST_PORT, PORTS = 20_000, 10_000


def use_slurm(environment: MutableMapping[str, str]) -> None:
    """Set torch.distributed's variables in a process that `srun` has started together with others.

    Nothing is done for variables that are set, as by torchrun, or without a step of several processes: the commands of a
    batch script are in none.
    """
    if "WORLD_SIZE" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return
    environment.update({name: environment[slurm] for name, slurm in VARIABLES.items()})
    counts = tasks_of_nodes(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node, cores = int(environment.get("SLURM_NODEID", "0")), int(environment.get("SLURM_CPUS_ON_NODE", "0"))
    if node < len(counts) and n_cpus() >= cores:  # else each process is bound to cores of its own
        environment.setdefault("LOCAL_WORLD_SIZE", str(counts[node]))
    environment.setdefault("MASTER_ADDR", first_host(environment["SLURM_STEP_NODELIST"]))
    job = int(environment["SLURM_JOB_ID"])  # the processes of a step agree on a port without talking to each other
    environment.setdefault("MASTER_PORT", str(FIRST_PORT + job % PORTS))


def tasks_of_nodes(counts: str) -> list[int]:
    """The number of processes on each node from SLURM's notation, such as 4(x2),1 for 4, 4 and 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, nodes in found for _ in range(int(nodes or 1))]


def first_host(nodes: str) -> str:
    """The first host of a list in SLURM's notation, such as gpu-[003-005,9],big1: the machine of rank 0."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)
