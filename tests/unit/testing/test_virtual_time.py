"""Virtual time: hours pass in milliseconds on both loops, to the second, and not ahead of work in threads."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.message import Message
from rmq.testing.clock import virtual_time
from rmq.testing.cluster import START_MS, Cluster

Run = Callable[[Callable[[], Awaitable[None]]], None]
LEVELS = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""The pauses before each try of a message, in seconds, as RocketMQ has them."""


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function on each loop."""
    return lambda main: anyio.run(main, backend=request.param)


def test_sixteen_tries_over_five_hours_come_to_the_second(run: Run) -> None:
    async def main() -> None:
        logging.getLogger("rmq").setLevel(logging.CRITICAL)  # 16 tracebacks take longer than all the rest
        times: list[float] = []

        async def handle(message: rmq.StoredMessage) -> None:
            times.append(anyio.current_time())
            if message.reconsume_times == 16:
                scope.cancel()
            raise RuntimeError("the bank does not answer")

        began = time.process_time()
        async with (
            Cluster("a", topics={"Orders": 4}) as cluster,
            cluster.connect() as client,
            client.producer("p") as producer,
            client.consumer("g", {"Orders": "*"}, consume_from="first") as consumer,
        ):
            await producer.send(Message("Orders", b"7"))
            with anyio.CancelScope() as scope:
                await consumer.run(handle)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses == [pytest.approx(level, abs=1.1) for level in LEVELS]
        assert time.process_time() - began < 2.5  # 0.2 to 0.3 s

    try:
        run(main)
    finally:
        logging.getLogger("rmq").setLevel(logging.NOTSET)


def test_a_delay_of_two_hours_ends_after_two_hours(run: Run) -> None:
    async def main() -> None:
        async with (
            Cluster("a", topics={"Orders": 4}) as cluster,
            cluster.connect() as client,
            client.producer("p") as producer,
        ):
            began, wall = time.process_time(), time.time()
            assert cluster.now_ms() == pytest.approx(wall * 1000, abs=5000)
            await producer.send(Message("Orders", b"late", delay_ms=7_200_000))
            await cluster.advance(7199)
            assert cluster.sent("Orders") == []
            await cluster.advance(2)
            (message,) = cluster.sent("Orders")
            assert message.body == b"late"
            assert message.store_timestamp - message.born_timestamp == pytest.approx(7_200_000, abs=1100)
            assert time.process_time() - began < 0.8  # 0.05 to 0.09 s
        assert time.time() - wall < 60

    run(main)


def test_an_idle_cluster_costs_little(run: Run) -> None:
    async def main() -> None:
        async with Cluster("a", topics={"Orders": 4}) as cluster:
            await cluster.advance(60)
            began = time.process_time()
            await cluster.advance(3600)
            assert (time.process_time() - began) / 3600 < 0.000_1  # 0.01 ms for a second

    run(main)


def test_few_tasks_have_a_turn_while_nothing_happens() -> None:
    class Turns(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    async def main() -> None:
        async with (
            Cluster("a", topics={"Orders": 4}) as cluster,
            cluster.connect() as client,
            client.producer("p"),
            client.consumer("g", {"Orders": "*"}, consume_from="first"),
        ):
            await cluster.advance(1200)
            turns = Turns()
            trio.lowlevel.add_instrument(turns)
            await cluster.advance(3600)
            assert turns.count < 2000  # 1,200; those of brokers' statistics are the most

    trio.run(main)


def test_the_next_of_many_timers_ends_first_and_exactly(run: Run) -> None:
    async def main() -> None:
        ends: list[float] = []

        with virtual_time():
            began = anyio.current_time()

            async def sleep(seconds: float) -> None:
                await anyio.sleep(seconds)
                ends.append(anyio.current_time() - began)

            async with anyio.create_task_group() as tasks:
                for seconds in (3e6, 86400.5, 0.25, 3600):
                    tasks.start_soon(sleep, seconds)
        assert ends == [pytest.approx(seconds) for seconds in (0.25, 3600, 86400.5, 3e6)]

    run(main)


def test_afterwards_time_is_real_and_goes_on_from_where_it_is(run: Run) -> None:
    async def main() -> None:
        began = anyio.current_time()
        with virtual_time():
            with virtual_time() as is_new:
                assert not is_new
                await anyio.sleep(500)
            await anyio.sleep(500)
        assert anyio.current_time() - began == pytest.approx(1000, abs=30)
        began, real = anyio.current_time(), time.monotonic()
        await anyio.sleep(0.01)
        assert time.monotonic() - real >= 0.009
        assert anyio.current_time() - began >= 0.01
        with virtual_time() as is_new:
            assert is_new
            real = time.monotonic()
            await anyio.sleep(5000)
        assert time.monotonic() - real < 30

    run(main)


def test_time_waits_for_worker_threads(run: Run) -> None:
    async def main() -> None:
        with virtual_time(), anyio.fail_after(20) as scope:
            for _ in range(2):  # at the second time the thread is there already
                await anyio.to_thread.run_sync(time.sleep, 0.05)
        assert not scope.cancelled_caught

    run(main)


def test_time_waits_for_executors_of_asyncio() -> None:
    async def main() -> None:
        with virtual_time():
            await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.05), 20)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 3600)
            async with asyncio.timeout(10):
                await asyncio.sleep(9)

    asyncio.run(main())


def test_what_a_thread_asks_of_the_loop_is_done(run: Run) -> None:
    async def main() -> None:
        def ask() -> float:
            anyio.from_thread.run(anyio.sleep, 0.05)
            return anyio.from_thread.run_sync(anyio.current_time)

        with virtual_time():
            began = anyio.current_time()
            assert await anyio.to_thread.run_sync(ask) >= began + 0.05

    run(main)


def test_a_mock_clock_of_the_tests_own_stays() -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> None:
        async with Cluster("a", topics={"T": 1}) as cluster:
            assert trio.lowlevel.current_clock() is clock
            assert cluster.now_ms() == START_MS + int(trio.current_time() * 1000)

    trio.run(main, clock=clock)


def test_uvloop_says_what_to_do_and_runs_in_real_time() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="cluster in real time"):
            async with Cluster("a"):
                raise AssertionError("it was entered")
        async with (
            Cluster("a", topics={"T": 1}, real_time=True) as cluster,
            cluster.connect() as client,
            client.producer("p") as producer,
        ):
            await producer.send(Message("T", b"x"))
            assert [message.body for message in cluster.sent("T")] == [b"x"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_on_asyncio_tasks_that_have_ended_open_it_and_close_it() -> None:
    cluster = Cluster("a", topics={"T": 1})
    client = None

    async def send() -> None:
        assert client is not None
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
        await cluster.advance(3600)

    with asyncio.Runner() as runner:
        runner.run(cluster.__aenter__())
        client = cluster.connect()
        runner.run(client.start())
        runner.run(send())
        assert [message.body for message in cluster.sent("T")] == [b"x"]
        runner.run(client.aclose())
        runner.run(cluster.__aexit__(*sys.exc_info()))
        runner.run(asyncio.sleep(0.001))
