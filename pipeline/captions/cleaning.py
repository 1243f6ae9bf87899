"""Clean the text of a caption."""

import html
import re
import unicodedata
from typing import Final

import ftfy

BRACKETED: Final = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
HANDLE: Final = re.compile(r"(?<!\S)@\S+")
FTFY: Final = ftfy.TextFixerConfig(unescape_html=False, explain=False)


def clean(text: str) -> str:
    """Decode HTML entities (including those encoded twice), repair mojibake with ftfy, and collapse white space."""
    text = html.unescape(html.unescape(text))
    return " ".join(ftfy.fix_text(text, FTFY).split())


def clean_as_redcaps(text: str) -> str:
    """Clean a caption as in RedCaps; MERU describes it for YFCC (arXiv 2304.09172, appendix D).

    Converts to lower case; removes accents, text in round or square brackets, and all characters except ASCII and Latin
    letters; replaces words that start with @ by <usr>.
    """
    before = ""
    while before != text:  # innermost brackets first
        before, text = text, BRACKETED.sub(" ", text)
    letters = (char for char in unicodedata.normalize("NFKD", text.lower()) if _is_latin(char))
    return " ".join(HANDLE.sub("<usr>", "".join(letters)).split())


def _is_latin(char: str) -> bool:
    """True for ASCII characters and Latin letters."""
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")
