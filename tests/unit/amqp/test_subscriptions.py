"""AMQP 1.0: subscriptions of topics, selectors and message groups, with a broker in memory."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from rmq_amqp.sections import Sections
from rmq_amqp.values import Int
from trio.testing import MockClock

from tests.unit.amqp.client import Broken, Client, Consumer, Producer, proton
from tests.unit.amqp.messages import bodies, client, cluster, selector, text


async def subscribed(one: Client, name: str = "sub", **named: Any) -> Consumer:
    capabilities = named.pop("capabilities", ["topic"])
    return await one.consumer(await one.session(), "Orders", name, capabilities=capabilities, **named)


async def producer(one: Client) -> Producer:
    return await one.producer(await one.session(), "Orders")


async def nothing(consumer: Consumer) -> None:
    await anyio.sleep(2)
    assert consumer.link.current is None or not consumer.link.current.readable


async def test_each_subscriber_of_a_topic_gets_all_from_its_begin_on(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        sender = await producer(one)
        await sender.send(text("before"))
        first, second = await subscribed(one), await subscribed(two)
        for number in range(3):
            await sender.send(text(f"m{number}"))
        assert await bodies(first, 3) == await bodies(second, 3) == ["m0", "m1", "m2"]
        async with running.connect() as ours:
            groups = [group for group in await ours.admin.groups() if "temporary" in group]
            assert sorted(group.partition("|")[0] for group in groups) == ["client", "two"]


async def test_a_subscription_that_is_not_durable_leaves_no_group(autojump_clock: MockClock) -> None:
    async with cluster() as running, running.connect() as ours:
        async with client(running) as one:
            await (await producer(one)).send(text("m"))
            consumer = await subscribed(one)
            consumer.link.close()
            await subscribed(one, "another")
        await anyio.sleep(5)
        assert [group for group in await ours.admin.groups() if "temporary" in group] == []
        pairs = running["a"].server.offsets.pairs()  # type: ignore[union-attr]
        assert [pair for pair in pairs if "temporary" in "".join(pair)] == []


async def test_a_durable_subscription_waits_for_its_client(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running, "sender") as other:
        sender = await producer(other)
        async with client(running) as one:
            consumer = await subscribed(one, durable=True)
            await sender.send(text("a"))
            assert await bodies(consumer, 1) == ["a"]
        await sender.send(text("b"))
        async with client(running) as one:
            consumer = await subscribed(one, durable=True)
            assert await bodies(consumer, 1) == ["b"]
            with pytest.raises(Broken, match="amqp:resource-locked"):
                await subscribed(one, durable=True)
            consumer.link.detach()
            await sender.send(text("c"))
            again = await subscribed(one, durable=True)
            assert await bodies(again, 1) == ["c"]
            again.link.close()  # it unsubscribes
            await sender.send(text("lost"))
            new = await subscribed(one, durable=True)
            await sender.send(text("d"))
            assert await bodies(new, 1) == ["d"]


@pytest.mark.parametrize("shares", [False, True])
async def test_a_durable_subscription_with_another_selector_begins_anew(
    autojump_clock: MockClock, shares: bool
) -> None:
    """To change the selector is to unsubscribe and to subscribe again (JMS 1.1, 6.11.1)."""
    named: dict[str, Any] = {"durable": True}
    if shares:
        named["capabilities"] = ["topic", "shared", "global"]
    red, blue = (named | {"filters": selector(f"colour = '{name}'")} for name in ("red", "blue"))

    def painted(body: str, colour: str) -> Sections:
        return text(body, properties={"colour": colour})

    async with cluster() as running, client(running, "sender") as other:
        sender = await producer(other)
        async with client(running) as one:
            await subscribed(one, **red)
        await sender.send(painted("red 1", "red"))
        await sender.send(painted("blue 1", "blue"))
        await running.stop("a")
        await running.start("a")
        async with client(running) as one:
            consumer = await subscribed(one, **red)
            assert await bodies(consumer, 1) == ["red 1"], "with the same selector it continues"
        async with client(running, "another sender") as other:
            sender = await producer(other)
            await sender.send(painted("red 2", "red"))
            await sender.send(painted("blue 2", "blue"))
            async with client(running) as one:
                consumer = await subscribed(one, **blue)
                await sender.send(painted("red 3", "red"))
                await sender.send(painted("blue 3", "blue"))
                assert await bodies(consumer, 1) == ["blue 3"]
            await sender.send(painted("blue 4", "blue"))
            async with client(running) as one:
                assert await bodies(await subscribed(one, **blue), 1) == ["blue 4"]


async def test_a_subscription_is_found_by_its_name_and_deleted(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        (await subscribed(one, durable=True)).link.detach()
        await (await producer(one)).send(text("lost"))

        async def found(name: str) -> Any:
            link = session.receiver(name)
            link.source.type = proton.Terminus.UNSPECIFIED
            link.target.type = proton.Terminus.TARGET
            return await one.attached(link)

        with pytest.raises(Broken, match="amqp:not-found"):
            await found("another")
        link = await found("sub")
        assert link.remote_source.address == "Orders"
        link.close()
        await nothing(await subscribed(one, durable=True))


async def test_consumers_share_a_subscription(autojump_clock: MockClock) -> None:
    shared = ["topic", "shared", "global"]
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        sender = await producer(one)
        first = await subscribed(one, "sub|global-volatile1", capabilities=shared, credit=2)
        second = await subscribed(two, "sub|global-volatile2", capabilities=shared, credit=2)
        for number in range(4):
            await sender.send(text(f"m{number}"))
        assert sorted(await bodies(first, 2) + await bodies(second, 2)) == ["m0", "m1", "m2", "m3"]


@pytest.mark.parametrize("other", ["selector", "topic", "unshared"])
async def test_consumers_that_share_a_subscription_have_the_same_terms(
    autojump_clock: MockClock, other: str
) -> None:
    """What the selector of one consumer refused, the other did not get."""
    capabilities = ["topic", "shared", "global"]
    async with cluster(topics={"Orders": 4, "Bills": 1}) as running, client(running) as one:
        red: dict[str, Any] = {"durable": True, "filters": selector("colour = 'red'")}
        await subscribed(one, "sub|global", capabilities=capabilities, **red)
        await subscribed(one, "sub|global2", capabilities=capabilities, **red)
        changed, address = dict(red), "Orders"
        if other == "selector":
            changed["filters"] = selector("colour = 'blue'")
        elif other == "topic":
            address = "Bills"
        else:
            capabilities = ["topic", "global"]
        named = {"capabilities": capabilities, **changed}
        with pytest.raises(Broken, match="amqp:resource-locked"):
            await one.consumer(await one.session(), address, "sub|global3", **named)


async def test_a_subscription_that_has_a_consumer_again_is_not_deleted(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        (await subscribed(one, durable=True)).link.detach()
        link = (await one.session()).receiver("sub")
        link.source.type = proton.Terminus.UNSPECIFIED
        link.target.type = proton.Terminus.TARGET
        await one.attached(link)
        consumer = await subscribed(one, durable=True)
        link.close()
        await one.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
        assert link.remote_condition.name == "amqp:resource-locked"
        await (await producer(one)).send(text("m"))
        assert await bodies(consumer, 1) == ["m"]


async def test_a_subscriber_may_leave_out_messages_of_its_own_connection(autojump_clock: MockClock) -> None:
    filters = {proton.symbol("no-local"): proton.Described(proton.ulong(0x0000468C00000003), "no-local")}
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        consumer = await subscribed(one, filters=filters)
        await (await producer(one)).send(text("mine"))
        await (await producer(two)).send(text("theirs"))
        assert await bodies(consumer, 1) == ["theirs"]


async def test_a_queues_selector_leaves_the_rest_for_others(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        sender = await producer(one)
        session = await one.session()
        red = await one.consumer(session, "Orders", "red", filters=selector("colour = 'red' AND n > 1"))
        for number, colour in enumerate(("blue", "red", "red", "green")):
            await sender.send(text(f"m{number}", properties={"colour": colour, "n": Int(number)}))
        assert await bodies(red, 1) == ["m2"]
        await nothing(red)
        rest = await one.consumer(session, "Orders", "rest")
        assert await bodies(rest, 3) == ["m0", "m1", "m3"]


async def test_a_selector_that_is_none_is_refused(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        with pytest.raises(Broken, match=r"amqp:invalid-field.*colour"):
            await one.consumer(await one.session(), "Orders", filters=selector("colour ="))


async def test_the_messages_of_a_group_come_to_one_consumer(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, client(running, "two") as two:
        sender = await producer(one)
        first = await one.consumer(await one.session(), "Orders", credit=3)
        second = await two.consumer(await two.session(), "Orders", credit=100)
        for number in range(12):
            await sender.send(text(f"m{number}", group_id="g" if number % 2 else "h"))
        await anyio.sleep(1)
        seen: dict[str, set[Consumer]] = {}
        left = 12
        for consumer in (first, second) * 12:
            while consumer.link.current is not None and consumer.link.current.readable:
                delivery, message = await consumer.receive()
                seen.setdefault(str(message.group_id), set()).add(consumer)
                await consumer.settle(delivery)
                consumer.link.flow(1)
                left -= 1
            await consumer.client.flush()
            await anyio.sleep(0.5)
        assert left == 0
        (owner,), _ = seen["g"], seen["h"]
        assert len(seen["h"]) == 1
        owner.link.close()
        await sender.send(text("on", group_id="g"))
        other = second if owner is first else first
        assert await bodies(other, 1) == ["on"]  # the other consumer has the group now
