"""Clean the text of a caption."""

import html
import re
import unicodedata
from typing import Final

import ftfy

BRACKETED: Final = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
HANDLE: Final = re.compile(r"(?<!\S)@\S+")
LONG_REFERENCE: Final = re.compile(r"&#[0-9]{8,};?")
"""A numeric HTML entity with more digits than characters need; Python converts at most 4,300 digits to a number."""
MAX_NESTING: Final = 32  # levels of brackets that `clean_as_redcaps` removes; each takes a pass over the caption
FTFY: Final = ftfy.TextFixerConfig(unescape_html=False, explain=False)


def clean(text: str) -> str:
    """Decode HTML entities (including those encoded twice), repair mojibake with ftfy, and collapse white space."""
    for _ in range(2):
        text = html.unescape(LONG_REFERENCE.sub(_shorten, text))
    return " ".join(ftfy.fix_text(text, FTFY).split())


def _shorten(reference: re.Match[str]) -> str:
    """Remove the leading zeros of a numeric entity; one beyond Unicode becomes U+FFFD, as in HTML."""
    digits = reference[0].strip("&#;").lstrip("0") or "0"
    return f"&#{digits};" if len(digits) < 8 else "\ufffd"


def clean_as_redcaps(text: str) -> str:
    """Clean a caption as in RedCaps; MERU describes it for YFCC (arXiv 2304.09172, appendix D).

    Converts to lower case; removes accents, text in round or square brackets, and all characters except ASCII and Latin
    letters; replaces words that start with @ by <usr>.
    """
    for _ in range(MAX_NESTING):  # innermost brackets first
        before, text = text, BRACKETED.sub(" ", text)
        if text == before:
            break
    letters = (char for char in unicodedata.normalize("NFKD", text.lower()) if _is_latin(char))
    return " ".join(HANDLE.sub("<usr>", "".join(letters)).split())


def _is_latin(char: str) -> bool:
    """True for ASCII characters and Latin letters."""
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")
