"""Settings of the download stage."""

from dataclasses import dataclass, field

from common.errors import UserError
from common.images import ImageLimits
from pipeline.images import ResizeConfig


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    concurrency: int = 64  # requests in flight in one worker
    concurrency_per_host: int = (
        16  # of these to one host, also as the target of redirects, so that no server is overrun
    )
    connect_timeout_s: float = 5.0  # until the connection stands
    timeout_s: float = 15.0  # one attempt, redirects included, until the last byte
    deadline_s: float = 40.0  # all attempts at one row together, waiting times included
    retries: int = 2  # further attempts after a time-out, a broken connection, 429 or 5xx
    backoff_s: float = 0.5  # before the first of them; doubles each time; Retry-After counts if it is longer
    max_redirects: int = 5  # each hop's address is checked
    max_bytes: int = 32_000_000  # of a body; reading stops there
    user_agent_token: str = "hypergrit"  # name sent to servers, and the one X-Robots-Tag lines may be addressed to
    contact: str = ""  # address or page sent along with it, for those who want to complain
    disallowed_header_directives: tuple[str, ...] = (
        "noai",
        "noimageai",
        "noindex",
        "noimageindex",
    )  # opt-outs honoured
    allowed_private_hosts: tuple[str, ...] = ()  # hosts exempt from the refusal of private addresses, as in URLs
    decode_threads: int = 1  # threads in one worker for decoding; with 1, small images are done between requests
    limits: ImageLimits = field(default_factory=ImageLimits)
    resize: ResizeConfig = field(default_factory=ResizeConfig)

    def __post_init__(self) -> None:
        # With nobody allowed through, the stage would wait for ever.
        for name in ("concurrency", "concurrency_per_host", "decode_threads", "max_bytes"):
            if getattr(self, name) < 1:
                raise UserError(f"download.{name} is {getattr(self, name)}; give 1 or more")
        for name in ("connect_timeout_s", "timeout_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"download.{name} is {getattr(self, name)}; give more than 0 seconds")
        for name in ("retries", "backoff_s", "max_redirects"):
            if not getattr(self, name) >= 0:
                raise UserError(f"download.{name} is {getattr(self, name)}; give 0 or more")
        if not f"{self.user_agent_token}{self.contact}".isprintable() or not self.user_agent_token:
            raise UserError(
                "download.user_agent_token and contact go into a header; give printable characters in one line"
            )
