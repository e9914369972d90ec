"""Heartbeats of clients with very many groups, against our own broker."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.session.session import HEARTBEAT_GROUPS, Session
from rmq.protocol.codes import RequestCode
from rmq.proxy.members import ProxiedGroup, ProxiedProducer
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

COUNT = 2 * HEARTBEAT_GROUPS + 10


def entered(client: Client) -> Session:
    return client._entered()


async def announce(running: Cluster, client: Client, *groups: str) -> tuple[set[str], int]:
    """Announce these groups and `COUNT` producers; the groups and producers that the broker knows, and the
    number of requests."""
    session = entered(client)
    await session.rotation("T", 5)
    session.members |= {group: ProxiedGroup(session, group) for group in groups}
    session.producers |= {f"p{number}": ProxiedProducer(str) for number in range(COUNT)}
    before = running["a"].count(RequestCode.HEART_BEAT)
    await session.heartbeat()
    broker: Any = running["a"].server
    known = {group for _, group, _ in broker.clients.counts()}
    return known, running["a"].count(RequestCode.HEART_BEAT) - before


async def test_all_groups_are_announced_in_few_requests(autojump_clock: MockClock) -> None:
    """A broker refuses more than 256 groups at once; each was sent by itself then, and producers not at
    all."""
    groups = [f"g{number}" for number in range(COUNT)]
    async with Cluster("a", topics={"T": 1}) as running, running.connect() as client:
        known, requests = await announce(running, client, *groups)
        assert known == {*groups, *(f"p{number}" for number in range(COUNT))}
        assert requests == -(-2 * COUNT // HEARTBEAT_GROUPS)


async def test_a_group_that_is_refused_costs_few_requests_and_no_other_group(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [f"g{number}" for number in range(COUNT)]
    async with Cluster("a", topics={"T": 1}) as running, running.connect() as client:
        known, requests = await announce(running, client, *groups, "no group")
        assert known == {*groups, *(f"p{number}" for number in range(COUNT))}
        assert requests < 30
        with pytest.raises(rmq.ResponseError):
            entered(client).check_admitted("no group")
        entered(client).check_admitted("g0")
        assert caplog.text.count("heartbeat refused") == 1


async def test_a_broker_that_takes_fewer_groups_gets_them_in_smaller_parts(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    more: Any = {"max_groups_of_heartbeat": 60}
    async with Cluster("a", topics={"T": 1}, **more) as running, running.connect() as client:
        known, _ = await announce(running, client)
        assert len(known) == COUNT
        assert "heartbeat refused" not in caplog.text


async def test_a_broker_that_does_not_answer_is_asked_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster("a", topics={"T": 1}) as running, running.connect() as client:
        await entered(client).rotation("T", 5)
        running["a"].hook(RequestCode.HEART_BEAT, HANG)
        _, requests = await announce(running, client)
        assert requests <= 1
        assert caplog.text.count("heartbeat failed") == 1
