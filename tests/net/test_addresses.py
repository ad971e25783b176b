from ipaddress import ip_address

import pytest

from segue.net.addresses import allowed_for_operator, is_public, is_public_or_private


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "100.128.0.1", "172.32.0.1", "192.0.1.1", "2606:4700:4700::1111", "2a00:1450::1"],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("0.0.0.0", id="unspecified"),  # noqa: S104 (an address, not a binding)
        pytest.param("10.1.2.3", id="private-10"),
        pytest.param("100.64.0.1", id="cgnat"),
        pytest.param("100.100.100.200", id="alibaba-metadata"),
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("127.255.255.254", id="loopback-end"),
        pytest.param("168.63.129.16", id="azure-wire-server"),
        pytest.param("169.254.169.254", id="link-local-metadata"),
        pytest.param("172.31.255.255", id="private-172"),
        pytest.param("192.0.0.192", id="oracle-metadata"),
        pytest.param("192.88.99.1", id="6to4-relay"),
        pytest.param("192.168.1.1", id="private-192"),
        pytest.param("198.18.0.1", id="benchmarking"),
        pytest.param("203.0.113.7", id="documentation"),
        pytest.param("224.0.0.1", id="multicast"),
        pytest.param("240.0.0.1", id="reserved"),
        pytest.param("255.255.255.255", id="broadcast"),
        pytest.param("::", id="unspecified-6"),
        pytest.param("::1", id="loopback-6"),
        pytest.param("::127.0.0.1", id="ipv4-compatible"),
        pytest.param("::ffff:127.0.0.1", id="mapped-loopback"),
        pytest.param("::ffff:8.8.8.8", id="mapped-public"),
        pytest.param("64:ff9b::7f00:1", id="nat64"),
        pytest.param("64:ff9b:1::7f00:1", id="nat64-local"),
        pytest.param("100::1", id="discard"),
        pytest.param("2001:0:4136:e378:8000:63bf:80ff:fffe", id="teredo"),
        pytest.param("2001:db8::1", id="documentation-6"),
        pytest.param("2002:7f00:1::", id="6to4"),
        pytest.param("3fff::1", id="documentation-6-new"),
        pytest.param("fc00::1", id="unique-local"),
        pytest.param("fd00:ec2::254", id="aws-metadata-6"),
        pytest.param("fe80::1", id="link-local-6"),
        pytest.param("fe80::1%eth0", id="link-local-6-scoped"),
        pytest.param("fec0::1", id="site-local"),
        pytest.param("ff02::1", id="multicast-6"),
    ],
)
def test_an_address_of_any_special_range_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["10.1.2.3", "127.0.0.1", "192.168.1.1", "::1", "fc00::1", "fd12:3456::1", "1.1.1.1"]
)
def test_an_operators_own_network_may_be_dialled_for_the_operator(address: str) -> None:
    assert is_public_or_private(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("169.254.169.254", id="link-local"),
        pytest.param("100.100.100.200", id="alibaba"),
        pytest.param("168.63.129.16", id="azure"),
        pytest.param("fd00:ec2::254", id="aws"),
        pytest.param("fd00:ec2::23", id="aws-pods"),
        pytest.param("fd20:ce::254", id="google"),
        pytest.param("fd00:c1::a9fe:a9fe", id="oracle"),
        pytest.param("fe80::a9fe:a9fe", id="link-local-6"),
    ],
)
def test_where_a_cloud_keeps_credentials_is_in_no_network_of_the_operators(address: str) -> None:
    assert not is_public_or_private(ip_address(address))
    assert not allowed_for_operator(address, allow_private=False)(ip_address(address))
