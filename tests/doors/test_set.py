"""A door in a set with controllers: it moves with the master, and keeps the promises that it made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
import trio
from trio.testing import MockClock

from tests.sim.real_brokers.brokers import Node, Set, controlled_set

from .lines import Line, package

PORT = 7070
LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError, trio.BrokenResourceError)

pytestmark = pytest.mark.usefixtures(package.__name__)


@asynccontextmanager
async def replicas() -> AsyncIterator[tuple[Set, Node, Node]]:
    """Two replicas with the door, in sync; the master and the other."""
    settings = {"plugins": ("line",), "plugin_settings": {"linePort": str(PORT)}}
    async with controlled_set(2, **settings) as (found, client):  # type: ignore[arg-type]
        master = await found.begin(client, queues=2, group="readers")
        (other,) = (node for node in found.nodes if node is not master)
        yield found, master, other


async def dial(found: Set, node: Node) -> Line:
    return await Line.dial(found.network.host("10.0.8.1"), f"{node.host}:{PORT}")


class Writer:
    """Publishes numbers at any replica that takes them; `stored` are those that were reported as stored. A
    number without an answer may be stored or not; the next attempt has the next number."""

    def __init__(self, found: Set) -> None:
        self.stored: list[str] = []
        self.refusals: list[str] = []
        self._found = found

    async def run(self) -> None:
        number = 0
        while True:
            for node in self._found.nodes:
                with trio.move_on_after(3) as limit, suppress(*LOST, AssertionError):
                    line = await dial(self._found, node)
                    while (answer := await line.ask(f"PUB T {number}")).startswith("OK "):
                        self.stored.append(str(number))
                        number += 1
                        await trio.sleep(0.02)
                        limit.deadline = trio.current_time() + 3
                    self.refusals.append(answer)
                number += 1
                await trio.sleep(0.05)


async def test_messages_that_a_door_reported_as_stored_outlive_hand_overs_and_a_dead_master(
    autojump_clock: MockClock,
) -> None:
    async with replicas() as (found, first, second):
        writer = Writer(found)
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                for wanted in (second, first):
                    await trio.sleep(1)
                    before = len(writer.stored)
                    assert before
                    assert await found.want(wanted.number())
                    while await found.master() is not wanted or len(writer.stored) < before + 20:
                        await trio.sleep(0.05)
                await found.until(inSync=[1, 2])
                await found.kill(first)
                before = len(writer.stored)
                while len(writer.stored) < before + 20:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
        assert await found.master() is second
        assert set(writer.stored) <= await texts(found, second)
        assert any("slave" in refusal for refusal in writer.refusals)


async def texts(found: Set, node: Node) -> set[str]:
    """The bodies of all messages, read by the door."""
    line = await dial(found, node)
    await line.ask("SUB others T")
    seen = 0
    with trio.move_on_after(10):
        while True:
            news, seen = line.messages()[seen:], len(line.messages())
            if news:
                await line.send(*(f"ACK T {number} {offset}" for number, offset, _ in news))
            assert await line.read()
    await line.stream.aclose()
    return {body for _, _, body in line.messages()}


async def test_a_commit_that_was_answered_is_known_to_the_next_master(autojump_clock: MockClock) -> None:
    async with replicas() as (found, first, second):
        line = await dial(found, first)
        for number in range(20):
            assert (await line.ask(f"PUB T {number}")).startswith("OK ")
        await line.ask("SUB readers T")
        await line.until(lambda said: len(line.messages()) == 20)
        await line.send(*(f"ACK T {queue} {offset}" for queue, offset, _ in line.messages()))
        await line.until(lambda said: sum(one.startswith("ACKED ") for one in said) == 20)
        await found.kill(first)
        assert await found.master() is second
        assert second.broker is not None
        assert sum(second.broker.offsets.of("readers", "T").values()) == 20


async def test_a_commit_waits_for_the_replica_and_is_refused_when_it_does_not_come(
    autojump_clock: MockClock,
) -> None:
    async with replicas() as (found, first, second):
        line = await dial(found, first)
        assert (await line.ask("PUB T one")).startswith("OK ")
        await line.ask("SUB readers T")
        await line.until(lambda said: len(line.messages()) == 1)
        found.network.partition(first.host, second.host)
        ((queue, offset, _),) = line.messages()
        began = trio.current_time()
        answer = await line.ask(f"ACK T {queue} {offset}")
        assert answer.startswith("ERR ")
        assert "may not be at the replicas" in answer
        assert trio.current_time() - began > 1


async def test_a_slave_refuses_a_commit(autojump_clock: MockClock) -> None:
    async with replicas() as (found, first, second):
        line = await dial(found, first)
        assert (await line.ask("PUB T one")).startswith("OK ")
        await trio.sleep(1)
        reader = await dial(found, second)
        await reader.ask("SUB readers T")
        await reader.until(lambda said: len(reader.messages()) == 1)
        ((queue, offset, _),) = reader.messages()
        assert "a slave" in await reader.ask(f"ACK T {queue} {offset}")


async def test_who_connects_during_a_hand_over_is_served_by_the_next_service(
    autojump_clock: MockClock,
) -> None:
    async with replicas() as (found, first, second):
        line = await dial(found, first)
        assert (await line.ask("PUB T one")).startswith("OK ")
        assert await found.want(second.number())
        while await line.read():
            pass
        assert line.said[-1] == "BYE"
        with trio.fail_after(30):
            assert await (await dial(found, first)).ask("PING") == "PONG"
