"""Reading of the headers of a remote file: contents that are large are skipped, small ones are read with the headers."""

from collections.abc import Callable
from typing import Final

from fsspec.caching import BaseCache, register_cache

LEAST: Final = 1 << 16
"""Bytes of a request after large contents: they hold a header and the small members that often follow it."""
MOST: Final = 1 << 24
"""Bytes of a request in a file of small contents."""
SKIPPED: Final = 1 << 20
"""Contents beyond a request up to which reading on is faster than another request: 10 ms at 100 MB/s."""


class HeaderCache(BaseCache):
    """The last bytes that were read of a remote file, with a read-ahead that depends on how far its reader jumps.

    A request that begins at most SKIPPED bytes, or the length of the last one, after its end is twice as long as that, up
    to MOST; any other one has LEAST bytes, or as many as are asked for. Of a tar of images of 30 kB everything is read, in
    few requests; of one of videos little more than the headers.
    """

    name = "headers"

    def __init__(self, blocksize: int, fetcher: Callable[[int, int], bytes], size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self.cache, self.start, self.end, self.ahead = b"", 0, 0, LEAST // 2

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        """Return bytes [start, stop) of the file, or fewer at its end."""
        first, end = start or 0, self.size if stop is None else min(stop, self.size)
        if first >= end:
            return b""
        if not self.start <= first <= end <= self.end:
            is_near = 0 <= first - self.end <= max(self.ahead, SKIPPED) or self.start <= first < self.end
            self.ahead = min(2 * self.ahead, MOST) if is_near else LEAST
            self.start, self.end = first, min(max(end, first + self.ahead), self.size)
            self.cache = self.fetcher(self.start, self.end)
        return bytes(self.cache[first - self.start : end - self.start])


register_cache(HeaderCache, clobber=True)
