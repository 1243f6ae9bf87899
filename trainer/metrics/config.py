"""Settings of a run's metrics."""

from dataclasses import dataclass

from hypergrit_common.config import check_range


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Metrics written while training."""

    # steps between two rows of OUTPUT/metrics.jsonl
    every: int = 10
    # also write event files to OUTPUT/tensorboard; needs the package tensorboard
    tensorboard: bool = True
    # Weights & Biases project that receives the metrics; needs the package wandb; null: none
    wandb_project: str | None = None
    # steps to measure after the first three, and as many to trace, with the results in OUTPUT/profile: speed, MFU, peak
    # memory, share of padding, trace and memory snapshot; 0: none
    profile: int = 0

    def __post_init__(self) -> None:
        check_range(self, "every", least=1)
        check_range(self, "profile", least=0)
