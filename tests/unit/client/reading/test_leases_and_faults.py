"""Consumers of single messages while something is wrong: damage from a broker, cancellation of the handlers'
block, one of two brokers that refuses or hangs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import rmq
from rmq.client.reading.simple_consumer import ReceivedMessage
from rmq.message import StoredMessage
from rmq.protocol import codes
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.properties import DLQ_REASON
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World

POP_ANSWER = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}


def damaged_record(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, POP_ANSWER | {"startOffsetInfo": "0 0 0"}, b"\x00\x00\x00\x40" + b"x" * 60)


def damaged_offsets(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, POP_ANSWER | {"startOffsetInfo": "what?"})


def damaged_header(request: Command, connection: Connection) -> Command:
    return request.reply(0, None, {"popTime": "never"})


DAMAGE = pytest.mark.parametrize("answer", [damaged_record, damaged_offsets, damaged_header])


@DAMAGE
def test_damage_from_a_broker_ends_no_simple_consumer(in_memory: Play, cluster: Cluster, answer: Any) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 1)
        cluster["a"].hook(codes.POP_MESSAGE, answer)
        async with (
            world.connect() as client,
            client.simple_consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with pytest.raises(rmq.RmqError):
                await consumer.receive(wait=5)
            cluster["a"].hook(codes.POP_MESSAGE, None)
            with anyio.fail_after(60):
                while not (found := await consumer.receive()):
                    pass
            assert [message.body for message in found] == [b"0"]

    in_memory(scenario, cluster)


@DAMAGE
def test_damage_from_a_broker_ends_no_handlers(in_memory: Play, cluster: Cluster, answer: Any) -> None:
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        fill(cluster, 1)
        cluster["a"].hook(codes.POP_MESSAGE, answer)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(30)
            cluster["a"].hook(codes.POP_MESSAGE, None)
            await anyio.sleep(60)
            assert seen == [b"0"]
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


@pytest.mark.parametrize("end", ["the run is cancelled", "the block is left", "the client is left"])
def test_what_handlers_have_finished_is_acknowledged(in_memory: Play, cluster: Cluster, end: str) -> None:
    """Acknowledgements are gathered for a while, and that is when a service is stopped."""
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        async with (
            anyio.create_task_group() as tasks,
            world.connect() as client,
            client.producer("p") as producer,
        ):
            consumer = client.consumer("g", {"T": "*"}, per_message=True, consume_from="first")
            await consumer.start()
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(1)
            for number in range(20):
                await producer.send(rmq.Message("T", b"%d" % number))
            with anyio.fail_after(60):
                while len(seen) < 20:
                    await anyio.sleep(0.001)
            if end == "the run is cancelled":
                tasks.cancel_scope.cancel()
            elif end == "the block is left":
                await consumer.aclose()
        async with world.connect() as client, client.simple_consumer("g", {"T": "*"}) as other:
            assert await other.receive(wait=90) == []

    in_memory(scenario, cluster)


@pytest.fixture
def two() -> Cluster:
    return Cluster("a", "b", topics={"T": 1})


def test_a_broker_that_refuses_acknowledgements_keeps_none_from_the_others(
    in_memory: Play, two: Cluster
) -> None:
    async def scenario(world: World) -> None:
        for broker in "ab":
            fill(two, 2, queues=1, broker=broker)
        async with (
            world.connect() as client,
            client.simple_consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            found: list[ReceivedMessage] = []
            while len(found) < 4:
                found += await consumer.receive()
            for broker in "ab":
                two[broker].script(codes.BATCH_ACK_MESSAGE, ResponseCode.SYSTEM_ERROR)
                with pytest.raises(rmq.ResponseError):
                    await consumer.ack(*found)
            assert two["a"].count(codes.BATCH_ACK_MESSAGE) == two["b"].count(codes.BATCH_ACK_MESSAGE) == 2

    in_memory(scenario, two)


async def runs_while(
    world: World, seen: list[tuple[str, bytes]], seconds: float, handling_seconds: float
) -> None:
    """Consume for some time, with handlers that take some time for each message."""

    async def handle(message: StoredMessage) -> None:
        seen.append((message.broker_name, message.body))
        await anyio.sleep(handling_seconds)

    async with (
        world.connect() as client,
        client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
    ):
        with anyio.move_on_after(seconds):
            await consumer.run(handle, concurrency=40)


@pytest.mark.parametrize("refusal", [ResponseCode.SYSTEM_ERROR, HANG])
def test_what_was_handled_is_acknowledged_where_the_broker_takes_it(
    in_memory: Play, two: Cluster, refusal: Any
) -> None:
    seen: list[tuple[str, bytes]] = []

    async def scenario(world: World) -> None:
        for broker in "ab":
            fill(two, 4, queues=1, broker=broker)
        two["a"].hook(codes.BATCH_ACK_MESSAGE, refusal)
        await runs_while(world, seen, 300, 0.0)
        assert sorted(body for broker, body in seen if broker == "b") == [b"0", b"1", b"2", b"3"]

    in_memory(scenario, two)


def test_a_broker_that_hangs_lets_no_leases_of_others_end(in_memory: Play, two: Cluster) -> None:
    """Leases were renewed one after another: 30 requests that nobody answers take longer than a lease."""
    seen: list[tuple[str, bytes]] = []

    async def scenario(world: World) -> None:
        fill(two, 30, queues=1, broker="a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs_while, world, seen, 280, 300)
            await anyio.sleep(1)
            fill(two, 4, queues=1, broker="b")
            await anyio.sleep(1)
            for code in (codes.CHANGE_MESSAGE_INVISIBLETIME, codes.POP_MESSAGE):
                two["a"].hook(code, HANG)
        assert sorted(body for broker, body in seen if broker == "b") == [b"0", b"1", b"2", b"3"]

    in_memory(scenario, two)


def test_a_lease_whose_renewal_fails_is_renewed_before_it_ends(in_memory: Play, cluster: Cluster) -> None:
    seen: list[tuple[str, bytes]] = []

    async def scenario(world: World) -> None:
        fill(cluster, 1)
        cluster["a"].script(codes.CHANGE_MESSAGE_INVISIBLETIME, *[ResponseCode.SYSTEM_BUSY] * 2)
        await runs_while(world, seen, 200, 150)
        assert seen == [("a", b"0")]

    in_memory(scenario, cluster)


@pytest.mark.parametrize(
    ("retry", "dead"),
    [
        (rmq.Retry("unknown customer", delay_level=-1), [b"0"]),
        (rmq.Retry("soon", delay_level=2), []),
        (ValueError("no"), []),
    ],
)
def test_a_handler_gives_a_message_up_at_once(
    in_memory: Play, cluster: Cluster, retry: Exception, dead: list[bytes]
) -> None:
    """Level -1 was ignored, as were the other levels: the message was retried by the group's policy."""
    seen: list[float] = []

    async def scenario(world: World) -> None:
        seen.clear()
        fill(cluster, 1)
        policy = rmq.Backoff(1000, 1000)

        async def handle(message: StoredMessage) -> None:
            seen.append(anyio.current_time())
            raise retry

        async with (
            world.connect() as client,
            client.consumer(
                "g", {"T": "*"}, per_message=True, consume_from="first", retry=policy
            ) as consumer,
        ):
            with anyio.move_on_after(8):
                await consumer.run(handle)
        letters = cluster.sent("%DLQ%g")
        assert [one.body for one in letters] == dead
        assert len(seen) == (2 if retry.args == ("soon",) else 1)
        if dead:
            assert letters[0].properties[DLQ_REASON] == "unknown customer"
            assert cluster["a"].count(codes.BATCH_ACK_MESSAGE) + cluster["a"].count(codes.ACK_MESSAGE) == 1

    in_memory(scenario, cluster)


def test_a_message_that_cannot_be_given_up_is_retried(in_memory: Play, cluster: Cluster) -> None:
    seen: list[int] = []

    async def scenario(world: World) -> None:
        seen.clear()
        fill(cluster, 1)
        cluster["a"].script(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_BUSY)

        async def handle(message: StoredMessage) -> None:
            seen.append(message.reconsume_times)
            raise rmq.Retry("no", delay_level=-1)

        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
        ):
            with anyio.move_on_after(60):
                await consumer.run(handle)
        assert len(seen) == 2
        assert [one.body for one in cluster.sent("%DLQ%g")] == [b"0"]

    in_memory(scenario, cluster)


def test_a_broker_that_hangs_does_not_hold_up_a_drain(in_memory: Play, cluster: Cluster) -> None:
    """Each message that waits for a handler is given back: 100 of them, 16 at a time, took 21 s."""
    stop = anyio.Event()

    async def handle(message: StoredMessage) -> None:
        await stop.wait()

    async def scenario(world: World) -> None:
        fill(cluster, 300)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, per_message=True, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, concurrency=100))
            await anyio.sleep(5)
            assert consumer.in_flight >= 150
            cluster["a"].hook(codes.CHANGE_MESSAGE_INVISIBLETIME, HANG)
            stop.set()
            with anyio.fail_after(5):
                assert await consumer.drain(2)

    in_memory(scenario, cluster)
