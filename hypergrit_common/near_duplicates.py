"""Rules for the same image: spellings of its URL, and perceptual hashes that differ in few bits.

Takedown lists, dedupe, decontaminate and the evaluation's count of training images use these rules.
"""

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from math import comb, isqrt
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from yarl import URL

from hypergrit_common.images import Image
from hypergrit_common.urls import with_query_spaces, without_user

DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
HOST: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z0-9-]*[a-z][a-z0-9-]*")
HTTP_URL: Final = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
PORT: Final = re.compile(r":[^\]]*$")
SIDE_PX: Final = 32
"""Side of the square to which an image is shrunk."""
N_WAVES: Final = 8
"""Number of horizontal, and of vertical, frequencies whose coefficients give one bit each."""
N_BITS: Final = N_WAVES * N_WAVES
MAX_SPARE: Final = 5
JOIN_COST: Final = 1_000_000
"""Comparisons of which the time equals the fixed time of a join, roughly."""
MAX_PAIRS: Final = 2**22
"""Pairs of hashes that `find_near` compares at once."""


def normal_url(url: str) -> str | None:
    """Return the form in which URLs of the same resource are equal, None for a text that is no http(s) URL.

    Left out are scheme, user, default port and fragment; all else is as yarl writes it, with which the downloader
    parses URLs (pipeline.stages.download.addresses).

    >>> normal_url("HTTPS://Example.org:443/b/../a%7eb.jpg#top")
    '//example.org/a~b.jpg'
    """
    text = url.strip()
    try:
        parsed = URL(with_query_spaces(text))
        place = parsed.host_port_subcomponent
    except Exception:  # ValueError, but the parsers raise IndexError and others too
        return refused_url(without_user(text))
    if parsed.scheme not in DEFAULT_PORTS or not place:
        return None
    return f"//{place.lower()}{path_and_query(parsed)}"  # yarl keeps capitals beside labels that IDNA 2008 refuses


def refused_url(text: str) -> str | None:
    """Return the form of a URL that the downloader refuses, such as one with port 99999; the ledger has it too."""
    found = HTTP_URL.match(text)
    if found is None:
        return None
    scheme, authority, rest = found.groups()
    port = PORT.search(authority)
    host = ascii_host(PORT.sub("", authority)) or PORT.sub("", authority).lower().rstrip(".")
    shown = "" if port is None or port[0] in (":", DEFAULT_PORTS[scheme.lower()]) else port[0]
    return f"//{host}{shown}{path_and_query(URL(with_query_spaces(f'http://host{rest}')))}" if host else None


def path_and_query(url: URL) -> str:
    """Return the path of an absolute URL, with its query if it has one."""
    return f"{url.raw_path}?{query}" if (query := url.raw_query_string) else url.raw_path


def host_of(normal: str) -> str:
    """Return the host of a URL in its `normal_url`.

    >>> host_of("//[::1]:8080/a.jpg")
    '[::1]'
    """
    return PORT.sub("", normal[2:].partition("/")[0])


def normal_host(text: str) -> str | None:
    """Return an address, or a host name with a dot, as `normal_url` writes it; None for other text."""
    host = ascii_host(text)
    if host is None or HOST.fullmatch(host):
        return host
    with suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return host
    return None


def ascii_host(text: str) -> str | None:
    """Return a host in lower case and in ASCII, without its last dot; None for a text that cannot be one."""
    try:
        return (URL.build(scheme="http", host=text.strip("[]")).host_port_subcomponent or "").lower() or None
    except Exception:  # ValueError, but the parsers raise IndexError and others too
        return None


def cosines() -> np.ndarray:
    """Return the rows 1 to `N_WAVES` of the DCT-II of `SIDE_PX` values: float64 [N_WAVES, SIDE_PX]."""
    waves, places = np.arange(1, N_WAVES + 1)[:, None], np.arange(SIDE_PX)
    return np.cos(np.pi * waves * (2 * places + 1) / (2 * SIDE_PX))


COSINES: Final = cosines()


def perceptual_hash(image: Image) -> int:
    """Return the 64-bit pHash of an image, uint8 RGB [h, w, 3] (Zauner 2010, section 3.2.1).

    The grey image is shrunk to 32 x 32 pixels, and each of its 8 x 8 lowest frequencies other than the constant ones
    gives a bit: 1 if its coefficient is above their median. So the hash survives other sizes, qualities and
    brightnesses, but no crop, mirror image or rotation. All images of one colour have the hash 0.
    """
    grey = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_AREA).astype(np.float64)
    # Rounded, so that neither the order of sums nor the noise of coefficients that are 0 decides a bit.
    coefficients = np.round(np.einsum("ui,ij,vj->uv", COSINES, small, COSINES, optimize=False), 3)
    bits = (coefficients > np.median(coefficients)).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def make_masks(radius: int, n_hashes: int) -> list[int]:
    """Return masks such that two perceptual hashes that differ in at most `radius` bits are equal under at least one of them.

    The bits are divided into radius + k bands; `radius` bits touch at most as many of them, so k bands are equal (the
    tables of Manku et al. 2007, section 3). There are C(radius + k, k) sets of k bands; k is chosen such that the joins
    of `n_hashes` evenly distributed hashes compare the fewest pairs: about C(radius + k, k) (n + n^2 / 2^(64 k /
    (radius + k)) / 2).
    """
    spare = min(range(1, MAX_SPARE + 1), key=lambda k: cost(radius, k, n_hashes)) if radius else 1
    n_bands = radius + spare
    cuts = [i * N_BITS // n_bands for i in range(n_bands + 1)]
    bands = [(1 << cuts[i + 1]) - (1 << cuts[i]) for i in range(n_bands)]
    return [sum(chosen) for chosen in combinations(bands, spare)]


def cost(radius: int, spare: int, n_hashes: int) -> float:
    """Return the expected number of comparisons with `radius + spare` bands."""
    pairs = n_hashes**2 / 2 / 2 ** (N_BITS * spare / (radius + spare))
    return comb(radius + spare, spare) * (JOIN_COST + n_hashes + pairs)


def find_near(
    queries: NDArray[np.uint64], others: NDArray[np.uint64], radius: int, max_pairs: int = MAX_PAIRS
) -> NDArray[np.bool_]:
    """Mask [n] of the hashes `queries` that differ in at most `radius` bits from one of the hashes `others` [m]."""
    found = np.zeros(len(queries), bool)
    for mask in make_masks(radius, isqrt(2 * len(queries) * len(others))):
        for rows, columns in equal_pairs(queries & np.uint64(mask), others & np.uint64(mask), max_pairs):
            close = np.bitwise_count(queries[rows] ^ others[columns]) <= radius
            found[rows[close]] = True
    return found


def equal_pairs(
    left: NDArray[np.uint64], right: NDArray[np.uint64], max_pairs: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the places of equal values in both arrays, about `max_pairs` at a time."""
    order = left.argsort(kind="stable")
    first, last = (np.searchsorted(left[order], right, side) for side in ("left", "right"))
    ends = np.cumsum(last - first)
    splits = np.searchsorted(ends, np.arange(max_pairs, int(ends[-1]) if len(ends) else 0, max_pairs))
    for part in np.split(np.arange(len(right)), splits):
        counts = (last - first)[part]
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first[part], counts)
        yield order[places], np.repeat(part, counts)
