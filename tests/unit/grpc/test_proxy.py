"""`rmq proxy`: the gRPC door before a cluster of several brokers, in memory and in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from rmq_grpc import schema
from rmq_grpc.statuses import Code
from trio.testing import MockClock

from rmq import message as stored
from rmq.errors import RequestTimeout, ResponseError
from rmq.message import MessageQueue, dlq_topic
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.command import Command
from rmq.proxy import __main__ as program
from rmq.proxy import cluster as proxied_cluster
from rmq.proxy import gateway, service, takes
from rmq.proxy.takes import parse_handle
from rmq.testing.network import MemoryNetwork
from tests.unit.grpc.calls import (
    acking,
    consumer,
    ending,
    message,
    producer,
    received,
    receiving,
    request,
    sending,
    telemetry,
    word,
)
from tests.unit.grpc.proxied import ProxiedCluster, client, proxy

TOPICS = {"Orders": 2}
PREFIX = "proxy_"


def cluster(*brokers: str, broker_settings: dict[str, Any] | None = None, **settings: Any) -> ProxiedCluster:
    return ProxiedCluster(
        *(brokers or ("a", "b")), topics=TOPICS, proxy_settings=settings, **broker_settings or {}
    )


def at(broker: str, **given: Any) -> Any:
    """A receive at a broker."""
    made = receiving(**given)
    made.message_queue.broker.name = broker
    return made


async def test_a_route_names_all_brokers_under_the_address_that_was_called(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one:
        asked = request("QueryRoute", topic="Orders")
        asked.endpoints.scheme = 3
        asked.endpoints.addresses.add(host="mq.example.com", port=443)
        answer = await one.one("QueryRoute", asked)
        queues = answer.message_queues
        assert [(queue.broker.name, queue.id) for queue in queues] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        hosts = {queue.broker.endpoints.addresses[0].host for queue in queues}
        assert hosts == {"mq.example.com"}
        bare = await one.one("QueryRoute", request("QueryRoute", topic="Orders"))
        address = bare.message_queues[0].broker.endpoints.addresses[0]
        assert f"{address.host}:{address.port}" == running.proxy.address


async def test_a_consumer_is_assigned_all_brokers(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        answer = await one.one("QueryAssignment", request("QueryAssignment", topic="Orders", group="G"))
        found = [(each.message_queue.broker.name, each.message_queue.id) for each in answer.assignments]
        assert found == [("a", -1), ("b", -1)]


async def test_messages_go_to_all_brokers_and_come_from_each(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        for number in range(8):
            assert word(await one.one("SendMessage", sending(message(b"%d" % number)))) == "OK"
        assert {len(running[name].messages("Orders")) for name in "ab"} == {4}
        found = []
        for name in "ab":
            status, messages = await received(one, at(name))
            assert (status, len(messages)) == ("OK", 4)
            found += messages
            handles = [each.system_properties.receipt_handle for each in messages]
            assert {parse_handle(handle).broker for handle in handles} == {name}
        handles = [each.system_properties.receipt_handle for each in found]
        answer = await one.one("AckMessage", acking(*handles))
        assert word(answer) == "OK"
        assert len(answer.entries) == 8
        await running.advance(40)
        assert (await received(one, at("a")))[0] == "MESSAGE_NOT_FOUND"
        assert (await received(one, at("b")))[0] == "MESSAGE_NOT_FOUND"


async def test_each_acknowledgement_has_its_own_outcome(autojump_clock: MockClock) -> None:
    async with cluster("a") as running, client(running) as one:
        for number in range(3):
            await one.one("SendMessage", sending(message(b"%d" % number)))
        _, messages = await received(one, at("a", seconds=10))
        handles = [each.system_properties.receipt_handle for each in messages]
        await running.advance(11)
        (_, again) = await received(one, at("a", batch=1, seconds=10))
        fresh = again[0].system_properties.receipt_handle
        expired = next(each for each in handles if each.split()[6:8] != fresh.split()[6:8])
        answer = await one.one("AckMessage", acking(fresh, "nonsense", expired))
        codes = [each.status.code for each in answer.entries]
        assert codes[0] == Code["OK"]
        assert codes[1:] == [Code["INVALID_RECEIPT_HANDLE"]] * 2
        assert word(answer) == "MULTIPLE_RESULTS"


async def test_messages_of_a_client_that_is_gone_come_at_once(autojump_clock: MockClock) -> None:
    async with cluster("a") as running, client(running) as one:
        async with client(running, "client@2") as gone:
            await gone.one("SendMessage", sending(message()))
            _, (taken,) = await received(gone, receiving(seconds=3600))
            assert taken.system_properties.delivery_attempt == 1
        began = anyio.current_time()
        _, (again,) = await received(one, receiving(poll=10))
        assert anyio.current_time() - began < 1
        assert again.system_properties.delivery_attempt == 2


async def test_messages_of_a_receive_that_was_given_up_come_again_uncounted(
    autojump_clock: MockClock,
) -> None:
    async with cluster("a") as running, client(running) as one:
        call = await one.begin("ReceiveMessage")
        await call.send(receiving(poll=20), ends=True)
        await anyio.sleep(1)
        await call.cancel()
        await one.one("SendMessage", sending(message()))
        _, (taken,) = await received(one, receiving(poll=10))
        assert taken.system_properties.delivery_attempt == 1


async def test_a_stop_of_the_proxy_counts_no_attempt(autojump_clock: MockClock) -> None:
    async with cluster("a") as running:
        async with client(running) as one:
            await one.one("SendMessage", sending(message()))
            assert (await received(one, receiving(seconds=3600)))[0] == "OK"
            running.proxy.stop.set()
            await running.advance(10)
        async with proxy(running, "10.0.2.2") as other:
            running.proxy = other
            async with client(running) as one:
                _, (again,) = await received(one, receiving(poll=10))
                assert again.system_properties.delivery_attempt == 1


async def test_a_dead_letter_is_written_and_never_comes_again(autojump_clock: MockClock) -> None:
    async with cluster("a") as running, client(running) as one:
        await one.one("SendMessage", sending(message(b"bad")))
        _, (taken,) = await received(one, receiving(seconds=10))
        handle = taken.system_properties.receipt_handle
        asked = request("ForwardMessageToDeadLetterQueue", group="G", topic="Orders", receipt_handle=handle)
        assert word(await one.one("ForwardMessageToDeadLetterQueue", asked)) == "OK"
        await running.advance(60)
        assert [letter.body for letter in running.sent(dlq_topic("G"))] == [b"bad"]
        assert (await received(one, receiving()))[0] == "MESSAGE_NOT_FOUND"


async def test_a_broker_that_is_away_costs_its_part_alone(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        assert word(await one.one("QueryRoute", request("QueryRoute", topic="Orders"))) == "OK"
        await running.stop("b")
        for number in range(4):
            assert word(await one.one("SendMessage", sending(message(b"%d" % number)))) == "OK"
        status, messages = await received(one, at("b"))  # as assigned before: another one answers
        assert (status, len(messages)) == ("OK", 4)


async def test_a_broker_that_hangs_costs_its_calls_alone(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        for number in range(4):
            assert word(await one.one("SendMessage", sending(message(b"%d" % number)))) == "OK"
        running.black_hole("b")
        status, _ = await received(one, at("b", poll=5))
        assert status == "PROXY_TIMEOUT"
        status, messages = await received(one, at("a"))
        assert (status, len(messages)) == ("OK", 2)


async def test_messages_of_a_group_go_to_one_queue_of_the_cluster(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        for number in range(6):
            await one.one("SendMessage", sending(message(b"%d" % number, type="FIFO", message_group="g1")))
        places = {(stored.broker_name, stored.queue_id) for stored in running.sent("Orders")}
        assert len(places) == 1


async def test_calls_beyond_the_limit_are_refused(autojump_clock: MockClock) -> None:
    async with cluster("a", proxy_max_calls=100) as running, client(running) as one:
        calls = []
        for _ in range(110):
            call = await one.begin("ReceiveMessage")
            await call.send(receiving(poll=10), ends=True)
            calls.append(call)
        words = [(await call.until())[0].status.code for call in calls]
        refused = words.count(Code["TOO_MANY_REQUESTS"])
        assert 0 < refused < 100
        await running.advance(1)
        assert word(await one.one("SendMessage", sending(message()))) == "OK"


async def test_the_groups_and_topics_of_a_client_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "GROUPS_OF_A_CLIENT", 2)
    monkeypatch.setattr(gateway, "TOPICS_OF_A_CLIENT", 2)
    async with cluster("a") as running, client(running) as one:
        for group in ("G1", "G2", "G3"):
            call, settings = await telemetry(one, **consumer(group))
            assert (settings is None) is (group == "G3")
        one.client_id = "other"
        call, settings = await telemetry(one, **producer("T1", "T2", "T3"))
        assert settings is None
        assert "2 topics" in (call.trailers or {})["grpc-message"]


async def test_groups_beyond_the_places_of_a_proxy_are_refused_to_those_who_have_most(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers take 4,096 groups of the one connection that all clients of a proxy share."""
    monkeypatch.setattr(proxied_cluster, "MEMBERSHIPS_MAX", 8)
    made = servers(monkeypatch)
    async with cluster("a") as running, client(running, "other", host="10.0.8.2") as other:
        async with client(running) as one:
            for number in range(5):
                call, settings = await telemetry(one, **consumer(f"G{number}"))
                assert (settings is None) is (number == 4)
            assert "4 of 8 are taken by 10.0.8.1" in (call.trailers or {})["grpc-message"]
            assert (await telemetry(one, **consumer("G0")))[1] is not None
            assert (await telemetry(other, **producer("Orders", "Others")))[1] is not None
            call, settings = await telemetry(other, **producer("Third"))
            assert settings is None
            assert "Third" not in made[0].cluster.session.producers  # type: ignore[union-attr]
        await running.advance(1)
        assert (await telemetry(other, **consumer("G4")))[1] is not None
        assert made[0].cluster.memberships.used == 3  # type: ignore[union-attr]
    assert made[0].cluster.memberships.used == 0  # type: ignore[union-attr]


async def test_an_orphaned_transaction_is_asked_for_and_ends(autojump_clock: MockClock) -> None:
    async with (
        cluster(
            broker_settings={"transaction_time_out": 6_000, "transaction_check_interval": 3_000}
        ) as running,
        client(running) as one,
    ):
        call, _ = await telemetry(one, **producer("Orders"))
        sent = await one.one("SendMessage", sending(message(b"half", type="TRANSACTION")))
        (entry,) = sent.entries
        assert entry.transaction_id
        with anyio.fail_after(60):
            command = (await call.until(2))[1].recover_orphaned_transaction_command
        assert command.message.body == b"half"
        asked = ending(entry.message_id, command.transaction_id)
        assert word(await one.one("EndTransaction", asked)) == "OK"
        assert [stored.body for stored in running.sent("Orders")] == [b"half"]


async def test_a_delayed_message_is_recalled_at_its_broker(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        later = running.now_ms() + 60_000
        sent = await one.one("SendMessage", sending(message(b"late", type="DELAY", delivery_ms=later)))
        handle = sent.entries[0].recall_handle
        answer = await one.one(
            "RecallMessage", request("RecallMessage", topic="Orders", recall_handle=handle)
        )
        assert (word(answer), answer.message_id) == ("OK", sent.entries[0].message_id)
        await running.advance(120)
        assert running.sent("Orders") == []
        wrong = request("RecallMessage", topic="Orders", recall_handle="bm9uc2Vuc2U=")
        assert word(await one.one("RecallMessage", wrong)) == "BAD_REQUEST"


async def test_administrators_questions_reach_the_client_behind_the_proxy(autojump_clock: MockClock) -> None:
    async with cluster("a") as running, client(running) as one, running.connect() as admin:
        call, _ = await telemetry(one, **consumer())
        await running.advance(1)
        (member,) = running["a"].server.clients.consumer_ids("G")  # type: ignore[union-attr]
        info = await admin.admin.consumer_running_info("G", member)
        assert info.properties["rmqClients"] == "client@1"
        found: list[Any] = []
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                found.append(await admin.admin.consumer_running_info("G", member, stack=True))

            tasks.start_soon(ask)
            with anyio.fail_after(60):
                command = (await call.until(2))[1]
            answer = schema.message("TelemetryCommand")()
            answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
            answer.thread_stack_trace.thread_stack_trace = "main RUNNING"
            await call.send(answer)
        assert found[0].jstack == "main RUNNING"


async def test_a_proxy_without_name_servers_is_not_ready_and_says_so(autojump_clock: MockClock) -> None:
    async with cluster("a", namesrv_addr="10.9.9.9:9876") as running, client(running) as one:
        await running.advance(30)
        assert not running.proxy.health.is_ready
        assert "10.9.9.9:9876" in running.proxy.health.text()
        answer = await one.one("QueryRoute", request("QueryRoute", topic="Orders"))
        assert word(answer) not in ("OK", "TOPIC_NOT_FOUND")


async def test_the_figures_of_a_proxy(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[service.ProxyServer] = []

    class Seen(service.ProxyServer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    def figures() -> dict[str, Any]:
        found = {metric.name: metric.rows[0][1] for metric in made[0].metrics() if metric.rows}
        return {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}

    monkeypatch.setattr(service, "ProxyServer", Seen)
    async with cluster("a") as running, client(running) as one:
        await telemetry(one, **consumer())
        await telemetry(one, **producer("Orders"))
        poll = await one.begin("ReceiveMessage")
        await poll.send(receiving(poll=20), ends=True)
        await running.advance(1)
        assert figures() == {"calls": 1, "clients": 1, "groups": 1, "producers": 1}
        await poll.until()
        await one.one("NotifyClientTermination")
        await running.advance(1)
        assert figures() == {"calls": 0, "clients": 0, "groups": 0, "producers": 0}


async def test_a_proxy_with_name_servers_is_ready(autojump_clock: MockClock) -> None:
    async with cluster("a") as running:
        await running.advance(30)
        assert running.proxy.health.is_ready


# ---- the program ----


def test_the_command_line_gives_name_servers_and_port() -> None:
    options = program.parse(["-n", "10.0.0.1:9876", "--port", "8082"])
    config, _ = program.settings(options)
    assert (config.namesrv_addr, config.listen_port, config.plugins) == ("10.0.0.1:9876", 8082, ("grpc",))


def test_a_handle_is_read_as_it_was_written() -> None:
    text = "5 1700000000000 60000 3 1 broker-a 2 7 123456"
    assert str(parse_handle(text)) == text
    for wrong in (
        "",
        "1 2 3",
        "a b c d e f g h",
        "-1 2 3 4 0 b 0 1",
        f"{1 << 63} 2 3 4 0 b 0 1",
        "x" * 2_000,
    ):
        with pytest.raises(ResponseError):
            parse_handle(wrong)


def servers(monkeypatch: pytest.MonkeyPatch) -> list[service.ProxyServer]:
    """The servers of the proxies that start from now on."""
    made: list[service.ProxyServer] = []

    class Seen(service.ProxyServer):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(service, "ProxyServer", Seen)
    return made


async def test_a_membership_that_is_refused_leaves_no_group(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(monkeypatch)
    async with cluster("a") as running, client(running) as one:
        for number in range(3):
            wanted = consumer(f"G{number}")
            wanted["subscription"].subscriptions[0].expression.expression = "||"
            _, settings = await telemetry(one, **wanted)
            assert settings is None
        await running.advance(1)
        assert made[0].cluster is not None
        assert list(made[0].cluster.session.members) == []


async def test_a_member_at_the_limit_may_change_its_subscriptions(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "GROUPS_OF_A_CLIENT", 1)
    monkeypatch.setattr(gateway, "TOPICS_OF_A_CLIENT", 1)
    async with cluster("a") as running, client(running) as one:
        for _ in range(2):
            assert (await telemetry(one, **consumer()))[1] is not None
        one.client_id = "other"
        for _ in range(2):
            assert (await telemetry(one, **producer("Orders")))[1] is not None


async def test_the_first_client_of_a_proxy_has_the_settings_of_its_group(autojump_clock: MockClock) -> None:
    async with cluster("a") as running, running.connect() as admin:
        await admin.admin.put_group(SubscriptionGroupConfig("G", consume_message_orderly=True))
        async with client(running) as one:
            _, settings = await telemetry(one, **consumer())
            assert settings.subscription.fifo


async def test_settings_that_no_broker_told_are_asked_for_again(autojump_clock: MockClock) -> None:
    async with (
        cluster("a", proxy_cache_seconds=3600) as running,
        client(running) as one,
        running.connect() as admin,
    ):
        await admin.admin.put_group(SubscriptionGroupConfig("G", consume_message_orderly=True))
        assert word(await one.one("QueryRoute", request("QueryRoute", topic="Orders"))) == "OK"
        running.black_hole("a")
        _, settings = await telemetry(one, **consumer())
        assert not settings.subscription.fifo
        await running.advance(60)
        _, settings = await telemetry(one, **consumer())
        assert settings.subscription.fifo


def hang(running: ProxiedCluster, broker: str) -> None:
    """Let a broker answer the proxy nothing any more, also on new connections."""
    assert isinstance(running.network, MemoryNetwork)
    host = running[broker].address.partition(":")[0]
    running.network.silence(host, running.proxy.address.partition(":")[0])


async def test_acknowledgements_at_one_broker_do_not_wait_for_another_that_answers_late(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(monkeypatch)
    async with cluster() as running, client(running) as one:
        handles: dict[str, list[str]] = {"a": [], "b": []}
        for number in range(64):
            await one.one("SendMessage", sending(message(b"%d" % number)))
        for name in handles:
            _, messages = await received(one, at(name, seconds=30))
            handles[name] = [each.system_properties.receipt_handle for each in messages]
        assert made[0].cluster is not None
        pool, call = made[0].cluster.session.pool, made[0].cluster.session.pool.call

        async def late(address: str, command: Command, timeout: float) -> Command:
            if address == running["a"].address:
                await anyio.sleep(timeout)
                raise RequestTimeout(address, command.code, timeout)
            return await call(address, command, timeout)

        monkeypatch.setattr(pool, "call", late)
        began = anyio.current_time()
        answer = await one.one("AckMessage", acking(*handles["a"], *handles["b"]))
        assert anyio.current_time() - began < 10, "two time-outs at most, for any number of handles"
        codes = [each.status.code for each in answer.entries]
        assert (codes[32:], codes.count(Code["OK"])) == ([Code["OK"]] * 32, 32)
        await running.advance(40)
        assert (await received(one, at("b")))[0] == "MESSAGE_NOT_FOUND"


async def test_messages_of_a_client_that_is_gone_come_at_once_though_a_broker_hangs(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as running, client(running) as one:
        async with client(running, "client@2") as gone:
            for number in range(64):
                await gone.one("SendMessage", sending(message(b"%d" % number)))
            for name in "ab":
                assert len((await received(gone, at(name, seconds=3600)))[1]) == 32
            hang(running, "a")
        await running.advance(10)
        assert len((await received(one, at("b", poll=5)))[1]) == 32


async def test_a_callback_that_fails_ends_no_other_call(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(monkeypatch)
    async with cluster("a") as running, client(running) as one:

        async def work() -> None:
            raise RuntimeError("a fault")

        def fail(error: Exception) -> None:
            raise RuntimeError("another fault")

        assert made[0].cluster is not None
        made[0].cluster.start((), work, fail)
        await running.advance(1)
        assert word(await one.one("SendMessage", sending(message()))) == "OK"
        assert made[0].cluster.calls.used == 0


async def test_a_lease_that_is_renewed_when_its_client_has_gone_is_given_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(monkeypatch)
    async with cluster("a") as running, client(running) as one:
        assert made[0].cluster is not None
        extend = made[0].cluster.takes.extend

        async def late(*given: Any) -> str:
            fresh = await extend(*given)
            await anyio.sleep(2)
            return fresh

        monkeypatch.setattr(made[0].cluster.takes, "extend", late)
        async with client(running, "client@2") as gone:
            await gone.one("SendMessage", sending(message()))
            _, (taken,) = await received(gone, receiving())
            asked = request(
                "ChangeInvisibleDuration",
                group="G",
                topic="Orders",
                receipt_handle=taken.system_properties.receipt_handle,
                invisible_duration=3600,
            )
            call = await gone.begin("ChangeInvisibleDuration")
            await call.send(asked, ends=True)
            await anyio.sleep(1)
        _, found = await received(one, receiving(poll=10))
        assert len(found) == 1


async def test_a_member_is_announced_though_very_many_topics_wait_for_their_routes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = servers(monkeypatch)
    async with cluster("a") as running, client(running) as one:
        assert made[0].cluster is not None
        parts = made[0].cluster.topics.parts

        async def late(name: str) -> Any:
            if name != "Orders":
                await anyio.sleep(0.5)
            return await parts(name)

        monkeypatch.setattr(made[0].cluster.topics, "parts", late)
        assert word(await one.one("QueryRoute", request("QueryRoute", topic="Orders"))) == "OK"
        made[0].cluster.announce((f"None{number}" for number in range(200)), ())
        await running.advance(1)
        assert (await telemetry(one, **consumer()))[1] is not None
        await running.advance(5)
        assert running["a"].server.clients.consumer_ids("G")  # type: ignore[union-attr]


async def test_topics_that_wait_for_their_routes_leave_room_for_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied_cluster, "TOPICS_MAX", 8)
    made = servers(monkeypatch)
    async with (
        cluster("a") as running,
        client(running) as one,
        client(running, "other", host="10.0.8.2") as other,
    ):
        assert made[0].cluster is not None

        async def late(name: str) -> Any:
            await anyio.sleep(3)
            return ()

        monkeypatch.setattr(made[0].cluster.topics, "parts", late)
        call, settings = await telemetry(one, **producer(*(f"T{number}" for number in range(9))))
        assert settings is None
        assert "4 of 8 are taken by 10.0.8.1" in (call.trailers or {})["grpc-message"]
        assert (await telemetry(other, **producer("Other")))[1] is not None


async def test_messages_that_grow_large_come_in_parts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takes, "PLAIN_BYTES", 20_000)
    async with cluster("a") as running, client(running) as one, running.connect(compress_over=100) as other:
        async with other.producer("p") as producer_of_4x:
            queue = MessageQueue("Orders", "a", 0)
            for number in range(4):
                await producer_of_4x.send(stored.Message("Orders", b"%d" % number * 15_000), queue=queue)
        sizes = []
        while (found := await received(one, receiving()))[0] == "OK":
            sizes.append([len(each.body) for each in found[1]])
            assert {each.system_properties.delivery_attempt for each in found[1]} == {1}
        assert sizes == [[15_000] * 2] * 2
