"""Reads of consumers of a set with controllers: no message that could be lost with its master.

Else a consumer that has had it would skip the message that gets its offset from the next master, although its
producer was told that it is stored.
"""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from rmq.broker.broker import Broker
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    PullMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from rmq.protocol.record import decode_records
from tests.sim.real_brokers.brokers import CONTROLLERS, Node, Set, controlled_set
from tests.unit.broker.rig import pull


async def ask(found: Set, node: Node, request: Command) -> Command:
    return await found.pool.call(f"{node.host}:10911", request, 30)


async def end_of(found: Set, node: Node) -> int:
    """The end of the queue, according to a broker."""
    request = Command.request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader("T", 0))
    return (await ask(found, node, request)).read(GetMaxOffsetResponseHeader).offset


async def latest_of(found: Set, node: Node) -> int:
    """The offset of the latest time."""
    header = SearchOffsetRequestHeader("T", 0, found.cluster.now_ms() + 1_000_000)
    request = Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return (await ask(found, node, request)).read(SearchOffsetResponseHeader).offset


async def read(found: Set, node: Node, offset: int, *, waits: bool = False) -> tuple[int, list[str], int]:
    """The code of a pull, the bodies that it brings, and where it says to go on."""
    request = pull("T", offset, sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if waits else 0))
    answer = await ask(found, node, request)
    bodies = [message.body.decode() for message in decode_records(answer.body)]
    return answer.code, bodies, answer.read(PullMessageResponseHeader).next_begin_offset


def broker_of(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


async def test_a_message_is_read_when_all_in_sync_have_it(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            assert await found.send(producer, "one")
            assert await read(found, first, 0) == (ResponseCode.SUCCESS, ["one"], 1)
            found.network.partition(second.host, first.host)
            nursery.start_soon(found.send, producer, "two")
            await trio.sleep(0.5)
            assert broker_of(first).store.max_offset("T", 0) == 2
            assert await end_of(found, first) == 1
            assert await latest_of(found, first) <= 1
            assert await read(found, first, 0) == (ResponseCode.SUCCESS, ["one"], 1)
            assert await read(found, first, 1) == (ResponseCode.PULL_NOT_FOUND, [], 1)
            got = []

            async def wait() -> None:
                got.append(await read(found, first, 1, waits=True))

            nursery.start_soon(wait)
            await trio.sleep(0.5)
            assert got == []
            found.network.heal()
            with trio.fail_after(10):
                while not got:
                    await trio.sleep(0.01)
            assert got == [(ResponseCode.SUCCESS, ["two"], 2)]
            assert await end_of(found, first) == 2


async def test_it_is_read_when_the_replica_that_lacks_it_is_in_sync_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            await found.kill(second)
            nursery.start_soon(found.send, producer, "one")
            with trio.fail_after(10):  # replicaLagMs is 3 s
                assert (await read(found, first, 0, waits=True))[1] == ["one"]
            began = trio.current_time()
            assert await found.send(producer, "two")
            assert (await read(found, first, 1, waits=True))[1] == ["two"]
            assert trio.current_time() - began < 0.1, "alone, its own disk is enough"


@pytest.mark.parametrize("reads_on", [False, True])
async def test_a_consumer_skips_nothing_that_was_acknowledged_when_its_master_is_cut_off(
    autojump_clock: trio.testing.MockClock, reads_on: bool
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        seen: list[str] = []
        offset = 0

        async def consume(node: Node) -> None:
            nonlocal offset
            with anyio.move_on_after(0.5):
                while True:
                    _, bodies, offset = await read(found, node, offset, waits=True)
                    seen.extend(bodies)

        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            assert await found.send(producer, "one")
            await consume(first)
            found.network.partition(first.host, second.host)
            for number in range(3):
                nursery.start_soon(found.send, producer, f"of the old one {number}")
            await consume(first)
            nursery.cancel_scope.cancel()
        await found.kill(first)
        assert await found.master() is second
        if reads_on:
            await consume(second)
        async with client.producer("P2") as producer:
            for number in range(5):
                await found.sent(producer, f"of the new one {number}")
        await consume(second)
        assert set(found.acknowledged) <= set(seen)


async def test_a_slave_lets_read_what_its_master_says_all_have(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first, second, third = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            assert await found.send(producer, "one")
            await trio.sleep(2)
            assert await read(found, second, 0) == (ResponseCode.SUCCESS, ["one"], 1)
            found.network.partition(third.host, first.host)
            nursery.start_soon(found.send, producer, "two")
            await trio.sleep(2)
            assert broker_of(second).store.max_offset("T", 0) == 2
            assert await read(found, second, 0) == (ResponseCode.SUCCESS, ["one"], 1)
            assert (await read(found, second, 1, waits=True))[1][:1] == ["two"]
            assert (await found.status())["inSync"] == [1, 2], "nobody waits for the third any more"


async def test_a_replica_that_has_just_started_lets_read_nothing_before_it_knows_what_all_have(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "one")
        await found.end(second)
        found.network.partition(second.host, first.host)
        await found.start(second)
        await trio.sleep(1)
        assert broker_of(second).store.max_offset("T", 0) == 1
        assert await read(found, second, 0) == (ResponseCode.PULL_NOT_FOUND, [], 0)
        found.network.heal()
        assert await read(found, second, 0, waits=True) == (ResponseCode.SUCCESS, ["one"], 1)


async def test_a_master_without_a_lease_sends_no_consumer_to_another_offset(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first = await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "one")
        too_far = pull("T", 9, sys_flag=PULL_SUBSCRIPTION)
        assert (await ask(found, first, too_far)).code == ResponseCode.PULL_OFFSET_MOVED
        hosts = [address.partition(":")[0] for address in CONTROLLERS]
        found.network.partition(first.host, *hosts, *(one.host for one in found.nodes if one is not first))
        with trio.fail_after(20):
            while first in found.acting():
                await trio.sleep(0.05)
        answer = await ask(found, first, pull("T", 9, sys_flag=PULL_SUBSCRIPTION))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no lease" in (answer.remark or "")
        assert await read(found, first, 0) == (ResponseCode.SUCCESS, ["one"], 1), "what all had may be read"
