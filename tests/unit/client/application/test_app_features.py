"""Features of an app beside handlers: requests, transactions, delays, middlewares, no duplicates."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

import rmq
from rmq.errors import ConfigError, InvalidBody, InvalidName, InvalidType, LocalProtocolError
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


@dataclass
class Order:
    number: int


@dataclass
class Invoice:
    order: int


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.05)


Next = Callable[[StoredMessage], Awaitable[object]]


# --- requests ---


def test_a_request_has_a_value_and_its_reply_another(in_memory: Play, cluster: Cluster) -> None:
    app = rmq.App()

    @app.consumer("T", group="g", model=Order)
    async def answer(order: Order) -> Invoice:
        return Invoice(order.number)

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            invoice = await app.request("T", Order(7), model=Invoice, timeout=30)
            assert invoice == Invoice(7)
            message = await app.request("T", Order(8), keys=["k"], timeout=30)
            assert message.body == b'{"order":8}'
            with pytest.raises(InvalidBody, match="does not fit the model") as raised:
                await app.request("T", Order(9), model=int, timeout=30)
            assert raised.value.__cause__ is not None
            with pytest.raises(InvalidType, match="model"):
                await app.request("T", Order(9), model=5)  # type: ignore[call-overload]

    in_memory(scenario, cluster)


# --- transactions ---


def test_a_transaction(in_memory: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(group="payments"), list[int]()

    @app.check_back
    async def check(message: StoredMessage) -> rmq.Decision:
        return rmq.COMMIT

    @app.consumer("T", group="g", model=Order)
    async def handle(order: Order) -> None:
        seen.append(order.number)

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            async with app.transaction("T", Order(1), keys=["1"]):
                await anyio.sleep(5)
                assert seen == []
            await until(lambda: seen == [1])
            with pytest.raises(RuntimeError, match="card refused"):
                async with app.transaction("T", Order(2)):
                    raise RuntimeError("card refused")
            with pytest.raises(LocalProtocolError, match="already open"):
                app.check_back(check)
            await anyio.sleep(120)
            assert seen == [1]

    in_memory(scenario, cluster)
    with pytest.raises(ConfigError, match="check_back"):
        app.check_back(check)


def test_a_transaction_whose_process_died_is_asked_for(in_memory: Play) -> None:
    cluster = Cluster("a", topics={"T": 2}, transaction_time_out=1000, transaction_check_interval=1000)
    app, asked, seen = rmq.App(group="payments"), list[bytes](), list[int]()

    @app.check_back
    def check(message: StoredMessage) -> rmq.Decision:
        asked.append(message.body)
        return rmq.COMMIT

    @app.consumer("T", group="g", model=Order, consume_from="first")
    async def handle(order: Order) -> None:
        seen.append(order.number)

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            with anyio.CancelScope() as scope:
                async with app.transaction("T", Order(1)):
                    scope.cancel()
                    await anyio.sleep_forever()
            await until(lambda: seen == [1], 600)
        assert asked == [b'{"number":1}']

    in_memory(scenario, cluster)


def test_a_transaction_needs_somebody_who_is_asked(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        app = rmq.App()
        with pytest.raises(LocalProtocolError, match="not open"):
            app.transaction("T", b"x")
        async with app.using(world.connect()):
            with pytest.raises(LocalProtocolError, match="transactions need a check-back"):
                app.transaction("T", b"x")

    in_memory(scenario, cluster)


# --- delays ---


def test_delays(in_memory: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(), dict[str, float]()

    @app.consumer("T", group="g", model=str, consume_from="first")
    async def handle(text: str) -> None:
        seen[text] = anyio.current_time()

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            began = anyio.current_time()
            at = datetime.fromtimestamp(cluster.now_ms() / 1000, UTC) + timedelta(seconds=40)
            await app.send("T", "seconds", delay=10)
            await app.send("T", "timedelta", delay=timedelta(seconds=20))
            await app.send("T", "ms", delay_ms=30_000)
            await app.send("T", "datetime", deliver_at=at)
            await until(lambda: len(seen) == 4, 120)
            delays = {text: round(time - began) for text, time in seen.items()}
            assert delays == {"seconds": 10, "timedelta": 20, "ms": 30, "datetime": 40}
            with pytest.raises(ConfigError, match="one of delay_ms, delay and deliver_at"):
                await app.send("T", b"x", delay=1, deliver_at=at)
            with pytest.raises(ConfigError, match="a datetime with a time zone"):
                await app.send("T", b"x", deliver_at=datetime(2030, 1, 1))
            with pytest.raises(InvalidType, match="deliver_at"):
                await app.send("T", b"x", deliver_at=5)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="delay"):
                await app.send("T", b"x", delay=-1)

    in_memory(scenario, cluster)


# --- middlewares ---


def test_middlewares_stand_around_handlers(in_memory: Play, cluster: Cluster) -> None:
    trail: list[str] = []

    def named(name: str) -> Callable[[StoredMessage, Next], Awaitable[object]]:
        async def middleware(message: StoredMessage, call_next: Next) -> object:
            trail.append(f"{name} {message.body.decode()}")
            try:
                return await call_next(message)
            except ValueError as error:
                trail.append(f"{name} sees {type(error).__name__}")
                raise rmq.Retry("later", after=1) from error
            finally:
                trail.append(f"{name} ends")

        return middleware

    async def leave_out(message: StoredMessage, call_next: Next) -> object:
        return b"left out" if message.body == b"3" else await call_next(message)

    app = rmq.App(middlewares=[named("outer"), leave_out])

    @app.consumer("T", group="g", model=int, concurrency=1, middlewares=[named("inner")])
    def handle(number: int, message: StoredMessage) -> str:
        trail.append(f"handler {number}")
        if number == 2 and not message.reconsume_times:
            raise ValueError
        return f"reply {number}"

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            assert await app.request("T", 1, model=str, timeout=30) == "reply 1"
            assert trail == ["outer 1", "inner 1", "handler 1", "inner ends", "outer ends"]
            trail.clear()
            await app.send("T", 2)
            await until(lambda: trail.count("outer ends") == 2)
            assert trail.count("handler 2") == 2
            assert trail[:5] == ["outer 2", "inner 2", "handler 2", "inner sees ValueError", "inner ends"]
            trail.clear()
            assert await app.request("T", 3, model=str, timeout=30) == "left out"
            assert trail == ["outer 3", "outer ends"]

    in_memory(scenario, cluster)


def test_what_is_no_middleware() -> None:
    def ordinary(message: StoredMessage, call_next: Next) -> object:
        return None

    async def short(message: StoredMessage) -> object:
        return None

    for wrong in (5, [5], [ordinary], [short]):
        with pytest.raises(InvalidType, match="middlewares"):
            rmq.App(middlewares=wrong)  # type: ignore[call-overload]
        with pytest.raises(InvalidType, match="middlewares"):
            rmq.App().consumer("T", group="g", middlewares=wrong)  # type: ignore[call-overload]


# --- hooks and state ---


def test_setup_is_the_hook_at_the_start_and_at_the_end(in_memory: Play, cluster: Cluster) -> None:
    trail: list[str] = []

    @asynccontextmanager
    async def setup(app: rmq.App) -> AsyncIterator[dict[str, int]]:
        trail.append("start")
        await app.send("T", "first")  # the client is open already
        yield {"count": 0}
        trail.append("end")

    app = rmq.App(setup=setup)

    @app.consumer("T", group="g", model=str, consume_from="first")
    async def handle(text: str) -> None:
        app.state["count"] += 1
        trail.append(text)

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            await until(lambda: app.state["count"] == 1)
        assert trail == ["start", "first", "end"]

    in_memory(scenario, cluster)


# --- duplicates ---


def window_of(kind: str, path: Any) -> Any:
    if kind == "memory":
        return rmq.MemoryWindow()
    inbox = rmq.Inbox("g", dialect="sqlite")

    def run(statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        with closing(sqlite3.connect(path / "inbox.db")) as connection, connection:
            connection.execute(inbox.create)
            return connection.execute(statement, parameters).fetchall()

    async def run_async(statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        return run(statement, parameters)

    return rmq.TableWindow(inbox, run if kind == "table" else run_async)


@pytest.mark.parametrize("kind", ["memory", "table", "table, async"])
def test_copies_are_left_out(in_memory: Play, cluster: Cluster, kind: str, tmp_path: Any) -> None:
    done: list[bytes] = []
    skip = rmq.SkipDuplicates(window_of(kind, tmp_path), key="key")
    app = rmq.App()

    @app.consumer("T", group="g", middlewares=[skip], concurrency=1, retry=rmq.Backoff(0.01, 0.01))
    async def handle(message: StoredMessage) -> None:
        if message.body == b"fails first" and not message.reconsume_times:
            raise ValueError
        done.append(message.body)

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            for body, key in ((b"one", "1"), (b"copy of one", "1"), (b"fails first", "2"), (b"last", "3")):
                await app.producer.send(rmq.Message("T", body, keys=[key]), sharding_key="x")
            await until(lambda: {b"fails first", b"last"} <= set(done))
            await app.producer.send(rmq.Message("T", b"copy of two", keys=["2"]))
            await until(lambda: skip.skipped == 2)

    in_memory(scenario, cluster)
    assert sorted(done) == [b"fails first", b"last", b"one"]


async def test_a_copy_waits_for_the_first(autojump_clock: object) -> None:
    window, trail = rmq.MemoryWindow(seconds=100, most=3), list[str]()

    async def come(name: str, is_handled: bool) -> None:
        if await window.begin("k"):
            trail.append(f"{name} begins")
            await anyio.sleep(1)
            await window.end("k", is_handled)
        else:
            trail.append(f"{name} is a copy")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come, "first", False)
        await anyio.sleep(0.1)
        tasks.start_soon(come, "second", True)
        await anyio.sleep(0.1)
        tasks.start_soon(come, "third", True)
    second, third = trail[1].split()[0], trail[2].split()[0]
    assert {second, third} == {"second", "third"}, "one of those that waited, whichever the loop wakes first"
    assert trail == ["first begins", f"{second} begins", f"{third} is a copy"]
    await anyio.sleep(101)
    assert await window.begin("k")
    await window.end("k", True)
    for key in "abc":
        assert await window.begin(key)
        await window.end(key, True)
    assert len(window) == 3
    assert await window.begin("k")


def test_the_inbox_is_part_of_the_handlers_transaction(in_memory: Play, cluster: Cluster) -> None:
    """The case of docs/duplicates.md: the key and the handler's rows are stored together or not at all."""
    inbox = rmq.Inbox("g", dialect="sqlite")
    database = sqlite3.connect(":memory:")
    database.execute(inbox.create)
    database.execute("CREATE TABLE bills (number INTEGER)")
    app = rmq.App()

    @app.consumer("T", group="g", model=Order, concurrency=1, retry=rmq.Backoff(1, 1))
    async def bill(order: Order, message: StoredMessage) -> None:
        with database:
            if database.execute(*inbox.accept(message.keys[0])).rowcount:
                database.execute("INSERT INTO bills VALUES (?)", (order.number,))
                if message.reconsume_times == 0:
                    raise ValueError("the power fails before the commit")

    async def scenario(world: World) -> None:
        async with app.using(world.connect()):
            for number in (1, 1, 2):
                await app.send("T", Order(number), keys=[str(number)])
            rows = "SELECT number FROM bills ORDER BY number"
            await until(lambda: database.execute(rows).fetchall() == [(1,), (2,)])
            await anyio.sleep(60)
            assert database.execute(rows).fetchall() == [(1,), (2,)]

    in_memory(scenario, cluster)


def test_statements_of_each_dialect() -> None:
    accept = {
        ("sqlite", None): "INSERT INTO t (consumer_group, message_key, handled_ms) VALUES (?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        ("postgresql", None): "INSERT INTO t (consumer_group, message_key, handled_ms) VALUES (%s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        ("postgresql", "dollar"): "INSERT INTO t (consumer_group, message_key, handled_ms)"
        " VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        ("mysql", None): "INSERT IGNORE INTO t (consumer_group, message_key, handled_ms) VALUES (%s, %s, %s)",
    }
    for (dialect, style), text in accept.items():
        inbox = rmq.Inbox("g", table="t", dialect=dialect, paramstyle=style)  # type: ignore[arg-type]
        assert inbox.accept("k")[0] == text
        assert inbox.accept("k")[1][:2] == ("g", "k")
    dollar = rmq.Inbox("g", table="shop.t", paramstyle="dollar")
    assert dollar.find("k") == (
        "SELECT 1 FROM shop.t WHERE consumer_group = $1 AND message_key = $2",
        ("g", "k"),
    )
    assert dollar.prune(60)[0] == "DELETE FROM shop.t WHERE consumer_group = $1 AND handled_ms < $2"
    with closing(sqlite3.connect(":memory:")) as database:
        lite = rmq.Inbox("g", dialect="sqlite")
        database.execute(lite.create)
        assert database.execute(*lite.accept("k")).rowcount == 1
        assert database.execute(*lite.accept("k")).rowcount == 0
        assert database.execute(*lite.find("k")).fetchall() == [(1,)]
        assert database.execute(*lite.prune(-0.0)).rowcount in (0, 1)


def test_what_is_no_window() -> None:
    for kind, make in (
        (ConfigError, lambda: rmq.Inbox("g", table="t; DROP TABLE t")),
        (ConfigError, lambda: rmq.Inbox("g", dialect="oracle")),  # type: ignore[arg-type]
        (ConfigError, lambda: rmq.Inbox("g", paramstyle="named")),  # type: ignore[arg-type]
        (InvalidName, lambda: rmq.Inbox("g g")),
        (ConfigError, lambda: rmq.SkipDuplicates(5)),  # type: ignore[arg-type]
        (ConfigError, lambda: rmq.SkipDuplicates(rmq.MemoryWindow(), key="keys")),  # type: ignore[arg-type]
        (InvalidType, lambda: rmq.SkipDuplicates(rmq.MemoryWindow(), key=5)),  # type: ignore[arg-type]
        (ConfigError, lambda: rmq.MemoryWindow(seconds=-1)),
        (InvalidType, lambda: rmq.TableWindow(rmq.Inbox("g"), 5)),  # type: ignore[arg-type]
        (InvalidType, lambda: rmq.TableWindow(5, print)),  # type: ignore[arg-type]
    ):
        with pytest.raises(kind):
            make()
