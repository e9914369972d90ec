"""The cluster in memory that tests stand on: how quick it is, its time, its faults, and its fronts."""

from __future__ import annotations

import time

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.broker.broker import Broker
from rmq.message import Message
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import START_MS, Cluster
from rmq.testing.front import CUT, HANG

SEND = RequestCode.SEND_MESSAGE_V2


async def started_in() -> float:
    began = time.process_time()
    async with Cluster("a", topics={"T": 4}):
        return time.process_time() - began


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_it_starts_in_less_than_50_ms(loop: str) -> None:
    async def main() -> None:
        assert min([await started_in() for _ in range(5)]) < 0.05

    anyio.run(main, backend=loop)


async def test_ten_minutes_pass_at_once_and_wall_time_goes_along(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={"T": 1}) as cluster, cluster.connect() as client:
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"x", delay_level=14))
        await cluster.advance(590)
        assert cluster.sent("T") == []
        await cluster.advance(20)
        (message,) = cluster.sent("T")
    assert message.store_timestamp == pytest.approx(START_MS + 600_000, abs=1500)


async def test_a_broker_that_comes_again_has_what_it_had(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={"T": 1}) as cluster:
        assert cluster["a"].put("T", 0, b"before") == 0
        cluster["a"].commit("g", "T", 0, 1)
        await cluster.stop("a")
        await cluster.start("a")
        assert cluster["a"].put("T", 0, b"after") == 1
        assert [message.body for message in cluster.sent("T")] == [b"before", b"after"]
        assert cluster["a"].offsets("g", "T") == {0: 1}


async def test_a_broker_takes_sends_however_busy_the_machine_is(autojump_clock: MockClock) -> None:
    async with Cluster("a", topics={"T": 1}) as cluster:
        server = cluster["a"].server
        assert isinstance(server, Broker)
        for _ in range(3):
            server.flow.round_took(5.0)
        server.flow.wrote(5.0)
        assert cluster["a"].put("T", 0, b"taken") == 0


async def test_lost_connections_are_made_again(autojump_clock: MockClock) -> None:
    async with (
        Cluster("a", topics={"T": 1}) as cluster,
        cluster.connect() as client,
        client.producer("p") as producer,
    ):
        await producer.send(Message("T", b"x"))
        (lost,) = cluster["a"].connections
        cluster.cut("a")
        await producer.send(Message("T", b"y"))
        assert cluster["a"].connections != [lost]
    assert cluster["a"].count(SEND) == 2


async def test_a_slow_network_takes_its_time(autojump_clock: MockClock) -> None:
    async with (
        Cluster("a", topics={"T": 1}) as cluster,
        cluster.connect() as client,
        client.producer("p") as producer,
    ):
        await producer.send(Message("T", b"x"))
        cluster.slow(0.5)
        began = trio.current_time()
        await producer.send(Message("T", b"x"))
        assert trio.current_time() - began == pytest.approx(1, abs=0.01)


async def test_a_front_forgets_the_oldest_of_very_many_requests(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.testing.front.SEEN_MAX", 10)
    async with (
        Cluster("a", topics={"T": 1}) as cluster,
        cluster.connect() as client,
        client.producer("p") as producer,
    ):
        for number in range(50):
            await producer.send(Message("T", b"%d" % number))
            assert len(cluster["a"].seen) <= 20
        assert cluster["a"].requests(SEND)[-1].body == b"49"
        assert cluster["a"].count(SEND) >= 10


async def test_a_front_answers_in_the_brokers_place(autojump_clock: MockClock) -> None:
    def twice(request: Command, connection: Connection) -> Command | None:
        first = cluster["a"].answer(request, connection)
        return first and cluster["a"].answer(request, connection)

    async with (
        Cluster("a", topics={"T": 1}) as cluster,
        cluster.connect(retry_times=0, send_timeout_ms=1000) as client,
        client.producer("p") as producer,
    ):
        cluster["a"].script(SEND, ResponseCode.MESSAGE_ILLEGAL, HANG, CUT, twice)
        with pytest.raises(rmq.MessageIllegal, match="as scripted"):
            await producer.send(Message("T", b"refused"))
        for lost in (b"hangs", b"cut"):
            with pytest.raises(rmq.SendFailed):
                await producer.send(Message("T", lost))
        assert (await producer.send(Message("T", b"twice"))).queue_offset == 1
        assert (await producer.send(Message("T", b"once"))).queue_offset == 2
        assert cluster["a"].count(SEND) == 5
        assert [message.body for message in cluster.sent("T")] == [b"twice", b"twice", b"once"]


async def test_a_broker_that_cannot_start_says_why(autojump_clock: MockClock) -> None:
    with pytest.raises(rmq.ConfigError, match="brokerId"):
        async with Cluster("a", broker_id=1):
            raise AssertionError("it was entered")
