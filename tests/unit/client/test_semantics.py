"""Promises of the client, against our own broker, in memory and in virtual time."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.consume.consumer import Consumer, Handler
from rmq.client.produce.transactional import Decision
from rmq.errors import ReplyTimeout, ResponseError, RmqError, SystemFailure
from rmq.message import Message, StoredMessage
from rmq.testing.cluster import SELDOM_MS, Cluster

from .traffic import fill, take

HEARTBEAT_SECONDS = SELDOM_MS / 1000


class Seen:
    """A consumer of a topic that notes what came when."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, float]] = []

    async def run(self, client: Client, topic: str, task_status: trio.TaskStatus[None]) -> None:
        async with client.consumer(f"see-{topic.strip('%')}", {topic: "*"}, consume_from="first") as consumer:
            task_status.started()
            async for delivery in consumer:
                async with delivery as message:
                    self.messages.append((message.body, trio.current_time()))

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.messages]


async def watch(nursery: trio.Nursery, client: Client, topic: str) -> Seen:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        await seen.run(client, topic, task_status)

    seen = Seen()
    await nursery.start(run)
    return seen


async def test_the_order_of_each_key_holds_while_members_come_and_go(autojump_clock: MockClock) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()

    async def handle(message: StoredMessage) -> None:
        key, _, number = message.body.decode().partition(":")
        assert key not in running
        running.add(key)
        try:
            await trio.sleep(0.05)
        finally:
            running.discard(key)
        seen[key].append(int(number))

    async def member(seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with (
                made.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
            ):
                await consumer.run(handle)

    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.producer("p") as producer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(member, 40)
        for number in range(200):
            for key in ("x", "y", "z"):
                await producer.send(Message("T", f"{key}:{number}".encode()), sharding_key=key)
            await trio.sleep(0.1)
            if number == 50:
                nursery.start_soon(member, 6)
            if number == 120:
                nursery.start_soon(member, 100)
        await trio.sleep(120)
        nursery.cancel_scope.cancel()
    for key, numbers in seen.items():
        first = list(dict.fromkeys(numbers))
        assert first == list(range(200)), key
        # Who is cancelled in a message leaves it to the next: a repetition, never a step back.
        assert all(later - earlier in (0, 1) for earlier, later in pairwise(numbers))
    assert set(seen) == {"x", "y", "z"}


async def test_an_ordered_message_that_always_fails_becomes_a_dead_letter(autojump_clock: MockClock) -> None:
    tried = []

    async def handle(message: StoredMessage) -> None:
        if message.body == b"bad":
            tried.append(message.reconsume_times)
            raise ValueError("bad")

    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.producer("p") as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(Message("T", b"bad"), sharding_key="k")
        await producer.send(Message("T", b"good"), sharding_key="k")
        async with client.consumer(
            "g", {"T": "*"}, consume_from="first", ordered=True, max_reconsume_times=3
        ) as consumer:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(60)
            seen = await watch(nursery, client, "%DLQ%g")
            await trio.sleep(60)
            assert tried == [0, 1, 2, 3]
            assert seen.bodies == [b"bad"]
        nursery.cancel_scope.cancel()


async def test_transactions(autojump_clock: MockClock) -> None:
    asked = []

    async def check_back(message: StoredMessage) -> Decision:
        asked.append(message.body)
        return rmq.COMMIT if message.body == b"late" else rmq.UNKNOWN

    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.transactional_producer("g", check_back) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(Message("T", b"plain"))
        seen = await watch(nursery, client, "T")
        async with producer.transaction(Message("T", b"committed", keys="42")):
            await trio.sleep(1)
            assert seen.bodies == [b"plain"]
        with pytest.raises(ValueError, match="no"):
            async with producer.transaction(Message("T", b"rolled back")):
                raise ValueError("no")
        with trio.move_on_after(1):
            async with producer.transaction(Message("T", b"late")):
                await trio.sleep_forever()
        async with producer.transaction(Message("T", b"never")) as transaction:
            transaction.decision = rmq.UNKNOWN
        await trio.sleep(1)
        assert seen.bodies == [b"plain", b"committed"]
        await trio.sleep(150)
        assert seen.bodies == [b"plain", b"committed", b"late"]
        assert set(asked) == {b"late", b"never"}
        nursery.cancel_scope.cancel()


async def test_delivery_times_and_recall(autojump_clock: MockClock) -> None:
    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.producer("p") as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(Message("T", b"now"))
        seen = await watch(nursery, client, "T")
        began = trio.current_time()
        results = [
            await producer.send(message)
            for message in (
                Message("T", b"level", delay_level=2),
                Message("T", b"at", deliver_at_ms=made.now_ms() + 2_000),
                Message("T", b"after", delay_ms=3_000),
                Message("T", b"recalled", delay_ms=4_000),
            )
        ]
        assert [result.recall_handle is not None for result in results] == [False, True, True, True]
        handle = results[-1].recall_handle or ""
        assert await producer.recall(handle) == results[-1].message_id
        await trio.sleep(20)
        due = {body: at - began for body, at in seen.messages if body != b"now"}
        assert due == {
            b"level": pytest.approx(5, abs=0.05),
            b"at": pytest.approx(2, abs=0.05),
            b"after": pytest.approx(3, abs=0.05),
        }
        with pytest.raises(ResponseError):
            await producer.recall(handle)
        nursery.cancel_scope.cancel()


async def test_requests_and_replies(autojump_clock: MockClock) -> None:
    async with (
        Cluster("a", "b") as made,
        made.connect() as client,
        made.connect() as other,
        client.producer("p") as producer,
        other.producer("answers") as answers,
        trio.open_nursery() as nursery,
    ):

        async def reply(message: StoredMessage) -> None:
            if message.body != b"nobody":
                await answers.reply(message, message.body * 2)

        for number in range(8):
            await producer.send(Message("T", b"nobody"), sharding_key=str(number))
        async with other.consumer("g", {"T": "*"}) as consumer:
            nursery.start_soon(consumer.run, reply)
            answered = [await producer.request(Message("T", b"%d" % n), timeout=5) for n in range(8)]
            assert [message.body for message in answered] == [b"%d" % n * 2 for n in range(8)]
            with pytest.raises(ReplyTimeout):
                await producer.request(Message("T", b"nobody"), timeout=2)
        nursery.cancel_scope.cancel()


async def test_members_that_want_different_things_are_warned(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        rows = [row for row in caplog.records if row.name.startswith("rmq.client.session")]
        return [row.getMessage() for row in rows]

    async with Cluster("a") as made, made.connect() as one, made.connect() as other:
        async with one.producer("p") as producer:
            await producer.send(Message("T", b"makes the topic"))
        async with one.consumer("g", {"T": "A"}):
            await trio.sleep(40)
            assert told() == []
            async with other.consumer("g", {"T": "B"}):
                await trio.sleep(2.5 * HEARTBEAT_SECONDS)
                assert len(told()) == 2, told()  # each client once, not at every heartbeat
                assert all("group g" in text for text in told())


async def test_a_group_that_is_not_let_in_is_told_and_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with Cluster() as made:
        await made.start("a", reject_subscription_conflicts=True)
        await fill(made, "T", 2)
        async with (
            made.connect() as one,
            made.connect() as two,
            one.consumer("g", {"T": "a"}),
            two.consumer("other", {"T": "*"}, consume_from="first") as other,
        ):
            with pytest.raises(SystemFailure, match="rejectSubscriptionConflicts"):
                async with two.consumer("g", {"T": "b"}):
                    raise AssertionError("it was let in")
            assert sorted(await take(other, 2)) == [0, 1]
            async with two.consumer("g", {"T": "a"}):
                group = await one.admin.consumer_connection("g")
                ids = {member.client_id for member in group.connection_set}
                assert ids == {one.client_id, two.client_id}


async def test_a_refused_member_keeps_no_other_group_from_its_heartbeats(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster() as made:
        await made.start("a")
        await fill(made, "T", 2)
        async with (
            made.connect() as two,
            two.consumer("other", {"T": "*"}, consume_from="first") as other,
            two.consumer("g", {"T": "b"}),
            made.connect() as one,
            one.consumer("g", {"T": "a"}),
        ):
            changes = {"rejectSubscriptionConflicts": "true"}
            await one.admin.update_broker_config(changes, broker="10.0.1.1:10911")
            await trio.sleep(2.5 * HEARTBEAT_SECONDS)  # a member that is not heard for two is dropped
            assert caplog.text.count("heartbeat refused") == 1
            group = await one.admin.consumer_connection("other")
            assert [member.client_id for member in group.connection_set] == [two.client_id]
            assert sorted(await take(other, 2)) == [0, 1]


async def test_order_holds_over_a_restart_of_the_broker(autojump_clock: MockClock) -> None:
    got: list[int] = []

    async def produce(client: Client) -> None:
        async with client.producer("p") as producer:
            for number in range(100):
                while True:
                    try:
                        await producer.send(Message("T", b"%d" % number), sharding_key="k")
                        break
                    except RmqError:
                        await trio.sleep(0.2)
                await trio.sleep(0.1)

    async def note(message: StoredMessage) -> None:
        await trio.sleep(0.05)
        got.append(int(message.body))

    async with (
        Cluster("a") as made,
        made.connect() as client,
        made.connect() as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(produce, client)
        for member in (client, other):
            consumer = member.consumer("g", {"T": "*"}, consume_from="first", ordered=True)
            await nursery.start(_consume, consumer, note)
        await trio.sleep(3)
        await made.stop("a")
        await trio.sleep(5)
        before = len(got)
        await made.start("a")
        with trio.fail_after(200):
            while 99 not in got:
                await trio.sleep(0.5)
        assert 10 < before < 60
        nursery.cancel_scope.cancel()
    assert set(got) == set(range(100))
    # What was consumed and not committed yet may come again; then all behind it comes again, in order.
    assert [later for sooner, later in pairwise(got) if later > sooner + 1] == []


async def _consume(
    consumer: Consumer, handler: Handler, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    async with consumer:
        task_status.started()
        await consumer.run(handler)
