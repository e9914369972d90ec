"""Logs at INFO that a person can leave on, and errors that say what is wrong with an address."""

from __future__ import annotations

import logging
import re
from typing import Any

import anyio
import pytest

import rmq
from rmq.client.consume.rebalance import in_short
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.remoting.transports.stream import Stream
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


def test_an_hour_of_a_consumer(in_memory: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq.client")
    cluster = Cluster("a", "b", topics={"T": 4})

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.consumer("g", {"T": "*"}):
            await anyio.sleep(1800)
            async with world.connect() as other, other.consumer("g", {"T": "*"}):
                await anyio.sleep(1800)

    in_memory(scenario, cluster)
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("rmq.client")]
    assert len(lines) < 25, lines
    assert not [line for line in lines if "MessageQueue(" in line or len(line) > 150]
    both = "queues 0-3 of a and 0-3 of b"
    assert f"g: has {both} of T; takes {both}, gives up none" in lines


def test_a_route_that_stays_is_said_once(
    in_memory: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmq")

    async def scenario(world: World) -> None:
        front = cluster.name_servers[0]
        async with world.connect() as client, client.producer("p") as producer:
            await producer.send(rmq.Message("T", b"x"))
            caplog.clear()
            front.hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST)
            await anyio.sleep(3600)
            assert len([one for one in caplog.messages if "kept the former route" in one]) == 1
            front.hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
            await anyio.sleep(120)
            front.hook(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST)
            await anyio.sleep(120)
            assert len([one for one in caplog.messages if "kept the former route" in one]) == 2

    in_memory(scenario, cluster)


def test_name_servers_that_stay_away_are_said_once(in_memory: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq.client")

    async def scenario(world: World) -> None:
        async with rmq.connect("10.0.7.7:9876", network=world.network) as client:
            with anyio.move_on_after(600):
                async with client.consumer("g", {"T": "*"}):
                    await anyio.sleep_forever()

    in_memory(scenario, Cluster("a"))
    assert len([one for one in caplog.messages if one.startswith("name server 10.0.7.7:9876:")]) <= 2


def test_a_broker_that_is_gone_is_said_once_for_all_its_queues(
    in_memory: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rmq.client")
    cluster = Cluster("a", "b", topics={"T": 64})

    async def scenario(world: World) -> None:
        async with world.connect() as client, client.consumer("g", {"T": "*"}):
            await anyio.sleep(30)
            for _ in range(3):
                caplog.clear()
                cluster.cut("a")
                await anyio.sleep(60)
                lines = [one for one in caplog.messages if one.startswith("pull from")]
                assert len(lines) == 1
                assert lines[0].startswith("pull from broker a: ")

    in_memory(scenario, cluster)


def test_queues_in_short() -> None:
    queues = [MessageQueue("T", broker, number) for broker in ("b", "a") for number in (3, 0, 1, 2, 7, 5)]
    assert in_short(queues) == "queues 0-3, 5, 7 of a and 0-3, 5, 7 of b"
    assert in_short([]) == "none"


def test_the_address_of_a_broker(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        address = cluster["a"].address
        async with rmq.connect(address, network=world.network) as client:
            began = anyio.current_time()
            async with client.producer("p") as producer:
                wanted = f"{address} is no name server: a broker"
                with pytest.raises(rmq.NotNameServers, match=wanted) as raised:
                    await producer.send(rmq.Message("T", b"x"))
                assert anyio.current_time() - began < 1
                assert "9876" in raised.value.hint
                assert raised.value.__notes__ == [raised.value.hint]
            with pytest.raises(rmq.NotNameServers):
                await client.ready(topics=["T"])

    in_memory(scenario, cluster)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server speaks there"),
        (b"<!DOCTYPE HTML>\n<html>", "an HTTP server speaks there"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH server speaks there"),
        (b"-ERR unknown command\r\n", "a Redis server speaks there"),
        (b"", r", and has never sent a byte: is it a RocketMQ server\?"),
    ],
)
def test_the_address_of_another_server(in_memory: Play, answer: bytes, text: str) -> None:
    async def scenario(world: World) -> None:
        network: Any = world.network
        listener = await network.host("10.0.7.7").listen("10.0.7.7:80")
        held: list[Stream] = []

        async def serve() -> None:
            while True:
                stream = await listener.accept()
                held.append(stream)
                await stream.receive_some()
                if answer:
                    await stream.send_all(answer)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            async with (
                rmq.connect("10.0.7.7:80", network=world.network, send_queue_ms=8_000) as client,
                client.producer("p") as producer,
            ):
                with pytest.raises(rmq.Unreachable) as raised:
                    await producer.send(rmq.Message("T", b"x"))
                assert re.search(text, str(raised.value)), str(raised.value)
            tasks.cancel_scope.cancel()

    in_memory(scenario, Cluster("a"))


def test_no_slip_of_a_user_is_called_a_bug_of_rmq() -> None:
    assert "bug" not in rmq.LocalProtocolError.hint
