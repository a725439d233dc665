"""The rules for hosts that programs may reach: names first, then every address."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.contract.errors import InvalidSettings
from belljar.egress import rules
from belljar.egress.rules import Refused, Rules, is_public, read_host
from belljar.settings import load
from tests.unit.egress.address_table import NOT_PUBLIC, PUBLIC


def _rules(**chosen: Any) -> Rules:
    plain = {"ports": ["80", "443"], "allow": ["*"], "deny": [], "allow_private": [], "hosts": []}
    return Rules.from_settings({**plain, **chosen})


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_private_addresses_are_refused(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(Refused, match="no public address"):
        _rules().check_addresses("x.test", 443, ["93.184.215.14", address.partition("%")[0]])


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)
    _rules().check_addresses("x.test", 443, [address])


def test_a_host_without_addresses_is_refused() -> None:
    with pytest.raises(Refused, match="no such host"):
        _rules().check_addresses("x.test", 443, [])


def test_public_addresses_of_this_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules.is_own("127.0.0.1")
    assert not rules.is_own("8.8.8.8")
    monkeypatch.setattr(rules, "is_own", lambda address: address == "93.184.215.14")
    with pytest.raises(Refused):
        _rules().check_addresses("x.test", 443, ["93.184.215.14"])


@pytest.mark.parametrize(
    ("chosen", "host", "port"),
    [
        pytest.param({}, "example.org", 22, id="port"),
        pytest.param({"deny": ["*.example.org"]}, "a.example.org", 443, id="denied_name"),
        pytest.param({"deny": ["a.test"], "allow_private": ["a.test:80"]}, "a.test", 80, id="denied_though_private"),
        pytest.param({"allow": ["*.pypi.test"]}, "pypi.test.evil.org", 443, id="same_ending_only"),
        pytest.param({"allow": ["pypi.test"]}, "8.8.8.8", 443, id="address_where_names_are_listed"),
        pytest.param({"allow": []}, "example.org", 443, id="no_host_is_allowed"),
        pytest.param({"allow": [], "allow_private": ["a.test:8080"]}, "a.test", 443, id="private_at_another_port"),
        pytest.param({"allow_private": ["a.test"]}, "a.test", 8080, id="private_without_a_port_of_its_own"),
    ],
)
def test_denied_names(chosen: dict[str, Any], host: str, port: int) -> None:
    with pytest.raises(Refused):
        _rules(**chosen).check_name(host, port)


@pytest.mark.parametrize(
    ("chosen", "host", "port"),
    [
        pytest.param({}, "example.org", 443, id="default"),
        pytest.param({"allow": ["*.PyPI.test", "pypi.test"]}, "files.pypi.test", 443, id="glob_in_any_case"),
        pytest.param({"allow": [], "allow_private": ["a.test:8080"]}, "a.test", 8080, id="private_with_its_port"),
        pytest.param({"allow": [], "allow_private": ["a.test"]}, "a.test", 443, id="private_at_the_usual_ports"),
    ],
)
def test_allowed_names(chosen: dict[str, Any], host: str, port: int) -> None:
    _rules(**chosen).check_name(host, port)


def test_private_hosts_are_allowed_by_name_and_port_alone() -> None:
    chosen = _rules(allow_private=["a.test:8080"])
    chosen.check_addresses("a.test", 8080, ["10.0.0.1"])
    for host, port in (("a.test", 443), ("b.test", 8080)):
        with pytest.raises(Refused):
            chosen.check_addresses(host, port, ["10.0.0.1"])


@pytest.mark.parametrize("address", ["203.0.114.9", "::ffff:203.0.114.9", "2002:cb00:7209::1"])
def test_denied_networks_are_denied_in_every_notation(address: str) -> None:
    chosen = _rules(deny=["203.0.114.0/24"], allow_private=["a.test"])
    with pytest.raises(Refused, match="denied"):
        chosen.check_addresses("a.test", 443, [address])


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("[::1]", "::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("2130706433", "2130706433"),
        ("0x7f.1", "0x7f.1"),
    ],
)
def test_hosts_are_normalized(text: str, host: str) -> None:
    assert read_host(text) == host


@pytest.mark.parametrize(
    "text", ["", ".", "a b", "a\nb", "a\0b", "bücher.test", "a/b", "a@b", "[fe80::1%eth0]", "[::1", "-a", "a" * 254]
)
def test_invalid_hosts_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_host(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("ports", "0"), ("ports", "http"), ("allow_private", "*.test"), ("allow_private", "a.test:x")),
        *(("hosts", "a.test"), ("hosts", "a.test=b.test"), ("deny", "203.0.113.9/24"), ("total_bytes", "0")),
    ],
)
def test_invalid_settings_are_refused(name: str, value: str) -> None:
    """Especially those that would silently have no effect."""
    with pytest.raises(InvalidSettings, match=f"network.{name}"):
        load(environ={}, flags={f"network.{name}": value})
