"""What the report may be told."""

from dataclasses import dataclass

from common.errors import UserError
from common.load import check_at_least


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
        check_at_least(0, self, "pictures", "trees", "examples", prefix="report.")
        if not 16 <= self.thumbnail_px <= 1024:
            raise UserError(f"report.thumbnail_px is {self.thumbnail_px}; give 16 to 1024")
