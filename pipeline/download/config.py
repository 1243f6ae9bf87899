"""Settings of the download stage."""

from dataclasses import dataclass, field
from functools import cached_property

from yarl import URL

from common.config import added, check_positive, check_range, runtime, secret
from common.errors import UserError
from common.images import ImageLimits
from pipeline.download.addresses import canonical_hosts
from pipeline.download.extra import check_headers, check_proxy, headers_by_origin
from pipeline.images import ResizeConfig


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """Settings of HTTP requests, limits on images, and the stored size."""

    # maximum number of requests that one worker has in flight
    concurrency: int = runtime(64)
    # maximum number of requests that the whole job has in flight to the same host
    concurrency_per_host: int = runtime(16)
    # maximum number of bytes of bodies that one worker holds, from their arrival until they are decoded; at least twice
    # max_bytes are used
    max_bytes_in_flight: int = runtime(256_000_000)
    # maximum number of host names that one worker looks up; a look-up of more than a second gives its place to another
    dns_concurrency: int = runtime(128)
    # time limit for the look-up of a host name, in seconds; not part of the limits below
    dns_timeout_s: float = runtime(30.0)
    # time limit for connecting, in seconds
    connect_timeout_s: float = runtime(5.0)
    # time limit for one attempt, from the request to the last byte, in seconds
    timeout_s: float = runtime(15.0)
    # time limit for one row, with all attempts and the pauses between them, in seconds; waiting for a turn is free
    deadline_s: float = runtime(40.0)
    # further attempts after a broken connection, HTTP 429 or 5xx, or a time-out of a host that has answered before
    retries: int = runtime(2)
    # attempts in a row without a complete response after which the other rows of a host are dropped without a request;
    # each minute, one row tries it again
    host_failures: int = runtime(4)
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
    # private host names or addresses from which images may be fetched, without port
    allowed_private_hosts: tuple[str, ...] = ()
    # headers to send, by the origin of the URL: {"https://images.example.org": {Authorization: "Bearer ..."}}; "*" is every
    # origin. Never saved, recorded or printed
    headers: dict[str, dict[str, str]] = secret(factory=dict)
    # proxy of all requests, such as http://proxy.example.org:3128, with a user name and password if it needs them. Never
    # saved, recorded or printed
    proxy: str | None = secret(factory=lambda: None)
    # leave the look-up of host names to the proxy, which must then refuse those of its own network
    proxy_resolves: bool = added(False, is_runtime=True)
    # decoding threads of one worker
    decode_threads: int = runtime(1)
    limits: ImageLimits = field(default_factory=ImageLimits)
    resize: ResizeConfig = field(default_factory=ResizeConfig)

    def __post_init__(self) -> None:
        # With a limit of 0 requests, the stage would wait indefinitely.
        check_range(self, "concurrency", "concurrency_per_host", "dns_concurrency", "decode_threads", least=1)
        check_range(self, "max_bytes", "max_bytes_in_flight", "host_failures", least=1)
        check_range(self, "retries", "backoff_s", "max_redirects", least=0)
        check_positive(self, "dns_timeout_s", "connect_timeout_s", "timeout_s", "deadline_s")
        if not f"{self.user_agent_token}{self.contact}".isprintable() or not self.user_agent_token:
            raise UserError("user_agent_token and contact are sent in a header; give one line of printable characters")

        check_headers(self.headers)
        check_proxy(self.proxy)
        if self.proxy_resolves and not self.proxy:
            raise UserError("proxy_resolves is true, but there is no proxy; set proxy too")

    def headers_for(self, url: URL) -> dict[str, str]:
        """Return the extra headers of a request."""
        found = self._headers_by_origin
        return found.get(url.origin(), found[None])

    @cached_property
    def _headers_by_origin(self) -> dict[URL | None, dict[str, str]]:
        return headers_by_origin(self.headers)

    @cached_property
    def private_hosts(self) -> frozenset[str]:
        """The canonical forms of `allowed_private_hosts`."""
        return canonical_hosts(self.allowed_private_hosts)
