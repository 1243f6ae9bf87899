"""Settings of the write stage."""

from dataclasses import dataclass
from typing import Literal

from common.config import added, check_range
from common.errors import UserError
from schemas.files import FILES


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """The output formats: train/ (for training), grit/ (the layout of img2dataset), arrow/ (every input row)."""

    # formats to write: one or more of train, grit and arrow
    formats: tuple[str, ...] = ("train", "grit", "arrow")
    # also store the images in arrow/; grit/ always contains them
    image_bytes: bool = False
    # referring expressions in train/ and grit/: all (as in the GRIT release); maximal (only those that are not part of
    # another one); or disjoint (no two overlap: the one with the most boxes first)
    ref_exps: Literal["all", "maximal", "disjoint"] = "all"
    # other columns of the input to copy to the JSON of train/, where they are under `extra`; ["*"]: all of them. grit/ and
    # arrow/ always hold all
    train_columns: tuple[str, ...] = added(())
    # JPEG quality of the 224-pixel images in train/, 1 to 100; HyCoCLIP uses 95
    jpeg_quality: int = 95

    # remove the query, ?name=value, of every URL that is written: the queries of signed URLs are secrets. An input= with
    # a query is refused
    strip_url_queries: bool = False

    def __post_init__(self) -> None:
        wrong = sorted(set(self.formats) - set(FILES))
        if wrong or not self.formats:
            raise UserError(f"formats is {list(self.formats)}; give one or more of {sorted(FILES)}")
        check_range(self, "jpeg_quality", least=1, most=100)
