"""Secrets in URLs: user names, passwords and signed queries never reach an output."""

import json
import re
from typing import Any, Final

from common.errors import UserError
from common.text import USER_INFO

SCHEME_AND_USER: Final = re.compile(r"^(?!abfss?:|wasbs?:)([^/?#]*/[\x00-\x20]*/)[^/?#]*@")
"""Scheme and user info at the start of a URL. URL parsers ignore control characters, also between the slashes."""
ODD_USER: Final = re.compile(
    r"^(?!abfss?:|wasbs?:)((?:[A-Za-z][\w+.-]*:(?=[\x00-\x20]*[/\\]))?[/\\\x00-\x20]*)"
    r"(?:[^/\\?#]*@|[^/\\?#@\[\]]*:(?!\d{0,5}(?:[/\\?#]|$)).*@)",
    re.DOTALL,
)
"""The same for malformed URLs: other slashes, no scheme, or a password with characters that end a host name."""
QUERY: Final = re.compile(r"(?<=//)([^\s?#]*)\?[^\s#]*")


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
    """Remove the user info of a URL and, if `strip_query`, also its query; the fragment is kept.

    >>> without_secrets("https://ann:pw@example.org/dog.jpg?X-Amz-Signature=1f", strip_query=True)
    'https://example.org/dog.jpg'
    """
    url = without_user(url)
    if not strip_query or "?" not in url:
        return url
    start, mark, fragment = url.partition("#")
    return start.partition("?")[0] + mark + fragment


def text_without_secrets(text: str, *, strip_query: bool) -> str:
    """Remove the same parts from each URL within a text."""
    text = USER_INFO.sub(r"\g<start>", text) if "@" in text else text
    return QUERY.sub(r"\1", text) if strip_query else text


def json_without_secrets(text: str, *, strip_query: bool) -> str:
    """Remove the same parts from each URL in the texts of a JSON document; unchanged without such URLs."""
    if "//" not in text and "@" not in text:
        return text
    value = json.loads(text)
    cleaned = clean(value, strip_query=strip_query)
    return text if cleaned == value else json.dumps(cleaned, sort_keys=True)


def clean(value: Any, *, strip_query: bool) -> Any:
    """Remove the same parts from each URL in the texts and keys of nested dictionaries, lists and tuples.

    Tuples become lists, as in JSON.
    """
    match value:
        case str():
            return text_without_secrets(value, strip_query=strip_query)
        case dict():
            items = value.items()
            return {clean(key, strip_query=strip_query): clean(item, strip_query=strip_query) for key, item in items}
        case list() | tuple():
            return [clean(item, strip_query=strip_query) for item in value]
        case _:
            return value
