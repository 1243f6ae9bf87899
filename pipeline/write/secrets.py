"""URLs of the rows without secrets: user names, passwords and, on request, queries are not written."""

from typing import Any

from common.urls import json_without_secrets, text_without_secrets, without_secrets
from pipeline.write.samples import Row


def remove_url_secrets(row: Row, *, strip_query: bool) -> dict[str, Any]:
    """Return a row whose URLs have no user info and, if `strip_query`, no query. Captions are not changed.

    >>> remove_url_secrets({"url": "http://ann:pw@example.org/1.jpg?key=7"}, strip_query=False)
    {'url': 'http://example.org/1.jpg?key=7'}
    """
    cleaned = dict(row)
    for name, clean in (
        ("id", text_without_secrets),
        ("url", without_secrets),
        ("source", text_without_secrets),
        ("detail", text_without_secrets),
        ("extra", json_without_secrets),
    ):
        if value := row.get(name):
            cleaned[name] = clean(value, strip_query=strip_query)
    return cleaned
