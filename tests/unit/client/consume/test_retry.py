"""Times of redeliveries: any number of seconds, a consumer's policy, and the log lines."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.consume.retry import AFTER_MAX, Delay
from rmq.message import StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World
from .consuming import fill, sent_back


async def times_of(
    consumer: rmq.Consumer, most: int, *, error: Exception | None = None, seconds: float = 100_000
) -> list[float]:
    """The times of delivery of a message that fails `most` - 1 times by `error`."""
    seen: list[float] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(trio.current_time())
        if len(seen) < most:
            raise error or ValueError("not yet")
        scope.cancel()

    with trio.move_on_after(seconds) as scope:
        await consumer.run(handle)
    return [at - seen[0] for at in seen]


async def test_a_handler_says_in_how_many_seconds(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
    ):
        _, again = await times_of(consumer, 2, error=rmq.Retry("no stock", after=2.5))
    assert again == pytest.approx(2.5, abs=0.3)
    (header,) = sent_back(setting.cluster)
    assert header.delay_level == 2, "a broker that takes no seconds takes the next longer level: 5 s"


async def test_a_delivery_says_in_how_many_seconds(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
    ):
        first = await anext(consumer)
        began = trio.current_time()
        await first.retry(after=1_234.5)
        async with await anext(consumer) as message:
            assert trio.current_time() - began == pytest.approx(1_234.5, abs=0.6)
        assert message.reconsume_times == 1


async def test_a_consumer_has_a_policy_and_then_come_the_dead_letters(
    setting: World, clock: MockClock
) -> None:
    fill(setting.cluster, 1)
    retry = rmq.Backoff(1.5, 8, tries=5)
    async with setting.connect() as client:
        async with client.consumer("g", {"T": "*"}, consume_from="first", retry=retry) as consumer:
            at = await times_of(consumer, 99, seconds=1000)
            assert [later - sooner for sooner, later in pairwise(at)] == pytest.approx(
                [1.5, 3, 6, 8], abs=0.3
            )
        (letter,) = await client.dead_letters("g")
        assert letter.times == 5
        assert letter.message.body == b"0"


async def test_what_a_handler_says_goes_before_the_policy(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", retry=rmq.Backoff(60, 60)) as consumer,
    ):
        assert (await times_of(consumer, 2, error=rmq.Retry(after=7)))[1] == pytest.approx(7, abs=0.3)


async def test_a_retry_without_a_time_goes_by_the_policy(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 1)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", retry=rmq.Backoff(60, 60)) as consumer,
    ):
        assert (await times_of(consumer, 2, error=rmq.Retry()))[1] == pytest.approx(60, abs=0.3)


async def test_an_ordered_queue_waits_as_long_as_its_message(setting: World, clock: MockClock) -> None:
    fill(setting.cluster, 6)
    seen: list[tuple[float, bytes]] = []
    async with setting.connect() as client:
        async with client.consumer(
            "g", {"T": "*"}, consume_from="first", ordered=True, retry=rmq.Backoff(4, 100, tries=3)
        ) as consumer:
            began = trio.current_time()

            async def handle(message: StoredMessage) -> None:
                seen.append((trio.current_time() - began, message.body))
                if message.body == b"0":
                    raise ValueError("never")
                if message.body == b"1" and message.reconsume_times == 0:
                    raise rmq.Retry(after=100)

            with trio.move_on_after(1000):
                await consumer.run(handle)
        (letter,) = await client.dead_letters("g")
    assert [round(at) for at, body in seen if body == b"0"] == [0, 4, 12]
    assert [round(at) for at, body in seen if body in b"24"] == [12, 12], "the queue of 0 waits for it"
    assert [round(at) for at, body in seen if body == b"1"] == [0, 100]
    assert [round(at) for at, body in seen if body in b"35"] == [100, 100]
    assert letter.message.body == b"0"


def test_the_longest_wait_of_what_failed_together_counts(in_memory: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 4)
        seen: list[tuple[float, list[bytes]]] = []
        async with (
            world.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
        ):
            began = anyio.current_time()

            async def handle(messages: list[StoredMessage]) -> None:
                seen.append((anyio.current_time() - began, [message.body for message in messages]))
                if len(seen) < 3:
                    raise rmq.Retry(after=0.25)
                if len(seen) == 4:
                    scope.cancel()

            with anyio.CancelScope() as scope:
                await consumer.run_batches(handle)
        assert seen[0][1] == seen[2][1]
        assert seen[2][0] - seen[0][0] == pytest.approx(0.25, abs=0.01)

    in_memory(scenario, cluster)


@pytest.mark.parametrize(("late", "soon"), [(0, 1), (1, 0)])
async def test_what_is_put_off_later_can_come_sooner(
    setting: World, clock: MockClock, late: int, soon: int
) -> None:
    """Each waits for its own time, whatever was put off before it."""
    fill(setting.cluster, 4)
    seen: list[tuple[int, bytes]] = []
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", ordered=True) as consumer,
    ):
        began = trio.current_time()

        async def handle(message: StoredMessage) -> None:
            seen.append((round(trio.current_time() - began), message.body))
            if message.reconsume_times == 0 and message.body in b"01":
                raise rmq.Retry(after={late: 50, soon: 5}[int(message.body)])

        with trio.move_on_after(100):
            await consumer.run(handle)
    at = [[time for time, body in seen if int(body) % 2 == number] for number in (late, soon)]
    assert at == [[0, 50, 50], [0, 5, 5]]


async def test_a_log_line_says_what_failed_which_try_it_was_and_what_comes(
    setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    setting.cluster["a"].put("T", 1, b"x", "UNIQ_KEY\x01ID7\x02TAGS\x01paid\x02KEYS\x0142 43")
    retry = rmq.Backoff(1.5, 8, tries=2)
    async with (
        setting.connect() as client,
        client.consumer("billing", {"T": "*"}, consume_from="first", retry=retry) as consumer,
    ):
        await times_of(consumer, 99, seconds=100)
    what = "message ID7 of T (queue 1 of a, offset 0, tag paid, keys 42 43)"
    first, last = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert first.getMessage() == f"billing: attempt 1 of {what} failed; redelivered in 1.5 s (attempt 2 of 2)"
    assert "ID7 of T (in %RETRY%billing, queue 0 of a, offset 0" in last.getMessage()
    assert "keys 42 43" in last.getMessage()
    assert last.getMessage().startswith("billing: attempt 2 of ")
    assert last.getMessage().endswith(" failed; it goes to the dead letters, %DLQ%billing")
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], ValueError)


@pytest.mark.parametrize(
    ("options", "error", "then"),
    [
        ({}, ValueError("x"), "redelivered in 10 s (attempt 2 of 17)"),
        ({}, rmq.Retry("x", delay_level=5), "redelivered in 60 s (attempt 2 of 17)"),
        ({}, rmq.Retry("x", delay_level=-1), "it goes to the dead letters, %DLQ%g"),
        ({"ordered": True}, ValueError("x"), "redelivered in 1 s, and its queue waits"),
        ({"ordered": True}, rmq.Retry(after=3), "redelivered in 3 s, and its queue waits"),
        ({"broadcasting": True}, ValueError("x"), "not redelivered: the group broadcasts"),
    ],
)
async def test_what_comes_next_is_said_of_each_kind_of_consumer(
    setting: World,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    error: Exception,
    then: str,
) -> None:
    caplog.set_level(logging.INFO)
    fill(setting.cluster, 1)
    async with (
        setting.connect() as client,
        client.consumer("g", {"T": "*"}, consume_from="first", **options) as consumer,
    ):

        async def handle(message: StoredMessage) -> None:
            scope.cancel()
            raise error

        with trio.CancelScope() as scope:
            await consumer.run(handle)
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if "g: attempt 1 of message ID0" in line]
    assert line.endswith("; " + then)


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, 1), (1, 1), (1.001, 2), (10, 3), (599, 14), (601, 15), (7200, 18), (7201, 18)]
)
def test_the_next_longer_level_stands_beside_the_seconds(seconds: float, level: int) -> None:
    assert Delay.of(seconds) == Delay(level, seconds)


def test_a_policy_grows_to_its_end_and_no_further() -> None:
    policy = rmq.Backoff(0.5, 100, factor=3)
    assert [policy.seconds(times) for times in range(6)] == [0.5, 1.5, 4.5, 13.5, 40.5, 100]
    assert policy.seconds(100_000) == 100
    assert rmq.Backoff(0, 0).seconds(3) == 0


@pytest.mark.parametrize("after", [-1, AFTER_MAX + 1, float("nan"), float("inf"), "2", True])
def test_a_time_that_is_none(after: Any) -> None:
    with pytest.raises((rmq.ConfigError, rmq.InvalidType), match="after"):
        rmq.Retry(after=after)
    with pytest.raises((rmq.ConfigError, rmq.InvalidType), match=r"max|first|after"):
        rmq.Backoff(1, after)


@pytest.mark.parametrize(
    "wrong", [(2, 1), (-1, 1), (1, 2, 0), (1, 2, 2.5), (1, 2, None, 0.5), ("1", 2), (1, None)]
)
def test_a_policy_that_is_none(wrong: tuple[Any, ...]) -> None:
    with pytest.raises((rmq.ConfigError, rmq.InvalidType)):
        rmq.Backoff(*wrong)


async def test_one_says_either_or(setting: World, clock: MockClock) -> None:
    with pytest.raises(rmq.ConfigError, match=r"after.*delay_level"):
        rmq.Retry(after=3, delay_level=3)
    async with setting.connect() as client:
        with pytest.raises(rmq.ConfigError, match="max_reconsume_times"):
            client.consumer("g", {"T": "*"}, retry=rmq.Backoff(1, 2, tries=3), max_reconsume_times=3)
        with pytest.raises(rmq.InvalidType, match="Backoff"):
            client.consumer("g", {"T": "*"}, retry=5)  # type: ignore[arg-type]
        client.consumer("g", {"T": "*"}, retry=rmq.Backoff(1, 2), max_reconsume_times=3)


async def test_a_message_that_had_a_delivery_time_itself_comes_again(
    setting: World, clock: MockClock
) -> None:
    async with setting.connect() as client, client.producer("p") as producer:
        await producer.send(rmq.Message("T", b"x", delay_ms=20_000, keys=["k"]))
        async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
            at = await times_of(consumer, 3, error=rmq.Retry(after=7))
    assert at == pytest.approx([0, 7, 14], abs=0.3)


async def test_a_dead_letter_of_a_policy_can_be_sent_again(setting: World, clock: MockClock) -> None:
    retry = rmq.Backoff(1, 8, tries=3)
    async with setting.connect() as client, client.producer("p") as producer:
        sent = await producer.send(rmq.Message("T", b"x", keys=["k"]))
        async with client.consumer("g", {"T": "*"}, consume_from="first", retry=retry) as consumer:
            assert len(await times_of(consumer, 99, seconds=100)) == 3
            assert (await client.redrive("g")).sent == 1
            began = trio.current_time()
            delivery = await anext(consumer)
            assert (delivery.message.message_id, delivery.message.reconsume_times) == (sent.message_id, 0)
            assert trio.current_time() - began < 1
            delivery.done()
        assert [letter.message.keys for letter in await client.dead_letters("g")] == [("k",)]
