"""Brokers that move, or are lost: the routes that pulls by offset ask for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq.client.reading.pull_consumer import PullConsumer
from rmq.errors import ConnectFailed
from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster

from ..traffic import fill

QUEUE = MessageQueue("T", "a", 0)
PAIR: dict[str, Any] = {"broker_name": "pair", "slave_read_enable": True}
SLAVE: dict[str, Any] = {"store": {"broker_role": BrokerRole.SLAVE}, "broker_id": 1} | PAIR


@asynccontextmanager
async def reading_at_a_slave(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[tuple[Cluster, PullConsumer, MessageQueue]]:
    """A consumer whose master sends it to the slave."""
    monkeypatch.setattr("rmq.store.store.physical_memory", lambda: 1000)  # nearly all is old
    async with Cluster() as made:
        await made.start("m", **PAIR)
        await made.start("s", **SLAVE)
        await fill(made, "Orders", 200)
        await trio.sleep(20)
        async with made.connect() as client, client.pull_consumer("readers") as puller:
            queue, *_ = await puller.message_queues("Orders")
            await puller.pull(queue, offset=0, max_messages=8)
            yield made, puller, queue


async def test_a_broker_that_moves_is_found_by_the_next_pull(clock: MockClock) -> None:
    async with (
        Cluster("a", topics={"T": 1}) as made,
        made.connect() as client,
        client.pull_consumer("readers") as puller,
    ):
        assert (await puller.pull_raw(QUEUE, 0)).max_offset == 0
        for port in (20911, 30911):
            await made.stop("a")
            with pytest.raises(ConnectFailed):
                await puller.pull_raw(QUEUE, 0)
            await made.start("a", listen_port=port)
            before = trio.current_time()
            assert (await puller.pull_raw(QUEUE, 0)).address.endswith(f":{port}")
            assert trio.current_time() - before < 1, "and not with the next look at all routes"


async def test_a_lost_master_costs_readers_of_its_slave_no_routes(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading_at_a_slave(monkeypatch) as (made, puller, queue):
        puller._session._on_connection(made["m"].address, "lost")
        (front,) = made.name_servers
        before = front.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        for _ in range(20):
            await puller.pull(queue, offset=0, max_messages=8)
        assert front.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == before


async def test_a_slave_that_moves_is_found_by_the_next_pull(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading_at_a_slave(monkeypatch) as (made, puller, queue):
        await made.stop("s")
        with pytest.raises(ConnectFailed):
            await puller._exchange(puller._template(queue, "*"), 0, 8, 0.0)
        await made.start("s", listen_port=20911, **SLAVE)
        before = trio.current_time()
        assert (await puller.pull_raw(queue, 0, max_messages=8)).address.endswith(":20911")
        assert trio.current_time() - before < 1, "and not with the next look at all routes"
