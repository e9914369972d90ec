"""AMQP 1.0: connections, producers and the consumers of queues, with a broker in memory, in virtual time."""

from __future__ import annotations

import pathlib
from typing import Any

import anyio
import pytest
from rmq_amqp import values
from rmq_amqp.sections import DATA, Sections
from trio.testing import MockClock

from rmq.broker.doors import DoorPeer
from rmq.errors import StoreError
from rmq.message import Message, dlq_topic
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import SYS_COMPRESSED
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record
from rmq.testing.network import MemoryStream
from tests.unit.amqp.client import ACCEPTED, Broken, Client
from tests.unit.amqp.messages import (
    MODIFIED,
    PORT,
    REJECTED,
    RELEASED,
    bodies,
    client,
    cluster,
    selector,
    text,
)


async def test_a_queue_is_a_topic_that_a_group_of_its_name_shares(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        for number in range(5):
            assert (await producer.send(text(f"m{number}"))).remote_state == ACCEPTED
        consumer = await one.consumer(session, "Orders")
        assert await bodies(consumer, 5) == [f"m{number}" for number in range(5)]
        async with running.connect() as ours:
            members = (await ours.admin.consumer_connection("Orders")).connection_set
            assert [member.client_id for member in members] == ["amqp@client@1"]


async def test_the_port_for_clients_takes_amqp_too(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running, port=None) as one:
        producer = await one.producer(await one.session(), "Orders")
        assert (await producer.send(text("hello"))).remote_state == ACCEPTED
        assert [stored.body for stored in running.sent("Orders")] == [b"hello"]


async def test_messages_keep_body_headers_and_typed_properties(autojump_clock: MockClock) -> None:
    properties = {
        "count": values.Int(5),
        "size": 1 << 40,
        "small": values.Short(-3),
        "tiny": values.Byte(7),
        "ratio": values.Float(0.10000000149011612),
        "exact": 0.1,
        "yes": True,
        "none": None,
        "empty": "",
        "text": "ein Wört",
        "UNIQ_KEY": "an application's",
    }
    sent = text(
        "hello",
        message_id="ID:1",
        correlation_id="c-1",
        subject="Blue",
        reply_to="Answers",
        priority=7,
        group_id="g",
        group_sequence=3,
        user_id=b"anna",
        created=1_700_000_000_123,
        properties=properties,
    )
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(sent)
        consumer = await one.consumer(session, "Orders")
        _, got = await consumer.receive()
        assert (got.body, got.durable, got.priority, got.delivery_count) == ("hello", True, 7, 0)
        assert (got.message_id, got.correlation_id, got.subject) == ("ID:1", "c-1", "Blue")
        assert (got.reply_to, got.group_id, got.group_sequence) == ("Answers", "g", 3)
        assert (got.user_id, got.created, got.to) == (b"anna", 1_700_000_000_123, "Orders")
        assert got.properties == properties
        assert {name: type(value) for name, value in got.properties.items()} == {
            name: type(value) for name, value in properties.items()
        }
        (stored,) = running.sent("Orders")
        assert (stored.body, stored.tags, stored.keys, stored.message_id) == (
            b"hello",
            "Blue",
            ("c-1",),
            "ID:1",
        )
        assert (stored.properties["count"], stored.properties["ratio"]) == ("5", "0.1")


async def test_our_clients_and_those_of_amqp_read_each_other(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, running.connect() as ours:
        session = await one.session()
        async with ours.producer("p") as producer:
            message = Message("Orders", b"\0bytes", tags="red", keys=("k",), properties={"colour": "red"})
            await producer.send(message)
        consumer = await one.consumer(session, "Orders")
        _, got = await consumer.receive()
        assert (got.kind, got.body, got.subject) == (DATA, b"\0bytes", "red")
        assert got.properties == {"TAGS": "red", "KEYS": "k", "colour": "red"}
        await (await one.producer(session, "Orders")).send(text("hello", properties={"n": values.Int(1)}))
        async with ours.consumer("other", {"Orders": "*"}, consume_from="first") as theirs:
            seen = {}
            async for delivery in theirs:
                seen[delivery.message.body] = delivery.message.properties
                if len(seen) == 2:
                    break
        assert seen[b"hello"]["n"] == "1"


async def test_a_message_comes_to_one_consumer_only_and_by_credit(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running, "one") as one, client(running, "two") as two:
        slow = await one.consumer(await one.session(), "Orders", credit=2)
        fast = await two.consumer(await two.session(), "Orders", credit=0)
        producer = await two.producer(await two.session(), "Orders")
        for number in range(6):
            await producer.send(text(f"m{number}"))
        await anyio.sleep(1)
        held = [(await slow.receive())[1].body for _ in range(2)]
        assert held == ["m0", "m1"]
        assert slow.link.current is None  # it has no credit left
        fast.link.flow(10)
        assert await bodies(fast, 4) == ["m2", "m3", "m4", "m5"]


async def test_a_link_that_ends_gives_back_at_once_and_in_order(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        for number in range(5):
            await producer.send(text(f"m{number}"))
        first = await one.consumer(session, "Orders", "first")
        for _ in range(3):
            await first.receive()
        began = anyio.current_time()
        first.link.close()
        second = await one.consumer(session, "Orders", "second")
        found = [(await second.receive())[1] for _ in range(5)]
        assert [message.body for message in found] == [f"m{number}" for number in range(5)]
        assert {message.delivery_count for message in found} == {0}  # nobody has tried them
        assert anyio.current_time() - began < 1


async def test_a_connection_that_dies_gives_back_at_once_and_counts_the_attempt(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            await (await one.producer(session, "Orders")).send(text("m"))
            await (await one.consumer(session, "Orders")).receive()
        async with client(running) as two:
            began = anyio.current_time()
            _, message = await (await two.consumer(await two.session(), "Orders")).receive()
            assert (message.body, message.delivery_count) == ("m", 1)
            assert anyio.current_time() - began < 1


@pytest.mark.parametrize(
    ("state", "failed", "count"), [(RELEASED, False, 0), (MODIFIED, False, 0), (MODIFIED, True, 1)]
)
async def test_outcomes_that_bring_a_message_back(
    autojump_clock: MockClock, state: int, failed: bool, count: int
) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("m"))
        consumer = await one.consumer(session, "Orders")
        delivery, _ = await consumer.receive()
        delivery.local.failed = failed
        await consumer.settle(delivery, state)
        _, again = await consumer.receive()
        assert (again.body, again.delivery_count) == ("m", count)


async def test_poison_goes_to_the_dead_letters_after_the_tries_of_the_group(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one:
        async with running.connect() as ours:
            await ours.admin.create_group("Orders", retry_max_times=2)
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("poison"))
        consumer = await one.consumer(session, "Orders")
        counts = []
        for _ in range(3):
            delivery, message = await consumer.receive()
            counts.append(message.delivery_count)
            delivery.local.failed = True
            await consumer.settle(delivery, MODIFIED)
        assert counts == [0, 1, 2]
        await anyio.sleep(1)
        assert [letter.body for letter in running.sent("%DLQ%Orders")] == [b"poison"]
        dead = await one.consumer(session, "%DLQ%Orders", "dead")
        _, letter = await dead.receive()
        assert letter.body == "poison"


async def test_a_rejected_message_is_a_dead_letter_at_once(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("bad"))
        consumer = await one.consumer(session, "Orders")
        assert await bodies(consumer, 1, state=REJECTED) == ["bad"]
        await anyio.sleep(1)
        assert [letter.body for letter in running.sent("%DLQ%Orders")] == [b"bad"]


async def test_a_rejected_message_that_cannot_become_a_dead_letter_comes_again_soon(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was leased to the consumer that had rejected it until the connection ended."""
    full = [True]
    write = DoorPeer.dead_letter

    def dead_letter(host: DoorPeer, *arguments: Any) -> None:
        if full[0]:
            raise StoreError("the disk is full")
        write(host, *arguments)

    monkeypatch.setattr(DoorPeer, "dead_letter", dead_letter)
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("bad"))
        consumer = await one.consumer(session, "Orders")
        assert await bodies(consumer, 1, state=REJECTED) == ["bad"]
        await anyio.sleep(1)
        full[0] = False
        with anyio.fail_after(10):
            assert await bodies(consumer, 1, state=REJECTED) == ["bad"]
        await anyio.sleep(1)
        assert [letter.body for letter in running.sent("%DLQ%Orders")] == [b"bad"]


async def test_what_was_accepted_never_comes_again(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            producer = await one.producer(session, "Orders")
            for number in range(3):
                await producer.send(text(f"m{number}"))
            assert await bodies(await one.consumer(session, "Orders"), 2) == ["m0", "m1"]
        await running.stop("a")
        await running.start("a")
        async with client(running) as two:
            consumer = await two.consumer(await two.session(), "Orders")
            assert await bodies(consumer, 1) == ["m2"]


async def test_a_peer_that_drains_gets_what_there_is_and_no_more(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        await (await one.producer(session, "Orders")).send(text("m"))
        consumer = await one.consumer(session, "Orders", credit=0)
        consumer.link.drain(5)
        assert await bodies(consumer, 1) == ["m"]
        await one.until(lambda: not consumer.link.credit)


async def test_a_settled_consumer_settles_nothing(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        async with client(running) as one:
            session = await one.session()
            producer = await one.producer(session, "Orders")
            await producer.send(text("m"), settled=True)
            consumer = await one.consumer(session, "Orders", snd_settle_mode=1)
            delivery, message = await consumer.receive()
            assert delivery.settled
            assert message.body == "m"
            await anyio.sleep(1)
        async with client(running) as two:
            consumer = await two.consumer(await two.session(), "Orders", credit=0)
            consumer.link.drain(1)
            await two.until(lambda: not consumer.link.credit)
            assert consumer.link.current is None


async def test_the_anonymous_relay_sends_where_the_message_says(autojump_clock: MockClock) -> None:
    async with cluster(topics={"Orders": 4, "Bills": 4}) as running, client(running) as one:
        producer = await one.producer(await one.session(), None)
        for name in ("Orders", "Bills", "topic://Bills"):
            assert (await producer.send(text("m", to=name))).remote_state == ACCEPTED
        nowhere = await producer.send(text("m"))
        assert nowhere.remote_state == REJECTED
        assert nowhere.remote.condition.name == "amqp:precondition-failed"
        assert (len(running.sent("Orders")), len(running.sent("Bills"))) == (1, 2)


async def test_the_messages_of_a_producer_stay_in_order(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        for number in range(50):
            await producer.send(text(str(number)))
        consumer = await one.consumer(session, "Orders", credit=7)
        found = []
        for _ in range(50):
            found += await bodies(consumer, 1)
            consumer.link.flow(1)
        assert found == [str(number) for number in range(50)]


async def test_a_large_message_goes_through_in_parts(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        body = bytes(range(256)) * 3_000
        assert (await producer.send(Sections(DATA, body))).remote_state == ACCEPTED
        _, message = await (await one.consumer(session, "Orders")).receive()
        assert message.body == body


async def test_an_expired_message_is_dropped(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        await producer.send(text("old", ttl=5_000))
        await producer.send(text("lasts"))
        await anyio.sleep(6)
        assert await bodies(await one.consumer(session, "Orders"), 1) == ["lasts"]


async def test_an_expired_message_becomes_a_dead_letter_where_the_setting_says_so(
    autojump_clock: MockClock,
) -> None:
    settings = {"amqpPort": str(PORT), "amqpExpired": "dead-letter"}
    async with cluster(plugin_settings=settings) as running, client(running) as one:
        session = await one.session()
        producer = await one.producer(session, "Orders")
        await producer.send(text("old", ttl=5_000))
        await producer.send(text("lasts"))
        await anyio.sleep(6)
        assert await bodies(await one.consumer(session, "Orders"), 1) == ["lasts"]
        await anyio.sleep(1)
        assert [letter.body for letter in running.sent("%DLQ%Orders")] == [b"old"]


async def test_a_message_is_delivered_at_its_time(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        session = await one.session()
        consumer = await one.consumer(session, "Orders")
        at = running.now_ms() + 7_000
        late = text("late")
        late.annotations[values.Symbol("x-opt-delivery-time")] = at
        await (await one.producer(session, "Orders")).send(late)
        assert await bodies(consumer, 1) == ["late"]
        assert running.now_ms() >= at


async def test_a_queue_is_made_on_first_use(autojump_clock: MockClock) -> None:
    async with cluster(auto_create_topic_enable=True) as running, client(running) as one:
        session = await one.session()
        consumer = await one.consumer(session, "new.orders/eu")
        await (await one.producer(session, "new.orders/eu")).send(text("m"))
        assert await bodies(consumer, 1) == ["m"]
        assert [stored.body for stored in running.sent("new%2Eorders%2Feu")] == [b"m"]


async def test_a_queue_that_does_not_exist_is_refused(autojump_clock: MockClock) -> None:
    async with cluster(auto_create_topic_enable=False) as running, client(running) as one:
        session = await one.session()
        with pytest.raises(Broken, match=r"amqp:not-found.*Nothing"):
            await one.producer(session, "Nothing")
        with pytest.raises(Broken, match=r"amqp:not-found.*Nothing"):
            await one.consumer(session, "Nothing")
        with pytest.raises(Broken, match="amqp:invalid-field"):
            await one.producer(session, "SCHEDULE_TOPIC_XXXX", "another")


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\x53\x77", b"rubbish", b"\0\x53\x74\xa1\1x", b"\0\x53\x77\xc1\xff"]
)
async def test_a_message_that_cannot_be_decoded_is_rejected(autojump_clock: MockClock, data: bytes) -> None:
    async with cluster() as running, client(running) as one:
        producer = await one.producer(await one.session(), "Orders")
        outcome = await producer.send(data)
        assert outcome.remote_state == REJECTED
        assert outcome.remote.condition.name == "amqp:decode-error"


# ---- accounts, client ids, time-outs, the end ----

ACCOUNTS = """accounts:
  - {accessKey: writer01, secretKey: writer-secret-1, topicPerms: [Orders=PUB]}
  - {accessKey: reader01, secretKey: reader-secret-1, topicPerms: [Orders=SUB], groupPerms: [Orders=SUB]}
"""


async def test_an_account_does_what_it_may(autojump_clock: MockClock, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    async with cluster(plugins=("acl", "amqp"), acl_file=str(file), topics={}) as running:
        running["a"].server.topics.create_for_send("Orders", "TBW102", 4, "test")  # type: ignore[union-attr]
        for mechanism, secret in (("ANONYMOUS", ""), ("PLAIN", "wrong")):
            with pytest.raises(Broken, match="refused"):
                async with client(running, mechanism=mechanism, user="writer01", secret=secret):
                    pass
        writer = {"mechanism": "PLAIN", "user": "writer01", "secret": "writer-secret-1"}
        async with client(running, **writer) as one:
            assert one.mechanisms == ["PLAIN"]
            session = await one.session()
            assert (await (await one.producer(session, "Orders")).send(text("m"))).remote_state == ACCEPTED
            with pytest.raises(Broken, match="amqp:unauthorized-access"):
                await one.consumer(session, "Orders")
        reader = {"mechanism": "PLAIN", "user": "reader01", "secret": "reader-secret-1"}
        async with client(running, **reader) as two:
            session = await two.session()
            assert await bodies(await two.consumer(session, "Orders"), 1) == ["m"]
            with pytest.raises(Broken, match="amqp:unauthorized-access"):
                await two.producer(session, "Orders")


async def test_a_client_id_is_one_connections_only(autojump_clock: MockClock) -> None:
    sole = {"desired_capabilities": "sole-connection-for-container"}
    async with cluster() as running:
        async with client(running, "billing", **sole) as one:
            await one.session()
            with pytest.raises(ExceptionGroup) as caught:
                async with client(running, "billing", **sole):
                    pass
            assert caught.group_contains(Broken, match="invalid-field.*client id billing already")
        async with client(running, "billing", **sole) as three:
            await three.session()


async def test_a_silent_peer_is_cut_off_and_a_silent_broker_says_that_it_is_there(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one:
        with pytest.raises(Broken):
            await one.until(lambda: False)  # the client sends nothing, not even empty frames
        assert 100 < anyio.current_time() < 200


async def test_peers_are_told_that_the_broker_stops(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        await one.session()
        await running.stop("a")
        with pytest.raises(Broken, match="amqp:connection:forced"):
            await one.until(lambda: False)


@pytest.mark.parametrize(
    ("name", "user", "offered"),
    [
        ("writer01", "", True),
        ("writer01", "writer01", True),
        ("writer01", "reader01", True),
        ("nobody-known", "", True),
        ("", "", False),
    ],
)
async def test_a_certificate_is_the_login_of_the_account_of_its_name(
    autojump_clock: MockClock,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    user: str,
    offered: bool,
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    settings = {"amqpPort": str(PORT), "amqpExternal": "true"}
    monkeypatch.setattr(MemoryStream, "certificate_name", name)
    async with cluster(
        plugins=("acl", "amqp"), acl_file=str(file), topics={}, plugin_settings=settings
    ) as running:
        running["a"].server.topics.create_for_send("Orders", "TBW102", 4, "test")  # type: ignore[union-attr]
        external = {"mechanism": "EXTERNAL", "user": user}
        if not offered or name != "writer01" or user == "reader01":
            with pytest.raises(Broken, match="refused"):
                async with client(running, **external):
                    pass
            return
        async with client(running, **external) as one:
            assert one.mechanisms == ["EXTERNAL", "PLAIN"]
            session = await one.session()
            assert (await (await one.producer(session, "Orders")).send(text("m"))).remote_state == ACCEPTED
            with pytest.raises(Broken, match="amqp:unauthorized-access"):
                await one.consumer(session, "Orders")


async def test_a_certificate_is_no_login_unless_the_setting_says_so(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStream, "certificate_name", "writer01")
    async with cluster() as running:
        async with client(running) as one:
            assert one.mechanisms == ["ANONYMOUS", "PLAIN"]
        with pytest.raises(Broken, match="refused"):
            async with client(running, mechanism="EXTERNAL"):
                pass


# ---- messages whose bodies cannot be decompressed, which any producer may send ----

KEEPALIVE = b"\0\0\0\x08\x02\0\0\0"


async def let_pass(one: Client, seconds: int) -> None:
    """Let time pass; the client says that it is here."""
    for _ in range(0, seconds, 30):
        await one.stream.send_all(KEEPALIVE)
        await anyio.sleep(30)


def put_unreadable(broker: Any, colour: str) -> None:
    """Store a message as a producer sends it that marks its body as compressed, and it is not."""
    properties = encode_properties({"UNIQ_KEY": "K", "colour": colour})
    broker.groups.update(SubscriptionGroupConfig("Orders", retry_max_times=3))
    broker.store.put(Record("Orders", 0, b"no zlib", properties, sys_flag=SYS_COMPRESSED))
    broker.store.commit()
    broker.deliveries.arrived("Orders")


@pytest.mark.parametrize("filters", [{}, {"filters": selector("colour = 'red'")}])
async def test_a_consumer_goes_on_and_the_message_becomes_a_dead_letter(
    autojump_clock: MockClock, filters: dict[str, Any]
) -> None:
    async with cluster() as running, client(running) as one:
        broker: Any = running["a"].server
        session = await one.session()
        producer = await one.producer(session, "Orders")
        consumer = await one.consumer(session, "Orders", **filters)
        put_unreadable(broker, "red")
        await producer.send(text("m", properties={"colour": "red"}))
        assert await bodies(consumer, 1) == ["m"]
        await let_pass(one, 900)
        dead = dlq_topic("Orders")
        assert broker.store.max_offset(dead, 0) == 1


async def test_it_stays_for_consumers_whose_selector_fits(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        broker: Any = running["a"].server
        session = await one.session()
        await one.consumer(session, "Orders", filters=selector("colour = 'blue'"))
        put_unreadable(broker, "red")
        await let_pass(one, 900)
        assert broker.store.max_offset(dlq_topic("Orders"), 0) == 0
        await one.consumer(session, "Orders", "red", filters=selector("colour = 'red'"))
        await let_pass(one, 900)
        assert broker.store.max_offset(dlq_topic("Orders"), 0) == 1
