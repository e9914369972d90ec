"""The state of a client: ready, health, lag, events, and reports of a consumer without progress."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.session.events import Stalled
from rmq.message import MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.client.consume.consuming import of_topic, until

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World

KINDS = pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])
ZERO, ONE = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def lines(caplog: pytest.LogCaptureFixture, part: str, level: int = logging.WARNING) -> list[str]:
    return [one.getMessage() for one in caplog.records if part in one.getMessage() and one.levelno == level]


def watched(world: World, told: list[Any], **settings: Any) -> rmq.Client:
    config = rmq.ClientConfig(**settings)
    return rmq.connect(world.names, network=world.network, config=config, on_event=told.append)


async def sleep_forever(message: StoredMessage) -> None:
    await anyio.sleep_forever()


# --- ready ---


class TestReady:
    def test_at_once_when_all_is_there(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client:
                await client.ready()
                assert [one.is_connected for one in client.health().name_servers] == [True]
                assert client.health().brokers == ()
                await client.ready(topics=["T"])
                assert [one.is_connected for one in client.health().brokers] == [True]
                async with client.consumer("g", {"T": "*"}):
                    await client.ready()

        both(scenario, cluster)

    async def test_a_topic_that_is_not_there(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            began = trio.current_time()
            with pytest.raises(rmq.NoRoute, match="Missing"):
                await client.ready(7, topics=["T", "Missing"])
            assert 5 < trio.current_time() - began <= 8
            with pytest.raises(rmq.InvalidName):
                await client.ready(topics=["not a name"])
            with pytest.raises(rmq.InvalidType, match="topics = 'T': expected a list"):
                await client.ready(topics="T")

    async def test_a_topic_that_comes_in_time(self, setting: World, clock: MockClock) -> None:
        async with (
            setting.connect() as client,
            client.consumer("g", {"Late": "*"}) as consumer,
        ):
            with pytest.raises(rmq.NoRoute, match="Late"):
                consumer.check_ready()
            await trio.sleep(33)  # its own next look would be at 51
            await setting.cluster.create_topic("Late", 2)
            began = trio.current_time()
            await client.ready(60)
            assert trio.current_time() - began < 3, "it does not wait for the next turn of the rebalance"
            assert len([queue for queue in consumer.queues if queue.topic == "Late"]) == 2

    async def test_no_name_server(self, clock: MockClock) -> None:
        network = MemoryNetwork(seed=1)
        async with rmq.connect("10.0.0.9:9876", network=network.host("10.0.9.1")) as client:
            with pytest.raises(rmq.Unreachable):
                await client.ready(5)
            (problem,) = client.health().problems
            assert problem.startswith("no name server can be reached: 10.0.0.9:9876: ")
            assert not client.health().is_healthy

    async def test_a_broker_that_is_down(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            await client.ready()
            assert client.health().is_healthy
            await setting.cluster.stop("a")
            await trio.sleep(10)
            assert any(problem.startswith("broker 10.0.1.1:10911: ") for problem in client.health().problems)
            await setting.cluster.start("a")
            await trio.sleep(60)
            assert client.health().problems == ()
            await client.ready()

    async def test_a_member_that_the_others_do_not_know_yet(self, setting: World, clock: MockClock) -> None:
        """A heartbeat is on its way to one broker, and another is asked who the members are."""
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            consumer._member.assignments.missing.add("T")
            with pytest.raises(rmq.NotReady, match="g has not got its share of the queues yet of T"):
                consumer.check_ready()
            await client.ready(1)

    async def test_a_wrong_account_is_told_at_once(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            error = rmq.AccessDenied(16, "no")

            async def refuse(*_: Any) -> Any:
                raise error

            client._entered().name_servers.route = refuse  # type: ignore[method-assign]
            began = trio.current_time()
            with pytest.raises(rmq.AccessDenied):
                await client.ready(60)
            assert trio.current_time() == began


# --- topics that are not there ---


class TestMissing:
    async def test_a_topic_that_is_not_there_is_told_and_waited_for(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        async with setting.connect() as client, client.consumer("g", {"Late": "*"}) as consumer:
            await trio.sleep(50)
            (line,) = lines(caplog, "g: cannot consume topic Late yet: no route for topic 'Late'")
            assert "create the topic 'Late'" in line
            await trio.sleep(100)
            assert 2 <= len(lines(caplog, "g: cannot consume topic Late yet")) <= 3, (
                "it is said again, each minute"
            )
            assert client.health().problems[0].startswith("g: cannot consume topic Late yet: no route")
            await setting.cluster.create_topic("Late", 2)
            await trio.sleep(30)
            assert len(lines(caplog, "g: Late can be consumed now", logging.INFO)) == 1
            assert "no consumer for this group" not in caplog.text, "the broker had yet to hear of it"
            assert client.health().problems == ()
            assert len(of_topic(consumer, "Late")) == 2

    async def test_a_broker_that_has_yet_to_hear_of_a_group_has_no_members_of_it(
        self, setting: World, clock: MockClock
    ) -> None:
        """RocketMQ answers with an error, which is none for a consumer that has only just come."""
        async with setting.connect() as client, client.producer("p") as producer:
            (queue, *_) = await producer.queues("T")
            session = client._entered()
            assert await session.brokers.consumer_ids(session.brokers.master(queue), "nobody") == []

    def test_or_is_an_error(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client:
                with pytest.raises(rmq.NoRoute, match="Missing"):
                    async with client.consumer("g", {"T": "*", "Missing": "*"}, require_topics=True):
                        raise AssertionError("not reached")
                assert cluster["a"].members("g") == []
                async with client.consumer("g", {"T": "*"}, require_topics=True) as consumer:
                    assert len(of_topic(consumer)) == 2, (
                        "the retry topic is not there either, and need not be"
                    )

        both(scenario, cluster)

    async def test_without_a_name_server(self, clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
        network = MemoryNetwork(seed=1)
        async with rmq.connect("10.0.0.9:9876", network=network.host("10.0.9.1")) as client:
            with pytest.raises(rmq.Unreachable):
                async with client.consumer("g", {"T": "*"}, require_topics=True):
                    pass
            async with client.consumer("g", {"T": "*"}) as consumer:
                await trio.sleep(40)
                (line,) = lines(caplog, "g: cannot consume topic T yet: no name server could be asked")
                assert "check that the name servers run" in line
                with pytest.raises(rmq.Unreachable):
                    consumer.check_ready()


# --- lag ---


@KINDS
def test_the_lag_of_a_consumer(both: Play, cluster: Cluster, options: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 9)
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise", **options) as consumer,
        ):
            lag = await consumer.lag()
            assert (lag[ZERO], lag[ONE]) == (5, 4)
            async with await anext(consumer) as message:
                assert (await consumer.lag())[ZERO] + (await consumer.lag())[ONE] == 9
            lag = await consumer.lag()
            assert lag[MessageQueue("T", "a", message.queue_id)] == 4 - message.queue_id
            fill(cluster, 4)
            assert sum((await consumer.lag()).values()) == 12

    both(scenario, cluster)


async def test_the_lag_while_a_broker_is_down(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
        await setting.cluster.stop("a")
        with pytest.raises(rmq.RmqError):
            await consumer.lag()


# --- events ---


def test_connections_and_queues_are_told(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        told: list[Any] = []
        async with watched(world, told) as client, client.consumer("g", {"T": "*"}):
            await until(lambda: len(told) == 3)
            assert told[:2] == [rmq.Connected(world.names), rmq.Connected(cluster["a"].address)]
            assert told[2] == rmq.Assigned("g", (ZERO, ONE))

    both(scenario, cluster)


async def test_connections_that_end_and_come_again_are_told_once(setting: World, clock: MockClock) -> None:
    told: list[Any] = []
    async with watched(setting, told) as client, client.consumer("g", {"T": "*"}):
        address = setting.cluster["a"].address
        told.clear()
        setting.cluster.cut("a")
        await trio.sleep(5)
        assert [type(event) for event in told] == [rmq.Disconnected, rmq.Connected]
        assert {event.address for event in told} == {address}
        assert told[0].cause
        told.clear()
        await setting.cluster.stop("a")
        await trio.sleep(60)
        assert [type(event) for event in told if event.address == address] == [rmq.Disconnected] * 2, (
            "the connection ended, and the next could not be made; the attempts after that are not told"
        )
        told.clear()
        await setting.cluster.start("a")
        await trio.sleep(60)
        assert rmq.Connected(address) in told


async def test_a_listener_that_fails_stops_nothing(
    setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: object) -> None:
        raise ValueError(event)

    async with (
        rmq.connect(setting.names, network=setting.network, on_event=fail) as client,
        client.producer("p") as producer,
    ):
        await producer.send(rmq.Message("T", b"x"))
    assert "the on_event callback failed" in caplog.messages
    with pytest.raises(rmq.InvalidType, match="on_event"):
        rmq.connect(setting.names, on_event="print")  # type: ignore[arg-type]


# --- stalls ---


class TestStalls:
    async def test_taken_and_not_finished(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The loop that lacks `async with delivery`: it used to stop in silence."""
        fill(setting.cluster, 50)
        told: list[Any] = []
        async with (
            watched(setting, told, queue_max_messages=20, pull_batch_size=10) as client,
            client.consumer("billing", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(50):
                async for _ in consumer:
                    pass
            stalls = [event for event in told if isinstance(event, Stalled)]
            assert [(one.queue, one.queue_offset, one.reason, one.is_full) for one in stalls] == [
                (ZERO, 0, "unfinished", True),
                (ONE, 0, "unfinished", True),
            ]
            assert lines(caplog, "billing: ") == [
                f"billing: the message at offset 0 of T, queue {number} of a was taken 30 s ago and is "
                "not acknowledged: handle the message inside `async with delivery`, or call "
                "`delivery.done()`; the client stopped pulling the queue: 20 messages are not "
                "acknowledged"
                for number in (0, 1)
            ]
            assert client.health().consumers[0].stalls == tuple(stalls)
            assert len(client.health().problems) == 2
            await trio.sleep(300)
            assert len(lines(caplog, "billing: ")) == 2, "said once"

    async def test_it_is_told_before_the_window_is_full(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 2)
        told: list[Any] = []
        async with (
            watched(setting, told) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            await anext(consumer)
            second = await anext(consumer)
            async with second:
                pass
            await trio.sleep(50)
        (stalled,) = [event for event in told if isinstance(event, Stalled)]
        assert (stalled.reason, stalled.is_full, stalled.unfinished) == ("unfinished", False, 1)
        assert "stopped pulling the queue" not in str(stalled)

    @KINDS
    async def test_a_handler_that_hangs(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
    ) -> None:
        setting.cluster["a"].put("T", 1, b"x", "UNIQ_KEY\x01ID7\x02KEYS\x0142 43")
        told: list[Any] = []
        async with (
            watched(setting, told) as client,
            client.consumer("billing", {"T": "*"}, consume_from="first", **options) as consumer,
        ):
            with trio.move_on_after(25):
                await consumer.run(sleep_forever)
            assert lines(caplog, "billing: ") == []
            await trio.sleep(10)
            with trio.move_on_after(40):
                await consumer.run(sleep_forever)
            assert lines(caplog, "billing: ") == [
                "billing: the handler of message ID7, keys 42 43 (offset 0 of T, queue 1 of a) has not ended"
                " for 30 s"
            ]
            (stalled,) = [event for event in told if isinstance(event, Stalled)]
            assert (stalled.message_id, stalled.keys, stalled.reason) == ("ID7", ("42", "43"), "handler")

    async def test_a_handler_that_hangs_behind_a_full_window(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 40)
        told: list[Any] = []
        async with (
            watched(setting, told, queue_max_messages=5, pull_batch_size=5) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(60):
                await consumer.run(sleep_forever, concurrency=1)
        stalls = {event.reason: event for event in told if isinstance(event, Stalled)}
        assert stalls.keys() == {"handler", "untaken"}
        assert stalls["handler"].is_full
        other = stalls["untaken"]
        assert other.queue != stalls["handler"].queue
        assert "no handler has taken message ID" in str(other)
        assert (
            "all handlers are busy, or the consumer is not iterated; the client stopped pulling the queue: 5"
            in str(other)
        )

    async def test_who_goes_on_is_not_told_and_its_stall_is_over(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        fill(setting.cluster, 40)
        told: list[Any] = []
        seconds = 25.0

        async def slowly(message: StoredMessage) -> None:
            await trio.sleep(seconds)

        async with (
            watched(setting, told, queue_max_messages=5, pull_batch_size=5) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: consumer.run(slowly, concurrency=2))
            await trio.sleep(110)
            assert [event for event in told if isinstance(event, Stalled)] == []
            seconds = 45
            await trio.sleep(55)
            assert client.health().consumers[0].stalls != ()
            seconds = 1
            await trio.sleep(60)
            assert client.health().consumers[0].stalls == ()
            assert lines(caplog, "g: resumed after offset", logging.INFO) != []
            nursery.cancel_scope.cancel()

    async def test_a_delivery_that_asks_for_more_time_is_none(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1)
        told: list[Any] = []
        async with (
            watched(setting, told) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        ):
            delivery = await anext(consumer)
            async with delivery:
                for _ in range(10):
                    await trio.sleep(20)
                    assert delivery.extend()
                assert [event for event in told if isinstance(event, Stalled)] == []
                await trio.sleep(40)
                assert len([event for event in told if isinstance(event, Stalled)]) == 1

    @KINDS
    async def test_what_is_paused_or_put_off_is_none(
        self, setting: World, clock: MockClock, options: dict[str, Any]
    ) -> None:
        fill(setting.cluster, 40)
        told: list[Any] = []

        async def fail(message: StoredMessage) -> None:
            raise rmq.Retry(after=300)

        async with (
            watched(setting, told, queue_max_messages=5, pull_batch_size=5) as client,
            client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
        ):
            consumer.pause(ONE)
            with trio.move_on_after(200):
                await consumer.run(fail)
        assert [event for event in told if isinstance(event, Stalled)] == []

    async def test_what_is_put_off_here_is_none(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1)
        told: list[Any] = []
        async with (
            watched(setting, told, redelivery_delay_ms=100_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.CancelScope() as scope:
                async with await anext(consumer):
                    scope.cancel()
                    await trio.sleep(1)
            await trio.sleep(90)
        assert [event for event in told if isinstance(event, Stalled)] == []

    async def test_it_can_be_switched_off(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1)
        told: list[Any] = []
        async with (
            watched(setting, told, stall_warning_ms=0) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(300):
                await consumer.run(sleep_forever)
        assert [event for event in told if isinstance(event, Stalled)] == []

    def test_on_both_loops(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fill(cluster, 1)
            told: list[Any] = []
            async with (
                watched(world, told, stall_warning_ms=60) as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(consumer.run, sleep_forever)
                await until(lambda: any(isinstance(event, Stalled) for event in told))
                tasks.cancel_scope.cancel()

        both(scenario, cluster)


# --- the picture ---


async def test_a_picture_of_a_client(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 10)
    async with (
        setting.connect(client_id="me") as client,
        client.producer("p"),
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        async with await anext(consumer):
            await trio.sleep(1)
            health = client.health()
            (one,) = health.consumers
            assert (one.group, one.unfinished, one.in_flight) == ("g", 10, 1)
            assert {ZERO, ONE} <= set(one.queues)
            assert one.bytes > 10 * 90
        assert (health.client_id, health.producers, health.problems) == ("me", ("p",), ())
        assert [(one.address, one.is_connected) for one in health.brokers] == [
            (setting.cluster["a"].address, True)
        ]
    with pytest.raises(rmq.LocalProtocolError):
        setting.connect().health()


async def test_who_was_idle_for_long_commits_and_tells_of_stalls_as_others(
    setting: World, clock: MockClock
) -> None:
    """The loops for both sleep while there is nothing to look at."""
    events: list[object] = []
    front = setting.cluster["a"]
    client = rmq.connect(setting.names, network=setting.network, on_event=events.append)
    async with (
        client,
        client.producer("p") as producer,
        client.consumer("g", {"T": "wanted"}, consume_from="first") as consumer,
    ):
        for number in range(3):
            await trio.sleep(1000)
            await producer.send(rmq.Message("T", b"x", tags="wanted"), queue=MessageQueue("T", "a", 0))
            async with await anext(consumer) as message:
                queue_offset = message.queue_offset
            assert queue_offset == 2 * number
            await trio.sleep(6)
            assert front.offsets("g", "T")[0] == 2 * number + 1
            # What is filtered out counts as consumed, too.
            await producer.send(rmq.Message("T", b"x", tags="other"), queue=MessageQueue("T", "a", 0))
            await trio.sleep(60)
            assert front.offsets("g", "T")[0] == 2 * number + 2
        assert not [event for event in events if isinstance(event, rmq.Stalled)]
        await trio.sleep(1000)
        await producer.send(rmq.Message("T", b"x", tags="wanted"), queue=MessageQueue("T", "a", 0))
        async with await anext(consumer):
            await trio.sleep(42)
            stalls = [event.queue_offset for event in events if isinstance(event, rmq.Stalled)]
        assert stalls == [6]  # out here: an error in the block would be the delivery's
        await trio.sleep(10)
        assert client.health().consumers[0].stalls == ()
