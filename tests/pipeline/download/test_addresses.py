"""Public and private addresses, in every spelling that an attacker may use."""

import ipaddress

import pytest

from pipeline.download.addresses import NumericHostError, PrivateAddressError, check_host, is_public


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:db8::1",
        "fc00::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_private_and_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_ordinary_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "017700000001", "2130706433", "0", "fe80::1%eth0", "[::1]"])
def test_a_private_address_is_refused_in_any_spelling(host: str) -> None:
    with pytest.raises(PrivateAddressError):
        check_host(host, ())


def test_a_public_address_in_a_numeric_spelling_is_refused() -> None:
    with pytest.raises(NumericHostError):
        check_host("134744072", ())


def test_an_allowed_private_host_passes() -> None:
    check_host("127.0.0.1", ("127.0.0.1",))
    check_host("::1", ("::1",))
    with pytest.raises(PrivateAddressError):
        check_host("127.0.0.2", ("127.0.0.1",))
