"""What the report may be told."""

from dataclasses import dataclass

from common.load import check_range


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """How much report.html shows; stats.json always counts everything."""

    pictures: int = 24  # pictures shown with their boxes
    trees: int = 4  # dependency trees shown, of the first pictures whose caption is short enough to draw
    examples: int = 3  # dropped rows shown for each reason
    thumbnail_px: int = 320  # longest side of a picture, in pixels
    seed: int = 0  # another seed shows other pictures
    summary: bool = True  # also print the figures in the terminal when the job ends

    def __post_init__(self) -> None:
        check_range(self, "pictures", "trees", "examples", least=0)
        check_range(self, "thumbnail_px", least=16, most=1024)
