"""Restriction of downloads to public addresses; the addresses that a host name resolves to are checked."""

import ipaddress
import socket
from collections.abc import Collection

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """The host of a URL has an address that is not public.

    This is not a subclass of OSError, because aiohttp would convert that to a DNS error.
    """


class NumericHostError(ValueError):
    """The host is a public address in a legacy numeric spelling (2130706433, 0x7f.1), which can evade filters."""


def is_public(address: Address) -> bool:
    """True for a public unicast address whose embedded IPv4 addresses, if any, are public too."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64 or int(address) >> 32 == 0:
            embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local or not all(is_public(inner) for inner in embedded if inner is not None):
            return False
        if address.ipv4_mapped or address in NAT64:
            return True
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def literal_address(host: str) -> Address | None:
    """The address in `host`, None if it is a name.

    For an address in a legacy numeric spelling, raises PrivateAddressError if it is private, NumericHostError
    otherwise.
    """
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        pass
    try:
        address = ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
    if not is_public(address):
        raise PrivateAddressError(f"{host} is {address}")
    raise NumericHostError(f"{host} is {address} written as a number")


def check_host(host: str, allowed: Collection[str]) -> None:
    """Check a host if it is an address; host names and `allowed` hosts are accepted.

    Raises PrivateAddressError if the address is not public, NumericHostError for a public one in a legacy numeric
    spelling.
    """
    if host.lower().strip("[]") in allowed:
        return
    address = literal_address(host)
    if address is not None and not is_public(address):
        raise PrivateAddressError(str(address))


class PublicResolver(AbstractResolver):
    """A DNS resolver for aiohttp, which connects only to the addresses that this returns.

    `resolve` raises PrivateAddressError for a name with a private address, unless the name is in `allowed`.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self.inner = ThreadedResolver()
        self.allowed = allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self.inner.resolve(host, port, family)
        if host.lower() not in self.allowed:
            for result in found:
                if not is_public(ipaddress.ip_address(result["host"].partition("%")[0])):
                    raise PrivateAddressError(f"{host} is {result['host']}")
        return found

    async def close(self) -> None:
        await self.inner.close()
