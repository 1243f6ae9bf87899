"""Stage `captions`: captions as clean text; the original stays beside it."""

import html
import re
import unicodedata

import ftfy
import pyarrow as pa

from pipeline.captions.config import CaptionsConfig
from schemas.rows import CAPTIONED
from schemas.table import Drop, add_columns, drop_rows, kept_indices

BRACKETED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
HANDLE = re.compile(r"(?<!\S)@\S+")
FTFY = ftfy.TextFixerConfig(unescape_html=False, explain=False)
RAW_FACTOR = 8
"""Cleaning shortens a caption (`&amp;` becomes `&`), but never by this factor: an original that is longer than the limit by more
cannot pass, and is dropped without the work of cleaning it."""


def clean_captions(table: pa.Table, config: CaptionsConfig) -> pa.Table:
    """DOWNLOADED to CAPTIONED: adds `caption`; drops rows as `empty_caption` and `caption_too_long`."""
    originals = table["caption_original"].to_pylist()
    values: dict[int, dict[str, str]] = {}
    drops: dict[int, Drop] = {}
    for i in kept_indices(table):
        original = originals[i] or ""
        if len(original) > RAW_FACTOR * config.max_characters:
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


def clean(text: str) -> str:
    """HTML entities decoded (also those encoded twice), mojibake mended by ftfy, every run of white space one space."""
    text = html.unescape(html.unescape(text))
    return " ".join(ftfy.fix_text(text, FTFY).split())


def clean_as_redcaps(text: str) -> str:
    """RedCaps' cleaning, as MERU describes it for YFCC (paper 004, appendix D).

    Lower case; no accents and no letters other than Latin; nothing in round or square brackets; words that start with @
    become <usr>.
    """
    before = ""
    while before != text:  # innermost brackets first
        before, text = text, BRACKETED.sub(" ", text)
    letters = (char for char in unicodedata.normalize("NFKD", text.lower()) if _is_latin(char))
    return " ".join(HANDLE.sub("<usr>", "".join(letters)).split())


def _is_latin(char: str) -> bool:
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")
