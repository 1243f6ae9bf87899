"""Settings of a run's checkpoints."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    """Checkpoints of the run, in OUTPUT/checkpoints."""

    # steps between checkpoints; there is also one at the end and one when the run receives SIGTERM or SIGINT
    every: int = 1000
    # number of checkpoints that are kept, the newest ones
    keep: int = 3

    def __post_init__(self) -> None:
        check_range(self, "every", "keep", least=1)
