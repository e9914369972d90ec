"""Bytes of a door's peer that are taken as they come, by a poller or by the task."""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmq.doors import Door
from rmq.errors import RemoteProtocolError
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.poller import Poller
from rmq.remoting.serving.doors import DoorConnection
from rmq.remoting.transports.tcp import TcpStream

Serve = Callable[[Any, Any], Awaitable[None]]


class Peer:
    """The other side of a connection, and what the door has taken of it."""

    def __init__(self, by_poller: bool, first: bytes = b"") -> None:
        near, self.far = socket.socketpair()
        self.poller = Poller() if by_poller else None
        self.taken: list[bytes] = []
        self.limits = Limits()
        self.connection: DoorConnection
        self._near, self._first = near, first

    async def run(self, take: Callable[[bytes], None], *, task_status: Any) -> None:
        """Serve the connection to its end by a door that passes its bytes to `take`."""

        async def serve(stream: Any, host: Any) -> None:
            await stream.receive_each(take)
            self.taken.append(b"end")

        async with trio.open_nursery() as nursery:
            if self.poller is not None:
                await nursery.start(self.poller.run)
            door = Door(name="d", serve=serve, port=1)
            stream = TcpStream(self._near, peer="peer")
            budget = MemoryBudget(1 << 30)
            one = DoorConnection(door, stream, self._first, self.limits, budget, self.poller)
            self.connection = one
            task_status.started()
            await one.run(None)  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()


@pytest.fixture(params=[True, False], ids=["poller", "task"])
def by_poller(request: pytest.FixtureRequest) -> bool:
    if request.param and sys.platform != "linux":
        pytest.skip("the system has no epoll")
    return bool(request.param)


@pytest.fixture
def peer(by_poller: bool, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)  # a pair has no options of TCP
    monkeypatch.setattr("rmq.remoting.transports.tcp._name", lambda _: "near")
    return Peer(by_poller, b"first")


async def test_bytes_are_taken_as_they_come_until_the_end(peer: Peer) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run, peer.taken.append)
            for text in (b"one", b"two", b"three"):
                await wait_all_tasks_blocked(0.01)
                peer.far.send(text)
            await wait_all_tasks_blocked(0.01)
            peer.far.shutdown(socket.SHUT_WR)
    assert peer.taken == [b"first", b"one", b"two", b"three", b"end"]


async def test_an_error_of_the_door_ends_the_connection(peer: Peer) -> None:
    def take(data: bytes) -> None:
        peer.taken.append(data)
        if data == b"bad":
            raise RemoteProtocolError("nonsense")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run, take)
            await wait_all_tasks_blocked(0.01)
            peer.far.send(b"bad")
    assert peer.taken == [b"first", b"bad"]
    assert peer.far.recv(10) == b""


async def test_nothing_is_taken_behind_the_bytes_with_which_a_door_closes(peer: Peer) -> None:
    def take(data: bytes) -> None:
        peer.taken.append(data)
        if data == b"last":
            peer.connection.close()
            peer.far.send(b"more")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run, take)
            await wait_all_tasks_blocked(0.01)
            peer.far.send(b"last")
    assert peer.taken == [b"first", b"last"]


async def test_bytes_that_wait_are_not_taken_once_this_side_has_closed(peer: Peer) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run, peer.taken.append)
            await wait_all_tasks_blocked(0.01)
            peer.far.send(b"late")
            peer.connection.close()  # as at a drain, or for another peer's bytes; its task runs later
    assert peer.taken == [b"first"]


async def test_a_peer_that_does_not_read_is_not_read_from(peer: Peer) -> None:
    peer.far.setblocking(False)

    def take(data: bytes) -> None:
        peer.taken.append(data)
        if data == b"ask":
            peer.connection.send(bytes(8 << 20))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(peer.run, take)
            await wait_all_tasks_blocked(0.01)
            peer.far.send(b"ask")
            await wait_all_tasks_blocked(0.05)
            assert peer.connection.is_busy
            peer.far.send(b"again")
            await wait_all_tasks_blocked(0.05)
            assert peer.taken[-1] == b"ask"
            while peer.taken[-1] != b"again":
                try:
                    peer.far.recv(1 << 20)
                except BlockingIOError:
                    await trio.sleep(0)
            nursery.cancel_scope.cancel()
