"""App: handlers with typed bodies, opened and left together, on trio and on asyncio."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest
from attrs import frozen

import rmq
from rmq.errors import ConfigError, InvalidMessageType, InvalidType, LocalProtocolError
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


class Order(msgspec.Struct):
    number: int
    item: str = "tea"


@dataclass
class Invoice:
    number: int


@frozen
class Receipt:
    number: int


async def until(condition: Any) -> None:
    """Let others run until it holds."""
    while not condition():
        await anyio.sleep(0.01)


def test_values_go_from_app_to_handler(both: Play, cluster: Cluster) -> None:
    app = rmq.App(group="shop")
    seen: list[Any] = []

    @app.consumer("T", group="g", model=Order, concurrency=2, consume_from="first")
    async def handle(order: Order, message: StoredMessage) -> None:
        seen.append((order, message.tags, message.keys, message.properties["p"]))

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()) as same:
            assert same is app
            result = await app.send(
                "T", Order(7), tags="paid", keys=["k"], properties={"p": "1"}, sharding_key="s"
            )
            assert result.status == "SEND_OK"
            assert list(app.consumers) == ["g"]
            await until(lambda: seen)
        assert cluster.sent("T")[0].body == b'{"number":7,"item":"tea"}'
        assert cluster["a"].offsets("g", "T") in ({0: 1, 1: 0}, {0: 0, 1: 1}, {0: 1}, {1: 1})

    both(scenario, cluster)
    assert seen == [(Order(7), "paid", ("k",), "1")]
    assert not app.consumers


@pytest.mark.parametrize(
    ("model", "value", "body"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "zwölf", "zwölf".encode()),
        (Order, Order(1), b'{"number":1,"item":"tea"}'),
        (Invoice, Invoice(1), b'{"number":1}'),
        (Receipt, Receipt(1), b'{"number":1}'),
        (dict[str, int], {"a": 1}, b'{"a":1}'),
        (list[Order], [Order(1)], b'[{"number":1,"item":"tea"}]'),
        (rmq.MsgspecCodec(int), 5, b"5"),
    ],
)
def test_models(model: Any, value: Any, body: bytes, both: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(), []

    @app.consumer({"T": "*"}, group="g", model=model)
    def handle(value: Any) -> None:
        seen.append((value, threading.current_thread() is threading.main_thread()))

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", value)
            await until(lambda: seen)
        assert cluster.sent("T")[0].body == body

    both(scenario, cluster)
    assert seen == [(value, False)]  # an ordinary function runs in a thread


def test_models_of_pydantic(both: Play, cluster: Cluster) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        number: int

    app, seen = rmq.App(), []

    @app.consumer("T", group="g", model=Item)
    async def handle(item: Item) -> None:
        seen.append(item)

    @app.consumer("U", group="many", model=rmq.PydanticCodec(list[Item]))
    async def handle_many(items: list[Item]) -> None:
        seen.extend(items)

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", Item(number=1))
            await app.send("U", rmq.PydanticCodec(list[Item]).encode([Item(number=2)]))
            await until(lambda: len(seen) == 2)

    both(scenario, Cluster("a", topics={"T": 1, "U": 1}))
    assert sorted(seen, key=lambda item: item.number) == [Item(number=1), Item(number=2)]


def test_msgpack() -> None:
    codec = rmq.MsgspecCodec(Order, "msgpack")
    assert codec.decode(codec.encode(Order(3))) == Order(3)
    assert codec.encode(Order(3)) == msgspec.msgpack.encode(Order(3))
    with pytest.raises(ConfigError, match="form"):
        rmq.MsgspecCodec(Order, "xml")  # type: ignore[arg-type]


def test_without_a_model_the_handler_gets_messages(both: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(), []

    @app.consumer("T", group="g")
    async def handle(message: StoredMessage, more: int = 5) -> None:
        seen.append((message.body, more))

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", b"x")
            await until(lambda: seen)

    both(scenario, cluster)
    assert seen == [(b"x", 5)]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_body_that_is_none_of_the_model_is_a_dead_letter_at_once(
    ordered: bool, both: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = rmq.App(), []

    @app.consumer("T", group="g", model=Order, ordered=ordered, on_error="raise")
    async def handle(order: Order) -> None:
        seen.append(order)

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", b'{"number": "seven"}', keys=["bad"], sharding_key="s")
            await app.send("T", Order(1), sharding_key="s")
            await until(lambda: seen)
            while not (letters := await app.client.dead_letters("g")):  # its topic has no route at first
                await anyio.sleep(0.01)
        (letter,) = letters
        assert letter.message.keys == ("bad",)
        assert "Expected `int`, got `str`" in letter.reason

    both(scenario, cluster)
    assert seen == [Order(1)]
    assert "Expected `int`" in caplog.text


def test_what_fails_comes_again_as_the_policy_says(both: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(), []

    @app.consumer("T", group="g", retry=rmq.Backoff(0.01, 1, tries=3))
    async def handle(message: StoredMessage) -> None:
        seen.append(message.reconsume_times)
        raise ValueError("never")

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", b"x")
            await until(lambda: cluster.sent("%DLQ%g"))

    both(scenario, cluster)
    assert seen == [0, 1, 2]


def test_what_a_handler_returns_is_the_reply_to_a_request(both: Play, cluster: Cluster) -> None:
    app = rmq.App()

    @app.consumer("T", group="g", model=Order)
    async def quote(order: Order) -> Invoice | None:
        return Invoice(order.number + 1) if order.number else None

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", Order(5))  # no request: what comes back goes nowhere
            reply = await app.producer.request(rmq.Message("T", b'{"number": 1}'), 10)
            assert reply.body == b'{"number":2}'
            with pytest.raises(rmq.ReplyTimeout):
                await app.producer.request(rmq.Message("T", b'{"number": 0}'), 0.2)

    both(scenario, cluster)


def test_setup_is_entered_before_the_first_message_and_left_after_the_last(
    both: Play, cluster: Cluster
) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def setup(app: rmq.App) -> AsyncIterator[str]:
        await app.send("T", b"from setup")
        order.append("opened")
        yield "a pool"
        order.append("closed")

    app = rmq.App(setup=setup)

    @app.consumer("T", group="g", model=str)
    async def handle(text: str) -> None:
        order.append(f"{text} {app.state}")
        app.stop()
        await anyio.sleep(0.01)
        order.append("handled")

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await until(lambda: len(order) > 1)
        assert app.state is None

    both(scenario, cluster)
    assert order == ["opened", "from setup a pool", "handled", "closed"]


def test_run_ends_by_stop_and_can_be_run_again(both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        app, seen = rmq.App(setting.names, network=setting.network), []

        @app.consumer("T", group="g", model=str)
        async def handle(text: str) -> None:
            seen.append(text)
            opened = app.is_open
            app.stop()
            await anyio.sleep(0.01)
            seen.append(f"finished {opened} {app.is_open}")

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                assert await tasks.start(app.run) is app
                await app.send("T", "x")
                with pytest.raises(LocalProtocolError, match="already open"):
                    await app.run()
        assert seen == ["x", "finished True False"] * 2
        for call in (app.stop, lambda: app.client, lambda: app.producer):
            with pytest.raises(LocalProtocolError):
                call()
        assert sum(cluster["a"].offsets("g", "T").values()) == 2

    both(scenario, cluster)


def test_cancelled_it_finishes_what_runs(both: Play, cluster: Cluster) -> None:
    app, seen = rmq.App(), []

    @app.consumer("T", group="g", model=str)
    async def handle(text: str) -> None:
        seen.append(text)
        await anyio.sleep(0.01)
        seen.append("finished")

    async def scenario(setting: World) -> None:
        with anyio.CancelScope() as scope:
            async with app.using(setting.connect()):
                await app.send("T", "x")
                await until(lambda: seen)
                scope.cancel()
                await anyio.sleep_forever()
        assert sum(cluster["a"].offsets("g", "T").values()) == 1

    both(scenario, cluster)
    assert seen == ["x", "finished"]


def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    both: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = rmq.App(drain=0.1), []

    @app.consumer("T", group="g", model=str)
    async def handle(text: str) -> None:
        seen.append(text)
        await anyio.sleep_forever()

    async def scenario(setting: World) -> None:
        async with app.using(setting.connect()):
            await app.send("T", "x")
            await until(lambda: seen)
        assert sum(cluster["a"].offsets("g", "T").values()) == 0

    both(scenario, cluster)
    assert seen == ["x"]
    assert "did not finish in time" in caplog.text


def test_an_error_that_is_let_out_ends_the_app_as_itself(both: Play, cluster: Cluster) -> None:
    app = rmq.App()
    left: list[str] = []

    @app.consumer("T", group="g", on_error="raise")
    async def handle(message: StoredMessage) -> None:
        raise ValueError("broken")

    @app.consumer("U", group="other", model=str)
    async def other(text: str) -> None:
        left.append(text)

    async def scenario(setting: World) -> None:
        async def live() -> None:
            async with app.using(setting.connect()):
                await app.send("T", b"x")
                await anyio.sleep_forever()

        with pytest.raises(ValueError, match="broken"):
            await live()

    both(scenario, Cluster("a", topics={"T": 1, "U": 1}))
    assert not app.consumers


def test_a_consumer_that_cannot_begin_closes_what_has_begun(both: Play, cluster: Cluster) -> None:
    app, closed = rmq.App(), []

    @asynccontextmanager
    async def setup(app: rmq.App) -> AsyncIterator[None]:
        yield
        closed.append(True)

    app = rmq.App(setup=setup)

    @app.consumer("T", group="fine")
    async def fine(message: StoredMessage) -> None: ...

    @app.consumer({"T": rmq.sql("a is")}, group="wrong")
    async def wrong(message: StoredMessage) -> None: ...

    async def scenario(setting: World) -> None:
        with pytest.raises(rmq.SubscriptionParseFailed):
            async with app.using(setting.connect()):
                pytest.fail("it is not open")
        assert not app.consumers

    both(scenario, cluster)
    assert closed == []  # an error goes through the block of `setup`, and nothing behind its yield runs


def test_what_is_wrong_is_said_at_once() -> None:
    app = rmq.App()
    with pytest.raises(TypeError, match="concurency"):
        app.consumer("T", group="g", concurency=5)
    with pytest.raises(TypeError, match="adress"):
        rmq.App(adress="x")
    with pytest.raises(InvalidType, match="topics"):
        app.consumer(5, group="g")  # type: ignore[arg-type]
    with pytest.raises(rmq.InvalidName):
        app.consumer("T/U", group="g")
    with pytest.raises(rmq.InvalidName):
        app.consumer("T", group="g g")
    with pytest.raises(InvalidType, match=r"retry = 5: expected an rmq\.Backoff"):
        app.consumer("T", group="g", retry=5)
    with pytest.raises(InvalidType, match="subscription to T = 5"):
        app.consumer({"T": 5}, group="g")  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="concurrency"):
        app.consumer("T", group="g", concurrency=0)
    with pytest.raises(InvalidType, match="model"):
        app.consumer("T", group="g", model=5)
    with pytest.raises(InvalidType, match="drain"):
        rmq.App(drain="5s")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="setup"):
        rmq.App(setup=5)  # type: ignore[arg-type]
    for handler in (lambda: None, lambda a, b: None, 5):
        with pytest.raises(InvalidType, match="handler"):
            app.consumer("T", group="g")(handler)  # type: ignore[type-var]
    with pytest.raises(InvalidType, match="body and the message"):
        app.consumer("T", group="g", model=str)(lambda a, b, c: None)

    app.consumer("T", group="g")(print)
    with pytest.raises(ConfigError, match="one consumer"):
        app.consumer("U", group="g")(print)
    assert repr(app) == "<App rmq-app with g>"


def test_a_body_without_a_form(both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        app = rmq.App()
        async with app.using(setting.connect()):
            with pytest.raises(InvalidMessageType, match="JSON"):
                await app.send("T", object())

    both(scenario, cluster)


# --- in a web application ---


async def lived(application: Any, between: Any) -> list[str]:
    """The messages that an ASGI server gets from the lifespan of an application; `between` runs while the
    application is up."""
    told: list[str] = []
    came, go = anyio.Event(), anyio.Event()
    asked = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        message = next(asked)
        if message == "lifespan.shutdown":
            await go.wait()
        return {"type": message}

    async def send(message: dict[str, str]) -> None:
        told.append(message["type"])
        came.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(application, {"type": "lifespan", "state": {}}, receive, send)
        await came.wait()
        await between()
        go.set()
    return told


def test_the_lifespan_of_a_web_application(both: Play, cluster: Cluster) -> None:
    applications = pytest.importorskip("starlette.applications")

    async def scenario(setting: World) -> None:
        app, seen = rmq.App(setting.names, network=setting.network), []

        @app.consumer("T", group="g", model=str)
        async def handle(text: str) -> None:
            seen.append(text)

        async def between() -> None:
            await app.send("T", "from a route")
            await until(lambda: seen)

        told = await lived(applications.Starlette(lifespan=app.lifespan), between)
        assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert seen == ["from a route"]

    logging.getLogger("asyncio").setLevel(logging.ERROR)
    both(scenario, cluster)
