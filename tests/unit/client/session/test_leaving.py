"""The end of a client: soon, also where brokers do not answer, on its own loop, and not forgotten."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio

import rmq
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol import codes
from rmq.protocol.bodies import ResetOffsetBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World, served_in_a_thread

KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])


# --- brokers that do not answer ---


@KINDS
@pytest.mark.parametrize("state", ["stopped", "frozen", "frozen in a heartbeat", "gone silent"])
def test_leaving_takes_two_seconds_at_most(
    in_memory: Play, cluster: Cluster, options: dict[str, Any], state: str
) -> None:
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)

    async def scenario(world: World) -> None:
        began = 0.0
        async with (
            world.connect() as client,
            client.producer("p") as producer,
            client.producer("q"),
            client.consumer("h", {"T": "*"}) as second,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            tasks.start_soon(second.run, handle)
            await producer.send(rmq.Message("T", b"x"))
            await anyio.sleep(28.5 if state == "frozen in a heartbeat" else 1)
            if state == "stopped":
                await cluster.stop("a")
                await anyio.sleep(1)
            elif state == "gone silent":
                cluster.black_hole("a")
            else:
                cluster.network.partition("10.0.1.1")
                await anyio.sleep(2.6)
            fill(cluster, 1) if state == "gone silent" else None
            tasks.cancel_scope.cancel()
            began = anyio.current_time()
        assert anyio.current_time() - began <= 2

    in_memory(scenario, cluster)
    assert seen


@KINDS
def test_several_frozen_brokers_take_no_longer(in_memory: Play, options: dict[str, Any]) -> None:
    cluster = Cluster("a", "b", "c", topics={"T": 2})

    async def handle(message: StoredMessage) -> None:
        pass

    async def scenario(world: World) -> None:
        began = 0.0
        async with (
            world.connect() as client,
            client.producer("p"),
            client.simple_consumer("s", {"T": "*"}) as single,
            client.consumer("h", {"T": "*"}, **options) as second,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            tasks.start_soon(second.run, handle)
            assert await single.receive(wait=1) == []
            await anyio.sleep(12)  # nothing is left to commit: the unlocking comes first
            for number in range(3):
                cluster.network.partition(f"10.0.1.{number + 1}")
            await anyio.sleep(0.5)
            tasks.cancel_scope.cancel()
            began = anyio.current_time()
        assert anyio.current_time() - began <= 2

    in_memory(scenario, cluster)


@KINDS
@pytest.mark.parametrize("first", ["single", "consumer"])
def test_brokers_that_take_connections_and_answer_nothing(
    in_memory: Play, options: dict[str, Any], first: str
) -> None:
    """The brokers behave like a stopped process, whose system still accepts connections. Only one of them
    must get an offset, and waiting messages must be given back."""
    cluster = Cluster("a", "b", "c", topics={"T": 1})

    async def handle(message: StoredMessage) -> None:
        pass

    async def scenario(world: World) -> None:
        for broker in "abc":
            fill(cluster, 1, queues=1, broker=broker)
        client = await world.connect().start()
        single = await client.simple_consumer("s", {"T": "*"}, consume_from="first").start()
        consumer = await client.consumer("g", {"T": "*"}, consume_from="first", **options).start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            assert len(await single.receive(1)) == 1
            await anyio.sleep(12)
            fill(cluster, 1, queues=1, broker="b")
            await anyio.sleep(0.1)
            for broker in "abc":
                for code in (*RequestCode, codes.POP_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME):
                    cluster[broker].script(code, *[HANG] * 99)
            await anyio.sleep(0.3)
            began = anyio.current_time()
            await (single if first == "single" else consumer).aclose()
            await client.aclose()
            assert anyio.current_time() - began <= 2
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


def test_a_broker_that_answers_slowly_hears_all(in_memory: Play, cluster: Cluster) -> None:
    """Each of its answers comes within a second, all of them together take longer than two."""

    async def scenario(world: World) -> None:
        fill(cluster, 20)
        seen: list[int] = []

        async def handle(message: StoredMessage) -> None:
            seen.append(message.queue_offset)

        async with (
            world.connect(shutdown_timeout_ms=20_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            with anyio.fail_after(100):
                while len(seen) < 20:
                    await anyio.sleep(0.5)
            cluster.slow(0.4)
            tasks.cancel_scope.cancel()
        assert cluster["a"].offsets("g", "T") == {0: 10, 1: 10}
        assert cluster["a"].members("g") == []

    in_memory(scenario, cluster)


def test_a_member_of_a_frozen_broker_leaves_the_others(in_memory: Play) -> None:
    cluster = Cluster("a", "b", topics={"T": 2})

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.consumer("g", {"T": "*"}):
            await anyio.sleep(1)
            assert cluster["b"].members("g") != []
            cluster.network.partition("10.0.1.1")
            await anyio.sleep(29.5)  # a heartbeat is on its way to both
        assert cluster["b"].members("g") == []

    in_memory(scenario, cluster)


# --- one loop ---


def run_trio(work: Callable[..., Any]) -> Any:
    return trio.run(work)


def run_asyncio(work: Callable[..., Any]) -> Any:
    return asyncio.run(work())


RUNS = pytest.mark.parametrize("run", [run_trio, run_asyncio], ids=["trio", "asyncio"])


@RUNS
def test_a_client_on_a_second_loop_is_told_at_once(run: Callable[..., Any], cluster: Cluster) -> None:
    with served_in_a_thread(cluster) as world:
        client = rmq.connect(world.names)
        made: list[rmq.Producer] = []

        async def first() -> None:
            await client.start()
            producer = client.producer("p")
            await producer.start()
            await producer.send(rmq.Message("T", b"x"))
            made.append(producer)

        async def second() -> None:
            (producer,) = made
            with anyio.fail_after(60):
                for call in (
                    lambda: producer.send(rmq.Message("T", b"x")),
                    lambda: producer.send(rmq.Message("Unknown", b"x")),
                    lambda: client.ready(1),
                    client.aclose,
                ):
                    with pytest.raises(rmq.LocalProtocolError, match="opened on another event loop"):
                        await call()

        run(first)
        run(second)
        client.health()  # from memory, on no loop


def test_a_client_of_a_loop_in_another_thread_is_told_too(cluster: Cluster) -> None:
    with served_in_a_thread(cluster) as world:

        async def scenario() -> None:
            async with rmq.connect(world.names) as client, client.producer("p") as producer:
                await producer.send(rmq.Message("T", b"x"))

                async def elsewhere() -> None:
                    with pytest.raises(rmq.LocalProtocolError, match="opened on another event loop"):
                        await producer.send(rmq.Message("T", b"x"))

                await asyncio.to_thread(asyncio.run, elsewhere())

        asyncio.run(scenario())


@RUNS
def test_offsets_are_reset_where_the_loop_reads_in_functions(
    run: Callable[..., Any], cluster: Cluster
) -> None:
    """asyncio calls them outside of any task, and under `asyncio.run` nothing says which library runs."""
    with served_in_a_thread(cluster) as world:

        async def scenario() -> None:
            with anyio.fail_after(30):
                async with rmq.connect(world.names) as client, client.producer("p") as producer:
                    await client.admin.create_group("g")
                    await producer.send(rmq.Message("T", b"x"))
                    async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                        async with await anext(consumer) as message:
                            assert message.body == b"x"
                        await consumer._member.assignments.commit()
                        await client.admin.reset_offset("g", "T", 0)
                        async with await anext(consumer) as message:
                            assert message.body == b"x"

        run(scenario)


# --- what is never closed ---


@pytest.mark.parametrize("what", ["client", "producer", "consumer"])
def test_what_is_never_closed_is_warned_of(in_memory: Play, cluster: Cluster, what: str) -> None:
    async def scenario(world: World) -> None:
        client = rmq.connect(world.names, network=world.network)
        await client.start()
        made: Any = client
        if what == "producer":
            made = await client.producer("p").start()
        elif what == "consumer":
            made = await client.consumer("g", {"T": "*"}).start()
        name = type(made).__name__
        session = client._entered()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del made
            if what == "client":
                del client
            else:
                session.producers.clear()
                session.members.clear()
            gc.collect()
        told = [str(one.message) for one in caught if one.category is ResourceWarning]
        assert any(text.startswith(f"unclosed {name}") for text in told), told
        if what != "client":
            await client.aclose()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_memory(scenario, cluster)


def test_what_was_closed_is_not_warned_of(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        gc.collect()  # of tests before this one
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            client = rmq.connect(world.names, network=world.network)
            await client.start()
            producer = await client.producer("p").start()
            consumer = await client.consumer("g", {"T": "*"}).start()
            await client.aclose()
            del client, producer, consumer
            async with rmq.connect(world.names, network=world.network) as other, other.producer("p"):
                pass
            del other
            gc.collect()
        assert [str(one.message) for one in caught if one.category is ResourceWarning] == []

    in_memory(scenario, cluster)


# --- requests of brokers meanwhile ---


@KINDS
def test_offsets_that_are_reset_while_a_member_leaves_are_committed(
    in_memory: Play, cluster: Cluster, options: dict[str, Any]
) -> None:
    """The connection stays: the other requests and responses on it do not suffer."""

    async def slow(message: StoredMessage) -> None:
        await anyio.sleep(8)

    async def scenario(world: World) -> None:
        fill(cluster, 8, queues=1)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, slow)
            await anyio.sleep(4)
            tasks.start_soon(consumer.drain, 10.0)
            await anyio.sleep(1)
            (connection,) = cluster["a"].connections
            body = ResetOffsetBody({MessageQueue("T", "a", 0): 7}).to_json()
            names = {"topic": "T", "group": "g"}
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            connection.notify(Command.request(code, names, body, oneway=True))
            await anyio.sleep(0.1)
            assert cluster["a"].connections == [connection]
        assert cluster["a"].offsets("g", "T")[0] == 7
        assert cluster["a"].members("g") == []

    in_memory(scenario, cluster)


def test_a_request_whose_handling_fails_is_refused_alone(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            await anyio.sleep(1)
            (connection,) = cluster["a"].connections
            consumer._member.running_info = None  # type: ignore[assignment, method-assign]
            names = {"consumerGroup": "g", "clientId": client.client_id}
            request = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, names)
            answer = await connection.call(request, 5)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "TypeError" in (answer.remark or "")
            assert cluster["a"].connections == [connection]

    in_memory(scenario, cluster)
