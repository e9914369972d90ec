"""AMQP 1.0: credit, windows and turns of links, with a broker in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from rmq_amqp import connection, consumers, engine, temporary
from rmq_amqp.browsers import Browser
from rmq_amqp.sections import build
from trio.testing import MockClock

from rmq.broker.doors import DoorPeer
from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode
from tests.unit.amqp.client import ACCEPTED, Consumer, Producer, proton
from tests.unit.amqp.messages import REJECTED, bodies, client, cluster, selector, text
from tests.unit.amqp.transactional import TRANSACTIONAL, accept_within, coordinator

KEEPALIVE = b"\0\0\0\x08\x02\0\0\0"


def begin(producer: Producer, body: str) -> Any:
    """Send a message, and wait for nothing."""
    delivery = producer.link.delivery(producer.link.delivery_tag())
    producer.link.stream(build(text(body)))
    producer.link.advance()
    return delivery


def refuse(code: ResponseCode) -> Callable[..., None]:
    def refused(*given: object, **named: object) -> None:
        raise for_code(code, "not now")

    return refused


async def received(consumer: Consumer, count: int) -> list[Any]:
    """Deliveries that have come; none is settled."""
    return [(await consumer.receive())[0] for _ in range(count)]


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("within", [True, False])
async def test_a_consumer_with_all_its_messages_goes_on_when_some_are_settled(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, settles: bool, within: bool
) -> None:
    """It went on only when exactly one message was settled, of those that settle at once."""
    monkeypatch.setattr(consumers, "UNSETTLED_MAX", 10)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        for number in range(20):
            await producer.send(text(f"m{number}"))
        consumer = await one.consumer(session, "Orders", credit=100)
        control = await coordinator(one, session)
        name = await control.declare()
        for _ in range(2):
            for delivery in await received(consumer, 10):
                if within:
                    delivery.local.data = [name, proton.Described(proton.ulong(ACCEPTED), [])]
                    delivery.update(TRANSACTIONAL)
                else:
                    delivery.update(ACCEPTED)
                if settles:
                    delivery.settle()
        await one.flush()
        await anyio.sleep(1)
        assert (await control.discharge(name)).remote_state == ACCEPTED


async def test_an_acknowledgement_that_the_broker_refuses_is_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("m"))
        consumer = await one.consumer(session, "Orders")
        (delivery,) = await received(consumer, 1)
        monkeypatch.setattr(DoorPeer, "acknowledge", refuse(ResponseCode.NO_PERMISSION))
        delivery.update(ACCEPTED)
        await one.until(lambda: delivery.settled)
        assert delivery.remote_state == REJECTED
        assert delivery.remote.condition.name == "amqp:unauthorized-access"


async def test_a_producer_whose_waiting_messages_are_refused_gets_credit_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as running, client(running) as one:
        producer = await one.producer(await one.session(), "Orders")
        await one.until(lambda: producer.link.credit > 0)
        append = DoorPeer.append
        monkeypatch.setattr(DoorPeer, "append", refuse(ResponseCode.SYSTEM_BUSY))
        sent = [begin(producer, "m") for _ in range(producer.link.credit)]
        await one.flush()
        await anyio.sleep(5)
        monkeypatch.setattr(DoorPeer, "append", refuse(ResponseCode.MESSAGE_ILLEGAL))
        await one.until(lambda: all(each.remote_state == REJECTED for each in sent))
        monkeypatch.setattr(DoorPeer, "append", append)
        assert (await producer.send(text("m"))).remote_state == ACCEPTED


@pytest.mark.parametrize("kind", ["queue", "browser", "temporary"])
async def test_a_closed_window_costs_no_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The link was resumed in every round of the loop, until its peer opened the window."""
    monkeypatch.setattr(connection, "UNSENT_BYTES", 100_000)
    resumed: list[object] = []
    async with (
        cluster(topics={"Orders": 1}) as running,
        client(running) as one,
        client(running, "two") as two,
    ):
        session = one.connection.session()
        session.incoming_capacity = 4 * 16_384
        session.open()
        link = session.receiver("consumer")
        if kind == "temporary":
            link.source.dynamic = True
        else:
            link.source.address = "Orders"
        if kind == "browser":
            link.source.distribution_mode = engine.COPY
        if kind == "temporary":
            await one.attached(link)
        address = link.remote_source.address if kind == "temporary" else "Orders"
        producer = await two.producer(await two.session(), address)
        for number in range(30):
            assert (await producer.send(text(f"{number}" + "x" * 20_000))).remote_state == ACCEPTED
        if kind != "temporary":
            await one.attached(link)
        consumer = Consumer(one, link)
        for kinds in (consumers.Consumer, temporary.TemporaryConsumer, Browser):
            resume = kinds.resume

            def counted(self: Any, resume: Any = resume) -> None:
                resumed.append(self)
                assert len(resumed) < 500, "the loop has no other work"
                resume(self)

            monkeypatch.setattr(kinds, "resume", counted)
        link.flow(100)
        await one.flush()
        await anyio.sleep(5)
        found = [(await consumer.receive())[1].body for _ in range(30)]
        assert [int(body.rstrip("x")) for body in found] == list(range(30))


async def test_messages_that_a_selector_refuses_are_passed_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "TAKES_OF_A_TURN", 2)
    takes = [0]
    most = [0]
    take, pull = DoorPeer.take, consumers.Consumer._pull

    def counted(self: DoorPeer, request: Any) -> Any:
        takes[0] += 1
        return take(self, request)

    def measured(self: consumers.Consumer) -> None:
        takes[0] = 0
        pull(self)
        most[0] = max(most[0], takes[0])

    async with cluster() as running, client(running) as one, client(running, "two") as two:
        named: dict[str, Any] = {"capabilities": ["topic"], "durable": True, "filters": selector("n = 1")}
        session = await one.session()
        consumer = await one.consumer(session, "Orders", "sub", **named)
        consumer.link.detach()
        await one.flush()
        producer = await two.producer(await two.session(), "Orders")
        for number in range(400):
            await producer.send(text(f"m{number}", properties={"n": number // 399}))
        monkeypatch.setattr(DoorPeer, "take", counted)
        monkeypatch.setattr(consumers.Consumer, "_pull", measured)
        again = await one.consumer(await one.session(), "Orders", "sub", **named)
        assert await bodies(again, 1) == ["m399"]
        assert most[0] == 3, "two takes, and that of a held take"


async def test_a_peer_is_not_silent_while_it_is_not_read_from(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAITING_BYTES", 20_000)
    async with cluster() as running, client(running) as one:
        producer = await one.producer(await one.session(), "Orders")
        await producer.send(text("m"))
        running.disks["a"].capacity = 1
        sent = [begin(producer, "x" * 10_000) for _ in range(10)]
        await one.flush()
        for _ in range(20):
            await anyio.sleep(30)
            await one.stream.send_all(KEEPALIVE)
        running.disks["a"].capacity = None
        await one.until(lambda: all(each.remote_state == ACCEPTED for each in sent))
        await anyio.sleep(connection.IDLE_SECONDS * 3)
        assert one.is_over, "it is silent now"


async def test_sessions_together_have_a_bound_of_bytes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNSENT_MAX", 300_000)
    monkeypatch.setattr(connection, "UNSENT_BYTES", 100_000)
    served: list[connection.Connection] = []
    opened = connection.Connection._opened
    monkeypatch.setattr(connection.Connection, "_opened", lambda self: (served.append(self), opened(self)))
    async with cluster(topics={"Orders": 1}) as running, client(running, "two") as two:
        producer = await two.producer(await two.session(), "Orders")
        for number in range(100):
            await producer.send(text(f"{number}" + "x" * 20_000))
        async with client(running) as one:
            made = []
            for number in range(20):
                session = one.connection.session()
                session.incoming_capacity = 65_536
                session.open()
                made.append(await one.consumer(session, "Orders", f"c{number}", credit=1_000))
            await anyio.sleep(5)
            busy = served[-1]
            held = sum(map(engine.unsent_of, busy._sessions))
            assert 300_000 < held < 700_000
            assert busy.stream._held_by_door == busy._unsent == held  # type: ignore[attr-defined]
            found = 0
            while found < 100:
                for each in made:
                    while (got := each._next()) is not None:
                        found += 1
                        got[0].update(ACCEPTED)
                        got[0].settle()
                await one.flush()
                await anyio.sleep(0.1)
            await anyio.sleep(1)
            assert sum(map(engine.unsent_of, busy._sessions)) == 0


async def test_a_message_of_a_temporary_queue_in_an_unknown_transaction_comes_back(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        link = session.sender("temp")
        link.target.dynamic = True
        await one.attached(link)
        address = link.remote_target.address
        await (await one.producer(session, address)).send(text("m"))
        consumer = await one.consumer(session, address)
        await accept_within(consumer, b"none")
        await anyio.sleep(1)
        assert await bodies(await one.consumer(session, address, "again"), 1) == ["m"]


async def test_a_full_subscriber_of_a_temporary_topic_refuses_for_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscribers before it had the message, and got it again when its producer sent it again."""
    monkeypatch.setattr(temporary, "MESSAGES_MAX", 2)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        link = session.sender("temp")
        link.target.dynamic = True
        link.target.capabilities.put_object(engine.symbol("temporary-topic"))
        await one.attached(link)
        address = link.remote_target.address
        first = await one.consumer(session, address, "first")
        slow = await one.consumer(session, address, "slow", credit=0)
        producer = await one.producer(session, address)
        states = [(await producer.send(text(f"m{number}"))).remote_state for number in range(3)]
        assert states == [ACCEPTED, ACCEPTED, REJECTED]
        slow.link.flow(10)
        assert await bodies(slow, 2) == ["m0", "m1"]
        assert (await producer.send(text("m2"))).remote_state == ACCEPTED
        assert await bodies(first, 3) == ["m0", "m1", "m2"]
        await anyio.sleep(1)
        assert first.link.queued == 0
