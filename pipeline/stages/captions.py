"""Stage `captions`: a cleaned caption for each row, beside the original."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html.entities import html5
from itertools import accumulate, compress
from typing import Any, ClassVar, Final

import ftfy
import pyarrow as pa
import regex
from ftfy.fixes import uncurl_quotes

from hypergrit_common.config import check_range
from hypergrit_common.errors import UserError
from hypergrit_common.text import USER_INFO_IN_PROSE, is_whole
from pipeline.stages.stage import Stage
from schemas.rows import CAPTIONED
from schemas.status import REASONS, given_code
from schemas.table import Drop, add_columns, drop_rows, kept_indices, set_column


@dataclass(frozen=True, kw_only=True)
class CaptionsConfig:
    """Cleaning of captions (`captions`).

    Raises:
        UserError: `max_tokens` is below 1, or `redact` has an unknown name.
    """

    # also clean as in RedCaps: lower case, only ASCII and Latin letters, no bracketed text, @handles as <usr>
    redcaps: bool = False
    """MERU cleans the captions of YFCC so (arXiv 2304.09172, appendix D)."""
    # personal data to remove from captions, the original ones too: email, phone (numbers as people write them: with a + or
    # 0 in front, or in the American form)
    redact: tuple[str, ...] = ()
    """Keys of REDACTIONS; nothing by default."""
    # longest cleaned caption in tokens, which are words, digits and runs of other characters, as CLIP divides texts before
    # it encodes byte pairs; null: no limit
    max_tokens: int | None = None
    """Tokens, at least 1. MERU's pool of captions for traversals has at most 20 (appendix D)."""

    max_characters: ClassVar[int] = 1000
    """Longest cleaned caption; rows with a longer one, which is an article rather than a caption, are dropped."""

    def __post_init__(self) -> None:
        check_range(self, "max_tokens", least=1)
        if set(self.redact) - REDACTIONS.keys():
            raise UserError(f"redact is {list(self.redact)}; give one or more of {sorted(REDACTIONS)}")


REDACTIONS: Final = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]{1,63}(?:\.[\w-]{1,63})+"),
    "phone": re.compile(
        r"(?<![\w.+-])(?!\d{1,2}([./-])\d{1,2}\1\d{2,4}(?!\d))"  # no date
        r"(?:(?:\+|\(?0(?!\.))(?:[ ().\-/]{0,2}\d){7,14}|\(?\d{3}\)?[ .\-]{1,2}\d{3}[ .\-]\d{4})(?!\w)"
    ),
}
"""What `redact` names -> its places in a text. Each takes time linear in the length of the text."""


def redacted(text: str, names: Sequence[str]) -> str:
    """Remove personal data from a text, and the spaces that it leaves.

    >>> redacted("Sales: ann@example.org, +49 (0)30 1234-567, since 12.10.2004", ["email", "phone"])
    'Sales: , , since 12.10.2004'
    """
    for name in names:
        text, n = REDACTIONS[name].subn("", text)
        text = " ".join(text.split()) if n else text
    return text


# Clean the text of a caption.

BRACKETED: Final = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
HANDLE: Final = re.compile(r"(?<!\S)@\S+")
MAX_NESTING: Final = 32  # levels of brackets that `clean_as_redcaps` removes; each takes a pass over the caption
FTFY: Final = ftfy.TextFixerConfig(unescape_html=False, uncurl_quotes=False, explain=False)
TOKEN: Final = regex.compile(r"'(?:s|t|re|ve|m|ll|d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+", regex.IGNORECASE)
"""Pieces into which CLIP divides a text before it encodes their byte pairs."""
NESTED_ENTITY: Final = re.compile(r"&(?:(?:amp|#0*38|#x0*26);)++", re.IGNORECASE)
ENTITY: Final = re.compile(
    r"&(?:#(?:(?P<decimal>[0-9]++)|[xX](?P<hex>[0-9a-fA-F]++));?|[A-Za-z][A-Za-z0-9]{1,31}+(?:;|(?![A-Za-z0-9=])))"
)
"""Entities by HTML's rule for attributes, because captions contain URLs: a name without a semicolon is none in front of
a letter, a digit or "=" (`&copy=1`)."""
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
    r"(?<![ÃĂĆГ])\u00ad|[\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0]"
    # tag characters, except in the emoji of a flag such as Scotland's
    r"|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0000-\U000e007f]++"
    r"|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
"""Zero-width and bidirectional characters; joiners only where they join nothing (emoji and Persian need them)."""
STYLED: Final = re.compile(
    "[\U0001d400-\U0001d7ff\u2102\u210a-\u2113\u2115\u2119-\u211d\u2124\u212c\u212d\u2130\u2131\u2133]+"
    "|[\u24b6-\u24e9]{2,}|[\U0001f130-\U0001f149]{2,}"
)
"""Letters as mathematics writes them, and several in circles or squares, which stand for plain ones."""
LOST: Final = r"(?:[\ufffd?]|(?![\w\x80-\U0010ffff]))"
LOST_BYTE: Final = re.compile(rf"(?P<twice>Ã¢â‚¬)(?:ï¿½|Â?{LOST})|(?<!Ã¢)â€(?:(?=â€)|{LOST})")
"""Mojibake of a closing quotation mark, made once or twice, without its last byte, which Windows-1252 lacks."""
MARKS: Final = {
    char.encode().decode(encoding): char
    for char in "–—‘’“”•…™℠℗№℃℉←↑→↓★☆●✓✔♥" + "".join(map(chr, range(0x20A0, 0x20C0)))
    for encoding in ("macroman", "sloppy-windows-1250", "sloppy-windows-1251", "sloppy-windows-1252")
} | {"Â’": "’", "Â…": "…"}
"""Mojibake -> marks and signs of currency, which ftfy does not always repair where one stands alone."""
MARK: Final = re.compile(f"(?<![“‚])(?:{'|'.join(map(re.escape, MARKS))})")
CURLED: Final = re.compile(
    r"(?<![ÃÎÐ])(?<![^A-ZÀ-Þ][Â-ÖØ-ÞĂĆĹ])(?<!^[Â-ÖØ-ÞĂĆĹ])(?<![^А-я][ГДЕР])(?<!^[ГДЕР])(?<![à-ï][¡-¿€‚„†‡‰‹›™])"
    r"(?:[\u02bc\u2018\u2019\u201b-\u201d\u201f]|(?<![Â-ôĂĆВ-ЕРСв])[\u201a\u201e](?![àâ]))"
)
"""Curly quotation marks, except where they may be the last byte of a letter that is mojibake, which stays ("Ã’", "Ä„")."""
RARE: Final = re.compile("[\u0180-\u0191\u0193-\u019f\u01a2-\u01ae\u01b1-\u0217\u021c-\u02af]")
"""Latin letters of no language of Europe or Vietnam: a repair that yields one is none (Baltic mojibake, which ftfy lacks)."""
MAX_ROUNDS: Final = 50
"""Upper limit on repetitions of the cleaning; three are enough for nearly all captions."""


def clean(text: str) -> str:
    """Decode HTML entities (however often they are encoded), remove HTML tags, doubled quotes and invisible characters,
    repair mojibake with ftfy, write styled letters (𝗥𝗲𝗱) as plain ones, remove user names and passwords from URLs,
    collapse white space, and straighten quotes.

    The steps are repeated until they change nothing, so that cleaning a clean caption does not change it.

    Args:
        text: the text as it is written.

    Returns:
        The cleaned text.
    """
    for _ in range(MAX_ROUNDS):
        cleaned = _clean_once(text)
        if cleaned == text and not text.isascii():  # last, because mojibake needs its quotation marks to be repaired
            cleaned = CURLED.sub(lambda found: uncurl_quotes(found[0]), text)
        if cleaned == text:
            break
        text = cleaned
    return text


def _clean_once(text: str) -> str:
    if "&" in text:
        text = ENTITY.sub(_unescape, NESTED_ENTITY.sub("&", text))
    if "<" in text:
        text = IMAGE_TAG.sub(" ", TAG.sub(" ", COMMENT.sub(" ", CODE.sub(" ", text))))
    if not (text.isascii() and text.isprintable()):
        text = LOST_BYTE.sub(lambda found: "Ã¢â‚¬Â\x9d" if found["twice"] else "â€\x9d", text)
        fixed = ftfy.fix_text(text, FTFY)
        if not RARE.search(fixed) or RARE.search(text):
            text = fixed
        text = STYLED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
        text = INVISIBLE.sub("", MARK.sub(lambda found: MARKS[found[0]], text))
    if "@" in text or "%40" in text:
        text = USER_INFO_IN_PROSE.sub(lambda found: found["start"] or found["escaped"], text)
    return " ".join(DOUBLED_QUOTES.sub('"', text).split())


def _unescape(entity: re.Match[str]) -> str:
    """Decode an entity. One beyond Unicode becomes U+FFFD, as in HTML; ftfy joins the surrogates of a pair."""
    if entity[0][1] != "#":
        return html5.get(entity[0][1:], entity[0])
    digits = (entity["hex"] or entity["decimal"]).lstrip("0")[:8] or "0"
    number = int(digits, 16 if entity["hex"] else 10)
    return chr(number) if 0xD800 <= number < 0xE000 else html.unescape(f"&#{number};")


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


Span = tuple[int, int]
GivenBox = Mapping[str, Any]
"""A box of the input (schemas.rows.GIVEN_BOX)."""


def move_span(original: str, caption: str, start: int, end: int, cleaner: Callable[[str], str] = clean) -> Span | None:
    """Return the span of the text `original[start:end]` in the cleaned caption, or None if it cannot be determined.

    Spans count characters, [start, end). If cleaning changed nothing before `end`, the span stays the same. Otherwise
    it is at the end of what cleaning makes of the text before `end`. If this is not the start of the caption, the text
    is searched, and its n-th occurrence in the original corresponds to its n-th occurrence in the caption. The result
    is None if cleaning added or removed occurrences.
    """
    text = original[start:end]
    if not 0 <= start < end <= len(original) or not text.strip():
        return None
    if original[:end] == caption[:end]:
        return start, end
    before, moved = (cleaner(part) for part in (original[:end], text))
    if moved and before.endswith(moved) and caption.startswith(before):
        return len(before) - len(moved), len(before)
    if original.count(text) != caption.count(text):
        return None
    found = -1
    for _ in range(original.count(text, 0, start + len(text) - 1) + 1):
        found = caption.find(text, found + 1 if found < 0 else found + len(text))
    return (found, found + len(text)) if found >= 0 else None


MAX_SHORTENING: Final = 8
"""Assumed maximum factor by which cleaning shortens a caption (`&amp;` becomes `&`).

An original caption that exceeds the limit by more than this factor is dropped without being cleaned.
"""


def clean_captions(table: pa.Table, config: CaptionsConfig) -> pa.Table:
    """Clean captions. Takes a DOWNLOADED table and returns a CAPTIONED table.

    Args:
        table: rows with `caption_original`, and `captions` if they have several. Dropped rows are not cleaned.
        config: settings.

    Returns:
        The table with `caption`, in which `captions` are cleaned too; the first one that stays is the `caption`. With
            `redact`, `caption_original` is changed. A row is dropped as `empty_caption` or `caption_too_long` if all
            its captions have such a reason; that of the first counts.

    >>> import pyarrow as pa
    >>> from pipeline import CaptionsConfig, clean_captions
    >>> from schemas.rows import DOWNLOADED
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "kept"}
    >>> row["caption_original"] = " A dog &amp; a  cat "
    >>> table = clean_captions(pa.Table.from_pylist([row], schema=DOWNLOADED), CaptionsConfig())
    >>> table["caption"].to_pylist()
    ['A dog & a cat']
    """
    originals, lists = table["caption_original"].to_pylist(), table["captions"].to_pylist()
    if config.redact:
        before, originals = originals, [text and redacted(text, config.redact) for text in originals]
        table = set_column(table, "caption_original", pa.array(originals, pa.string()))
        for name in ("given_noun_chunks", "given_ref_exps"):
            if table[name].null_count < table.num_rows:
                rows = zip(table[name].to_pylist(), before, originals, strict=True)
                moved = [given and move_boxes(given, old or "", new or "", config) for given, old, new in rows]
                table = set_column(table, name, pa.array(moved, table.schema.field(name).type))
        lists = [found and [{**c, "text": redacted(c["text"], config.redact)} for c in found] for found in lists]
    values: dict[int, dict[str, str]] = {}
    drops: dict[int, Drop] = {}
    for i in kept_indices(table):
        found = lists[i] or [{"kind": "", "text": originals[i] or ""}]
        cleaned = [{**caption, **clean_caption(caption["text"], config)} for caption in found]
        lists[i] = distinct([caption for caption in cleaned if caption["drop"] is None]) if lists[i] else None
        chosen = next((caption for caption in cleaned if caption["drop"] is None), cleaned[0])
        if chosen["drop"] is not None:
            drops[i] = chosen["drop"]
        if chosen["text"] is not None:
            values[i] = {"caption": chosen["text"]}
    if table["captions"].null_count < table.num_rows:
        table = set_column(table, "captions", pa.array(lists, table.schema.field("captions").type))
    return drop_rows(add_columns(table, CAPTIONED, values), "captions", drops)


def move_boxes(given: Sequence[GivenBox], old: str, new: str, config: CaptionsConfig) -> list[GivenBox]:
    """Return the boxes of a row with spans in its redacted caption `new` (`place_spans`)."""

    def cleaner(text: str) -> str:
        return " ".join(redacted(text, config.redact).split())

    if old == new or len(old) > MAX_SHORTENING * config.max_characters:  # such rows are dropped
        return [*given]
    spans = place_spans(old, new, [(box["start"], box["end"]) for box in given], cleaner)
    return [{**box, "start": start, "end": end} for box, (start, end) in zip(given, spans, strict=True)]


def place_spans(
    original: str, caption: str, spans: Sequence[Span], cleaner: Callable[[str], str] = clean
) -> list[Span]:
    """Return the spans of a row in the cleaned caption, as `move_span`; [code, code) for one without a place.

    Its code is that of the reason (schemas.status.given_code); such a span stays as it is if it is placed again.
    """
    moved = cache(partial(move_span, original, caption, cleaner=cleaner))
    found = list[Span]()
    for span, is_other in zip(spans, in_other_units(original, spans), strict=True):
        reason, (start, end) = "not_in_caption", span
        if is_other:
            reason = "other_units"
        elif start < 0 or max(start, end) > len(original):
            reason = "outside_caption"
        elif not original[start:end].strip():
            reason = "empty_span"
        place = span if start == end < 0 else None if is_other else moved(start, end)
        found.append(place or (given_code(reason),) * 2)
    return found


def in_other_units(text: str, spans: Sequence[Span]) -> list[bool]:
    """Return True for each span that names another text in UTF-16 units or bytes, if more spans are whole words so.

    >>> in_other_units("caf\u00e9 with a red door", [(13, 21)]), in_other_units("caf\u00e9 with a red door", [(12, 20)])
    ([True], [False])
    """
    checked = [span[0] < span[1] for span in spans]
    most, found = _n_whole(text, compress(spans, checked)), [False] * len(spans)
    if text.isascii() or most == sum(checked):
        return found
    for encoding, width in (("utf-16-le", 2), ("utf-8", 1)):
        ends = accumulate((len(char.encode(encoding, "replace")) // width for char in text), initial=0)
        places = {place: i for i, place in enumerate(ends)}
        read = [(places.get(start, -1), places.get(end, -1)) for start, end in spans]
        n = _n_whole(text, compress(read, checked))
        if n > most:
            most, found = n, [own and place != span for own, place, span in zip(checked, read, spans, strict=True)]
    return found


def _n_whole(text: str, spans: Iterable[Span]) -> int:
    return sum(0 <= start < end <= len(text) and is_whole(text, start, end) for start, end in spans)


def clean_caption(original: str, config: CaptionsConfig) -> dict[str, Any]:
    """Return the cleaned `text` of a caption, None if it is too long to be cleaned, and the reason to `drop` it or None."""
    if len(original) > MAX_SHORTENING * config.max_characters:
        return {"text": None, "drop": Drop("caption_too_long", f"{len(original)} characters")}
    caption = redacted(clean(original), config.redact)
    if config.redcaps:
        caption = clean_as_redcaps(caption)
    return {"text": caption, "drop": why_dropped(caption, config)}


def distinct(captions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the captions of a row (schemas.rows.CAPTION), each text once; None if fewer than two are left."""
    first: dict[str, dict[str, Any]] = {}
    for caption in captions:
        first.setdefault(caption["text"], {"kind": caption["kind"], "text": caption["text"]})
    return list(first.values()) if len(first) > 1 else None


def why_dropped(caption: str, config: CaptionsConfig) -> Drop | None:
    """Return the reason to drop a row with this cleaned caption."""
    if not caption:
        return Drop("empty_caption")
    if len(caption) > config.max_characters:
        return Drop("caption_too_long", f"{len(caption)} characters")
    if config.max_tokens is not None and (n := sum(1 for _ in TOKEN.finditer(caption))) > config.max_tokens:
        return Drop("caption_too_long", f"{n} tokens")
    return None


class Captions(Stage):
    """`clean_captions` as a stage."""

    name, schema, reasons = "captions", CAPTIONED, REASONS["captions"]
    Config = CaptionsConfig

    def __call__(self, table: pa.Table) -> pa.Table:
        return clean_captions(table, self.config)
