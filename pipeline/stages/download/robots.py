"""robots.txt of the hosts (RFC 9309), for jobs with `download.robots_txt`."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from yarl import URL

from pipeline.stages.download.addresses import FetchError

MAX_BYTES: Final = 512_000
"""What is read of a robots.txt; RFC 9309 asks for at least 500 KiB."""
KEEP_S: Final = 24 * 3600.0
"""Time for which a robots.txt is kept, the longest that RFC 9309 allows."""
MAX_HOSTS: Final = 10_000
"""Hosts whose robots.txt a worker keeps."""


@dataclass(frozen=True)
class Rules:
    """The robots.txt of a host; without a parsed one, everything is allowed."""

    parsed: Any  # protego.Protego or None
    token: str

    def allows(self, url: URL) -> bool:
        """Return True if the client `token` may fetch a URL."""
        return self.parsed is None or bool(self.parsed.can_fetch(str(url), self.token))


def parse_rules(body: bytes, token: str) -> Rules:
    """Parse a robots.txt, of any bytes."""
    from protego import Protego

    return Rules(Protego.parse(body[:MAX_BYTES].decode("utf-8-sig", errors="replace")), token)


class Robots:
    """The rules of the hosts: each robots.txt is fetched once by `fetch(url)`, for all rows that wait for it.

    A host without one (4xx) allows everything. If it cannot be reached, nothing of the host is fetched (RFC 9309, section
    2.3.1.4), and the next row tries it again.
    """

    def __init__(self, fetch: Callable[[URL], Awaitable[bytes]], token: str, clock: Callable[[], float]) -> None:
        self._fetch, self._token, self._clock = fetch, token, clock
        self._known = OrderedDict[URL, tuple[Rules, float]]()
        self._asked: dict[URL, asyncio.Task[Rules]] = {}

    async def of(self, url: URL) -> Rules:
        """Return the rules of the origin of a URL. Raises the FetchError of its robots.txt."""
        origin = url.origin()
        rules, end_s = self._known.get(origin, (None, 0.0))
        if rules is not None and self._clock() < end_s:
            return rules
        if origin not in self._asked:
            task = self._asked[origin] = asyncio.create_task(self._load(origin))
            task.add_done_callback(lambda _: self._asked.pop(origin))
        return await asyncio.shield(self._asked[origin])

    async def _load(self, origin: URL) -> Rules:
        try:
            rules = parse_rules(await self._fetch(origin / "robots.txt"), self._token)
        except FetchError as error:
            status = error.drop.detail if error.drop.reason == "http_error" else ""
            if not status.startswith("4") or status == "429":
                raise FetchError(error.drop.reason, status or f"{error.drop.detail} (robots.txt)") from error
            rules = Rules(None, self._token)
        self._known[origin] = rules, self._clock() + KEEP_S
        self._known.move_to_end(origin)
        if len(self._known) > MAX_HOSTS:
            self._known.popitem(last=False)
        return rules
