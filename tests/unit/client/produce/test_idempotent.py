"""A producer whose repeated sends are stored once, where the broker has that."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

import rmq
from rmq.message import Message, MessageQueue
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import IDEMPOTENT_SEND, RequestCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, HANG

from ..conftest import Play
from ..world import World

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def knowing() -> Cluster:
    return Cluster("a", "b", topics={"T": 2}, idempotent_send_keep_time=600_000)


def loses_answers(cluster: Cluster, every: int) -> None:
    """Brokers store what comes, and the answers to most sends are lost with the connection."""
    count = 0

    def answer(front: Any) -> Any:
        def lose(request: Command, connection: Connection) -> Command | None:
            nonlocal count
            count += 1
            stored = front.answer(request, connection)
            if count % every:
                connection.close("as scripted")
                return None
            return stored  # type: ignore[no-any-return]

        return lose

    for front in cluster.brokers.values():
        for code in (IDEMPOTENT_SEND, SEND, RequestCode.SEND_BATCH_MESSAGE):
            front.hook(code, answer(front))


def test_lost_answers_double_nothing(in_memory: Play, knowing: Cluster) -> None:
    loses_answers(knowing, 3)

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            for number in range(20):
                result = await producer.send(Message("T", b"%d" % number))
                found = knowing[result.message_queue.broker_name].queues("T")
                assert result.queue_offset < found[result.message_queue.queue_id][1]
            await producer.send_batch([Message("T", b"%d" % number) for number in range(20, 30)])
            await producer.send(Message("T", b"30"), sharding_key="k")
            await producer.send(Message("T", b"31"), queue=MessageQueue("T", "b", 1))
            await producer.send(Message("T", b"32" * 5_000))
        stored = knowing.sent("T")
        assert sorted(message.body[:2] for message in stored) == sorted(b"%d" % n for n in range(33))
        assert len({message.message_id for message in stored}) == 33

    in_memory(scenario, knowing)
    assert sum(front.count(SEND) for front in knowing.brokers.values()) == 0


def test_without_it_they_do(in_memory: Play, knowing: Cluster) -> None:
    loses_answers(knowing, 3)

    async def scenario(world: World) -> None:
        async with world.connect(retry_times=5) as client, client.producer("p") as producer:
            for number in range(10):
                await producer.send(Message("T", b"%d" % number))
        assert len(knowing.sent("T")) > 10

    in_memory(scenario, knowing)


def test_brokers_that_do_not_have_it_store_as_always(
    in_memory: Play, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("a", topics={"T": 2})
    caplog.set_level(logging.INFO, "rmq.client.produce.idempotent")

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            for number in range(10):
                await producer.send(Message("T", b"%d" % number))
        assert len(cluster.sent("T")) == 10

    in_memory(scenario, cluster)
    assert cluster["a"].count(IDEMPOTENT_SEND) == 1
    assert [one for one in caplog.messages if "its idempotentSendKeepTime is 0" in one] == caplog.messages


def test_delayed_messages_and_requests_go_as_always(in_memory: Play, knowing: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            await producer.send(Message("T", b"a", delay_level=1))
            await producer.send(Message("T", b"b", delay_ms=1_000))
            await producer.send(Message("T", b"c", deliver_at_ms=knowing.now_ms() + 1_000))
            await anyio.sleep(10)
        assert len(knowing.sent("T")) == 3

    in_memory(scenario, knowing)
    assert sum(front.count(IDEMPOTENT_SEND) for front in knowing.brokers.values()) == 0


@pytest.mark.parametrize("outage", [1.0, 20.0])
def test_a_broker_that_comes_back_gets_it_once(in_memory: Play, outage: float) -> None:
    cluster = Cluster("a", topics={"T": 2}, idempotent_send_keep_time=600_000)
    loses_answers(cluster, 2)

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            await producer.send(Message("T", b"first"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.send, Message("T", b"second"))
                await anyio.sleep(0.01)
                await cluster.stop("a")
                await anyio.sleep(outage)
                await cluster.start("a")
        assert sorted(message.body for message in cluster.sent("T")) == [b"first", b"second"]

    in_memory(scenario, cluster)


def test_the_time_has_an_end(in_memory: Play, knowing: Cluster) -> None:
    for front in knowing.brokers.values():
        front.script(IDEMPOTENT_SEND, *[HANG] * 99)

    async def scenario(world: World) -> None:
        async with (
            world.connect(send_queue_ms=20_000) as client,
            client.producer("p", idempotent=True) as producer,
        ):
            for timeout, seconds in ((5.0, 5), (None, 20)):
                began = anyio.current_time()
                with pytest.raises(rmq.SendFailed, match="did not answer"):
                    await producer.send(Message("T", b"x"), timeout=timeout)
                assert seconds - 1.1 <= anyio.current_time() - began <= seconds

    in_memory(scenario, knowing)


def test_it_waits_for_room_as_long_as_other_sends(in_memory: Play) -> None:
    cluster = Cluster("a", topics={"T": 2}, idempotent_send_keep_time=600_000)
    cluster["a"].script(IDEMPOTENT_SEND, *[HANG] * 3)  # 9 s in which nobody else has room

    async def scenario(world: World) -> None:
        async with (
            world.connect(send_window=1) as client,
            client.producer("p", idempotent=True) as producer,
            anyio.create_task_group() as tasks,
        ):
            for number in range(3):
                tasks.start_soon(producer.send, Message("T", b"%d" % number))
        assert sorted(message.body for message in cluster.sent("T")) == [b"0", b"1", b"2"]

    in_memory(scenario, cluster)


@pytest.mark.parametrize("connected", [False, True])
def test_it_waits_for_a_master_as_long_as_other_sends(in_memory: Play, connected: bool) -> None:
    cluster = Cluster("a", topics={"T": 2}, idempotent_send_keep_time=600_000)
    names = cluster.name_servers[0]

    def without_a_master(request: Command, connection: Connection) -> Command | None:
        answer = names.answer(request, connection)
        if answer is not None and answer.code == 0:
            route = TopicRouteData.from_json(answer.body)
            for broker in route.broker_datas:
                broker.broker_addrs = {1: broker.broker_addrs[0]}
            answer.body = route.to_json()
        return answer

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            await producer.send(Message("T", b"first"))
            names.hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, without_a_master)
            session = client._session
            assert session is not None
            if connected:
                cluster["a"].script(IDEMPOTENT_SEND, CUT)
            else:
                await session.refresh("T")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    lambda: producer.send(Message("T", b"second"), queue=MessageQueue("T", "a", 0))
                )
                if connected:
                    await session.refresh("T")
                await anyio.sleep(20)
                names.hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
        assert sorted(message.body for message in cluster.sent("T")) == [b"first", b"second"]

    in_memory(scenario, cluster)


def test_a_broker_that_no_route_names_is_an_error_soon(in_memory: Play, knowing: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.producer("p", idempotent=True) as producer:
            await producer.send(Message("T", b"first"))
            with anyio.fail_after(5), pytest.raises(rmq.NoRoute):
                await producer.send(Message("T", b"second"), queue=MessageQueue("T", "nobody", 0))

    in_memory(scenario, knowing)
