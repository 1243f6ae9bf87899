"""Public and private addresses, in every spelling that an attacker may use."""

import ipaddress

import pytest

from pipeline.stages.download.addresses import (
    NumericHostError,
    PrivateAddressError,
    canonical_host,
    canonical_hosts,
    check_host,
    is_public,
)


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
        "168.63.129.16",
        "192.0.0.1",
        "192.0.0.9",
        "192.0.0.192",
        "192.0.2.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.88.99.1",
        "192.175.48.1",
        "198.51.100.1",
        "203.0.113.1",
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
        "64:ff9b:1::1",
        "100::1",
        "100:0:0:1::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2620:4f:8000::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
    ],
)
def test_private_and_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "192.0.1.1", "192.0.3.1", "168.63.129.17", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"],
)
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


@pytest.mark.parametrize(
    ("written", "in_url"),
    [
        ("LocalHost", "localhost"),
        ("localhost.", "localhost"),
        ("localhost", "localhost."),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("Bücher.test", "xn--bcher-kva.test"),
        (" 127.0.0.1 ", "127.0.0.1"),
    ],
)
def test_an_allowed_host_matches_in_any_spelling(written: str, in_url: str) -> None:
    assert canonical_host(in_url) in canonical_hosts([written])


def test_an_allowed_host_allows_no_other_spelling_of_an_address() -> None:
    for host in ("2130706433", "127.1", "0x7f.1", "::ffff:127.0.0.1"):
        with pytest.raises(PrivateAddressError):
            check_host(host, canonical_hosts(["127.0.0.1"]))
