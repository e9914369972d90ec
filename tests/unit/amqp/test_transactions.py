"""AMQP 1.0: transactions, with a broker in memory."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from rmq_amqp import shared, transactions
from rmq_amqp.shared import Shared
from trio.testing import MockClock

from rmq.broker.doors import DoorPeer
from rmq.message import MessageQueue
from tests.unit.amqp.client import ACCEPTED, Consumer, proton
from tests.unit.amqp.messages import REJECTED, bodies, client, cluster, text
from tests.unit.amqp.transactional import (
    TRANSACTIONAL,
    accept_within,
    begin_discharge,
    begin_within,
    coordinator,
    send_within,
)


async def empty(consumer: Consumer) -> None:
    await anyio.sleep(2)
    assert consumer.link.current is None or not consumer.link.current.readable


async def test_what_is_sent_is_there_after_the_commit(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        producer = await one.producer(session, "Orders")
        consumer = await one.consumer(session, "Orders")
        name = await control.declare()
        for number in range(3):
            outcome = await send_within(producer, name, text(f"m{number}"))
            assert outcome.remote_state == TRANSACTIONAL
        await empty(consumer)
        assert (await control.discharge(name)).remote_state == ACCEPTED
        assert await bodies(consumer, 3) == ["m0", "m1", "m2"]
        again = await control.discharge(name)
        assert again.remote_state == REJECTED
        assert again.remote.condition.name == "amqp:transaction:unknown-id"


@pytest.mark.parametrize("ending", ["rollback", "close", "lost"])
async def test_a_rollback_undoes_sends_and_acknowledgements(autojump_clock: MockClock, ending: str) -> None:
    async with cluster() as running, client(running, "two") as two:
        other = await two.session()
        await (await two.producer(other, "Orders")).send(text("old"))
        async with client(running) as one:
            session = await one.session()
            control = await coordinator(one, session)
            producer = await one.producer(session, "Orders")
            consumer = await one.consumer(session, "Orders", credit=1)
            name = await control.declare()
            assert await accept_within(consumer, name) == "old"
            await send_within(producer, name, text("new"))
            if ending == "rollback":
                assert (await control.discharge(name, fails=True)).remote_state == ACCEPTED
            elif ending == "close":
                one.connection.close()
                await one.flush()
                await anyio.sleep(1)
        rest = await two.consumer(other, "Orders")
        _, message = await rest.receive()
        assert (message.body, message.delivery_count) == ("old", 1)
        await anyio.sleep(300)  # the broker asks for the end of half messages
        await empty(rest)


async def test_acknowledgements_wait_for_the_commit(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            control = await coordinator(one, session)
            producer = await one.producer(session, "Orders")
            for number in range(3):
                await producer.send(text(f"m{number}"))
            consumer = await one.consumer(session, "Orders", credit=3)
            first, second = await control.declare(), await control.declare()
            assert await accept_within(consumer, first) == "m0"
            assert await accept_within(consumer, second) == "m1"
            assert (await control.discharge(first)).remote_state == ACCEPTED
        await running.stop("a")
        await running.start("a")
        async with client(running) as two:
            consumer = await two.consumer(await two.session(), "Orders")
            assert await bodies(consumer, 2) == ["m1", "m2"]


async def test_a_transaction_has_a_bound_of_acknowledgements(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decided in one turn of the loop."""
    monkeypatch.setattr(transactions, "RECEIVED_MAX", 2)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        producer = await one.producer(session, "Orders")
        for number in range(3):
            await producer.send(text(f"m{number}"))
        consumer = await one.consumer(session, "Orders", credit=3)
        name = await control.declare()
        for _ in range(3):
            await accept_within(consumer, name)
        await one.until(lambda: consumer.link.state & proton.Endpoint.REMOTE_CLOSED)
        condition = consumer.link.remote_condition
        assert condition.name == "amqp:resource-limit-exceeded"
        assert "acknowledges at most 2 messages; commit before" in condition.description
        assert (await control.discharge(name)).remote_state == ACCEPTED
        assert await bodies(await one.consumer(session, "Orders", "again"), 1) == ["m2"]


async def test_an_unknown_transaction_is_refused(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        outcome = await send_within(producer, b"none", text("m"))
        assert outcome.remote_state == REJECTED
        assert outcome.remote.condition.name == "amqp:transaction:unknown-id"
        await producer.send(text("m"))
        consumer = await one.consumer(session, "Orders")
        await accept_within(consumer, b"none")
        await one.until(lambda: consumer.link.state & proton.Endpoint.REMOTE_CLOSED)
        assert consumer.link.remote_condition.name == "amqp:transaction:unknown-id"


async def test_the_broker_stops_and_rolls_back(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            control = await coordinator(one, session)
            name = await control.declare()
            await send_within(await one.producer(session, "Orders"), name, text("lost"))
            await running.stop("a")
        await running.start("a")
        async with client(running) as two:
            session = await two.session()
            control = await coordinator(two, session)
            await control.declare()  # from now on it answers for half messages
            consumer = await two.consumer(session, "Orders")
            await anyio.sleep(300)
            await empty(consumer)


async def test_a_transaction_may_stay_open_for_long(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        producer = await one.producer(session, "Orders")
        await producer.send(text("old"))
        consumer = await one.consumer(session, "Orders")
        name = await control.declare()
        await send_within(producer, name, text("new"))
        assert await accept_within(consumer, name) == "old"
        for _ in range(10):  # the broker asks several times for the end of half messages
            await anyio.sleep(60)
            await one.session()  # the client is alive
        assert (await control.discharge(name)).remote_state == ACCEPTED
        assert await bodies(consumer, 1) == ["new"]


async def test_a_commit_is_refused_as_a_whole(autojump_clock: MockClock) -> None:
    async with cluster(topics={"Orders": 1, "Bills": 1}) as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        producer = await one.producer(session, "Orders")
        await producer.send(text("first"))
        await producer.send(text("second"))
        consumer = await one.consumer(session, "Orders", credit=2)
        await bodies(consumer, 1)
        name = await control.declare()
        assert await accept_within(consumer, name) == "second"
        bills = await one.producer(session, "Bills", "bills")
        await send_within(bills, name, text("new"))
        async with running.connect() as ours:  # an operator has the group begin anew
            await ours.admin.set_offsets("Orders", {MessageQueue("Orders", "a", 0): 0}, online=True)
        refused = await control.discharge(name)
        assert refused.remote_state == REJECTED
        assert refused.remote.condition.name == "amqp:transaction:rollback"
        assert "nothing is committed" in refused.remote.condition.description
        await empty(await one.consumer(session, "Bills", "from bills"))


async def test_a_coordinator_that_ends_leaves_the_transactions_of_another(autojump_clock: MockClock) -> None:
    """Each transacted session of a JMS connection has its own coordinator."""
    async with cluster() as running, client(running) as one:
        first, second = await one.session(), await one.session()
        ending, staying = await coordinator(one, first), await coordinator(one, second)
        producer = await one.producer(second, "Orders")
        lost, kept = await ending.declare(), await staying.declare()
        await send_within(producer, lost, text("lost"))
        await send_within(producer, kept, text("kept"))
        first.close()
        await one.until(lambda: first.state & proton.Endpoint.REMOTE_CLOSED)
        assert (await staying.discharge(kept)).remote_state == ACCEPTED
        assert (await staying.discharge(lost)).remote_state == REJECTED
        consumer = await one.consumer(second, "Orders")
        assert await bodies(consumer, 1) == ["kept"]
        await empty(consumer)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[Shared]:
    """The shared state of each broker's door."""
    made: list[Shared] = []
    begin = Shared.__init__

    def begun(one: Shared, **named: Any) -> None:
        made.append(one)
        begin(one, **named)

    monkeypatch.setattr(Shared, "__init__", begun)
    return made


@pytest.mark.parametrize("ending", ["coordinator", "producer", "connection"])
@pytest.mark.parametrize("discharges", [False, True])
async def test_half_messages_that_wait_for_room_are_rolled_back(
    autojump_clock: MockClock, both: list[Shared], ending: str, discharges: bool
) -> None:
    """A half message that was noted as open for ever was asked for by the broker, and never ended."""
    async with cluster() as running, client(running, "two") as two:
        other = await coordinator(two, await two.session())
        relay = await two.producer(await two.session(), "Orders")
        before = await other.declare()
        await send_within(relay, before, text("before"))
        await other.discharge(before)
        async with client(running) as one, anyio.create_task_group() as tasks:
            session = await one.session()
            control = await coordinator(one, session)
            producer = await one.producer(session, "Orders")
            name = await control.declare()
            await send_within(producer, name, text("early"))
            running.disks["a"].capacity = 1
            begin_within(producer, name, text("late" * 5_000))
            await one.flush()
            await anyio.sleep(1)
            outcome = begin_discharge(control, name) if discharges else None
            await one.flush()
            await anyio.sleep(1)
            if ending == "connection":
                one.connection.close()
            else:
                (control.sender if ending == "coordinator" else producer).link.close()
            await one.flush()
            await anyio.sleep(1)
            running.disks["a"].capacity = None
            await anyio.sleep(5)
            if ending == "producer":
                refused = outcome or await control.discharge(name)
                await one.until(lambda: refused.remote_state)
                assert refused.remote_state == REJECTED
                assert refused.remote.condition.name == "amqp:transaction:rollback"
            tasks.cancel_scope.cancel()
        for _ in range(5):  # the broker asks for the end of half messages
            await anyio.sleep(60)
            await two.session()  # the client is alive
        assert await bodies(await two.consumer(await two.session(), "Orders"), 1) == ["before"]
        await other.discharge(await other.declare())
        assert (len(both[0].halves), both[0].work.used, both[0].kept.used) == (0, 0, 0)


async def test_a_connection_that_ends_in_a_commit_leaves_nothing(
    autojump_clock: MockClock, both: list[Shared]
) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            control = await coordinator(one, session)
            name = await control.declare()
            await send_within(await one.producer(session, "Orders"), name, text("m"))
            begin_discharge(control, name)
            one.connection.close()
            await one.flush()
            await anyio.sleep(5)
        assert (len(both[0].halves), both[0].work.used) == (0, 0)


async def test_messages_of_open_transactions_have_a_share(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "WORK", 20)
    async with cluster() as running, client(running, host="10.0.8.9") as one, client(running, "two") as two:
        session, other = await one.session(), await two.session()
        control, modest = await coordinator(one, session), await coordinator(two, other)
        producer = await one.producer(session, "Orders")
        states, names = [], [await control.declare() for _ in range(4)]
        for name in names * 4:
            states.append((await send_within(producer, name, text("m"))).remote_state)
        assert states == [TRANSACTIONAL] * 10 + [REJECTED] * 6
        name = await modest.declare()
        theirs = await two.producer(other, "Orders")
        assert (await send_within(theirs, name, text("m"))).remote_state == TRANSACTIONAL
        for name in names:
            await control.discharge(name, fails=True)
        name = await control.declare()
        assert (await send_within(producer, name, text("m"))).remote_state == TRANSACTIONAL


@pytest.mark.parametrize("ending", ["rollback", "lost"])
async def test_a_large_rollback_is_made_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """100,000 half messages stopped the broker for 5 s."""
    monkeypatch.setattr(transactions, "ENDS_OF_A_TURN", 10)
    ended: list[str] = []
    parts: list[int] = []
    end, roll_back = DoorPeer.end_transaction, transactions.Transactions._end_halves

    def counted(self: DoorPeer, group: str, name: str, *given: Any) -> None:
        ended.append(name)
        end(self, group, name, *given)

    def measured(self: transactions.Transactions, halves: Any) -> None:
        before = len(ended)
        roll_back(self, halves)
        parts.append(len(ended) - before)

    monkeypatch.setattr(DoorPeer, "end_transaction", counted)
    monkeypatch.setattr(transactions.Transactions, "_end_halves", measured)
    async with cluster() as running, client(running, "two") as two:
        await (await coordinator(two, await two.session())).declare()
        async with client(running) as one:
            session = await one.session()
            control = await coordinator(one, session)
            producer = await one.producer(session, "Orders")
            name = await control.declare()
            for number in range(35):
                await send_within(producer, name, text(f"m{number}"))
            if ending == "rollback":
                assert (await control.discharge(name, fails=True)).remote_state == ACCEPTED
                await anyio.sleep(1)
                assert parts == [10, 10, 10, 5]
        for _ in range(5):  # the broker asks for the end of the others
            await anyio.sleep(60)
            await two.session()  # the client is alive
        assert len(set(ended)) == 35
        await empty(await two.consumer(await two.session(), "Orders"))
