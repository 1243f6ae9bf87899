"""Time limits of requests to stores, and a log line while one waits: a store that stops answering ends in an error."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fsspec.config import conf

from hypergrit_common.text import redact

logger = logging.getLogger(__name__)

CONNECT_S: Final = 5
READ_S: Final = 10
"""Longest time without a byte from S3: with its six tries, a request fails after a minute."""
S3_OPTIONS: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_S,
    "read_timeout": READ_S,
    "retries": {"mode": "standard", "total_max_attempts": 2},
}
S3_TRIES: Final = 3
"""Tries of s3fs, each of them twice by botocore. The defaults, 5 and 5, would wait for more than six minutes."""
HTTP_READ_S: Final = 30
REPORT_AFTER_S: Final = 15.0


def time_limits(url: str) -> dict[str, dict[str, Any]]:
    """Return the options, by protocol, that limit the requests to the stores of a URL, which may be chained (`::`).

    Options of the user in fsspec's configuration take precedence. Stores other than S3 and HTTP have their own limits.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in url.split("::"):
        protocol = part.partition("://")[0]
        configured = conf.get(protocol, {})
        if protocol in ("s3", "s3a"):
            from s3fs.core import set_custom_error_handler

            set_custom_error_handler(is_server_error)
            found[protocol] = {"config_kwargs": {**S3_OPTIONS, **configured.get("config_kwargs", {})}}
        elif protocol in ("http", "https") and "client_kwargs" not in configured:
            from aiohttp import ClientTimeout  # takes half a second

            limits = ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=HTTP_READ_S)
            # Parts of files, and their sizes, are those of the bytes as they are stored.
            found[protocol] = {"client_kwargs": {"timeout": limits, "headers": {"Accept-Encoding": "identity"}}}
    return found


def is_server_error(error: Exception) -> bool:
    """True for an answer of S3 with a status of 500 or more, which is tried again; s3fs itself gives up."""
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return isinstance(status, int) and status >= 500


@contextmanager
def reported(action: str) -> Iterator[None]:
    """Log a warning if the context, a request such as "waiting for s3://bucket/file", takes longer than REPORT_AFTER_S."""
    text = "still %s after %.0f s; the store does not answer, check its address and the network"
    timer = threading.Timer(REPORT_AFTER_S, lambda: logger.warning(text, redact(action), REPORT_AFTER_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
