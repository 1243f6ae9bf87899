"""Settings of the read stage."""

from dataclasses import dataclass
from typing import Final

from common.config import check_range, runtime

MAX_LIMIT: Final = 2**40
"""Largest limit on sizes and counts, which stay within 64 bits in sums and products."""


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """The columns of the input that hold URL, caption and identifier, and limits on the size of a row."""

    # column with the image URL; null: url, image_url or link, in any letter case
    url_column: str | None = None
    # column with the caption; null: caption, text, alt_text, alt or title
    caption_column: str | None = None
    # column with the row's identifier; null: id, uid, sample_id, image_id or key
    id_column: str | None = None
    # longest line of a text file, and largest .json or .txt of a tar, in bytes; rows with a longer one are dropped
    max_row_bytes: int = 1_048_576
    # largest number of lines of a row of a CSV or TSV file, whose quoted fields may contain line breaks; if a quote is
    # not closed within them, its line is dropped
    max_row_lines: int = 100
    # largest image of a tar, in bytes; rows with a larger one are dropped without reading it
    max_image_bytes: int = 64_000_000
    # longest URL, in characters; rows with a longer one are dropped
    max_url_characters: int = 8192
    # leave out input files of which no row can be read, instead of stopping; the job then ends with exit code 3
    skip_damaged: bool = runtime(False)
    # file with URLs, hosts and SHA-256 hashes of images, one per line: their rows are dropped as taken_down. New entries
    # do not discard finished shards; pipeline.takedown removes their rows from these
    takedown: str | None = runtime(None)
    # largest number of boxes in each of GRIT's columns; rows with more are dropped
    max_boxes: int = 1000

    def __post_init__(self) -> None:
        for name in ("max_row_bytes", "max_row_lines", "max_image_bytes", "max_url_characters", "max_boxes"):
            check_range(self, name, least=1, most=MAX_LIMIT)
