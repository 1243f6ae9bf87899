"""Restriction of downloads to public addresses, whatever their spelling."""

import ipaddress
import socket
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SPECIAL_V4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # Azure's platform services: not in a registry, but the same address in every network
    )
)
"""IANA's registries of special-purpose and multicast IPv4 addresses: no web server has one of these."""

GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
"""The unicast addresses that IANA has given out; all others are special or reserved."""

SPECIAL_V6: Final = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20")
)
"""IANA's special-purpose IPv6 addresses within GLOBAL_V6, without 6to4."""

NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """The host of a URL has an address that is not public.

    This is not a subclass of OSError, because aiohttp would convert that to a DNS error.
    """


class NumericHostError(ValueError):
    """The host is a public address in a legacy numeric spelling (2130706433, 0x7f.1), which can evade filters."""


def is_public(address: Address) -> bool:
    """True for a public unicast address; an IPv6 address that embeds an IPv4 address is as public as that.

    The ranges are written out here, because those of `ipaddress` depend on the version of Python.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_V4)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        return is_public(address.sixtofour)
    return address in GLOBAL_V6 and not any(address in network for network in SPECIAL_V6)


@lru_cache(10_000)
def canonical_host(host: str) -> str:
    """A host as in a parsed URL: lower case, IDNA, without brackets, without the final dot of a name.

    >>> canonical_host("Bücher.Example."), canonical_host("[0:0::1]")
    ('xn--bcher-kva.example', '::1')
    """
    bare = host.strip().removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    bare = bare.removesuffix(".").lower()
    try:
        return bare if bare.isascii() else bare.encode("idna").decode()
    except UnicodeError:  # not a name at all: such a host equals no other
        return bare


def canonical_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The canonical forms of host names and addresses."""
    return frozenset(canonical_host(host) for host in hosts)


@lru_cache(10_000)
def parse_address(host: str) -> Address | None:
    """The IP address that a host is, without its zone; None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


@lru_cache(10_000)
def numeric_address(host: str) -> Address | None:
    """The IPv4 address in one of the legacy numeric spellings, which the C library accepts."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):  # ValueError: not ASCII, or a null character
        return None


def check_host(host: str, allowed: Collection[str]) -> None:
    """Check a host if it is an address; host names and `allowed` hosts (canonical forms) are accepted.

    Raises PrivateAddressError if the address is not public, NumericHostError for a public one in a legacy numeric
    spelling.
    """
    if canonical_host(host) in allowed:
        return
    address = parse_address(host)
    numeric = numeric_address(host) if address is None else None
    if address is not None and not is_public(address):
        raise PrivateAddressError(str(address))
    if numeric is not None and not is_public(numeric):
        raise PrivateAddressError(f"{host} is {numeric}")
    if numeric is not None:
        raise NumericHostError(f"{host} is {numeric} written as a number")


def check_addresses(host: str, addresses: Iterable[str], allowed: Collection[str]) -> None:
    """Raise PrivateAddressError if a name resolves to an address that is not public, unless it is `allowed`."""
    if canonical_host(host) in allowed:
        return
    for address in addresses:
        if not is_public(ipaddress.ip_address(address.partition("%")[0])):
            raise PrivateAddressError(f"{host} is {address}")
