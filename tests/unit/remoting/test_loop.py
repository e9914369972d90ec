from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from rmq.remoting.loop import Wakeup, current_loop, exponential_backoff, task_context, thread_safe_call


async def the_first_result_counts() -> None:
    for first in ("value", "error"):
        waiter = current_loop().waiter()
        results: list[object] = []

        async def wait(waiter=waiter, results=results) -> None:  # type: ignore[no-untyped-def]
            try:
                results.append(await waiter.wait())
            except ValueError as error:
                results.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            if first == "value":
                waiter.resolve("value")
            waiter.fail(ValueError("error"))
            waiter.resolve("second")
        assert results == [first]


async def a_result_may_come_before_the_wait() -> None:
    waiter = current_loop().waiter()
    waiter.resolve(1)
    assert await waiter.wait() == 1
    waiter = current_loop().waiter()
    waiter.fail(ValueError("early"))
    with pytest.raises(ValueError, match="early"):
        await waiter.wait()


async def a_result_after_cancellation_is_dropped() -> None:
    waiter = current_loop().waiter()

    async def wait() -> None:
        await waiter.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        waiter.fail(ValueError("late"))  # before the task has run
        waiter.resolve("late")
    waiter.resolve("later still")


async def an_alarm_wakes_who_waits_and_who_waits_next() -> None:
    alarm, woken = Wakeup(), list[bool]()

    async def wait() -> None:
        woken.append(await alarm.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        alarm.set()
        alarm.set()  # any number of times is once
    assert woken == [True]
    assert not await alarm.wait(current_loop().now() + 0.001)
    alarm.set()
    assert await alarm.wait(current_loop().now() - 1)  # it rang before


async def an_alarm_that_nobody_saw_rings_on() -> None:
    alarm = Wakeup()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alarm.wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        await anyio.lowlevel.cancel_shielded_checkpoint()
    alarm.set()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await alarm.wait()
    assert scope.cancelled_caught
    assert await alarm.wait()


async def the_loop_knows_its_time() -> None:
    assert current_loop().now() == pytest.approx(anyio.current_time(), abs=1)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "check",
    [
        the_first_result_counts,
        a_result_may_come_before_the_wait,
        a_result_after_cancellation_is_dropped,
        an_alarm_wakes_who_waits_and_who_waits_next,
        an_alarm_that_nobody_saw_rings_on,
        the_loop_knows_its_time,
    ],
)
def test_on_both_loops(backend: str, check: Callable[[], Awaitable[None]]) -> None:
    anyio.run(check, backend=backend)
    anyio.run(_named, backend, backend=backend)


async def _named(backend: str) -> None:
    assert current_loop().name == backend


def test_a_pause_doubles_up_to_the_longest_however_often() -> None:
    assert [exponential_backoff(0.5, times, 3.0) for times in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert exponential_backoff(0.5, 100_000, 3.0) == 3.0


# ---- functions that asyncio calls outside of any task ----

RUNS = pytest.mark.parametrize("run", [trio.run, lambda work: asyncio.run(work())], ids=["trio", "asyncio"])


@RUNS
def test_a_function_that_another_thread_posts_may_start_tasks(run: Callable[..., Any]) -> None:
    async def main() -> None:
        done = anyio.Event()

        async def work() -> None:
            done.set()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                post = thread_safe_call()
                threading.Thread(target=post, args=(tasks.start_soon, work)).start()
                await done.wait()

    run(main)


def test_in_the_context_of_a_task_a_function_of_the_loop_may_start_tasks() -> None:
    async def main() -> None:
        done = anyio.Event()

        async def work() -> None:
            done.set()

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                context = task_context()
                asyncio.get_running_loop().call_soon(context.run, tasks.start_soon, work)
                await done.wait()

    asyncio.run(main())
