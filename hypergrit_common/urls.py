"""Secrets in URLs: user names, passwords and signed queries never reach an output."""

import json
import re
from functools import partial
from itertools import pairwise
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.text import AT, message, message_lines, redact

SCHEME_AND_USER: Final = re.compile(r"^(?!(?:abfss?|wasbs?):/+[^/?#:]*@)([^/?#]*/[\x00-\x20]*/)[^/?#]*@")
"""Scheme and user info at the start of a URL. URL parsers ignore control characters, also between the slashes."""
ODD_USER: Final = re.compile(
    r"^(?!(?:abfss?|wasbs?):/+[^/?#:]*@)((?:[A-Za-z][\w+.-]*:(?=[\x00-\x20]*[/\\]))?[/\\\x00-\x20]*+)"
    r"(?:[^/\\?#]*@|[^/\\?#@\[\]]*:(?!\d{0,5}(?:[/\\?#]|$)).*@)",
    re.DOTALL,
)
"""The same for malformed URLs: other slashes, no scheme, or a password with characters that end a host name."""
USER_OF_ID: Final = re.compile(r"^(?!mailto:)[^/\\?#\s:@]*:[^/\\?#\s]*@(?=[^/\\?#\s@])", re.IGNORECASE)
WORD: Final = re.compile(r"\S+(?:[^\S\n]+&[\w.~%\[\]-]{1,100}=\S*)*")
"""A word of a text, which may be a URL; a space may stand before the & of a query."""
URL_START: Final = re.compile(r"(?<![\w+.-])(?:https?|ftps?|s3):|:[/\\]|[/\\]{2}", re.IGNORECASE)
COMMAND: Final = re.compile(r"(?:^|(?<=::))\s*pipe:.*", re.DOTALL)
"""A location that is a command (hypergrit_common.locations)."""
QUERY_KEY: Final = re.compile(r"[\w.~%\[\]-]{1,100}=")


def with_query_spaces(url: str) -> str:
    """Write the spaces of a query as %20, as browsers do; yarl writes them as +."""
    path, mark, query = url.partition("?")
    return f"{path}{mark}{query.replace(' ', '%20')}"


def without_user(url: str) -> str:
    """Remove the user name and the password from a URL or a path; other values are returned unchanged.

    >>> without_user("s3://KEY:SECRET@bucket/pairs.parquet")
    's3://bucket/pairs.parquet'
    """
    return ODD_USER.sub(r"\1", SCHEME_AND_USER.sub(r"\1", url)) if "@" in url else url


def check_no_user(key: str, url: str) -> None:
    """Raise UserError, naming the configuration key, if a URL has a user name or a password."""
    if without_user(url) != url:
        raise UserError(
            f"the URL of {key}= contains a user name or a password; remove them, and give the credentials in the "
            "environment or in the configuration of fsspec (docs/cluster.md)"
        )


def without_secrets(url: str, *, strip_query: bool) -> str:
    """Remove the user info of a URL and of those within it; if `strip_query`, also its query and that of the fragment.

    >>> without_secrets("https://ann:pw@example.org/dog.jpg?X-Amz-Signature=1f", strip_query=True)
    'https://example.org/dog.jpg'
    """
    url = text_without_user(without_user(url))
    if not strip_query or "?" not in url:
        return url
    start, mark, fragment = url.partition("#")
    return start.partition("?")[0] + mark + fragment.partition("?")[0]


def id_without_secrets(text: str, *, strip_query: bool) -> str:
    """Remove the same parts from an identifier, which may be a URL without a scheme.

    >>> id_without_secrets("ann:pw@example.org/1.jpg?sig=1f", strip_query=True)
    'example.org/1.jpg'
    """
    text = text_without_secrets(USER_OF_ID.sub("", text), strip_query=strip_query)
    before = text.rpartition("?")[0] if strip_query else ""
    is_url = ("." in before or "/" in before) and not re.search(r"\s", text)
    return without_secrets(text, strip_query=True) if is_url else text


def text_without_user(text: str) -> str:
    """Remove user names and passwords from each URL within a text.

    >>> text_without_user("a dog (http://ann:pw@example.org), write to ann@example.org")
    'a dog (http://example.org), write to ann@example.org'
    """
    return redact(text, "") if AT.search(text) else text


def text_without_secrets(text: str, *, strip_query: bool) -> str:
    """Remove the same parts from each URL within a text."""
    text = text_without_user(text)
    return text_without_queries(text) if strip_query else text


def text_without_queries(text: str) -> str:
    """Remove the query from each URL within a text."""
    return WORD.sub(lambda word: _without_query(word[0]), text) if "?" in text else text


def safe_message(text: str) -> str:
    """Return a text of any source as one line that may leave the process: as in `message`, URLs without queries."""
    return message(text_without_queries(text))


def safe_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with each line as in `safe_message`."""
    return message_lines(text_without_queries(text))


def _without_query(word: str) -> str:
    """Remove the query from a word: all after the ? of a URL, and `?key=value` wherever it stands."""
    parts = word.split("?")
    for i, (before, after) in enumerate(pairwise(parts), start=1):
        if URL_START.search(before) or QUERY_KEY.match(after):
            _, mark, fragment = "?".join(parts[i:]).partition("#")
            return "?".join(parts[:i]) + mark + fragment.partition("?")[0]
    return word


def json_without_secrets(text: str, *, strip_query: bool) -> str:
    """Remove the same parts from each URL in the texts of a JSON document; unchanged without such URLs."""
    if "@" not in text and "%40" not in text and not (strip_query and "?" in text):
        return text
    value = json.loads(text)
    cleaned = clean(value, strip_query=strip_query)
    return text if cleaned == value else json.dumps(cleaned, sort_keys=True)


LOCAL_FOLDERS: Final = re.compile(r"(?:(?:file|local)://|(?<![\w/.~-])(?<![^:]:))/(?:[^/\s'\",:]+/)+(?=[^/\s])")
"""The folders of an absolute path within a text."""


def clean(value: Any, *, strip_query: bool, strip_folders: bool = False, strip_commands: bool = False) -> Any:
    """Remove the same parts from each URL in the texts and keys of nested dictionaries, lists and tuples.

    Tuples become lists, as in JSON. With `strip_folders`, absolute paths lose their folders, which tell of the machine;
    with `strip_commands`, `pipe:` loses its command, which may hold tokens.

    >>> clean({"shards": ["/home/ann/web/{00..09}.tar", "http://h/a/b.tar"]}, strip_query=True, strip_folders=True)
    {'shards': ['{00..09}.tar', 'http://h/a/b.tar']}
    >>> clean(["pipe:curl -H token h/a.tar"], strip_query=True, strip_commands=True)
    ['pipe:(not saved)']
    """
    inner = partial(clean, strip_query=strip_query, strip_folders=strip_folders, strip_commands=strip_commands)
    match value:
        case str():
            text = text_without_secrets(value, strip_query=strip_query)
            text = COMMAND.sub("pipe:(not saved)", text) if strip_commands else text
            return LOCAL_FOLDERS.sub("", text) if strip_folders else text
        case dict():
            return {inner(key): inner(item) for key, item in value.items()}
        case list() | tuple():
            return [inner(item) for item in value]
        case _:
            return value
