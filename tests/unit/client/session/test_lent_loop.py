"""The blocking client's loop is turned by the thread that calls, as long as nobody else wants it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import pytest

from rmq.client.threads import inline_loop
from rmq.client.threads.loop_thread import LoopThread, loop_thread, wait_for

T = TypeVar("T")


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    """A loop of asyncio's, lent for so long that a slow machine makes no difference."""
    monkeypatch.setattr(inline_loop, "LOAN_SECONDS", 60.0)
    with loop_thread("asyncio") as made:
        yield made


async def where() -> int:
    await asyncio.sleep(0)
    return threading.get_ident()


def in_a_row(portal: LoopThread, count: int = 20) -> list[bool]:
    """For each of so many calls, whether it ran in the thread that made it."""
    return [wait_for(portal, where) == threading.get_ident() for _ in range(count)]


def elsewhere(function: Callable[[], T]) -> T:
    """The value that a call returns, or the error that it raises, in a thread other than the main thread."""
    return begun(function).result(30)


def begun(function: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextmanager
def handling(number: int, handler: Callable[[int, object], object] | None = None) -> Iterator[None]:
    """No signal but this is handled by Python code, and this one by `handler`."""
    before = {one: signal.getsignal(one) for one in map(int, signal.valid_signals())}
    before = {one: handled for one, handled in before.items() if callable(handled)}
    try:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        before.setdefault(number, signal.getsignal(number))
        signal.signal(number, handler or signal.default_int_handler)
        yield
    finally:
        for one, handled in before.items():
            signal.signal(one, handled)


def test_calls_in_a_row_are_made_by_the_thread_that_calls(portal: LoopThread) -> None:
    ran = elsewhere(lambda: in_a_row(portal))
    assert ran == [False] * inline_loop.ROW + [True] * (20 - inline_loop.ROW)


def test_what_a_lent_call_raises_comes_out_of_it(portal: LoopThread) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError(threading.get_ident())

    def run() -> bool:
        in_a_row(portal)
        with pytest.raises(LookupError) as caught:
            wait_for(portal, fail)
        return caught.value.args == (threading.get_ident(),) and all(in_a_row(portal))

    assert elsewhere(run)


def test_another_thread_is_served_while_the_loop_is_lent(portal: LoopThread) -> None:
    """Both inside a long call and between two; the loop's own thread has it afterwards."""
    has_begun, may_end = threading.Event(), asyncio.Event()

    async def wait() -> int:
        has_begun.set()
        await may_end.wait()
        return threading.get_ident()

    def long_call() -> tuple[int, int]:
        in_a_row(portal)
        return wait_for(portal, wait), threading.get_ident()

    long = begun(long_call)
    assert has_begun.wait(30)
    ran_in = elsewhere(lambda: wait_for(portal, where))
    portal.call(may_end.set)
    lent_to, caller = long.result(30)
    assert ran_in == lent_to == caller  # by the thread that had the loop
    assert any(elsewhere(lambda: in_a_row(portal)))
    assert portal.call(threading.get_ident) not in {caller, threading.get_ident()}


def test_between_calls_the_loop_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_loop, "ROW", -1)  # lent with the first call, however slow the machine is
    is_done = threading.Event()

    def later(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(later, turns - 1)
        else:
            is_done.set()

    async def leave_something() -> int:
        later(5)
        return threading.get_ident()

    def run(portal: LoopThread) -> bool:
        return wait_for(portal, leave_something) == threading.get_ident() and is_done.wait(30)

    with loop_thread("asyncio") as made:
        assert elsewhere(lambda: run(made))


def test_many_short_calls_do_not_wake_the_loops_thread(portal: LoopThread) -> None:
    """The thread must not wake even for one look: it would find the next call begun, and wait for the end of
    this call."""

    def run() -> int:
        assert in_a_row(portal)[-1]
        loop = wait_for(portal, running)
        assert isinstance(loop, inline_loop.InlineLoop)
        wakes, wake = list[None](), loop._called.set

        def count() -> None:
            wakes.append(None)
            wake()

        loop._called.set = count  # type: ignore[method-assign]
        wake()
        assert all(in_a_row(portal, 500))
        return len(wakes)

    assert elsewhere(run) <= 2


async def running() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_the_end_comes_while_the_loop_is_lent() -> None:
    with loop_thread("asyncio") as portal:
        elsewhere(lambda: in_a_row(portal))
    with pytest.raises(RuntimeError):
        wait_for(portal, where)


def test_a_callback_of_the_loop_cannot_wait_for_it(portal: LoopThread) -> None:
    async def nested() -> None:
        wait_for(portal, where)

    def run() -> bool:
        assert in_a_row(portal)[-1]
        with pytest.raises(RuntimeError, match="event loop thread"):
            wait_for(portal, nested)
        return in_a_row(portal)[-1]

    assert elsewhere(run)


def test_inside_another_loop_it_is_not_lent(portal: LoopThread) -> None:
    async def inside() -> list[bool]:
        return in_a_row(portal)

    assert not any(elsewhere(lambda: asyncio.run(inside())))


def test_ctrl_c_in_the_main_thread_cancels_the_call(portal: LoopThread) -> None:
    was_cancelled = threading.Event()

    async def interrupted() -> None:
        assert threading.get_ident() == threading.main_thread().ident
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    with handling(signal.SIGINT):
        assert in_a_row(portal)[-1]
        with pytest.raises(KeyboardInterrupt):
            wait_for(portal, interrupted)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert was_cancelled.wait(30)
        assert in_a_row(portal)[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_main_thread_with_handlers_of_its_own_never_has_the_loop(
    portal: LoopThread, number: signal.Signals
) -> None:
    handled = list[int]()
    with handling(number, lambda got, frame: handled.append(got)):
        assert not any(in_a_row(portal))
        signal.raise_signal(number)
    assert handled == [number]
