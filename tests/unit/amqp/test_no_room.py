"""AMQP 1.0: messages for which the broker has no room now, and brokers that take none."""

from __future__ import annotations

import pathlib

import anyio
import pytest
from rmq_amqp import connection
from rmq_amqp.sections import build
from trio.testing import MockClock

from rmq.store.config import BrokerRole
from tests.unit.amqp.client import ACCEPTED, Broken, Producer
from tests.unit.amqp.messages import bodies, client, cluster, text
from tests.unit.amqp.transactional import coordinator, send_within


def begin(producer: Producer, body: str) -> object:
    """Send a message, and wait for nothing."""
    delivery = producer.link.delivery(producer.link.delivery_tag())
    producer.link.stream(build(text(body)))
    producer.link.advance()
    return delivery


async def test_a_full_disk_holds_credit_back_and_loses_no_order(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        producer = await one.producer(await one.session(), "Orders")
        await producer.send(text("m0"))
        credit = producer.link.credit
        running.disks["a"].capacity = 1
        sent = [begin(producer, f"m{number}" + "x" * 2_500) for number in range(1, credit + 1)]
        await one.flush()
        await anyio.sleep(60)
        assert producer.link.credit == 0
        assert [one.remote_state for one in sent] == [0] * credit  # type: ignore[attr-defined]
        running.disks["a"].capacity = None
        await one.until(lambda: all(one.remote_state == ACCEPTED for one in sent))  # type: ignore[attr-defined]
        await one.until(lambda: producer.link.credit > 0)
        consumer = await one.consumer(await one.session(), "Orders", credit=credit + 1)
        found = [body.rstrip("x") for body in await bodies(consumer, credit + 1)]
        assert found == [f"m{number}" for number in range(credit + 1)]


async def test_a_share_that_is_used_up_holds_credit_back(autojump_clock: MockClock) -> None:
    async with cluster(send_thread_pool_queue_capacity=4) as running, client(running) as one:
        producer = await one.producer(await one.session(), "Orders")
        sent = [begin(producer, f"m{number}") for number in range(20)]
        await one.until(lambda: all(one.remote_state == ACCEPTED for one in sent))  # type: ignore[attr-defined]


async def test_an_account_over_its_quota_waits_and_gets_no_credit(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    account = "{accessKey: writer01, secretKey: writer-secret-1, topicPerms: [Orders=PUB|SUB]"
    file.write_text(f"accounts: [{account}, groupPerms: [Orders=SUB], quota: produceMessages=10}}]", "utf-8")
    file.chmod(0o600)
    login = {"mechanism": "PLAIN", "user": "writer01", "secret": "writer-secret-1"}
    running = cluster(plugins=("acl", "amqp"), acl_file=str(file), topics={})
    async with running, client(running, **login) as one:
        running["a"].server.topics.create_for_send("Orders", "TBW102", 4, "test")  # type: ignore[union-attr]
        session = await one.session()
        producer = await one.producer(session, "Orders")
        sent = [begin(producer, f"m{number}") for number in range(50)]
        began = anyio.current_time()
        await one.until(lambda: all(one.remote_state == ACCEPTED for one in sent))  # type: ignore[attr-defined]
        assert 3 < anyio.current_time() - began < 6, "10 at once, and 10 a second"
        consumer = await one.consumer(session, "Orders")
        assert await bodies(consumer, 50) == [f"m{number}" for number in range(50)]


async def test_a_commit_waits_for_room_for_its_messages(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        control = await coordinator(one, session)
        producer = await one.producer(session, "Orders")
        first = await control.declare()
        await send_within(producer, first, text("m0"))  # the topic of half messages is there now
        assert (await control.discharge(first)).remote_state == ACCEPTED
        name = await control.declare()
        running.disks["a"].capacity = 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_within, producer, name, text("m1" * 5_000))
            await anyio.sleep(30)
            running.disks["a"].capacity = None
        assert (await control.discharge(name)).remote_state == ACCEPTED
        assert await bodies(await one.consumer(session, "Orders"), 2) == ["m0", "m1" * 5_000]


async def test_a_peer_whose_messages_wait_is_not_read_without_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAITING_BYTES", 20_000)
    monkeypatch.setattr(connection, "SESSION_BYTES", 16 * connection.FRAME_BYTES)
    served: list[connection.Connection] = []
    opened = connection.Connection._opened
    monkeypatch.setattr(connection.Connection, "_opened", lambda self: (served.append(self), opened(self)))
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        running.disks["a"].capacity = 1
        sent = [begin(producer, "x" * 10_000) for _ in range(200)]
        await one.flush()
        await anyio.sleep(20)
        assert 20_000 < served[0]._waiting_bytes < 1_000_000
        running.disks["a"].capacity = None
        await one.until(lambda: all(one.remote_state == ACCEPTED for one in sent))  # type: ignore[attr-defined]
        assert served[0]._waiting_bytes == served[0]._partial_bytes == 0


async def test_parts_of_messages_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PARTIAL_BYTES", 100_000)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        links = [await one.producer(session, "Orders", f"p{number}") for number in range(3)]
        for producer in links:
            producer.link.delivery(b"tag")
            producer.link.stream(build(text("x" * 60_000))[:-10])
        with pytest.raises(Broken, match=r"resource-limit-exceeded.*incomplete messages"):
            await one.until(lambda: False)
        async with client(running, "two") as two:
            await (await two.producer(await two.session(), "Orders")).send(text("m"))


@pytest.mark.parametrize("scheme", ["", "ws://"])
async def test_a_slave_sends_its_clients_to_the_master(autojump_clock: MockClock, scheme: str) -> None:
    async with cluster() as running:
        slave = {"broker_role": BrokerRole.SLAVE}
        await running.start("slave", store=slave, broker_name="a", broker_id=1)
        master = running["a"].address
        refused = pytest.RaisesExc(Broken, match=f"redirect.*connect to its master, {master}")
        with pytest.RaisesGroup(refused):
            async with client(running, broker="slave", scheme=scheme) as one:
                await one.session()
        async with client(running, port=None, scheme=scheme) as one:  # the address of the redirect
            await (await one.producer(await one.session(), "Orders")).send(text("m"))
            assert [message.body for message in running.sent("Orders")] == [b"m"]
