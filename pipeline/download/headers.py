"""Response headers with a meaning for the downloader: Retry-After and X-Robots-Tag."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_after_s(value: str, now: datetime) -> float:
    """The wait in seconds of a Retry-After header: a number, or a date (RFC 9110, section 10.2.3); else 0."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - now).total_seconds())
    except Exception:  # ValueError, but also OverflowError and others, by the version of Python
        return 0.0


def opt_out(values: Iterable[str], token: str, directives: Collection[str]) -> str | None:
    """The first of `directives` in the X-Robots-Tag lines that apply to the client `token`, parsed as in img2dataset.

    A line `bot: noai` applies to that bot only, a line without a name to everyone.
    """
    for value in values:
        agent, colon, rest = value.partition(":")
        if colon and agent.strip().lower() != token.lower():
            continue
        for directive in (rest if colon else value).split(","):
            if directive.strip().lower() in directives:
                return directive.strip().lower()
    return None
