"""Settings of the write stage."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_range
from common.errors import UserError
from schemas.files import FILES


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """The files that a shard becomes: train/ for trainers, grit/ in img2dataset's form, arrow/ with every input row."""

    # one or more of train, grit and arrow
    formats: tuple[str, ...] = ("train", "grit", "arrow")
    # also store the images in arrow/; they are in grit/ in any case
    image_bytes: bool = False
    # all: every referring expression, as in the released GRIT; maximal: only those that lie inside no other
    ref_exps: Literal["all", "maximal"] = "all"
    # JPEG quality of the 224-pixel images in train/, 1 to 100; HyCoCLIP uses 95
    jpeg_quality: int = 95

    def __post_init__(self) -> None:
        wrong = sorted(set(self.formats) - set(FILES))
        if wrong or not self.formats:
            raise UserError(f"formats is {list(self.formats)}; give one or more of {sorted(FILES)}")
        check_range(self, "jpeg_quality", least=1, most=100)
