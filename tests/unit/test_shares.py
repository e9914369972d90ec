"""Shares of bounded tables: by account, by address, by network."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from rmq.errors import ConfigError
from rmq.shares import NOBODY, Gateways, Shares, by_account_and_address, by_address


@define
class Peer:
    peer_address: str
    state: dict[str, Any] = field(factory=dict)


@pytest.mark.parametrize(("holders", "left"), [(1, 500), (2, 334), (3, 250), (9, 100)])
def test_holders_who_take_all_that_they_get_leave_a_part_for_the_next(holders: int, left: int) -> None:
    shares = Shares(1000)
    for number in range(holders * 1000):
        shares.take((f"h{number % holders}",))
    assert shares.used >= 1000 - left - 1
    assert shares.take(("honest",))


@pytest.mark.parametrize(("holders", "left"), [(1, 50_000), (3, 12_500), (10, 97)])
def test_holders_who_come_one_after_the_other_leave_half_of_the_rest_each(holders: int, left: int) -> None:
    shares = Shares(100_000)
    for number in range(holders):
        while shares.take((f"h{number}",)):
            pass
    assert abs(100_000 - shares.used - left) <= 1
    assert shares.take(("honest",))


def test_a_holder_gives_back_what_it_took() -> None:
    shares = Shares(10)
    assert shares.take(("a",), 5)
    assert not shares.take(("a",))
    assert "5 of 10 are taken by a, 5 are free" in shares.full(("a",))
    shares.give(("a",), 5)
    assert (shares.used, shares.holders(), shares.held("a")) == (0, 0, 0)
    assert shares.take(("a",), 5)


def test_the_whole_table_bounds_those_that_nothing_else_bounds() -> None:
    shares = Shares(10)
    assert sum(shares.take(NOBODY) for _ in range(20)) == 10
    assert "10 of 10 are taken" in shares.full(("a",))


def test_an_ipv6_network_of_48_bits_has_two_parts() -> None:
    of = by_address()
    shares = Shares(1000)
    for number in range(100_000):
        shares.take(of(f"[2001:db8:1:{number:x}::1]:1" if number < 65_536 else "[2001:db8:1::2]:1"))
    assert 660 <= shares.used <= 667
    assert shares.take(of("[2001:db8:2::1]:1"))


def test_the_names_of_addresses() -> None:
    of = by_address()
    assert of("10.1.2.3:4") == ("10.1.2.3",)
    assert of("[2001:db8:1:2::5]:4") == ("2001:db8:1:2::/64", "2001:db8:1::/48")
    assert of("[::ffff:10.1.2.3]:4") == ("10.1.2.3",)
    assert of("[fe80::1%eth0]:4") == ("fe80::/64", "fe80::/48")
    assert of("broker-a:4") == ("broker-a",)


def test_an_account_counts_wherever_it_comes_from() -> None:
    of = by_account_and_address()
    assert of(Peer("10.0.0.1:1", {"account": "app"})) == of(Peer("10.0.0.2:1", {"account": "app"}))
    assert of(Peer("10.0.0.1:1", {"account": "10.0.0.1"})) != of(Peer("10.0.0.1:1"))
    assert of(Peer("10.0.0.1:1", {"account": ""})) == ("10.0.0.1",)


def test_trusted_gateways_have_no_share() -> None:
    of = by_address(Gateways(["10.1.0.0/16", " 2001:db8::/32 ", "192.168.0.1"]))
    assert of("10.1.9.9:1") == of("[2001:db8:9::1]:1") == of("192.168.0.1:1") == NOBODY
    assert of("10.2.0.1:1") == ("10.2.0.1",)


def test_a_gateway_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trustedGateways.*'balancer'"):
        Gateways(["balancer"])
