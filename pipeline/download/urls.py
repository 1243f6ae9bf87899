"""Parsing and checking of URLs from the input and from redirects, which are untrusted."""

from typing import Final

from yarl import URL

from pipeline.download.addresses import check_host
from pipeline.download.failures import FetchError

MAX_CHARACTERS: Final = 16_000
"""Longest URL; servers and proxies accept 8,000 to 16,000 characters."""


def parse_url(text: str, base: URL | None = None) -> URL:
    """Parse an http(s) URL, which may be relative to `base`. Raises FetchError for anything else.

    URLs with a user name or a password are refused, so that neither is ever sent or written.
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise FetchError("invalid_url", f"{len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        url = URL(text)
        url = base.join(url) if base is not None else url
        if "@" in url.raw_authority:
            raise FetchError("invalid_url", "user name or password in the URL")
        if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
            raise ValueError(f"{url.scheme or 'no scheme'}: only http and https are fetched")
        return url.with_fragment(None)
    except FetchError:
        raise
    except Exception as error:  # ValueError, but the parsers raise IndexError and others too
        # A message with an @ may quote a password.
        detail = str(error) if "@" not in str(error) else f"{type(error).__name__} in the URL's host"
        raise FetchError("invalid_url", detail.encode(errors="replace").decode()) from None


def check_url(url: URL, allowed: frozenset[str]) -> None:
    """Check a host that is an address: only public ones and `allowed` hosts pass.

    Raises PrivateAddressError for a private address, FetchError for a public one in a numeric spelling.
    """
    try:
        check_host(url.raw_host or "", allowed)
    except ValueError as error:
        raise FetchError("invalid_url", str(error)) from error
