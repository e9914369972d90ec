"""The client as a whole: its names, its block and what leaves it."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.client import local_address
from rmq.client.config import ClientConfig
from rmq.client.session.requests import parse_name_servers
from rmq.errors import ConfigError, LocalProtocolError
from rmq.message import Message
from rmq.protocol.codes import RequestCode
from rmq.remoting.loop import TaskGroupScope
from rmq.testing.cluster import Cluster

from .world import world

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


class Broken(Exception):
    pass


async def fail_now() -> None:
    raise Broken


async def fail_soon() -> None:
    await anyio.sleep(0)
    raise Broken


def scope_of(backend: str, body: object, *tasks: object) -> None:
    async def main() -> None:
        async with TaskGroupScope() as scope:
            for task in tasks:
                scope.tasks.start_soon(task)
            await body()

    anyio.run(main, backend=backend)


async def wait_in_a_nursery() -> None:
    """Wait in a nursery whose end is a group of cancellations."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(trio.sleep_forever)


def test_an_error_of_a_task_comes_out_though_the_block_waits_in_a_nursery() -> None:
    with pytest.raises(Broken):
        scope_of("trio", wait_in_a_nursery, fail_soon)


@BACKENDS
class TestScope:
    def test_an_error_of_the_block_comes_out_bare(self, backend: str) -> None:
        with pytest.raises(ZeroDivisionError):
            scope_of(backend, lambda: divide(), anyio.sleep_forever)

    def test_an_error_of_a_task_ends_the_block_and_comes_out_bare(self, backend: str) -> None:
        with pytest.raises(Broken):
            scope_of(backend, anyio.sleep_forever, anyio.sleep_forever, fail_soon)

    def test_with_both_the_users_error_wins(self, backend: str, caplog: pytest.LogCaptureFixture) -> None:
        failed: list[anyio.Event] = []

        async def fail() -> None:
            failed[0].set()
            raise Broken

        async def body() -> None:
            failed.append(anyio.Event())
            with anyio.CancelScope(shield=True):
                await failed[0].wait()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            scope_of(backend, body, fail)
        assert "a background task failed too" in caplog.text

    def test_a_group_of_the_users_stays_what_it_was(self, backend: str) -> None:
        group = ExceptionGroup("mine", [ValueError(), KeyError()])

        async def body() -> None:
            raise group

        with pytest.raises(ExceptionGroup) as caught:
            scope_of(backend, body, anyio.sleep_forever)
        assert caught.value is group

    def test_several_errors_of_tasks_are_a_group(self, backend: str) -> None:
        with pytest.raises(BaseExceptionGroup):
            scope_of(backend, anyio.sleep_forever, fail_now, fail_now)

    def test_cancelling_the_block_does_not_reach_the_tasks_before_its_end(self, backend: str) -> None:
        order = []

        async def task() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                order.append("task")

        async def body() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)
                    order.append("block")

        async def main() -> None:
            with anyio.move_on_after(0.01):
                async with TaskGroupScope() as scope:
                    scope.tasks.start_soon(task)
                    await body()
            order.append("after")

        anyio.run(main, backend=backend)
        assert order == ["block", "task", "after"]


async def divide() -> None:
    raise ZeroDivisionError


async def consume_some(client: rmq.Client, cluster: Cluster) -> None:
    async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
        for _ in range(2):
            async with await anext(consumer):
                pass
        await trio.sleep_forever()


async def test_a_cancelled_client_lets_its_consumer_commit(clock: MockClock) -> None:
    cluster = Cluster("a", topics={"T": 1})
    async with world(cluster) as setting:
        for number in range(9):
            cluster["a"].put("T", 0, b"%d" % number)
        with trio.move_on_after(1):
            async with setting.connect() as client:
                await consume_some(client, cluster)
        assert cluster["a"].offsets("g", "T") == {0: 2}
        assert not cluster["a"].members("g")


async def test_through_the_second_door_too(clock: MockClock) -> None:
    cluster = Cluster("a", topics={"T": 1})
    async with world(cluster) as setting:
        for number in range(9):
            cluster["a"].put("T", 0, b"%d" % number)
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                client = await nursery.start(setting.connect().run)
                nursery.start_soon(consume_some, client, cluster)
        assert cluster["a"].offsets("g", "T") == {0: 2}
        assert not cluster["a"].members("g")


async def test_a_client_does_not_wait_for_ever_for_those_who_stay(clock: MockClock) -> None:
    cluster = Cluster("a")
    async with world(cluster) as setting:
        async with setting.connect() as client:
            producer = client.producer("p")
            await producer.__aenter__()
        assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_a_client_is_entered_once(clock: MockClock) -> None:
    async with world(Cluster("a")) as setting:
        client = setting.connect()
        async with client:
            pass
        with pytest.raises(LocalProtocolError, match="opens once"):
            async with client:
                pass


async def test_a_client_that_is_cancelled_on_its_way_in_leaves_nothing_behind(clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        async with rmq.connect("127.0.0.1:9876"):
            pytest.fail("it was entered")
    assert scope.cancelled_caught


async def test_two_clients_have_two_names(clock: MockClock) -> None:
    async with world(Cluster("a")) as setting:
        one, two = setting.connect(), setting.connect()
        assert one.client_id != two.client_id
        assert "#" in one.client_id
        assert one.client_id in repr(one)


async def test_a_heartbeat_that_is_refused_is_no_disaster_and_told_once(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("a", topics={"T": 4})
    cluster["a"].script(RequestCode.HEART_BEAT, 16, 16, 16)
    async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
        await producer.send(Message("T", b"x"))
        while cluster["a"].count(RequestCode.HEART_BEAT) < 4:
            await trio.sleep(1)
        assert caplog.text.count("heartbeat refused") == 1


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 ; ;b:2;", ["a:1", "b:2"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
    ],
)
def test_name_servers_are_written_in_several_ways(given: str | list[str], addresses: list[str]) -> None:
    assert parse_name_servers(given) == addresses


@pytest.mark.parametrize("given", ["", " ; ", []])
def test_no_name_server_is_a_mistake(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="at least one name server"):
        rmq.connect(given)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"pull_timeout_ms": 10_000},
            r"pull_timeout_ms = 10000: expected more than pull_suspend_ms \(15000\)",
        ),
        ({"retry_times": -1}, "retry_times = -1: expected a number from 0 to 100"),
        ({"pull_batch_size": 0}, "pull_batch_size = 0: expected a number from 1 to 1024"),
    ],
)
def test_settings_are_checked(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ClientConfig(**settings)


@pytest.mark.parametrize("toward", ["127.0.0.1:1", "[::1]:1", "tls://127.0.0.1:1", "some.name:1"])
def test_the_own_address(toward: str) -> None:
    assert local_address(toward)


def test_importing_rmq_loads_next_to_nothing() -> None:
    code = "import sys, rmq; print([m for m in ('trio', 'anyio', 'attrs', 'asyncio') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_all_public_names_are_there() -> None:
    for name in rmq.__all__:
        assert getattr(rmq, name) is not None
        assert name in dir(rmq)
    with pytest.raises(AttributeError, match="'rmq' has no attribute 'nothing'"):
        rmq.nothing  # type: ignore[attr-defined]  # noqa: B018


NOT_LOADED = (
    "bz2 cattrs click cryptography lz4 lzma opentelemetry prometheus_client pydantic shutil tempfile tomllib"
    " trio trio_websocket wsproto yaml zstandard rmq.broker rmq.cli rmq.client.admin rmq.client.app"
    " rmq.client.blocking rmq.client.codec rmq.client.observability.metrics rmq.client.observability.otel"
    " rmq.client.observability.trace rmq.namesrv"
    " rmq.remoting.poller rmq.remoting.serving.server rmq.remoting.trio_loop"
    " rmq.remoting.transports.websocket rmq.spark rmq.store rmq.testing"
)


def test_the_import_of_the_client_loads_only_what_every_client_uses() -> None:
    """The import took 250 ms when it loaded more; a test of times would depend on the machine."""
    code = f"""
import sys, rmq
from rmq.protocol import bodies, headers
rmq.connect, rmq.Message, rmq.Producer, rmq.Consumer, rmq.Credentials, rmq.TlsConfig
print(*sorted(set({NOT_LOADED!r}.split()) & sys.modules.keys()))
classes = [cls for module in (bodies, headers) for cls in vars(module).values()
           if getattr(cls, '__module__', '') == module.__name__ and isinstance(cls, type)]
print(*[cls.__name__ for cls in classes if isinstance(vars(cls).get("__attrs_attrs__"), tuple)])
headers.GetRouteInfoRequestHeader("T")
print(*[cls.__name__ for cls in classes if isinstance(vars(cls).get("__attrs_attrs__"), tuple)])
"""
    loaded, made, used = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert loaded == ""
    assert made == "", "methods of headers and bodies were made though nothing was sent"
    assert used == "GetRouteInfoRequestHeader", "or this does not see what is made"
