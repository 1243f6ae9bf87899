"""Settings of the download stage."""

from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import ClassVar, Literal

from yarl import URL

from hypergrit_common.config import check_positive, check_range, reaches, runtime, secret
from hypergrit_common.errors import UserError
from hypergrit_common.images import ImageLimits
from hypergrit_common.urls import check_no_user
from pipeline.images import ResizeConfig
from pipeline.stages.download.addresses import canonical_hosts, check_headers, check_proxy, headers_by_origin


@dataclass(frozen=True, kw_only=True)
class DownloadConfig:
    """Settings of HTTP requests, limits on images, and the stored size (`download`).

    Where no source is named, a default is a choice of this project.

    Raises:
        UserError: a value is out of its range, `contact` is not one line, or `headers` or `proxy` cannot be used.
    """

    # aiohttp: the client of this project. img2dataset: the downloader and the resizer of that package (the extra of its name)
    # with an opener of ours, which keeps the same limits and rules; it takes more CPU time
    client: Literal["aiohttp", "img2dataset"] = "aiohttp"
    """Name of the client."""
    # maximum number of requests that one worker has in flight
    concurrency: int = runtime(64)
    """Requests, at least 1."""
    # maximum number of requests that the whole job has in flight to the same host
    concurrency_per_host: int = runtime(16)
    """Requests, at least 1; a host is a name or an address, with all its ports."""
    # time limit for one attempt, from the request to the last byte, in seconds
    timeout_s: float = runtime(15.0)
    """Seconds, more than 0. 10 in img2dataset."""
    # time limit for one row, with all attempts and the pauses between them, in seconds; waiting for a turn is free
    deadline_s: float = runtime(40.0)
    """Seconds, more than 0."""
    # further attempts after a broken connection, HTTP 429 or 5xx, or a time-out of a host that has answered before
    retries: int = runtime(2)
    """Attempts, at least 0. 0 in img2dataset."""
    # largest response body, in bytes; larger ones are dropped
    max_bytes: int = 32_000_000
    """Bytes, at least 1; larger ones are `too_many_bytes`."""
    # smallest shorter side of a downloaded image, in pixels
    min_side_px: int = 1
    """Pixels, at least 1; smaller images are `too_small`. By default all are kept, as in img2dataset."""
    # fetch the robots.txt of each host first, and drop what it does not allow this client as robots_txt: needs the package
    # protego. The headers X-Robots-Tag, tdm-reservation and Content-Usage are respected in any case
    robots_txt: bool = False
    """False, as in img2dataset. RFC 9309 says how to read the file."""
    # mail address or web page for complaints, sent in the User-Agent header
    contact: str = runtime("")
    """One line of printable characters."""
    # private host names or addresses from which images may be fetched, without port
    allowed_private_hosts: tuple[str, ...] = reaches(())
    """All others with a private address are `private_address`."""
    # headers to send, by the origin of the URL: {"https://images.example.org": {Authorization: "Bearer ..."}}; "*" is every
    # origin. Never saved, recorded or printed
    headers: dict[str, dict[str, str]] = secret(factory=dict)
    # proxy of all requests, such as http://proxy.example.org:3128, with a user name and password if it needs them; none:
    # no proxy, even if an earlier run had one. Never saved, recorded or printed
    proxy: str | None = secret(factory=lambda: None)
    # leave the look-up of host names to the proxy, which must then refuse those of its own network
    proxy_resolves: bool = runtime(False)
    resize: ResizeConfig = field(default_factory=ResizeConfig)
    """The stored size: a shorter side of 256 px by default."""

    # What no job has had a reason to change.

    connect_timeout_s: ClassVar[float] = 5.0
    """Time for connecting, which two lost packets leave enough of: TCP sends its first one again after 1 and 3 s."""
    max_bytes_in_flight: ClassVar[int] = 256_000_000
    """Bytes of bodies that a worker holds, from their arrival until they are decoded; at least twice max_bytes are used."""
    dns_concurrency: ClassVar[int] = 128
    """Host names that a worker looks up; a look-up of more than a second gives its place to another."""
    dns_timeout_s: ClassVar[float] = 30.0
    """Time for the look-up of a host name, longer than resolvers take by default; not part of the limits above."""
    host_failures: ClassVar[int] = 4
    """Attempts in a row without a complete response after which the other rows of a host are dropped without a request;
    each minute, one row tries it again."""
    backoff_s: ClassVar[float] = 0.5
    """Pause before the first retry, which doubles with each retry; a longer Retry-After wins."""
    max_redirects: ClassVar[int] = 5
    """Redirects that are followed for a row; each address is checked like the first. RFC 1945 names 5."""
    user_agent_token: ClassVar[str] = "hypergrit"
    """Name of this client in the User-Agent header, and in X-Robots-Tag lines that address it."""
    disallowed_header_directives: ClassVar[tuple[str, ...]] = ("noai", "noimageai", "noindex", "noimageindex")
    """X-Robots-Tag directives by which a server opts out, those of img2dataset; a job has to respect them."""
    disallowed_usage: ClassVar[tuple[str, ...]] = ("train-ai", "bots", "all")
    """Categories of use in Content-Usage by whose refusal a server opts out, the most specific one first: it decides.

    "bots" and "all" are the labels that versions of draft-ietf-aipref-vocab have for all automated processing.
    """
    decode_threads: ClassVar[int] = 1
    """Decoding threads of a worker; more workers use more cores."""

    def __post_init__(self) -> None:
        # With a limit of 0 requests, the stage would wait indefinitely.
        check_range(self, "concurrency", "concurrency_per_host", "max_bytes", "min_side_px", least=1)
        check_range(self, "retries", least=0)
        check_positive(self, "timeout_s", "deadline_s")
        if not self.contact.isprintable():
            raise UserError("contact is sent in a header; give one line of printable characters")
        if "://" in self.contact:  # servers get it, and manifests keep it
            check_no_user("download.contact", self.contact)
        check_headers(self.headers)
        if self.proxy == "none":
            object.__setattr__(self, "proxy", "")
        check_proxy(self.proxy)

    def check_use(self) -> None:
        """Check what requests need, before the first one.

        Raises:
            UserError: `proxy_resolves` is set without a proxy (a saved configuration has none), `robots_txt` without the
                package protego, or `client` without its package or with a setting that it cannot keep.
        """
        if self.client == "img2dataset":
            if find_spec("img2dataset") is None:
                raise UserError("download.client=img2dataset needs that package; pip install 'hypergrit[img2dataset]'")
            if self.resize.mode == "keep_ratio" and self.resize.kernel != "area":
                raise UserError(
                    f"download.client=img2dataset cannot keep download.resize.kernel={self.resize.kernel}, since its resizer "
                    "has OpenCV's kernels alone; set download.resize.kernel=area, or download.client=aiohttp"
                )
        if self.proxy_resolves and not self.proxy:
            raise UserError("download.proxy_resolves is true, but there is no proxy; set download.proxy too")
        if self.robots_txt and find_spec("protego") is None:
            raise UserError("download.robots_txt needs the package protego; pip install protego")

    @property
    def secrets(self) -> list[str]:
        """Names of the secrets that an output needs for downloads, without values: `proxy`, and the origins with headers."""
        return [*(["proxy"] if self.proxy else []), *(origin for origin, values in self.headers.items() if values)]

    def headers_for(self, url: URL) -> dict[str, str]:
        """Return the extra headers of a request, which may hold secrets.

        Args:
            url: URL of the request.

        Returns:
            The headers of its origin and those of "*"; the origin's win.
        """
        found = self._headers_by_origin
        return found.get(url.origin(), found[None])

    @cached_property
    def limits(self) -> ImageLimits:
        """The sizes of images that are decoded."""
        return ImageLimits(min_side_px=self.min_side_px)

    @cached_property
    def _headers_by_origin(self) -> dict[URL | None, dict[str, str]]:
        return headers_by_origin(self.headers)

    @cached_property
    def private_hosts(self) -> frozenset[str]:
        """The canonical forms of `allowed_private_hosts`."""
        return canonical_hosts(self.allowed_private_hosts)
