"""Clean the text of a caption."""

import html
import re
import unicodedata
from typing import Final

import ftfy

from common.text import USER_INFO_IN_PROSE

BRACKETED: Final = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
HANDLE: Final = re.compile(r"(?<!\S)@\S+")
LONG_REFERENCE: Final = re.compile(r"&#[0-9]{8,};?")
"""A numeric HTML entity with more digits than characters need; Python converts at most 4,300 digits to a number."""
MAX_NESTING: Final = 32  # levels of brackets that `clean_as_redcaps` removes; each takes a pass over the caption
FTFY: Final = ftfy.TextFixerConfig(unescape_html=False, explain=False)


NESTED_ENTITY: Final = re.compile(r"&(?:(?:amp|#0*38|#x0*26);)++", re.IGNORECASE)
TAG_NAMES: Final = (
    "a|abbr|acronym|area|article|aside|audio|b|bdi|bdo|big|blockquote|body|br|button|canvas|caption|center|cite|code|col"
    "|colgroup|dd|del|details|div|dl|dt|em|embed|fieldset|figcaption|figure|font|footer|form|h[1-6]|head|header|hr|html"
    "|i|iframe|img|input|ins|kbd|label|legend|li|link|main|map|mark|meta|nav|nobr|noscript|o:p|object|ol|option|p|param"
    "|picture|pre|q|s|samp|script|section|select|small|source|span|strike|strong|style|sub|summary|sup|svg|table|tbody"
    "|td|textarea|tfoot|th|thead|time|title|tr|track|tt|u|ul|video|wbr"
)
BOOLEAN: Final = (
    "allowfullscreen|alt|async|autofocus|autoplay|checked|controls|defer|disabled|download|hidden|ismap|itemscope|loop"
    "|multiple|muted|noshade|novalidate|nowrap|on[a-z]{4,}|playsinline|readonly|rel|required|reversed|selected"
    r"|(?:aria|data)-[\w-]+"
)
"""Attributes without a value. Other words are none, so that "<a and b>" in a formula stays."""
TAG: Final = re.compile(
    rf"</?(?:{TAG_NAMES})"
    r"(?:\s++(?:[\w:.@-]++\s*+=\s*+(?:\"(?:[^\"<>]*+|[^\"]{0,500}+)\"|'(?:[^'<>]*+|[^']{0,500}+)'|[^\s\"'<>]++)"
    rf"|(?:{BOOLEAN})(?![\w-])))*+\s*+(?:/\s*+)?+>|<!DOCTYPE(?:\s[^<>]{{0,500}}+)?>|<!--[^<>]*-->",
    re.IGNORECASE,
)
"""Tags of HTML. Other words in angle brackets stay, such as <person> in place of names (CC12M).

A quoted value may contain angle brackets up to a limit, which keeps the time linear.
"""
IMAGE_TAG: Final = re.compile(r"<img\s[^<>]{0,500}?\bsrc\s*=[^<>]{0,500}>", re.IGNORECASE)
"""A tag of an image whose attributes are malformed: `<img src=foo.jpg alt=a dog>`."""
COMMENT_LIMIT: Final = 500
"""Characters of a comment with angle brackets; the limit keeps the time linear."""
COMMENT: Final = re.compile(rf"<!--.{{0,{COMMENT_LIMIT}}}?-->", re.DOTALL)
CODE: Final = re.compile(r"<(script|style)(?:\s[^<>]{0,500})?>[^<]*+</\1\s*+>", re.IGNORECASE)
"""A script or style sheet with its contents."""
DOUBLED_QUOTES: Final = re.compile(r'"{2,}')
INVISIBLE: Final = re.compile(
    r"[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0]"
    # tag characters, except in the emoji of a flag such as Scotland's
    r"|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0000-\U000e007f]++"
    r"|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
"""Zero-width and bidirectional characters; joiners only where they join nothing (emoji and Persian need them)."""
MAX_ROUNDS: Final = 50
"""Upper limit on repetitions of the cleaning; two are enough for nearly all captions."""


def clean(text: str) -> str:
    """Decode HTML entities (however often they are encoded), remove HTML tags, doubled quotes and invisible characters,
    repair mojibake with ftfy, remove user names and passwords from URLs, and collapse white space.

    The steps are repeated until they change nothing, so that cleaning a clean caption does not change it.
    """
    for _ in range(MAX_ROUNDS):
        cleaned = _clean_once(text)
        if cleaned == text:
            break
        text = cleaned
    return text


def _clean_once(text: str) -> str:
    if "&" in text:
        text = html.unescape(LONG_REFERENCE.sub(_shorten, NESTED_ENTITY.sub("&", text)))
    if "<" in text:
        text = IMAGE_TAG.sub(" ", TAG.sub(" ", COMMENT.sub(" ", CODE.sub(" ", text))))
    if not (text.isascii() and text.isprintable()):
        text = INVISIBLE.sub("", ftfy.fix_text(text, FTFY))
    if "@" in text or "%40" in text:
        text = USER_INFO_IN_PROSE.sub(lambda found: found["start"] or found["escaped"], text)
    return " ".join(DOUBLED_QUOTES.sub('"', text).split())


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
