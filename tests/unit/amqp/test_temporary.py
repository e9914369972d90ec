"""AMQP 1.0: temporary queues and topics, and browsers, with a broker in memory."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from rmq_amqp import temporary, transactions
from trio.testing import MockClock

from tests.unit.amqp.client import ACCEPTED, Broken, Client, Consumer, proton
from tests.unit.amqp.messages import MODIFIED, REJECTED, bodies, client, cluster, selector, text
from tests.unit.amqp.transactional import begin_discharge, coordinator, send_within

NO_LOCAL = {proton.symbol("no-local"): proton.Described(proton.ulong(0x0000468C00000003), "no-local")}


async def made(one: Client, session: Any, kind: str = "temporary-queue", name: str = "temp") -> Any:
    """Make a temporary queue or topic; returns the link, whose target has the address."""
    link = session.sender(name)
    link.target.type = proton.Terminus.TARGET
    link.target.dynamic = True
    link.target.capabilities.put_object(proton.symbol(kind))
    link.source.type = proton.Terminus.SOURCE
    await one.attached(link)
    assert link.remote_target.address.startswith("rmq-temporary|")
    return link


async def test_any_connection_sends_to_a_temporary_queue_and_its_own_consumes(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        session, other = await one.session(), await two.session()
        address = (await made(one, session)).remote_target.address
        consumer = await one.consumer(session, address)
        by_link = await two.producer(other, address)
        by_message = await two.producer(other, None, "relay")
        assert (await by_link.send(text("a"))).remote_state == ACCEPTED
        assert (await by_message.send(text("b", to=address))).remote_state == ACCEPTED
        delivery, message = await consumer.receive()
        assert (message.body, message.to, message.delivery_count) == ("a", address, 0)
        delivery.local.failed = True
        await consumer.settle(delivery, MODIFIED)
        assert await bodies(consumer, 2) in (["a", "b"], ["b", "a"])
        with pytest.raises(Broken, match="amqp:not-allowed"):
            await two.consumer(other, address)


async def test_nobody_guesses_the_address_of_a_temporary_queue(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        session, other = await one.session(), await two.session()
        first, second = [
            (await made(one, session, name=name)).remote_target.address.rpartition("-")[0] for name in "ab"
        ]
        assert first != second
        relay = await two.producer(other, None)
        for guess in (first, second, "rmq-temporary|1-1"):
            outcome = await relay.send(text("forged", to=guess))
            assert outcome.remote.condition.name == "amqp:not-found"


async def test_a_temporary_topic_has_subscribers(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        address = (await made(one, session, "temporary-topic")).remote_target.address
        first = await one.consumer(session, address, "first")
        second = await one.consumer(session, address, "second")
        await (await one.producer(session, address)).send(text("m"))
        assert await bodies(first, 1) == await bodies(second, 1) == ["m"]


@pytest.mark.parametrize("ending", ["link", "connection"])
async def test_a_temporary_queue_ends(autojump_clock: MockClock, ending: str) -> None:
    async with cluster() as running, client(running, "two") as two:
        other = await two.session()
        relay = await two.producer(other, None)
        async with client(running) as one:
            link = await made(one, await one.session())
            address = link.remote_target.address
            assert (await relay.send(text("m", to=address))).remote_state == ACCEPTED
            if ending == "link":
                link.close()
                await one.flush()
                await anyio.sleep(1)
                outcome = await relay.send(text("m", to=address))
                assert outcome.remote_state == REJECTED
        await anyio.sleep(1)
        outcome = await relay.send(text("m", to=address))
        assert outcome.remote.condition.name == "amqp:not-found"
        with pytest.raises(Broken, match="amqp:not-found"):
            await two.consumer(other, address)
        assert running.sent(address) == []


async def test_a_dynamic_source_is_a_temporary_queue(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        link = session.receiver("answers")
        link.source.dynamic = True
        link.target.type = proton.Terminus.TARGET
        await one.attached(link)
        link.flow(1)
        relay = await one.producer(session, None)
        await relay.send(text("answer", to=link.remote_source.address))
        assert await bodies(Consumer(one, link), 1) == ["answer"]


async def test_a_full_temporary_queue_refuses(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_amqp.temporary.MESSAGES_MAX", 2)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        address = (await made(one, session)).remote_target.address
        producer = await one.producer(session, address)
        states = [(await producer.send(text("m"))).remote_state for _ in range(3)]
        assert states == [ACCEPTED, ACCEPTED, REJECTED]


async def test_a_message_to_a_temporary_queue_waits_for_the_commit(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        address = (await made(one, session)).remote_target.address
        producer = await one.producer(session, address)
        consumer = await one.consumer(session, address)
        for fails in (True, False):
            name = await control.declare()
            await send_within(producer, name, text(f"fails={fails}"))
            await anyio.sleep(1)
            assert consumer.link.current is None
            await control.discharge(name, fails=fails)
        assert await bodies(consumer, 1) == ["fails=False"]


async def test_a_large_commit_gives_its_messages_in_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDS_OF_A_TURN", 10)
    parts: list[int] = []
    end_some = transactions.Transactions._end_some

    def measured(self: transactions.Transactions, transaction: transactions.Transaction, done: Any) -> None:
        before = len(transaction.local)
        end_some(self, transaction, done)
        parts.append(before - len(transaction.local))

    monkeypatch.setattr(transactions.Transactions, "_end_some", measured)
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        session, other = await one.session(), await two.session()
        address = (await made(one, session)).remote_target.address
        consumer = await one.consumer(session, address, credit=50)
        control, producer = await coordinator(two, other), await two.producer(other, address)
        name = await control.declare()
        for number in range(25):
            await send_within(producer, name, text(f"m{number}"))
        assert (await control.discharge(name)).remote_state == ACCEPTED
        assert parts == [10, 10, 5]
        assert await bodies(consumer, 25) == [f"m{number}" for number in range(25)]


async def test_a_commit_is_given_as_a_whole_when_its_connection_ends(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDS_OF_A_TURN", 10)
    begun = anyio.Event()
    end_some = transactions.Transactions._end_some

    def stops(self: transactions.Transactions, transaction: transactions.Transaction, done: Any) -> None:
        if not begun.is_set():  # the next turn does not come any more
            begun.set()
            end_some(self, transaction, done)

    monkeypatch.setattr(transactions.Transactions, "_end_some", stops)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        address = (await made(one, session)).remote_target.address
        consumer = await one.consumer(session, address, credit=50)
        async with client(running, "two") as two:
            other = await two.session()
            control, producer = await coordinator(two, other), await two.producer(other, address)
            name = await control.declare()
            for number in range(25):
                await send_within(producer, name, text(f"m{number}"))
            begin_discharge(control, name)
            await two.flush()
            await begun.wait()
        assert await bodies(consumer, 25) == [f"m{number}" for number in range(25)]


async def test_a_browser_sees_the_unfinished_messages_and_takes_none(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        for number in range(5):
            await producer.send(text(f"m{number}", properties={"n": number}))
        consumer = await one.consumer(session, "Orders", credit=2)
        await consumer.receive()
        delivery, _ = await consumer.receive()
        await consumer.settle(delivery)
        await anyio.sleep(1)

        async def browsed(name: str, **named: Any) -> list[str]:
            link = session.receiver(name)
            link.source.address = "Orders"
            link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
            link.target.type = proton.Terminus.TARGET
            if "filters" in named:
                link.source.filter.put_object(named["filters"])
            await one.attached(link)
            link.drain(100)
            browser = Consumer(one, link)
            await one.until(lambda: link.credit - link.queued <= 0)
            return [(await browser.receive())[1].body for _ in range(link.queued)]

        assert await browsed("all") == ["m0", "m2", "m3", "m4"]
        assert await browsed("some", filters=selector("n > 2")) == ["m3", "m4"]
        consumer.link.close()
        assert await bodies(await one.consumer(session, "Orders", "rest"), 4) == ["m0", "m2", "m3", "m4"]


async def test_selectors_of_a_temporary_queue_share_its_messages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[temporary.Line] = []
    begin = temporary.Line.__init__

    def begun(line: temporary.Line, connection: Any) -> None:
        lines.append(line)
        begin(line, connection)

    monkeypatch.setattr(temporary.Line, "__init__", begun)
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        session = await one.session()
        address = (await made(one, session)).remote_target.address
        producer = await two.producer(await two.session(), address)
        for number, colour in enumerate(("red", "blue", "red", "green")):
            await producer.send(text(f"{colour}{number}", properties={"colour": colour}, subject="S"))
        red = await one.consumer(
            session, address, "red", filters=selector("colour = 'red' AND JMSType = 'S'")
        )
        first, message = await red.receive()
        assert message.body == "red0"
        first.local.failed = True
        await red.settle(first, MODIFIED)
        assert sorted(await bodies(red, 2)) == ["red0", "red2"]
        await producer.send(text("red4", properties={"colour": "red"}, subject="S"))
        assert await bodies(red, 1) == ["red4"]
        assert await bodies(await one.consumer(session, address, "rest"), 2) == ["blue1", "green3"]
        late = await one.consumer(session, address, "late", filters=selector("n > 1"), credit=0)
        red.link.close()
        late.link.close()
        await one.flush()
        await anyio.sleep(1)
        assert [(len(line.messages), line.size, line.views) for line in lines] == [(0, 0, {})]


async def test_a_temporary_topic_has_selectors_and_no_local(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        session = await one.session()
        address = (await made(one, session, "temporary-topic")).remote_target.address
        few = await one.consumer(session, address, "few", filters=selector("n > 1"))
        foreign = await one.consumer(session, address, "foreign", filters=NO_LOCAL)
        everything = await one.consumer(session, address, "all")
        own, other = await one.producer(session, address), await two.producer(await two.session(), address)
        for number in range(3):
            await own.send(text(f"own{number}", properties={"n": number}))
        await other.send(text("other", properties={"n": 0}))
        assert await bodies(everything, 4) == ["own0", "own1", "own2", "other"]
        assert await bodies(few, 1) == ["own2"]
        assert await bodies(foreign, 1) == ["other"]
        await anyio.sleep(1)
        assert (few.link.queued, foreign.link.queued) == (0, 0)


async def test_a_selector_of_a_temporary_queue_that_is_none_is_refused(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        address = (await made(one, session)).remote_target.address
        with pytest.raises(Broken, match="amqp:invalid-field"):
            await one.consumer(session, address, filters=selector("colour ="))
