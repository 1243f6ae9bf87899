"""Settings of the download stage."""

from dataclasses import dataclass, field

from common.errors import UserError
from common.images import ImageLimits
from common.load import check_positive, check_range
from pipeline.images import ResizeConfig


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """How images are fetched, and which are not."""

    concurrency: int = 64  # most requests that one worker has in flight
    concurrency_per_host: int = 16  # most requests that one worker has in flight to the same host
    connect_timeout_s: float = 5.0  # longest time to connect, in seconds
    timeout_s: float = 15.0  # longest time for one attempt at one server, in seconds, from the request to the last byte
    deadline_s: float = 40.0  # longest time for one row, in seconds, with all its attempts and the pauses between them
    retries: int = 2  # further attempts after a time-out, a broken connection, HTTP 429 or 5xx
    backoff_s: float = 0.5  # pause before the first retry, in seconds; doubles each time; Retry-After counts if longer
    max_redirects: int = 5  # redirects followed for one row; the address behind each is checked as the first one's
    max_bytes: int = 32_000_000  # largest body; reading stops there
    user_agent_token: str = "hypergrit"  # our name in the User-Agent header, and in X-Robots-Tag lines meant for us
    contact: str = ""  # mail address or web page for complaints, sent in the User-Agent header
    # X-Robots-Tag directives by which a server opts out; such an image is not kept
    disallowed_header_directives: tuple[str, ...] = ("noai", "noimageai", "noindex", "noimageindex")
    # host names or addresses, as URLs spell them, that may be fetched from although they are private
    allowed_private_hosts: tuple[str, ...] = ()
    decode_threads: int = 1  # threads in one worker that decode; with 1, small images are decoded on the event loop
    limits: ImageLimits = field(default_factory=ImageLimits)
    resize: ResizeConfig = field(default_factory=ResizeConfig)

    def __post_init__(self) -> None:
        # With nobody allowed through, the stage would wait for ever.
        check_range(self, "concurrency", "concurrency_per_host", "decode_threads", "max_bytes", least=1)
        check_range(self, "retries", "backoff_s", "max_redirects", least=0)
        check_positive(self, "connect_timeout_s", "timeout_s", "deadline_s")
        if not f"{self.user_agent_token}{self.contact}".isprintable() or not self.user_agent_token:
            raise UserError("user_agent_token and contact go into a header; give printable characters in one line")
