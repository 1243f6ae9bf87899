"""Text from outside, made safe for a terminal, a log or an error message."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

UNPRINTABLE: Final = re.compile(
    "["
    r"\x00-\x1f\x7f-\x9f"  # control characters: escape sequences begin with one, and line breaks forge log lines
    r"\u2028\u2029"  # line and paragraph separator
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the writing direction
    r"\ufeff\U000e0000-\U000e007f"  # invisible: byte order mark, tags
    r"\ud800-\udfff"  # lone surrogates, which UTF-8 cannot encode
    "]"
)
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tab and newline."""
PERCENT: Final = "%(?:25){0,3}"
"""A percent sign in a URL that was encoded up to four times."""
ENCODED_AT: Final = f"(?:{PERCENT}40|&#0{{0,5}}64;|&#x0{{0,5}}40;|&commat;|\uff20)"
ENCODED_USER: Final = rf"(?:(?!{PERCENT}(?:2f|3f|23))[^/\\?#\s&]){{0,500}}"
AT: Final = re.compile(f"@|{ENCODED_AT}", re.IGNORECASE)
"""An @, which each user info has: texts without one need no search."""
USER_INFO_PATTERN: Final = (
    r"(?P<start>(?<![\w+.-])(?:https?|ftps?)[/\\]{2}(?=[^/\\?#\s:@]{0,200}:)"  # http//ann:pw@h
    r"|(?<![\w+.-])(?:https?|ftps?|s3):(?:[/\\]+[\x00-\x20]+[/\\]*)?(?=[^/\\?#\s:@]{0,200}:[^/\\?#\s@]{0,300}@)"  # http:ann:pw@h
    r"|(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs):[/\\]+|(?<![:/\\\w])//"
    r"|(?:abfss?|wasbs?):[/\\]+(?=[^/\\?#\s:@]{0,200}:))"
    r"(?:[^/\\?#\s]*@|[^/\\?#\s:@\[]{0,200}:(?!\d)[^PASSWORD@\"<>]{0,300}@)"
    rf"|(?P<escaped>{PERCENT}3a(?:/|{PERCENT}2f){{2}}|:(?:{PERCENT}2f){{2}}|:[/\\]{{2}}(?={ENCODED_USER}{ENCODED_AT}))"
    rf"{ENCODED_USER}(?:@|{ENCODED_AT})"
)
USER_INFO: Final = re.compile(USER_INFO_PATTERN.replace("PASSWORD", r"\n"), re.IGNORECASE)
"""User name and password of a URL within a text, after a scheme or two slashes; a password may contain an @, and in a
malformed URL any character. In Azure's URLs a name without a password is a container. `http%3A%2F%2Fann%3Apw%40h` is
a URL in the query of another, of which any part may be encoded. Without slashes, only the usual schemes make a URL."""
USER_INFO_IN_PROSE: Final = re.compile(USER_INFO_PATTERN.replace("PASSWORD", r"\s"), re.IGNORECASE)
"""The same in sentences, in which a space ends a URL: `http://example.org: write to ann@example.org`."""
MAX_CHARS: Final = 4000
"""Maximum length of a message: a hostile name must not fill a terminal or a log."""


def printable(text: str) -> str:
    r"""Escape the characters that could control a terminal, forge a log line or hide other characters.

    >>> print(printable("a dog\x1b[2J\n00:00:00 INFO done \u202etxt.exe"))
    a dog\x1b[2J\n00:00:00 INFO done \u202etxt.exe
    """
    return UNPRINTABLE.sub(_escape, text)


def without_controls(text: str) -> str:
    r"""Escape the control characters of a document, such as an HTML page, except tabs and newlines.

    >>> print(without_controls("<p>a dog\x1b[2J</p>"))
    <p>a dog\x1b[2J</p>
    """
    return CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def redact(text: str, mark: str = "***@") -> str:
    """Replace user names and passwords of the URLs in a text.

    >>> redact("cannot read https://ann:secret@example.org/a.csv")
    'cannot read https://***@example.org/a.csv'
    """
    return USER_INFO.sub(lambda found: (found["start"] or found["escaped"]) + mark, text)


def message(text: str) -> str:
    """Return a text as one line for a terminal or a log: redacted, printable, and at most `MAX_CHARS` long."""
    text = redact(text)
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]} [{len(text) - 2 * half} characters omitted] {text[-half:]}"
    return printable(text)


def message_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with each line as in `message`."""
    return "\n".join(map(message, text.split("\n")))


def counted(n: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, in the singular or the plural.

    >>> counted(1, "shard"), counted(1200, "shard"), counted(2, "box", "boxes")
    ('1 shard', '1,200 shards', '2 boxes')
    """
    return f"{n:,} {singular if n == 1 else plural or f'{singular}s'}"


def shortened(items: Sequence[str], most: int, between: str = "; ") -> str:
    """Join the first `most` items, and count the others.

    >>> shortened(["a", "b", "c", "d"], most=2)
    'a; b; and 2 more'
    """
    more = [f"and {len(items) - most:,} more"] if len(items) > most else []
    return between.join([*items[:most], *more])


def quoted(names: Iterable[str]) -> str:
    """Join names, each in quotes, since they may have spaces and commas; "none" if there are none."""
    return ", ".join(map(repr, names)) or "none"


UNSPACED: Final = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
"""Letters of scripts without spaces between words."""


def is_whole(text: str, start: int, end: int) -> bool:
    """Return False for a span that begins or ends inside a word, inside a grapheme cluster, or at a space.

    Digits, and letters of a script with spaces between words, are inside a word.
    """
    places = [i for i in (start, end) if 0 < i < len(text)]
    pairs = [text[i - 1 : i + 1] for i in places]
    found = not (text[start].isspace() or text[end - 1].isspace() or any(pair.isdigit() for pair in pairs))
    if not found or text.isascii():
        return found and not any(pair.isalpha() for pair in pairs)
    import regex

    if any(pair.isalpha() and not regex.search(UNSPACED, pair) for pair in pairs):
        return False
    return {*places} <= {cluster.end() for cluster in regex.finditer(r"\X", text)}


def one_line(error: BaseException) -> str:
    """Return the message of an exception as part of a sentence: without line breaks and full stop at the end.

    An empty message is replaced by the name of the type.
    """
    text = " ".join(str(error).split())
    return (text if text.endswith("..") else text.removesuffix(".")) or type(error).__name__


def first_line(error: BaseException, most: int = 300) -> str:
    """Return the beginning of a message that may have many lines, such as that of a library: redacted, then cut."""
    return redact(str(error).partition("\n")[0])[:most]


def duration_text(seconds: float) -> str:
    """Format a duration with its two largest units.

    >>> duration_text(12.34), duration_text(187), duration_text(90000)
    ('12.3 s', '3 min 7 s', '25 h 0 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
