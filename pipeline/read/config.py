"""Settings of the read stage."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """The columns of the input that hold URL, caption and identifier."""

    # column with the image URL; null: url, image_url or link, in any letter case
    url_column: str | None = None
    # column with the caption; null: caption, text, alt_text, alt or title
    caption_column: str | None = None
    # column with the row's identifier; null: id, uid, sample_id, image_id or key
    id_column: str | None = None
