"""Ports for servers of tests: no two processes have the same."""

from __future__ import annotations

import pytest

from tests import ports


def test_two_processes_never_give_out_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a drill had killed for a moment found its port in another worker's server."""
    first, last = ports.FIRST, ports.FIRST + 20 * ports.BLOCK
    monkeypatch.setattr(ports, "FIRST", first)
    monkeypatch.setattr(ports, "LAST", last)
    one, other = ports.Ports(1), ports.Ports(1)
    given: dict[ports.Ports, list[int]] = {one: [], other: []}
    for number in range(30):
        for each, mine in given.items():
            mine += each.take(1 + number % 10)
    assert set(given[one]).isdisjoint(given[other])
    assert all(first <= port < last for mine in given.values() for port in mine)
    assert len(given[one]) == len(set(given[one]))


def test_ports_are_given_again_when_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LAST", ports.FIRST + 6 * ports.BLOCK)
    mine = ports.Ports(1)
    given = [port for _ in range(40) for port in mine.take(10)]
    assert len(given) == 400
    assert 0 < len(set(given)) <= 300


def test_two_ports_before_those_that_are_given_belong_to_nobody() -> None:
    """RocketMQ's broker listens at its port - 2, too: the proxy of a benchmark found another's port there."""
    mine = ports.Ports(1)
    given = [mine.take(1 + number % 5) for number in range(40)]
    taken = {port for some in given for port in some}
    assert all(some[0] - back not in taken for some in given for back in (1, 2))
