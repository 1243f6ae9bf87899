"""Settings of the log."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_positive


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """The lines on the standard error."""

    # text; or json: one object a line, with the fields time, level, message, and progress in the lines on the progress
    format: Literal["text", "json"] = "text"
    # seconds between two lines on the progress where there is no terminal; the first ones come sooner
    interval_s: float = 60.0

    def __post_init__(self) -> None:
        check_positive(self, "interval_s")
