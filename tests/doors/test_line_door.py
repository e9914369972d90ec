"""A door of a third party: publish, subscribe with acknowledgement, login, limits, a clean stop."""

from __future__ import annotations

import ast
import pathlib
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from rmq import Message
from rmq.broker.broker import Broker
from rmq.broker.runtime import failover_service
from rmq.broker.tables.topics import Topics
from rmq.errors import AccessDenied, PortInUse, ResponseError
from rmq.plugin import PUBLISH, Door, Plugin, PluginRefused, hooks_of
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import GetConsumerConnectionListRequestHeader
from rmq.remoting.network import TcpNetwork, open_stream
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.store.config import FlushDiskType
from rmq.testing.cluster import Cluster
from rmq.testing.front import Wire
from rmq.testing.network import MemoryNetwork
from tests.ports import free_ports

from .lines import PACKAGE, Line, package

PORT = 7070
HERE = pathlib.Path(__file__).parent

pytestmark = pytest.mark.usefixtures(package.__name__)

ACCOUNTS = """accounts:
  - {accessKey: writer01, secretKey: writer-secret-1, topicPerms: [Orders=PUB]}
  - {accessKey: reader01, secretKey: reader-secret-1, topicPerms: [Orders=SUB], groupPerms: [readers=SUB]}
"""


async def nothing(stream: object, host: object) -> None:
    """Serve nobody."""


def cluster(**settings: Any) -> Cluster:
    settings = {"plugins": ("line",), "plugin_settings": {"linePort": str(PORT)}} | settings
    return Cluster("a", topics={"Orders": 2}, **settings)


def guarded(folder: pathlib.Path) -> Cluster:
    """A cluster with accounts, and without topics."""
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    settings = {"linePort": str(PORT)}
    return Cluster("a", plugins=("acl", "line"), acl_file=str(file), plugin_settings=settings)


def topics_of(cluster: Cluster) -> Topics:
    broker = cluster["a"].server
    assert isinstance(broker, Broker)
    return broker.topics


async def dial(cluster: Cluster, port: int = PORT, host: str = "10.0.8.1") -> Line:
    assert isinstance(cluster.network, MemoryNetwork)
    target = cluster["a"].address.partition(":")[0]
    return await Line.dial(cluster.network.host(host), f"{target}:{port}")


async def published(line: Line, *bodies: str) -> None:
    for body in bodies:
        assert (await line.ask(f"PUB Orders {body}")).startswith("OK ")


def test_the_package_imports_public_names_only_and_is_short() -> None:
    text = (PACKAGE / "rmq_line" / "__init__.py").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    names = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name and name.startswith("rmq")} == {"rmq", "rmq.errors", "rmq.plugin"}


async def test_what_is_published_comes_to_subscribers(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        writer, reader = await dial(running), await dial(running)
        await published(writer, "one", "two", "three")
        assert await reader.ask("SUB readers Orders") == "OK"
        await reader.until(lambda said: len(reader.messages()) == 3)
        await published(writer, "four")
        await reader.until(lambda said: len(reader.messages()) == 4)
        assert sorted(body for _, _, body in reader.messages()) == ["four", "one", "three", "two"]
        assert {message.body for message in running.sent("Orders")} == {b"one", b"two", b"three", b"four"}


def test_a_door_works_on_asyncio() -> None:
    async def main() -> None:
        async with cluster() as running:
            line = await dial(running)
            await published(line, "one")
            await line.ask("SUB readers Orders")
            await line.until(lambda said: len(line.messages()) == 1)
            await running.stop("a")
            while await line.read():
                pass
            assert line.said[-1] == "BYE"

    anyio.run(main, backend="asyncio")


async def test_a_member_stays_one_for_hours_without_a_word(autojump_clock: MockClock) -> None:
    async with cluster(server_channel_max_idle_time_seconds=100_000) as running:
        line = await dial(running)
        await line.ask("SUB readers Orders")
        await running.advance(3 * 3600)
        await published(line, "one")
        await line.until(lambda said: len(line.messages()) == 1)
        broker = running["a"].server
        assert isinstance(broker, Broker)
        assert broker.clients.consumer_ids("readers") == [f"line@{line.stream.local}"]


async def test_what_was_not_acknowledged_comes_again(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        reader = await dial(running)
        await published(reader, *map(str, range(10)))
        await reader.ask("SUB readers Orders")
        await reader.until(lambda said: len(reader.messages()) == 10)
        kept = reader.messages()[4:]
        for queue, offset, _ in reader.messages()[:4]:
            await reader.send(f"ACK Orders {queue} {offset}")
        assert await reader.ask("PING") == "PONG"
        await reader.stream.aclose()
        again = await dial(running)
        await again.ask("SUB readers Orders")
        await again.until(lambda said: len(again.messages()) >= len(kept))
        await running.advance(30)
        assert sorted(again.messages()) == sorted(kept)


async def test_no_more_than_a_window_is_read_without_acknowledgement(autojump_clock: MockClock) -> None:
    async with cluster() as running:
        line = await dial(running)
        await published(line, *map(str, range(80)))
        await line.ask("SUB readers Orders")
        await line.until(lambda said: len(line.messages()) == 32)
        await running.advance(30)
        assert await line.ask("PING") == "PONG"
        assert len(line.messages()) == 32
        seen = 0
        while seen < 80:
            for queue, offset, _ in line.messages()[seen:]:
                await line.send(f"ACK Orders {queue} {offset}")
            seen = len(line.messages())
            if seen < 80:
                await line.until(lambda said, seen=seen: len(line.messages()) > seen)  # type: ignore[misc]
        await line.ask("PING")
        broker: Any = running["a"].server
        assert sum(broker.offsets.of("readers", "Orders").values()) == 80


async def test_a_peer_shares_a_group_with_clients(autojump_clock: MockClock) -> None:
    """The peer is a member like any other: it is listed, other members have the other queues, and the end of
    the peer makes them rebalance."""
    async with cluster() as running, running.connect() as client:
        line = await dial(running)
        await line.ask("SUB readers Orders")
        answer = running["a"].ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequestHeader("readers")
        )
        assert line.stream.local.encode() in answer.body
        got: list[bytes] = []

        async def consume() -> None:
            async with client.consumer("readers", {"Orders": "*"}) as consumer:
                async for message in consumer:
                    async with message as one:
                        got.append(one.body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            await running.advance(5)
            await published(line, *map(str, range(20)))
            await line.until(lambda said: len(line.messages()) == 10)
            await running.advance(1)
            assert len({queue for queue, _, _ in line.messages()}) == 1
            assert len(got) == 10
            await line.stream.aclose()
            await running.advance(30)
            assert len(set(got)) == 20
            nursery.cancel_scope.cancel()


async def test_a_request_to_a_member_is_answered_that_it_cannot(autojump_clock: MockClock) -> None:
    async with cluster() as running, running.connect() as client:
        line = await dial(running)
        await line.ask("SUB readers Orders")
        member = f"line@{line.stream.local}"
        with pytest.raises(ResponseError, match="the client uses door line"):
            await client.admin.consumer_running_info("readers", member, stack=True)
        told = await client.admin.consumer_running_info("readers", member)  # as far as the broker knows
        assert [one.topic for one in told.subscription_set] == ["Orders"]


async def test_the_port_for_clients_is_shared_by_first_bytes(autojump_clock: MockClock) -> None:
    async with cluster(plugin_settings={}) as running, running.connect() as client:
        line = await dial(running, 10911)
        await line.stream.send_all(b"LI")
        await running.advance(0.1)
        await line.stream.send_all(b"NE\nPUB Orders one\n")
        await line.until(lambda said: len(said) == 1)
        async with client.producer("writers") as producer:
            await producer.send(Message("Orders", b"two"))
        assert sorted(message.body for message in running.sent("Orders")) == [b"one", b"two"]
        stranger = await dial(running, 10911)
        await stranger.stream.send_all(b"LION")
        assert not await stranger.read()


TLS = TlsConfig(tls_mode="permissive", tls_test_mode=True, tls_insecure_skip_verify=True)


@pytest.fixture
def with_tls(monkeypatch: pytest.MonkeyPatch) -> TlsContexts:
    """Have brokers take TLS; returns what a client dials with."""
    monkeypatch.setattr(failover_service, "run", partial(failover_service.run, tls=TLS))
    return TlsContexts(TLS)


@pytest.mark.parametrize("scheme", ["ws://", "tls://", "wss://"])
async def test_tls_and_websocket_look_alike_to_a_door(
    autojump_clock: MockClock, with_tls: TlsContexts, scheme: str
) -> None:
    async with cluster() as running:
        host, tls = running["a"].address.partition(":")[0], with_tls
        async with open_stream(running.network, f"{scheme}{host}:{PORT}", tls=tls) as stream:
            line = Line(stream)
            await published(line, "one")
            await line.ask("SUB readers Orders")
            await line.until(lambda said: len(line.messages()) == 1)


async def test_a_shared_port_tells_a_door_inside_tls(
    autojump_clock: MockClock, with_tls: TlsContexts
) -> None:
    async with cluster() as running:
        address = f"tls://{running['a'].address}"
        async with open_stream(running.network, address, tls=with_tls) as stream:
            line = Line(stream)
            await line.send("LINE", "PING")
            await line.until(lambda said: said == ["PONG"])


async def test_an_account_does_what_it_may_and_no_more(
    autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    async with guarded(tmp_path) as running:
        topics_of(running).create_retry("Orders", 6, 2)
        stranger, writer, reader = [await dial(running) for _ in range(3)]
        for line in ("PUB Orders x", "SUB readers Orders", "LOGIN writer01 wrong", "LOGIN nobody01 wrong"):
            assert (await stranger.ask(line)).startswith("ERR "), line
        assert await writer.ask("LOGIN writer01 writer-secret-1") == "OK"
        assert await reader.ask("LOGIN reader01 reader-secret-1") == "OK"
        await published(writer, "one")
        assert "no permission to publish: Orders" in await reader.ask("PUB Orders x")
        assert "no permission" in await writer.ask("SUB readers Orders")
        assert "no permission to join: others" in await reader.ask("SUB others Orders")
        assert await reader.ask("SUB readers Orders") == "OK"
        await reader.until(lambda said: len(reader.messages()) == 1)
        broker = running["a"].server
        assert isinstance(broker, Broker)
        assert sum(broker.store.max_offset("Orders", number) for number in range(2)) == 1


async def test_who_guesses_secrets_is_slowed_down(autojump_clock: MockClock, tmp_path: pathlib.Path) -> None:
    async with guarded(tmp_path) as running:
        topics_of(running).create_retry("Orders", 6, 2)
        line = await dial(running)
        answers = [await line.ask(f"LOGIN writer01 {number}") for number in range(30)]
        assert "too many wrong signatures" in answers[-1]
        assert "too many" in await line.ask("LOGIN writer01 writer-secret-1")


# --- limits ---


async def test_the_rules_of_a_send_hold(autojump_clock: MockClock) -> None:
    async with cluster(store={"max_message_size": 100}) as running:
        line = await dial(running)
        assert "body has 101 bytes" in await line.ask(f"PUB Orders {'x' * 101}")
        assert (await line.ask("PUB SCHEDULE_TOPIC_XXXX x")).startswith("ERR ")
        broker: Any = running["a"].server
        broker.flow.close("it is told to")
        assert "it is told to" in await line.ask("PUB Orders x")
        assert running.sent("Orders") == []


async def test_a_line_without_end_and_an_idle_peer_are_cut_off(autojump_clock: MockClock) -> None:
    async with cluster(server_channel_max_idle_time_seconds=100) as running:
        long, half, idle = [await dial(running) for _ in range(3)]
        await idle.ask("PING")
        await long.stream.send_all(b"x" * 70_000)
        assert not await long.read()
        await half.stream.send_all(b"PUB Orders")
        await running.advance(70)
        assert not await half.read()
        assert await idle.ask("PING") == "PONG"
        await running.advance(110)
        assert not await idle.read()


async def test_a_peer_that_does_not_read_is_cut_off_and_its_bytes_are_counted(
    autojump_clock: MockClock,
) -> None:
    async with cluster(network=MemoryNetwork(window=1000)) as running:
        line, broker = await dial(running), running["a"].server
        assert isinstance(broker, Broker)
        await published(line, *["x" * 900] * 20)
        await line.ask("SUB readers Orders")
        await running.advance(1)
        assert broker.budget.held > 5_000
        await running.advance(20)
        assert broker.budget.held == 0
        assert broker.door_peers.connections == {"line": 0}
        assert broker.clients.consumer_ids("readers") == []


async def test_connections_of_a_door_are_bounded_by_name(autojump_clock: MockClock) -> None:
    async with cluster(max_connections_per_address=3) as running:
        lines = [await dial(running) for _ in range(3)]
        for line in lines:  # a whole request proves a peer; who has proved nothing makes room for others
            await published(line, "one")
        one_more = await dial(running)
        assert not await one_more.read()
        broker = running["a"].server
        assert isinstance(broker, Broker)
        assert broker.acceptors["line"].refused == {"address": 1}
        assert broker.door_peers.connections == {"line": 3}
        assert await (await dial(running, host="10.0.8.2")).ask("PING") == "PONG"


# --- the start and the end ---


async def test_a_stop_answers_what_is_open_and_says_goodbye(autojump_clock: MockClock) -> None:
    async with cluster(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as running:
        writer, reader = await dial(running), await dial(running)
        await reader.ask("SUB readers Orders")
        await writer.send("PUB Orders one", "PUB Orders two")
        await running.stop("a")
        while await writer.read():
            pass
        while await reader.read():
            pass
        words = [line.partition(" ")[0] for line in writer.said]
        assert len(words) == 3
        assert words[-1] == "BYE"
        assert {*words[:2]} <= {"OK", "ERR"}
        assert reader.said[-1] == "BYE"
        assert reader.said.count("BYE") == 1
        await running.start("a")
        answered = sum(line.startswith("OK") for line in writer.said)
        assert len(running.sent("Orders")) >= answered


async def test_a_message_that_waits_for_the_disk_is_answered_before_goodbye(
    autojump_clock: MockClock,
) -> None:
    async with cluster(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as running:
        line, broker = await dial(running), running["a"].server
        assert isinstance(broker, Broker)
        await published(line, "one")
        synced = broker.acknowledgement.synced
        broker.acknowledgement.synced = lambda position: None  # type: ignore[method-assign]
        await line.send("PUB Orders two")
        await running.advance(0.1)
        broker.acknowledgement.synced = synced  # type: ignore[method-assign]
        await running.stop("a")
        while await line.read():
            pass
        assert [one.partition(" ")[0] for one in line.said] == ["OK", "OK", "BYE"]


async def test_a_door_cannot_have_a_port_of_the_broker_itself() -> None:
    (listen,) = free_ports(1)
    settings = {"plugin_settings": {"linePort": str(listen)}, "listen_port": listen}
    with pytest.raises(PortInUse, match="for door line of a plug-in"):
        async with cluster(network=TcpNetwork(), broker_ip1="127.0.0.1", **settings):
            raise AssertionError("it has started")


async def test_a_port_that_is_taken_ends_the_start(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    taken = await network.host("10.0.1.1").listen(f"10.0.1.1:{PORT}")
    with pytest.raises(PortInUse, match="for door line of a plug-in"):
        async with cluster(network=network):
            raise AssertionError("it has started")
    await taken.aclose()
    async with cluster(network=network) as running:
        assert await (await dial(running)).ask("PING") == "PONG"


@pytest.mark.parametrize(
    ("doors", "text"),
    [
        ([Door(name="line", serve=nothing)], "neither a port nor first bytes"),
        ([Door(name="a line", serve=nothing, port=1)], "must be a word"),
        ([Door(name="line", serve=nothing, port=70_000)], "must be 0 to 65535"),
        ([Door(name="line", serve=nothing, first_bytes=b"GET")], "RocketMQ's, TLS's or WebSocket's"),
        ([Door(name="line", serve=nothing, first_bytes=b"\x00A")], "RocketMQ's, TLS's or WebSocket's"),
        ([Door(name="clients", serve=nothing, port=1)], "as another has"),
        (
            [Door(name=f"line{size}", serve=nothing, first_bytes=b"ABC"[:size]) for size in (2, 3)],
            "begins as another",
        ),
    ],
)
def test_doors_that_cannot_be_opened_are_refused(doors: list[Door], text: str) -> None:
    class Odd(Plugin):
        def doors(self) -> list[Door]:
            return doors

    hooks = hooks_of([("odd", Odd({}, Any))])  # type: ignore[arg-type]
    with pytest.raises(PluginRefused, match=text):
        hooks.doors()


def test_a_gate_that_does_not_know_doors_lets_nobody_in() -> None:
    class Gate(Plugin):
        def on_request(self, peer: Any, command: Any) -> None:
            pass

    hooks, peer = hooks_of([("gate", Gate({}, Any))]), Wire()  # type: ignore[arg-type]
    assert not hooks.may(peer, PUBLISH, "Orders")
    with pytest.raises(AccessDenied, match="no plug-in of this broker checks logins"):
        hooks.authenticate(peer, "user", "secret", None)
