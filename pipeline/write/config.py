"""What the write stage may be told."""

from dataclasses import dataclass
from typing import Literal

from common.errors import UserError
from common.load import check_range
from schemas.files import FILES


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    """Which files a shard becomes: train/ for HyCoCLIP's loader, grit/ in img2dataset's form, arrow/ with every input row."""

    formats: tuple[str, ...] = ("train", "grit", "arrow")  # one or more of train, grit and arrow
    image_bytes: bool = False  # also store the images in arrow/ (they are in grit/ already)
    ref_exps: Literal["all", "maximal"] = "all"  # all, as in the released GRIT; maximal: only those inside no other
    jpeg_quality: int = 95  # JPEG quality of the 224-pixel images in train/, 1 to 100; HyCoCLIP's is 95

    def __post_init__(self) -> None:
        wrong = sorted(set(self.formats) - set(FILES))
        if wrong or not self.formats:
            raise UserError(f"formats is {list(self.formats)}; give one or more of {sorted(FILES)}")
        check_range(self, "jpeg_quality", least=1, most=100)
