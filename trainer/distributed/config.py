"""Settings of distributed training."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Several processes, started by torchrun or by Ray Train."""

    # distribution of the model: ddp, each process holds a copy; fsdp, each process holds a shard
    strategy: Literal["ddp", "fsdp"] = "ddp"
    # time without an answer after which a process counts as lost, in seconds
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_range(self, "timeout_s", least=1, most=10**9)
