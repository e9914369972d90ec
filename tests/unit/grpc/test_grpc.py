"""RocketMQ's 5.x protocol: the calls of the service, with a broker in memory and in virtual time."""

from __future__ import annotations

import gzip
import hashlib
import pathlib
from contextlib import suppress
from typing import Any

import anyio
import pytest
from rmq_grpc import schema
from rmq_grpc.messages import queue_of
from rmq_grpc.service import Session
from trio.testing import MockClock

from rmq.remoting.loop import disconnect_errors
from rmq.testing.cluster import Cluster
from tests.unit.grpc.calls import (
    ACCOUNTS,
    PORT,
    WORDS,
    Message,
    acking,
    client,
    cluster,
    consumer,
    ending,
    message,
    producer,
    received,
    receiving,
    request,
    sending,
    signed,
    telemetry,
    word,
)
from tests.unit.grpc.channel import framed
from tests.unit.grpc.proxied import ProxiedCluster

# ---- routes ----


async def test_a_route_has_the_address_that_the_client_called(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        asked = request("QueryRoute", topic="Orders")
        asked.endpoints.scheme = 3
        asked.endpoints.addresses.add(host="mq.example.com", port=443)
        answer = await one.one("QueryRoute", asked)
        assert word(answer) == "OK"
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
        queue = answer.message_queues[0]
        assert queue.broker.name == "a"
        assert queue.broker.endpoints == asked.endpoints
        assert list(queue.accept_message_types) == [1, 2, 3, 4]
        assert queue.permission == schema.enum("Permission")["READ_WRITE"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("Missing", "TOPIC_NOT_FOUND"),
        ("", "ILLEGAL_TOPIC"),
        ("a b", "ILLEGAL_TOPIC"),
        ("TBW102", "ILLEGAL_TOPIC"),
    ],
)
async def test_a_route_that_is_not_there(
    door: str, autojump_clock: MockClock, topic: str, expected: str
) -> None:
    async with cluster() as running, client(running) as one:
        assert word(await one.one("QueryRoute", request("QueryRoute", topic=topic))) == expected


async def test_a_consumer_is_assigned_the_broker(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        answer = await one.one("QueryAssignment", request("QueryAssignment", topic="Orders", group="G"))
        assert [assignment.message_queue.id for assignment in answer.assignments] == [-1]


async def test_the_port_for_clients_takes_grpc_as_well(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running, port=None) as one:
        assert word(await one.one("QueryRoute", request("QueryRoute", topic="Orders"))) == "OK"


# ---- sending and receiving ----


async def test_a_message_comes_with_all_that_it_was_sent_with(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        sent = message(tag="t", keys=["k1", "k2"], message_id="ID1", trace_context="tr")
        sent.user_properties.update({"colour": "rød", "n": "1"})
        answer = await one.one("SendMessage", sending(sent))
        assert word(answer) == "OK"
        assert answer.entries[0].message_id == "ID1"
        status, (got,) = await received(one, receiving())
        assert status == "OK"
        system = got.system_properties
        assert (got.topic.name, got.body, dict(got.user_properties)) == (
            "Orders",
            b"hello",
            {"colour": "rød", "n": "1"},
        )
        assert (system.tag, list(system.keys), system.message_id) == ("t", ["k1", "k2"], "ID1")
        assert (system.delivery_attempt, system.trace_context) == (1, "tr")
        assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
        assert system.born_host == "10.0.8.1"
        answer = await one.one("AckMessage", acking(system.receipt_handle))
        assert word(answer) == "OK"
        assert word(await one.one("AckMessage", acking(system.receipt_handle))) == "OK", "a second time"
        assert (await received(one, receiving()))[0] == "MESSAGE_NOT_FOUND"


async def test_a_compressed_body_is_stored_as_it_was(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        sent = message(gzip.compress(b"hello" * 100), body_encoding=2)
        assert word(await one.one("SendMessage", sending(sent))) == "OK"
        assert [stored.body for stored in running.sent("Orders")] == [b"hello" * 100]


async def test_a_message_that_is_not_acknowledged_comes_again(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        await one.one("SendMessage", sending(message()))
        await received(one, receiving(seconds=10))
        began = anyio.current_time()
        status, (again,) = await received(one, receiving(poll=20))
        assert (status, again.system_properties.delivery_attempt) == ("OK", 2)
        assert 9 < anyio.current_time() - began < 12


async def test_a_message_is_given_back_when_its_connection_dies(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running:
        async with client(running, "first") as one:
            await one.one("SendMessage", sending(message()))
            await received(one, receiving(seconds=600))
        async with client(running, "second") as one:
            began = anyio.current_time()
            assert (await received(one, receiving()))[0] == "OK"
            assert anyio.current_time() - began < 1


async def test_a_receive_waits_for_a_message(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one, client(running, "other") as other:
        call = await one.begin("ReceiveMessage")
        await call.send(receiving(poll=20), ends=True)
        await anyio.sleep(3)
        assert call.messages == []
        began = anyio.current_time()
        await other.one("SendMessage", sending(message()))
        await call.until()
        assert WORDS[call.messages[0].status.code] == "OK"
        assert anyio.current_time() - began < 1


async def test_messages_of_a_receive_that_was_given_up_come_at_once(
    door: str, autojump_clock: MockClock
) -> None:
    async with cluster() as running, client(running) as one:
        call = await one.begin("ReceiveMessage")
        await call.send(receiving(poll=20), ends=True)
        await anyio.sleep(1)
        await call.cancel()
        await one.one("SendMessage", sending(message()))
        status, (got,) = await received(one, receiving())
        assert (status, got.system_properties.delivery_attempt) == ("OK", 1)


async def test_the_invisible_time_can_be_changed(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        await one.one("SendMessage", sending(message()))
        _, (got,) = await received(one, receiving(seconds=600))
        changed = request(
            "ChangeInvisibleDuration", group="G", topic="Orders", invisible_duration=3, message_id="m"
        )
        changed.receipt_handle = got.system_properties.receipt_handle
        answer = await one.one("ChangeInvisibleDuration", changed)
        assert (word(answer), bool(answer.receipt_handle)) == ("OK", True)
        began = anyio.current_time()
        assert (await received(one, receiving(poll=20)))[0] == "OK"
        assert 2 < anyio.current_time() - began < 5


async def test_a_push_consumers_message_stays_its_own_while_it_works(
    door: str, autojump_clock: MockClock
) -> None:
    async with cluster() as running, client(running) as one, client(running, "other") as other:
        await one.one("SendMessage", sending(message()))
        asked = receiving()
        asked.auto_renew = True
        asked.ClearField("invisible_duration")
        _, (got,) = await received(one, asked)
        for _ in range(30):
            await anyio.sleep(10)
            await one.one("Heartbeat", request("Heartbeat", group="G", client_type=2))
            await other.one("Heartbeat", request("Heartbeat", group="G", client_type=2))
        assert (await received(other, receiving()))[0] == "MESSAGE_NOT_FOUND"
        assert word(await one.one("AckMessage", acking(got.system_properties.receipt_handle))) == "OK"


async def test_a_message_is_forwarded_to_the_dead_letters(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        await one.one("SendMessage", sending(message(b"bad")))
        _, (got,) = await received(one, receiving())
        asked = request("ForwardMessageToDeadLetterQueue", group="G", topic="Orders", message_id="m")
        asked.receipt_handle = got.system_properties.receipt_handle
        assert word(await one.one("ForwardMessageToDeadLetterQueue", asked)) == "OK"
        assert [letter.body for letter in running.sent("%DLQ%G")] == [b"bad"]


async def test_two_clients_share_a_connection(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running, "producer@1") as one:
        call, _ = await telemetry(one, **producer("Orders"))
        one.client_id = "consumer@1"
        _, settings = await telemetry(one, **consumer())
        assert settings.subscription.receive_batch_size == 32
        await one.one("SendMessage", sending(message()))
        assert (await received(one, receiving(seconds=600)))[0] == "OK"
        terminate = request("NotifyClientTermination", group="G")
        assert word(await one.one("NotifyClientTermination", terminate)) == "OK"
        one.client_id = "consumer@2"
        status, (got,) = await received(one, receiving())
        assert (status, got.system_properties.delivery_attempt) == ("OK", 2), "given back by the first"
        assert not call.is_over


async def test_a_silent_client_is_forgotten_while_its_connection_stands(
    door: str, autojump_clock: MockClock
) -> None:
    async with cluster() as running, client(running, "quiet") as one:
        await one.one("SendMessage", sending(message()))
        await received(one, receiving(seconds=3600))
        one.client_id = "other"
        for _ in range(10):
            await anyio.sleep(10)
            await one.one("Heartbeat", request("Heartbeat", group="G", client_type=3))
        assert (await received(one, receiving()))[0] == "OK"


# ---- delay, order, transactions ----


async def test_a_delayed_message_can_be_recalled(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        now_ms = running["a"].server.now_ms()  # type: ignore[union-attr]
        late = message(b"late", type="DELAY", delivery_ms=now_ms + 30_000, message_id="LATE")
        gone = message(b"gone", type="DELAY", delivery_ms=now_ms + 30_000, message_id="GONE")
        await one.one("SendMessage", sending(late))
        answer = await one.one("SendMessage", sending(gone))
        handle = answer.entries[0].recall_handle
        answer = await one.one(
            "RecallMessage", request("RecallMessage", topic="Orders", recall_handle=handle)
        )
        assert (word(answer), answer.message_id) == ("OK", "GONE")
        bodies = []
        while anyio.current_time() < 60:
            _, got = await received(one, receiving(seconds=600, poll=20))
            bodies += [one.body for one in got]
        assert bodies == [b"late"]


async def test_messages_of_a_group_keep_their_queue_and_their_order(
    door: str, autojump_clock: MockClock
) -> None:
    async with cluster() as running, client(running) as one:
        for number in range(6):
            group = f"user-{number % 2}"
            sent = message(b"%d" % number, type="FIFO", message_group=group, message_id=f"M{number}")
            assert word(await one.one("SendMessage", sending(sent))) == "OK"
        places: dict[str, set[int]] = {}
        for stored in running.sent("Orders"):
            places.setdefault(stored.properties["__SHARDINGKEY"], set()).add(stored.queue_id)
        assert places == {name: {queue_of(name, 4)} for name in ("user-0", "user-1")}


def test_a_message_group_has_the_queue_that_rocketmqs_proxy_gives_it() -> None:
    # From Guava 31.0.1: Hashing.consistentHash(text.hashCode(), queues).
    assert [queue_of(f"group-{number}", 8) for number in range(8)] == [1, 7, 0, 6, 2, 6, 6, 7]
    assert [queue_of(f"group-{number}", 100) for number in range(8)] == [67, 36, 49, 90, 75, 95, 96, 77]
    assert [queue_of("höhe", queues) for queues in (1, 3, 8, 100)] == [0, 2, 7, 78]


@pytest.mark.parametrize("decision", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_ends_as_its_producer_says(
    door: str, autojump_clock: MockClock, decision: str
) -> None:
    async with cluster() as running, client(running) as one:
        answer = await one.one("SendMessage", sending(message(type="TRANSACTION", message_id="T1")))
        name = answer.entries[0].transaction_id
        assert name
        assert (await received(one, receiving()))[0] == "MESSAGE_NOT_FOUND"
        assert word(await one.one("EndTransaction", ending("T1", name, decision))) == "OK"
        status, _ = await received(one, receiving())
        assert status == ("OK" if decision == "COMMIT" else "MESSAGE_NOT_FOUND")


async def test_an_orphaned_transaction_is_asked_for(door: str, autojump_clock: MockClock) -> None:
    settings = {"transaction_time_out": 6_000, "transaction_check_interval": 3_000}
    async with (
        cluster(**settings) as running,
        client(running, "dead") as one,
        client(running, "other") as other,
    ):
        call, _ = await telemetry(other, **producer("Orders"))
        await one.one("SendMessage", sending(message(b"half", type="TRANSACTION", message_id="T1")))
        with anyio.fail_after(120):
            answers = await call.until(2)
        asked = answers[1].recover_orphaned_transaction_command
        assert asked.message.body == b"half"
        assert asked.message.system_properties.message_id == "T1"
        end = ending("T1", asked.transaction_id)
        assert word(await other.one("EndTransaction", end)) == "OK"
        assert (await received(other, receiving()))[0] == "OK"


# ---- settings ----


async def test_a_consumer_gets_the_settings_of_its_group(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call, settings = await telemetry(one, **consumer())
        policy = settings.backoff_policy
        assert policy.max_attempts == 17
        assert [one.seconds for one in policy.customized_backoff.next][:4] == [10, 30, 60, 120]
        assert settings.subscription.long_polling_timeout.seconds == 20
        await running.advance(1)
        members = running["a"].server.clients.consumer_ids("G")  # type: ignore[union-attr]
        assert members == ["client@1"] if door == "broker" else len(members) == 1
        await call.send(b"", ends=True)
        await call.until()
        assert call.status == 0


async def test_a_producer_gets_its_settings(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        _, settings = await telemetry(one, **producer("Orders"))
        assert settings.publishing.max_body_size == 4 << 20
        assert settings.backoff_policy.max_attempts == 3


@pytest.mark.parametrize(
    "kinds",
    [{"client_type": 1}, producer("a b"), consumer(group="CID_RMQ_SYS_x"), consumer(topic="a b")],
)
async def test_settings_that_cannot_be_end_the_stream(
    door: str, autojump_clock: MockClock, kinds: dict[str, Any]
) -> None:
    async with cluster() as running, client(running) as one:
        call, _ = await telemetry(one, **kinds)
        await call.until()
        assert call.status == 3


# ---- refusals ----

TOO_MANY = {f"p{number}": "x" for number in range(129)}


@pytest.mark.parametrize(
    ("sent", "properties", "expected"),
    [
        (message(b""), {}, "MESSAGE_BODY_EMPTY"),
        (message(bytes((4 << 20) + 1)), {}, "MESSAGE_BODY_TOO_LARGE"),
        (message(tag="a|b"), {}, "ILLEGAL_MESSAGE_TAG"),
        (message(tag="  "), {}, "ILLEGAL_MESSAGE_TAG"),
        (message(keys=["\x01"]), {}, "ILLEGAL_MESSAGE_KEY"),
        (message(message_group="g" * 64), {}, "ILLEGAL_MESSAGE_GROUP"),
        (message(message_id=" "), {}, "ILLEGAL_MESSAGE_ID"),
        (message(topic="a b"), {}, "ILLEGAL_TOPIC"),
        (message(), {"KEYS": "x"}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(), {"a": "\x02"}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (message(), TOO_MANY, "MESSAGE_PROPERTIES_TOO_LARGE"),
        (message(), {"a": "x" * 17_000}, "MESSAGE_PROPERTIES_TOO_LARGE"),
        (message(type="DELAY", delivery_ms=4_000_000_000_000), {}, "ILLEGAL_DELIVERY_TIME"),
        (message(b"no zip", body_encoding=2), {}, "MESSAGE_CORRUPTED"),
    ],
)
async def test_a_message_that_breaks_a_rule(
    door: str, autojump_clock: MockClock, sent: Any, properties: dict[str, str], expected: str
) -> None:
    sent = Message.FromString(sent.SerializeToString())
    sent.user_properties.update(properties)
    async with cluster() as running, client(running) as one:
        assert word(await one.one("SendMessage", sending(sent))) == expected
        assert running.sent("Orders") == []


async def test_requests_that_break_a_rule(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        assert word(await one.one("SendMessage")) == "MESSAGE_CORRUPTED"
        two = sending(message(), message(topic="Other"))
        assert word(await one.one("SendMessage", two)) == "MESSAGE_CORRUPTED"
        assert (await received(one, receiving(seconds=5)))[0] == "ILLEGAL_INVISIBLE_TIME"
        assert (await received(one, receiving(topic="Missing")))[0] == "TOPIC_NOT_FOUND"
        assert (await received(one, receiving(group="a b")))[0] == "ILLEGAL_CONSUMER_GROUP"
        asked = receiving()
        asked.filter_expression.expression = "a ||"
        assert (await received(one, asked))[0] == "ILLEGAL_FILTER_EXPRESSION"
        asked.filter_expression.type, asked.filter_expression.expression = 2, "a >"
        assert (await received(one, asked))[0] == "ILLEGAL_FILTER_EXPRESSION"
        assert (await received(one, receiving(poll=20), grpc_timeout="2S"))[0] == "ILLEGAL_POLLING_TIME"
        assert word(await one.one("AckMessage", acking())) == "BAD_REQUEST"
        assert word(await one.one("AckMessage", acking("nonsense"))) == "INVALID_RECEIPT_HANDLE"
        assert word(await one.one("Heartbeat")) == "UNRECOGNIZED_CLIENT_TYPE"
        end = request("EndTransaction", topic="Orders")
        assert word(await one.one("EndTransaction", end)) == "INVALID_TRANSACTION_ID"
        end.transaction_id = "nonsense"
        assert word(await one.one("EndTransaction", end)) == "BAD_REQUEST"
        one.client_id = ""
        assert (
            word(await one.one("QueryRoute", request("QueryRoute", topic="Orders"))) == "CLIENT_ID_REQUIRED"
        )


async def test_a_poll_is_answered_before_the_clients_deadline(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        began = anyio.current_time()
        assert (await received(one, receiving(poll=8), grpc_timeout="8S"))[0] == "MESSAGE_NOT_FOUND"
        assert 7 < anyio.current_time() - began < 8


# ---- gRPC and HTTP/2 ----


async def test_methods_that_there_are_not(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        for path in (f"/{schema.SERVICE}/PullMessage", "/grpc.health.v1.Health/Check", "/"):
            call = await one.begin("PullMessage", path=path)
            await call.until()
            assert call.status == 12


async def test_nonsense_costs_its_call_alone(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call = await one.begin("SendMessage")
        await call.send(framed(b"\xff\xff\xff"), ends=True)
        await call.until()
        assert call.status == 3
        call = await one.begin("SendMessage")
        await call.send(b"\0\0\0\0\x09abc", ends=True)
        await call.until()
        assert call.status == 3
        call = await one.begin("SendMessage")
        await call.send(b"\0\x7f\xff\xff\xff")
        await call.until()
        assert call.status == 8
        call = await one.begin("SendMessage", grpc_encoding="snappy")
        await call.send(framed(b"abc", 1))
        await call.until()
        assert call.status == 12
        assert word(await one.one("SendMessage", sending(message()))) == "OK"


async def test_a_compressed_request_is_taken(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call = await one.begin("SendMessage", grpc_encoding="gzip")
        data = gzip.compress(sending(message()).SerializeToString())
        await call.send(framed(data, 1), ends=True)
        assert word((await call.until())[0]) == "OK"


async def test_a_request_that_is_not_grpc_is_told_so(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call = await one.begin("SendMessage", content_type="text/html")
        await call.until()
        assert call.trailers is not None
        assert call.trailers[":status"] == "415"


async def test_a_request_that_never_ends_is_given_up(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call = await one.begin("SendMessage")
        await call.send(b"\0\0\0\0\x09abc")
        began = anyio.current_time()
        for _ in range(9):
            await anyio.sleep(10)
            await one.one("Heartbeat", request("Heartbeat", group="G", client_type=3))
        await call.until()
        assert call.status == 4
        assert anyio.current_time() - began < 120


async def test_a_peer_that_only_resets_is_cut_off(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        with anyio.fail_after(30):
            with suppress(*disconnect_errors()):  # of a stream that was ended while this side writes
                for _ in range(1_000):
                    if one.is_closed:
                        break
                    call = await one.begin("SendMessage")
                    await call.cancel()
                    await anyio.sleep(0)
            while not one.is_closed:
                await anyio.sleep(0.1)
        async with client(running, "honest") as other:
            assert word(await other.one("SendMessage", sending(message()))) == "OK"


async def test_large_messages_pass_both_ways(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        body = bytes(range(256)) * 1_024
        for number in range(3):
            sent = message(body, message_id=f"L{number}")
            assert word(await one.one("SendMessage", sending(sent))) == "OK"
        bodies = []
        while len(bodies) < 3:
            bodies += [got.body for got in (await received(one, receiving()))[1]]
        assert bodies == [body] * 3


async def test_a_stop_ends_calls_in_order(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        call, _ = await telemetry(one, **consumer())
        poll = await one.begin("ReceiveMessage")
        await poll.send(receiving(poll=20), ends=True)
        await anyio.sleep(1)
        if isinstance(running, ProxiedCluster):
            running.proxy.stop.set()
        else:
            await running.stop("a")
        with anyio.fail_after(30):
            await call.until()
            await poll.until()
        assert call.status == 14
        assert poll.reset is None


# ---- accounts ----


async def test_an_account_does_what_it_may(
    door: str, autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    settings = {"plugins": ("acl", "grpc"), "acl_file": str(file), "topics": {}}
    async with Cluster("a", plugin_settings={"grpcPort": str(PORT)}, **settings) as running:  # type: ignore[arg-type]
        running["a"].server.topics.create_for_send("Orders", "TBW102", 4, "test")  # type: ignore[union-attr]
        writer, reader = signed("writer01", "writer-secret-1"), signed("reader01", "reader-secret-1")
        async with client(running, "w") as one:
            assert word(await one.one("SendMessage", sending(message()))) == "UNAUTHORIZED"
            wrong = signed("writer01", "another-secret")
            assert word(await one.one("SendMessage", sending(message()), **wrong)) == "UNAUTHORIZED"
            assert word(await one.one("SendMessage", sending(message()), **writer)) == "OK"
            assert (await received(one, receiving(), **writer))[0] == "UNAUTHORIZED"
            one.client_id = "r"
            assert (await received(one, receiving(), **reader))[0] == "OK"
            assert word(await one.one("SendMessage", sending(message()), **reader)) == "UNAUTHORIZED"


async def test_an_open_broker_ignores_signatures(door: str, autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        anything = {"authorization": "MQv2-HMAC-SHA1 Credential=//Rocketmq"}
        assert word(await one.one("SendMessage", sending(message()), **anything)) == "OK"


async def test_a_fault_in_one_look_at_the_clients_ends_no_renewal_of_leases(
    door: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as running, client(running) as one:
        await one.one("SendMessage", sending(message()))
        asked = receiving()
        asked.ClearField("invisible_duration")
        asked.auto_renew = True
        assert (await received(one, asked))[0] == "OK"
        renew, faults = Session.renew, [RuntimeError("a fault")]

        def faulty(self: Session) -> None:
            if faults:
                raise faults.pop()
            renew(self)

        monkeypatch.setattr(Session, "renew", faulty)
        for _ in range(20):
            await anyio.sleep(10)
            await one.one("Heartbeat", request("Heartbeat", group="G", client_type=2))
        assert not faults
        assert (await received(one, receiving()))[0] == "MESSAGE_NOT_FOUND"
