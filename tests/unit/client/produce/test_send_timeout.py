"""The time of one send: `timeout`, brokers that hang, and refusals that are final."""

from __future__ import annotations

import anyio
import pytest

import rmq
from rmq.errors import ConfigError, InvalidType
from rmq.message import Message, MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG

from ..conftest import Play
from ..world import World

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def pair() -> Cluster:
    return Cluster("a", "b", topics={"T": 1})


def refused(request: Command, connection: Connection) -> Command:
    return request.reply(ResponseCode.NO_PERMISSION, "the topic[T] sending message is forbidden")


class TestTimeout:
    def test_a_broker_that_hangs_ends_the_send_in_time(self, in_memory: Play, cluster: Cluster) -> None:
        cluster["a"].script(SEND, *[HANG] * 9)

        async def scenario(setting: World) -> None:
            async with setting.connect() as client, client.producer("p") as producer:
                began = anyio.current_time()
                with pytest.raises(rmq.SendFailed):
                    await producer.send(Message("T", b"x"), timeout=0.5)
                assert anyio.current_time() - began == pytest.approx(0.5, abs=0.01)

        in_memory(scenario, cluster)

    def test_waiting_counts(self, in_memory: Play, cluster: Cluster) -> None:
        """For a broker that is away, for a queue's broker, for a route, for room: none of them the 60 s."""

        async def scenario(setting: World) -> None:
            async with setting.connect(send_window=1) as client, client.producer("p") as producer:
                await producer.send(Message("T", b"x"))
                await cluster.stop("a")
                for topic, queue in (("T", None), ("T", MessageQueue("T", "a", 0)), ("Nowhere", None)):
                    began = anyio.current_time()
                    with pytest.raises(rmq.RmqError):
                        await producer.send(Message(topic, b"x"), queue=queue, timeout=2)
                    assert anyio.current_time() - began == pytest.approx(2, abs=0.1)
                await cluster.start("a")
                await producer.send(Message("T", b"y"), timeout=30)
                cluster["a"].script(SEND, *[HANG] * 9)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(fails, producer, 5.0)
                    await anyio.sleep(0.1)
                    await fails(producer, 1.0)

        async def fails(producer: rmq.Producer, timeout: float) -> None:
            began = anyio.current_time()
            with pytest.raises(rmq.SendFailed):
                await producer.send(Message("T", b"x"), timeout=timeout)
            assert anyio.current_time() - began == pytest.approx(timeout, abs=0.1)

        in_memory(scenario, cluster)

    def test_name_servers_that_hang(self, in_memory: Play) -> None:
        cluster = Cluster("a", topics={"T": 1}, name_servers=3)
        for front in cluster.name_servers:
            front.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[HANG] * 99)

        async def scenario(setting: World) -> None:
            async with (
                setting.connect() as client,
                client.producer("p") as producer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(fails, producer, 20.0)  # it asks, and the others wait for its answers
                await anyio.sleep(0.1)
                tasks.start_soon(fails, producer, 2.0)
                await fails(producer, 1.0)

        async def fails(producer: rmq.Producer, timeout: float) -> None:
            began = anyio.current_time()
            with pytest.raises(rmq.NoRoute):
                await producer.send(Message("T", b"x"), timeout=timeout)
            assert anyio.current_time() - began < timeout + 0.1

        in_memory(scenario, cluster)

    def test_one_that_is_longer_than_send_timeout_ms(self, in_memory: Play, cluster: Cluster) -> None:
        async def scenario(setting: World) -> None:
            async with setting.connect(retry_times=0) as client, client.producer("p") as producer:
                cluster["a"].script(SEND, HANG)
                began = anyio.current_time()
                with pytest.raises(rmq.SendFailed):
                    await producer.send(Message("T", b"x"), timeout=9)
                assert anyio.current_time() - began == pytest.approx(9, abs=0.1)

        in_memory(scenario, cluster)

    def test_every_way_of_sending_takes_it(self, in_memory: Play, cluster: Cluster) -> None:
        async def scenario(setting: World) -> None:
            app = rmq.App()
            async with (
                app.using(setting.connect()),
                app.client.producer("batching", auto_batch=True) as batching,
            ):
                cluster["a"].script(SEND, *[HANG] * 9)
                cluster["a"].script(RequestCode.SEND_BATCH_MESSAGE, *[HANG] * 9)
                messages = [Message("T", b"x")] * 2
                for send in (
                    lambda: app.send("T", b"x", timeout=0.5),
                    lambda: app.producer.send_batch(messages, timeout=0.5),
                    lambda: batching.send(Message("T", b"x"), timeout=0.5),
                ):
                    began = anyio.current_time()
                    with pytest.raises(rmq.SendFailed):
                        await send()
                    assert anyio.current_time() - began == pytest.approx(0.5, abs=0.01)
                    cluster.cut()
                for wrong, kind in (("5s", InvalidType), (-1, ConfigError), (0, ConfigError)):
                    with pytest.raises(kind, match="timeout"):
                        await app.send("T", b"x", timeout=wrong)  # type: ignore[arg-type]

        in_memory(scenario, cluster)


class TestHungBroker:
    @pytest.mark.parametrize("timeout", [None, 2.0])
    def test_a_late_loop_leaves_time_for_the_healthy_one(
        self, in_memory: Play, pair: Cluster, timeout: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the loop was held up, requests get their time again (`timed_out`). This extra time is not the
        send's: the send has as much left for the other broker as without it."""
        monkeypatch.setattr("rmq.remoting.pending_requests.LATE_SECONDS", -1.0)  # every timer tells of that
        pair["a"].script(SEND, *[HANG] * 99)

        async def scenario(setting: World) -> None:
            async with (
                setting.connect(avoid_slow_brokers=False) as client,
                client.producer("p") as producer,
            ):
                for number in range(8):
                    result = await producer.send(Message("T", b"%d" % number), timeout=timeout)
                    assert result.message_queue.broker_name == "b"
                    await anyio.sleep(10)

        in_memory(scenario, pair)

    def test_two_of_three_hang(self, in_memory: Play) -> None:
        cluster = Cluster("a", "b", "c", topics={"T": 1})
        for broker in "ab":
            cluster[broker].script(SEND, *[HANG] * 99)

        async def scenario(setting: World) -> None:
            async with (
                setting.connect(avoid_slow_brokers=False) as client,
                client.producer("p") as producer,
            ):
                for _ in range(6):
                    began = anyio.current_time()
                    result = await producer.send(Message("T", b"x"), timeout=2)
                    assert result.message_queue.broker_name == "c"
                    assert anyio.current_time() - began <= 1.6

        in_memory(scenario, cluster)


class TestNoPermission:
    def test_it_is_raised_as_it_is_and_at_once(self, in_memory: Play, cluster: Cluster) -> None:
        cluster["a"].hook(SEND, refused)

        async def scenario(setting: World) -> None:
            async with setting.connect() as client, client.producer("p") as producer:
                began = anyio.current_time()
                with pytest.raises(rmq.NoPermission, match="sending message is forbidden"):
                    await producer.send(Message("T", b"x"))
                assert anyio.current_time() == began

        in_memory(scenario, cluster)
        assert cluster["a"].count(SEND) == 1

    def test_each_broker_is_asked_once(self, in_memory: Play, pair: Cluster) -> None:
        pair["a"].hook(SEND, refused)
        pair["b"].hook(SEND, refused)

        async def scenario(setting: World) -> None:
            async with setting.connect(retry_times=9) as client, client.producer("p") as producer:
                began = anyio.current_time()
                with pytest.raises(rmq.NoPermission):
                    await producer.send(Message("T", b"x"))
                assert anyio.current_time() == began

        in_memory(scenario, pair)
        assert (pair["a"].count(SEND), pair["b"].count(SEND)) == (1, 1)

    def test_one_that_may_take_it_does(self, in_memory: Play, pair: Cluster) -> None:
        """A broker with `brokerPermission` 4 is being emptied."""
        pair["a"].hook(SEND, refused)

        async def scenario(setting: World) -> None:
            async with setting.connect() as client, client.producer("p") as producer:
                for _ in range(4):
                    result = await producer.send(Message("T", b"x"))
                    assert result.message_queue.broker_name == "b"

        in_memory(scenario, pair)
