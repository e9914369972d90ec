"""Sends with a time of their own while name servers do not answer: what the error says, and who else is
asked."""

from __future__ import annotations

import anyio
import pytest

import rmq
from rmq.message import Message
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ..conftest import Play
from ..world import World

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def named(error: rmq.RmqError) -> str:
    """The error as a traceback shows it, with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


async def failure(producer: rmq.Producer, timeout: float) -> str:
    """The error of a send that fails for want of a name server, in time."""
    began = anyio.current_time()
    with pytest.raises(rmq.Unreachable) as caught:
        await producer.send(Message("T", b"x"), timeout=timeout)
    assert anyio.current_time() - began <= timeout + 0.01
    return named(caught.value)


@pytest.mark.parametrize("state", ["hang", "gone", "unreachable"])
def test_the_error_names_each_name_server_and_what_to_do(in_memory: Play, state: str) -> None:
    cluster = Cluster("a", topics={"T": 1}, name_servers=2)

    async def scenario(world: World) -> None:
        addresses = [front.address for front in cluster.name_servers]
        for front in cluster.name_servers:
            if state == "hang":
                front.script(ROUTE, *[HANG] * 99)
            elif state == "unreachable":
                cluster.network.partition(front.address.partition(":")[0], "127.0.0.1")  # type: ignore[attr-defined]
        if state == "gone":  # nobody listens there
            addresses = ["10.0.0.1:1", "10.0.0.2:1"]
            world = World(world.cluster, world.network, ";".join(addresses))
        async with world.connect() as client, client.producer("p") as producer:
            for timeout in (0.5, 2.0, 5.0):
                said = await failure(producer, timeout)
                assert all(address in said for address in addresses), said
                assert "topic 'T'" in said
                assert "check that the name servers run" in said

    in_memory(scenario, cluster)


def test_a_send_that_waits_for_the_search_of_another_says_it_too(in_memory: Play) -> None:
    cluster = Cluster("a", topics={"T": 1}, name_servers=2)
    for front in cluster.name_servers:
        front.script(ROUTE, *[HANG] * 99)

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.producer("p") as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(failure, producer, 20.0)
            await anyio.sleep(0.1)
            for timeout in (0.5, 4.0):
                said = await failure(producer, timeout)
                assert all(front.address in said for front in cluster.name_servers), said
                assert "check that the name servers run" in said
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)


@pytest.mark.parametrize("timeout", [0.6, 2.0, None])
def test_one_that_hangs_leaves_time_for_the_other(in_memory: Play, timeout: float | None) -> None:
    cluster = Cluster("a", topics={"T": 1}, name_servers=2)
    cluster.name_servers[0].script(ROUTE, *[HANG] * 99)

    async def scenario(world: World) -> None:
        for _ in range(6):  # each begins with either of the two
            async with world.connect() as client, client.producer("p") as producer:
                began = anyio.current_time()
                await producer.send(Message("T", b"x"), timeout=timeout)
                assert anyio.current_time() - began <= 1.6

    in_memory(scenario, cluster)


@pytest.mark.parametrize("options", [{}, {"idempotent": True}, {"auto_batch": True}], ids=str)
@pytest.mark.parametrize("timeout", [None, 8.0])
def test_one_that_starts_a_moment_later_is_waited_for(
    in_memory: Play, options: dict[str, bool], timeout: float | None
) -> None:
    cluster = Cluster("a", topics={"T": 1})

    async def scenario(world: World) -> None:
        (listener,) = [
            one
            for (host, _), one in cluster.network._listeners.items()  # type: ignore[attr-defined]
            if host == "10.0.0.1"
        ]
        listener.is_held = True  # connections are refused

        async def start() -> None:
            await anyio.sleep(2)
            listener.is_held = False

        async with (
            world.connect() as client,
            client.producer("p", **options) as producer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(start)
            await producer.send(Message("T", b"x"), timeout=timeout)

    in_memory(scenario, cluster)
