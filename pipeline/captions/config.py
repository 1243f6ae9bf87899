"""Settings of the caption stage."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class CaptionsConfig:
    """Cleaning of captions."""

    # also clean as in RedCaps: lower case, only ASCII and Latin letters, no bracketed text, @handles as <usr>
    redcaps: bool = False
    # maximum length of a cleaned caption, in characters; rows with a longer one are dropped
    max_characters: int = 1000

    def __post_init__(self) -> None:
        check_range(self, "max_characters", least=1)
