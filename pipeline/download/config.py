"""Settings of the download stage."""

from dataclasses import dataclass, field

from common.config import check_positive, check_range, runtime
from common.errors import UserError
from common.images import ImageLimits
from pipeline.images import ResizeConfig


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """Settings of HTTP requests, limits on images, and the stored size."""

    # maximum number of requests that one worker has in flight
    concurrency: int = runtime(64)
    # maximum number of requests that one worker has in flight to the same host
    concurrency_per_host: int = runtime(16)
    # time limit for connecting, in seconds
    connect_timeout_s: float = runtime(5.0)
    # time limit for one attempt, from the request to the last byte, in seconds
    timeout_s: float = runtime(15.0)
    # time limit for one row, with all attempts and the pauses between them, in seconds
    deadline_s: float = runtime(40.0)
    # further attempts after a time-out, a broken connection, HTTP 429 or 5xx
    retries: int = runtime(2)
    # pause before the first retry, in seconds; doubles with each retry; a longer Retry-After wins
    backoff_s: float = runtime(0.5)
    # maximum number of redirects followed for one row; each address is checked like the first
    max_redirects: int = 5
    # largest response body, in bytes; larger ones are dropped
    max_bytes: int = 32_000_000
    # name of this client in the User-Agent header and in X-Robots-Tag lines that address it
    user_agent_token: str = "hypergrit"
    # mail address or web page for complaints, sent in the User-Agent header
    contact: str = runtime("")
    # X-Robots-Tag directives by which a server opts out; such images are dropped
    disallowed_header_directives: tuple[str, ...] = ("noai", "noimageai", "noindex", "noimageindex")
    # private host names or addresses, as written in URLs, from which images may be fetched
    allowed_private_hosts: tuple[str, ...] = ()
    # decoding threads of one worker; with 1, images that take less than 10 ms are decoded on the event loop
    decode_threads: int = runtime(1)
    limits: ImageLimits = field(default_factory=ImageLimits)
    resize: ResizeConfig = field(default_factory=ResizeConfig)

    def __post_init__(self) -> None:
        # With a limit of 0 requests, the stage would wait indefinitely.
        check_range(self, "concurrency", "concurrency_per_host", "decode_threads", "max_bytes", least=1)
        check_range(self, "retries", "backoff_s", "max_redirects", least=0)
        check_positive(self, "connect_timeout_s", "timeout_s", "deadline_s")
        if not f"{self.user_agent_token}{self.contact}".isprintable() or not self.user_agent_token:
            raise UserError("user_agent_token and contact are sent in a header; give one line of printable characters")
