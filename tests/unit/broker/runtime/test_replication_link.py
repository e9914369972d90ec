"""The link between master and slave: silence, ends, and bytes that are sent in the caller's turn."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.broker.runtime.replication_link import INLINE_BYTES, INLINE_FRAMES, Link
from rmq.errors import RemoteProtocolError, StoreError
from rmq.remoting.loop import Wakeup
from rmq.remoting.poller import Poller
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.tcp import TcpStream
from rmq.testing.network import MemoryNetwork


class End:
    """One end: `frames` are due, `heard` is what came; `error` is raised by both."""

    def __init__(self, stream: Stream, poller: Poller | None = None, silence: float = 20.0) -> None:
        self.frames: deque[bytes] = deque()
        self.heard = b""
        self.error: Exception | None = None
        self.link = Link(
            stream,
            poller,
            received=self._received,
            due=self._due,
            grown=Wakeup(),
            pause=5.0,
            silence=silence,
            who="slave",
        )

    def _received(self, data: bytes, now: float) -> None:
        if self.error is not None:
            raise self.error
        self.heard += data

    def _due(self, now: float) -> bytes:
        if self.error is not None:
            raise self.error
        return self.frames.popleft() if self.frames else b""


async def received(stream: Stream, size: int) -> bytes:
    """The next `size` bytes."""
    data = b""
    while len(data) < size:
        data += await stream.receive_some(size - len(data))
    return data


async def test_a_silent_peer_ends_the_link(autojump_clock: MockClock) -> None:
    near, _far = MemoryNetwork().pair()
    began = trio.current_time()
    with pytest.raises(RemoteProtocolError, match="the slave is silent"):
        await End(near).link.run()
    assert trio.current_time() - began == pytest.approx(20.0)


@pytest.mark.timeout(30)
async def test_a_silent_peer_ends_the_link_at_a_time_that_is_rounded(autojump_clock: MockClock) -> None:
    while trio.current_time() + 20.0 - trio.current_time() >= 20.0:
        autojump_clock.jump(0.1)
    near, _far = MemoryNetwork().pair()
    with pytest.raises(RemoteProtocolError, match="the slave is silent"):
        await End(near).link.run()


async def test_each_word_of_the_peer_ends_its_silence(autojump_clock: MockClock) -> None:
    near, far = MemoryNetwork().pair()
    began = trio.current_time()

    async def speak() -> None:
        await trio.sleep(15)
        await far.send_all(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        with pytest.raises(RemoteProtocolError, match="the slave is silent"):
            await End(near).link.run()
    assert trio.current_time() - began == pytest.approx(35.0)


async def test_a_peer_that_takes_no_bytes_and_is_silent_ends_the_link(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=10)
    near, _far = network.pair()
    end = End(near)
    end.frames.append(bytes(100))
    with pytest.raises(RemoteProtocolError, match="the slave is silent"):
        await end.link.run()


async def test_the_end_of_the_peer_is_the_end_of_the_link(autojump_clock: MockClock) -> None:
    near, far = MemoryNetwork().pair()
    end = End(near)
    await far.send_all(b"last")
    await far.aclose()
    with trio.fail_after(1):
        await end.link.run()
    assert end.heard == b"last"


async def test_few_bytes_leave_in_the_callers_turn(autojump_clock: MockClock) -> None:
    near, far = MemoryNetwork().pair()
    end = End(near)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end.link.run)
        await wait_all_tasks_blocked()
        end.frames += [b"one", b"two"]
        end.link.send(6)
        assert not end.frames
        assert await received(far, 6) == b"onetwo"

        end.frames.append(b"many")
        end.link.send(INLINE_BYTES + 1)
        assert end.frames, "the task sends it"
        assert await received(far, 4) == b"many"

        await wait_all_tasks_blocked()
        end.frames += [b"x"] * (INLINE_FRAMES + 1)
        end.link.send(1)
        assert len(end.frames) == 1
        assert await received(far, INLINE_FRAMES + 1) == b"x" * (INLINE_FRAMES + 1)
        nursery.cancel_scope.cancel()


async def test_what_the_peer_does_not_take_at_once_follows_in_order(autojump_clock: MockClock) -> None:
    near, far = MemoryNetwork(window=10).pair()
    end = End(near)
    sent = bytes(range(100))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end.link.run)
        await wait_all_tasks_blocked()
        end.frames.append(sent[:40])
        end.link.send(40)
        end.frames.append(sent[40:60])
        end.link.send(20)  # behind the first, not before its rest
        end.frames.append(sent[60:])
        assert await received(far, 100) == sent
        nursery.cancel_scope.cancel()


async def test_an_error_of_the_link_does_not_reach_who_wakes_it(autojump_clock: MockClock) -> None:
    near, _far = MemoryNetwork().pair()
    end = End(near)

    async def run() -> None:
        with pytest.raises(StoreError, match="unreadable"):
            await end.link.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        end.error = StoreError("unreadable")
        end.link.send(1)


async def test_bytes_that_are_due_leave_without_a_call(autojump_clock: MockClock) -> None:
    near, far = MemoryNetwork().pair()
    end = End(near, silence=math.inf)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end.link.run)
        await wait_all_tasks_blocked()
        end.frames.append(b"heartbeat")
        began = trio.current_time()
        assert await received(far, 9) == b"heartbeat"
        assert trio.current_time() - began == pytest.approx(5.0)
        nursery.cancel_scope.cancel()


# --- plain TCP, read by a poller ---

has_epoll = pytest.mark.skipif(not hasattr(__import__("select"), "epoll"), reason="the system has no epoll")


@asynccontextmanager
async def polled() -> AsyncIterator[tuple[Poller, TcpStream, TcpStream]]:
    poller = Poller()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    async with trio.open_nursery() as nursery, TcpStream(one) as near, TcpStream(other) as far:
        await nursery.start(poller.run)
        yield poller, near, far
        nursery.cancel_scope.cancel()


@has_epoll
async def test_a_poller_reads_the_link_until_the_peer_hangs_up() -> None:
    async with polled() as (poller, near, far), trio.open_nursery() as nursery:
        end = End(near, poller)
        nursery.start_soon(end.link.run)
        await far.send_all(b"one")
        with trio.fail_after(60):
            while end.heard != b"one":
                await trio.sleep(0)
            end.frames.append(b"two")
            end.link.send(3)
            assert await received(far, 3) == b"two"
            await far.aclose()


@has_epoll
async def test_an_error_of_what_a_poller_has_read_ends_the_link() -> None:
    async with polled() as (poller, near, far):
        end = End(near, poller)

        async def run() -> None:
            with pytest.raises(RemoteProtocolError, match="odd"):
                await end.link.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked(0.01)
            end.error = RemoteProtocolError("odd")
            await far.send_all(b"x")


@has_epoll
async def test_a_silent_peer_ends_the_link_that_a_poller_reads(mock_clock: MockClock) -> None:
    async with polled() as (poller, near, far), trio.open_nursery() as nursery:
        end = End(near, poller)
        over = trio.Event()

        async def run() -> None:
            with pytest.raises(RemoteProtocolError, match="the slave is silent"):
                await end.link.run()
            over.set()

        nursery.start_soon(run)
        await wait_all_tasks_blocked(0)
        mock_clock.jump(19)
        await far.send_all(b"x")
        while not end.heard:
            await trio.sleep(0)
        mock_clock.jump(19)
        await wait_all_tasks_blocked(0)
        assert not over.is_set()
        mock_clock.jump(2)
        await over.wait()


@has_epoll
async def test_a_link_outlives_its_poller() -> None:
    poller = Poller()
    async with polled() as (_, near, far), trio.open_nursery() as nursery:
        async with trio.open_nursery() as inner:
            await inner.start(poller.run)
            end = End(near, poller)
            nursery.start_soon(end.link.run)
            await wait_all_tasks_blocked(0.01)
            inner.cancel_scope.cancel()
        await far.send_all(b"later")
        with trio.fail_after(60):
            while end.heard != b"later":
                await trio.sleep(0)
        await far.aclose()
