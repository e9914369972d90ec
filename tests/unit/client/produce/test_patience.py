"""A send that nothing was stored of waits and is tried again; a broker gets only what its window takes."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection
from functools import partial
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.produce.producer import Producer
from rmq.client.session.window import Windows
from rmq.errors import ConnectFailed, ConnectionLost, NoRoute, SendFailed, WindowFull
from rmq.message import Message, MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, HANG

from ..world import World, world

SEND = RequestCode.SEND_MESSAGE_V2
OUTAGE_SECONDS = 6


def bodies(cluster: Cluster) -> list[bytes]:
    return [message.body for message in cluster.sent("T")]


def answers_after(seconds: float, cluster: Cluster, broker: str, nursery: trio.Nursery) -> None:
    """Have a broker answer each send late; what it stores, it stores at once."""

    def answer(request: Command, connection: Connection) -> None:
        stored = cluster[broker].answer(request, connection)
        assert stored is not None
        nursery.start_soon(reply, stored, connection)

    async def reply(stored: Command, connection: Connection) -> None:
        await trio.sleep(seconds)
        connection.reply(stored)

    cluster[broker].hook(SEND, answer)


class TestRestart:
    @pytest.mark.parametrize("way", ["free", "queue", "key"])
    async def test_six_seconds_without_a_broker_fail_no_send(
        self, setting: World, clock: MockClock, way: str
    ) -> None:
        cluster, sent, slowest = setting.cluster, 0, 0.0
        where: dict[str, dict[str, object]] = {
            "free": {},
            "queue": {"queue": MessageQueue("T", "a", 1)},
            "key": {"sharding_key": "one"},
        }

        async def send_on(producer: Producer, until: float) -> None:
            nonlocal sent, slowest
            while (began := trio.current_time()) < until:
                sent += 1
                await producer.send(Message("T", b"%d" % sent), **where[way])  # type: ignore[arg-type]
                slowest = max(slowest, trio.current_time() - began)
                await trio.sleep(0.1)

        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"first"))
            async with trio.open_nursery() as nursery:
                for _ in range(16):
                    nursery.start_soon(send_on, producer, trio.current_time() + 12)
                await trio.sleep(1)
                await cluster.stop("a")
                await trio.sleep(OUTAGE_SECONDS)
                await cluster.start("a")
            assert OUTAGE_SECONDS - 1 < slowest < OUTAGE_SECONDS + 2
        assert sorted(bodies(cluster)) == sorted([b"first", *(b"%d" % n for n in range(1, sent + 1))])

    @pytest.mark.parametrize("outage", [0.5, 6, 300])
    async def test_a_consumer_goes_on_soon_after_the_return_of_its_broker(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture, outage: float
    ) -> None:
        """No producer sends, whose sends would find the broker back."""
        cluster = setting.cluster
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            await trio.sleep(5)
            await cluster.stop("a")
            await trio.sleep(outage)
            await cluster.start("a")
            back = trio.current_time()
            async with setting.connect() as other, other.producer("p") as producer:
                await producer.send(Message("T", b"again"))
                async with await anext(consumer) as message:
                    assert message.body == b"again"
            assert trio.current_time() - back < 2
        pulls = [one for one in caplog.messages if one.startswith("pull from")]
        assert 0 < len(pulls) <= 8, "each queue says once what is wrong, for each error"

    async def test_what_was_written_and_lost_is_an_attempt_that_counts(
        self, setting: World, clock: MockClock
    ) -> None:
        setting.cluster["a"].script(SEND, *[CUT] * 9)
        async with setting.connect(retry_times=1) as client, client.producer("p") as producer:
            with pytest.raises(SendFailed) as raised:
                await producer.send(Message("T", b"x"))
        assert setting.cluster["a"].count(SEND) == 2
        lost = [error for _, error, _ in raised.value.attempts if isinstance(error, ConnectionLost)]
        assert lost[-1] is raised.value.__cause__

    async def test_a_broker_that_stays_away_is_given_up_and_told_once(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect(send_queue_ms=20_000) as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            await setting.cluster.stop("a")
            began = trio.current_time()
            with pytest.raises(SendFailed) as raised:
                await producer.send(Message("T", b"y"))
            assert trio.current_time() - began == pytest.approx(20, abs=0.1)
            (count,) = raised.value.counts
            assert 20 <= count <= 50
            assert re.fullmatch(
                rf"not sent after {count} attempt\(s\): a {count} times, last after \d+\.\d+ s: "
                r"cannot connect to 10\.0\.1\.1:10911: .*refused.*",
                str(raised.value),
            )
            began = trio.current_time()
            with pytest.raises(ConnectFailed):
                await producer.send(Message("T", b"y"), queue=MessageQueue("T", "a", 0))
            assert trio.current_time() - began == pytest.approx(20, abs=0.1)

    async def test_what_is_left_may_be_less_than_the_clock_can_tell(
        self, setting: World, clock: MockClock
    ) -> None:
        """When a clock passes a power of two its numbers get coarser, and the remaining time of a send may be
        less than one step. A send that paused for such a time never ended on a virtual clock."""
        draws = 0

        class Chance(random.Random):
            def uniform(self, a: float, b: float) -> float:
                nonlocal draws
                draws += 1
                assert draws < 1000, "it goes round and round"
                return super().uniform(a, b)

        chance = Chance(1)
        async with setting.connect() as client, client.producer("p") as producer:
            client._session.chance = chance
            await producer.send(Message("T", b"first"))
            await setting.cluster.stop("a")
            for power in range(9, 30):
                draws = 0
                clock.jump(2.0**power - 10 + chance.random() - trio.current_time())
                with pytest.raises(SendFailed):
                    await producer.send(Message("T", b"m"))

    async def test_pauses_grow_and_differ(self, setting: World, clock: MockClock) -> None:
        times: list[float] = []

        def busy(request: Command, connection: Connection) -> Command:
            times.append(trio.current_time())
            return request.reply(ResponseCode.SYSTEM_BUSY, "as scripted")

        setting.cluster["a"].hook(SEND, busy)
        settings = {"retry_times": 6, "send_timeout_ms": 60_000}
        async with setting.connect(**settings) as client, client.producer("p") as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"x"))
        pauses = [after - before for before, after in pairwise(times)]
        longest = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert all(most / 2 <= pause <= most + 1e-6 for pause, most in zip(pauses, longest, strict=True))
        assert len({round(pause / most, 6) for pause, most in zip(pauses, longest, strict=True)}) == 6

    async def test_a_topic_nobody_knows_is_waited_for_as_long_as_a_send(self, clock: MockClock) -> None:
        cluster = Cluster("a", auto_create_topic_enable=False)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            began = trio.current_time()
            with pytest.raises(NoRoute, match="no route for topic 'New'"):
                await producer.send(Message("New", b"x"))
            assert 3 <= trio.current_time() - began <= 4
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, Message("New", b"x"))
                await trio.sleep(2)
                await cluster.create_topic("New", 1)
            assert [message.body for message in cluster.sent("New")] == [b"x"]

    async def test_a_broker_without_a_route_for_a_while_is_waited_for(self, clock: MockClock) -> None:
        """A slave keeps the topic's route, which has no master then: the topic is no mistake."""
        cluster = Cluster("a", topics={"T": 2})
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            (rotation,) = [client._session.routes.get("T")]
            await cluster.stop("a")
            rotation.route.brokers["a"].clear()
            rotation._order = ()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, Message("T", b"y"))
                await trio.sleep(10)
                await cluster.start("a")
        assert bodies(cluster) == [b"x", b"y"]


class TestManyAtOnce:
    async def test_ten_thousand_are_stored_once_each(self, setting: World, clock: MockClock) -> None:
        """Fifty thousand on real processes: tests/system/processes/test_patience.py."""
        cluster, results, most = setting.cluster, list[rmq.SendResult](), 0

        async def send(number: int) -> None:
            results.append(await producer.send(Message("T", b"%d" % number)))

        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"first"))
            (link,) = [link for address, link in client._session.pool._links.items() if "10911" in address]
            async with trio.open_nursery() as nursery:
                for number in range(10_000):
                    nursery.start_soon(send, number)
                while len(results) < 10_000:
                    await trio.sleep(0)
                    assert link.connection is not None
                    most = max(most, len(link.connection._pending))
            assert most == 1000
            assert client._session.windows.of("a").room == 1000
        assert Counter(bodies(cluster)) == Counter([b"first", *(b"%d" % n for n in range(10_000))])
        assert len({result.message_id for result in results}) == 10_000

    async def test_time_counts_from_the_write(self, setting: World, clock: MockClock) -> None:
        async with trio.open_nursery() as nursery:
            answers_after(2, setting.cluster, "a", nursery)
            async with setting.connect(send_window=2) as client, client.producer("p") as producer:
                began = trio.current_time()
                async with trio.open_nursery() as sends:
                    for number in range(10):
                        sends.start_soon(producer.send, Message("T", b"%d" % number))
                assert trio.current_time() - began == pytest.approx(10, abs=0.1)
        assert len(bodies(setting.cluster)) == 10

    async def test_a_line_that_is_too_long_says_so(self, setting: World, clock: MockClock) -> None:
        failures: list[rmq.RmqError] = []

        async def send(**where: MessageQueue) -> None:
            try:
                await producer.send(Message("T", b"x"), **where)  # type: ignore[arg-type]
            except rmq.RmqError as error:
                failures.append(error)
                assert trio.current_time() - began == pytest.approx(5, abs=0.01)

        async with trio.open_nursery() as nursery:
            answers_after(9, setting.cluster, "a", nursery)
            settings = {"send_window": 1, "send_queue_ms": 5_000, "send_timeout_ms": 10_000}
            async with setting.connect(**settings) as client, client.producer("p") as producer:
                began = trio.current_time()
                async with trio.open_nursery() as sends:
                    sends.start_soon(send)
                    await trio.sleep(0.1)
                    began = trio.current_time()
                    sends.start_soon(partial(send, queue=MessageQueue("T", "a", 0)))
                    sends.start_soon(send)
        assert {type(error) for error in failures} == {SendFailed, WindowFull}
        for error in failures:
            assert "1 sends were on their way to a for 5 s: no room for another" in str(error)

    async def test_another_broker_takes_what_has_no_room(self, clock: MockClock) -> None:
        cluster = Cluster("a", "b", topics={"T": 1})
        async with world(cluster) as setting, trio.open_nursery() as nursery:
            answers_after(1, cluster, "a", nursery)
            async with setting.connect(send_window=2) as client, client.producer("p") as producer:
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b", 0))
                began = trio.current_time()
                async with trio.open_nursery() as sends:
                    for _ in range(40):
                        sends.start_soon(producer.send, Message("T", b"x"))
                assert trio.current_time() - began == pytest.approx(1, abs=0.1)
        assert cluster["a"].count(SEND) == 2

    async def test_those_in_line_go_elsewhere_when_a_broker_fails(self, clock: MockClock) -> None:
        cluster = Cluster("a", "b", topics={"T": 1})
        cluster["a"].script(SEND, *[HANG] * 99)
        async with (
            world(cluster) as setting,
            trio.open_nursery() as nursery,
            setting.connect(send_window=1) as client,
            client.producer("p") as producer,
        ):
            answers_after(0.1, cluster, "b", nursery)
            async with trio.open_nursery() as sends:
                for _ in range(20):
                    sends.start_soon(producer.send, Message("T", b"x"))
                await trio.sleep(0.05)
                assert {len(client._session.windows.of(name)) for name in "ab"} != {0}
                cluster.cut("a")
        assert len(bodies(cluster)) == 20
        assert cluster["a"].count(SEND) == 1


async def brokers_of_four(producer: Producer) -> set[str]:
    return {(await producer.send(Message("T", b"x"))).message_queue.broker_name for _ in range(4)}


class TestHealth:
    async def test_many_in_flight_that_fail_together_are_one_failure(self, clock: MockClock) -> None:
        cluster = Cluster("a", "b", topics={"T": 1})
        cluster["a"].script(SEND, *[HANG] * 32)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            async with trio.open_nursery() as sends:
                for _ in range(64):
                    sends.start_soon(producer.send, Message("T", b"x"))
                await trio.sleep(0.5)
                assert cluster["a"].count(SEND) == 32
                cluster.network.cut("10.0.9.1", "10.0.1.1")
            await trio.sleep(4)
            assert await brokers_of_four(producer) == {"b"}
            await trio.sleep(1.1)
            assert await brokers_of_four(producer) == {"a", "b"}

    async def test_a_broker_that_registers_anew_is_used_at_once(self, clock: MockClock) -> None:
        cluster = Cluster("a", "b", topics={"T": 1})
        settings = {"poll_name_server_interval_ms": 500}
        async with (
            world(cluster) as setting,
            setting.connect(**settings) as client,
            client.producer("p") as producer,
        ):
            await producer.send(Message("T", b"x"))
            for _ in range(5):  # failures in a row: without more, it would be avoided for a minute
                client._session.health.failed("a", trio.current_time())
                await trio.sleep(60)
            client._session.health.failed("a", trio.current_time())
            await cluster.stop("a")
            await trio.sleep(1)
            await cluster.start("a")
            await trio.sleep(1)
            assert await brokers_of_four(producer) == {"a", "b"}


class TestWindow:
    async def test_first_come_first_served(self, clock: MockClock) -> None:
        window, order = Windows(1).of("a"), list[int]()

        async def come(number: int) -> None:
            assert await window.enter(100)
            order.append(number)
            await trio.sleep(1)
            window.leave()

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(come, number)
                await trio.sleep(0.01)
        assert order == list(range(6))
        assert window.room == 1

    async def test_who_is_cancelled_in_line_or_at_the_door_takes_no_room(self, clock: MockClock) -> None:
        window = Windows(1).of("a")
        assert await window.enter(1)
        with trio.move_on_after(5) as in_line:
            await window.enter(100)
        assert in_line.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(window.enter, 100)
            await trio.sleep(1)
            window.leave()
            nursery.cancel_scope.cancel()
        assert window.room in (0, 1)
        if not window.room:
            window.leave()
        assert window.room == 1

    async def test_only_the_free_are_sent_off(self, clock: MockClock) -> None:
        window, got = Windows(1).of("a"), dict[str, bool]()
        assert await window.enter(1)

        async def come(name: str, others: Collection[str]) -> None:
            got[name] = await window.enter(100, others)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come, "free", ("a", "b"))
            nursery.start_soon(come, "bound", ())
            await trio.sleep(1)
            window.disperse()
            await trio.sleep(1)
            assert got == {"free": False}
            window.leave()
        assert got == {"free": False, "bound": True}

    async def test_where_there_is_room_those_in_other_lines_come(self, clock: MockClock) -> None:
        windows, got = Windows(1), dict[str, bool]()
        one, other = windows.of("a"), windows.of("b")
        assert await one.enter(1)
        assert await other.enter(1)

        async def come(name: str, brokers: Collection[str]) -> None:
            got[name] = await one.enter(100, brokers)

        async with trio.open_nursery() as nursery:
            for name, brokers in {
                "bound": (),
                "elsewhere": ("c",),
                "free": ("a", "b"),
                "next": ("b",),
            }.items():
                nursery.start_soon(come, name, brokers)
                await trio.sleep(0.1)
            other.leave()
            await trio.sleep(0.1)
            assert got == {"free": False}
            for _ in range(4):
                one.leave()
        assert got == {"free": False, "bound": True, "elsewhere": True, "next": True}
        assert (one.room, other.room, windows.waiting) == (1, 1, 0)

    async def test_waiting_has_an_end(self, clock: MockClock) -> None:
        window = Windows(1).of("a")
        assert await window.enter(0)
        with pytest.raises(WindowFull, match="1 sends were on their way to a for 7 s"):
            await window.enter(7)
        window.leave()
        assert window.room == 1
