"""Settings of a run's metrics."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Metrics written while training."""

    # steps between two rows of OUTPUT/metrics.jsonl
    every: int = 10
    # also write event files to OUTPUT/tensorboard; needs the package tensorboard
    tensorboard: bool = True
    # Weights & Biases project that receives the metrics; needs the package wandb; null: none
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        check_range(self, "every", least=1)
