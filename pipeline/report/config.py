"""Settings of the report."""

from dataclasses import dataclass

from common.config import check_range


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The amount of detail in report.html; stats.json always covers all rows."""

    # number of sample images shown with their boxes
    pictures: int = 24
    # number of dependency trees, taken from those sample images whose caption is short enough to draw
    trees: int = 4
    # number of dropped rows shown for each reason
    examples: int = 3
    # longest side of a sample image, in pixels
    thumbnail_px: int = 320
    # random seed of the choice of sample images
    seed: int = 0
    # print the statistics in the terminal when the job ends
    summary: bool = True

    def __post_init__(self) -> None:
        check_range(self, "pictures", "trees", "examples", least=0)
        check_range(self, "thumbnail_px", least=16, most=1024)
