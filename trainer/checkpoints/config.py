"""Settings of a run's checkpoints."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints of the run, in OUTPUT/checkpoints."""

    # steps between two checkpoints; the run also saves one at its end and when it receives SIGTERM or SIGINT
    every: int = 1000
    # number of checkpoints to keep; older ones are deleted
    keep: int = 3

    def __post_init__(self) -> None:
        check_range(self, "every", "keep", least=1)
