"""Bodies that a handler's model does not take, and models that take none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

import rmq
from rmq.client.bodies import FIRST_INVALID, Bodies
from rmq.client.codec import codec_of, unknown_classes
from rmq.errors import ConfigError, InvalidType
from rmq.message import StoredMessage
from rmq.testing import message
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World


class Plain:
    """A class whose @dataclass was forgotten."""

    number: int


@dataclass
class Order:
    number: int


@dataclass
class BudgetHolder:
    plain: list[Plain]


class Node(msgspec.Struct):
    children: list[Node]


# --- models that take no body ---


@pytest.mark.parametrize("model", [Plain, list[Plain], dict[str, Plain | None], BudgetHolder])
def test_a_plain_class_is_refused_where_the_handler_is_registered(model: Any) -> None:
    with pytest.raises(InvalidType, match=r"Plain is a plain class.*is @dataclass missing") as caught:
        rmq.App().consumer("T", group="g", model=model)
    assert caught.value.key == "model"


@pytest.mark.parametrize("model", [Order, list[Order], Node, dict[str, int], int | None, Any])
def test_models_that_take_bodies_are_not(model: Any) -> None:
    assert unknown_classes(model) == []
    codec_of(model)


def test_what_on_invalid_may_be() -> None:
    with pytest.raises(ConfigError, match="'dead-letter', 'retry' or 'raise'"):
        rmq.App().consumer("T", group="g", model=Order, on_invalid="ignore")  # type: ignore[arg-type]


# --- bodies ---


def bodies(on_invalid: Any = "dead-letter") -> Bodies:
    return Bodies(codec_of(Order), "g", on_invalid)


def refused(reader: Bodies, times: int = 0) -> Exception:
    one = message(b"{}")
    one.reconsume_times = times
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is asked
        reader.read(one)
    return caught.value


def test_the_first_bodies_that_are_all_invalid_end_the_consumer() -> None:
    reader = bodies()
    for _ in range(FIRST_INVALID - 1):
        assert isinstance(refused(reader), rmq.Retry)
    for _ in range(2):
        error = refused(reader)
        assert isinstance(error, rmq.InvalidBody)
        assert "check the model and the topic" in str(error)


def test_one_valid_body_shows_that_the_model_is_right() -> None:
    reader = bodies()
    for _ in range(FIRST_INVALID - 1):
        refused(reader)
    assert reader.read(message(b'{"number":1}')) == Order(1)
    for _ in range(2 * FIRST_INVALID):
        assert isinstance(refused(reader), rmq.Retry)


def test_a_body_that_comes_again_is_counted_once() -> None:
    reader = bodies("retry")
    for times in range(2 * FIRST_INVALID):
        assert isinstance(refused(reader, times), msgspec.ValidationError)


def test_raise_ends_at_the_first() -> None:
    reader = bodies("raise")
    reader.read(message(b'{"number":1}'))
    assert isinstance(refused(reader), rmq.InvalidBody)


# --- in an app ---


def app_of(seen: list[int], **options: Any) -> rmq.App:
    app = rmq.App()

    @app.consumer("T", group="g", model=Order, consume_from="first", **options)
    async def handle(order: Order) -> None:
        seen.append(order.number)

    return app


@pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["any order", "ordered"])
def test_a_wrong_model_empties_no_topic_into_the_dead_letters(
    in_memory: Play, cluster: Cluster, options: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        for number in range(200):
            cluster["a"].put("T", number % 2, b"{}", f"UNIQ_KEY\x01ID{number}")
        app = app_of([], **options)
        with pytest.raises(rmq.InvalidBody, match="all 10 bodies so far were invalid"):
            async with app.using(world.connect()):
                await anyio.sleep(60)
        async with world.connect() as client:
            assert len(await client.dead_letters("g")) < FIRST_INVALID

    in_memory(scenario, cluster)


def test_retry_and_raise(in_memory: Play, cluster: Cluster) -> None:
    seen: list[int] = []

    async def scenario(world: World) -> None:
        cluster["a"].put("T", 0, b'{"number":1}', "UNIQ_KEY\x01A")
        cluster["a"].put("T", 0, b"{}", "UNIQ_KEY\x01B")
        async with app_of(seen, on_invalid="retry", max_reconsume_times=2).using(world.connect()):
            await anyio.sleep(25)
            async with world.connect() as client:
                assert await client.dead_letters("g") == []
                await anyio.sleep(120)
                assert [letter.message_id for letter in await client.dead_letters("g")] == ["B"]
        cluster["a"].put("T", 0, b'{"number":2}', "UNIQ_KEY\x01C")
        cluster["a"].put("T", 0, b"{}", "UNIQ_KEY\x01D")
        with pytest.raises(rmq.InvalidBody, match="the body of message D does not fit the model"):
            async with app_of(seen, on_invalid="raise").using(world.connect()):
                await anyio.sleep(60)

    in_memory(scenario, cluster)
    assert seen == [1, 2]


def test_the_message_that_ended_the_app_comes_again(in_memory: Play, cluster: Cluster) -> None:
    seen: list[bytes] = []

    async def scenario(world: World) -> None:
        cluster["a"].put("T", 0, b"{}", "UNIQ_KEY\x01D")
        with pytest.raises(rmq.InvalidBody):
            async with app_of([], on_invalid="raise").using(world.connect()):
                await anyio.sleep(60)

        async def handle(one: StoredMessage) -> None:
            seen.append(one.body)

        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await anyio.sleep(60)
            tasks.cancel_scope.cancel()

    in_memory(scenario, cluster)
    assert seen == [b"{}"]
