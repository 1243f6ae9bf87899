"""Stage `captions`: a cleaned caption for each row, beside the original."""

from typing import Final

import pyarrow as pa

from pipeline.captions.cleaning import clean, clean_as_redcaps
from pipeline.captions.config import CaptionsConfig
from schemas.rows import CAPTIONED
from schemas.table import Drop, add_columns, drop_rows, kept_indices

MAX_SHORTENING: Final = 8
"""Assumed maximum factor by which cleaning shortens a caption (`&amp;` becomes `&`).

An original caption that exceeds the limit by more than this factor is dropped without being cleaned.
"""


def clean_captions(table: pa.Table, config: CaptionsConfig) -> pa.Table:
    """Clean captions. Takes a DOWNLOADED table and returns a CAPTIONED table.

    Adds `caption`. Rows are dropped as `empty_caption` or `caption_too_long`.

    >>> import pyarrow as pa
    >>> from pipeline import CaptionsConfig, clean_captions
    >>> from schemas.rows import DOWNLOADED
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "kept"}
    >>> row["caption_original"] = " A dog &amp; a  cat "
    >>> table = clean_captions(pa.Table.from_pylist([row], schema=DOWNLOADED), CaptionsConfig())
    >>> table["caption"].to_pylist()
    ['A dog & a cat']
    """
    originals = table["caption_original"].to_pylist()
    values: dict[int, dict[str, str]] = {}
    drops: dict[int, Drop] = {}
    for i in kept_indices(table):
        original = originals[i] or ""
        if len(original) > MAX_SHORTENING * config.max_characters:
            drops[i] = Drop("caption_too_long", f"{len(original)} characters")
            continue
        caption = clean(original)
        if config.redcaps:
            caption = clean_as_redcaps(caption)
        if not caption:
            drops[i] = Drop("empty_caption")
        elif len(caption) > config.max_characters:
            drops[i] = Drop("caption_too_long", f"{len(caption)} characters")
        values[i] = {"caption": caption}
    return drop_rows(add_columns(table, CAPTIONED, values), "captions", drops)
