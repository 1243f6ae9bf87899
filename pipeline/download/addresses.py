"""Whom we may connect to: public addresses only, decided on what a name resolved to, never on the name alone."""

import ipaddress
import socket
from collections.abc import Collection

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class PrivateAddressError(Exception):
    """A host stands for an address that no public web server has. (As an OSError aiohttp would take it for a DNS error.)"""


class NumericHostError(ValueError):
    """A host written as a number (2130706433, 0x7f.1), which no link of good faith does."""


def is_public(address: Address) -> bool:
    """Whether an address is a public unicast one, by itself and by every IPv4 address packed into it."""
    if isinstance(address, ipaddress.IPv6Address):
        packed = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64 or int(address) >> 32 == 0:
            packed.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local or not all(is_public(inner) for inner in packed if inner is not None):
            return False
        if address.ipv4_mapped or address in NAT64:
            return True
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def literal_address(host: str) -> Address | None:
    """The address that `host` spells out, None if it is a name. Raises NumericHostError for legacy spellings."""
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
    """Raise PrivateAddressError if `host` spells out an address that is not public and not allowed by the config."""
    if host.lower().strip("[]") in allowed:
        return
    address = literal_address(host)
    if address is not None and not is_public(address):
        raise PrivateAddressError(str(address))


class PublicResolver(AbstractResolver):
    """Names to addresses; refuses a name with any private address. aiohttp connects to exactly what this returns."""

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
