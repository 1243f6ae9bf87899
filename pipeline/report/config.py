"""Settings of the report."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """How much report.html shows; stats.json always counts everything."""

    # pictures shown with their boxes
    pictures: int = 24
    # dependency trees shown, for the first pictures whose caption is short enough to draw
    trees: int = 4
    # dropped rows shown for each reason
    examples: int = 3
    # longest side of a picture, in pixels
    thumbnail_px: int = 320
    # random seed of the choice of pictures
    seed: int = 0
    # also print the statistics in the terminal when the job ends
    summary: bool = True

    def __post_init__(self) -> None:
        check_range(self, "pictures", "trees", "examples", least=0)
        check_range(self, "thumbnail_px", least=16, most=1024)
