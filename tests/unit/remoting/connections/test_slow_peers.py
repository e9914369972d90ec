"""Peers that do not read, do not finish, or are idle."""

import tracemalloc

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.protocol.frames import encode
from rmq.remoting import Limits
from rmq.testing import MemoryNetwork

from ..peers import Silent, linked, request

# --- peers that do not read, or do not finish ----------------------------------------------------


async def test_a_peer_that_does_not_read_is_not_read_from(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=10_000)
    limits = Limits(pause_bytes=20_000, receive_bytes=4096)
    async with linked(network=network, limits=limits) as link, trio.open_nursery() as nursery:

        async def flood() -> None:
            for _ in range(1000):
                await link.peer.send(request(b"x" * 1000))

        nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        handled = len(link.endpoint.bodies)
        assert 20 <= handled <= 50  # what the window, the pause and one chunk hold
        assert link.connection._outbox.size <= 20_000 + 2 * 4096
        assert len(await link.peer.receive(1000)) == 1000


async def test_late_replies_to_a_peer_that_does_not_read_are_bounded(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork(window=1000)
    async with linked(silent := Silent(), network=network, limits=Limits(outbox_bytes=50_000)) as link:
        await link.peer.send(request())
        await wait_all_tasks_blocked()
        for _ in range(100):
            link.connection.reply(silent.requests[0].reply(body=b"x" * 1000))
        assert link.connection.is_closed
        assert "does not read" in link.connection.reason
        await link.ended.wait()
        assert link.connection._outbox.size == 0
        (record,) = caplog.records
        assert link.connection.peer_address in record.message
        assert "does not read" in record.message


async def test_who_asks_for_room_waits_until_the_peer_reads(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=50)
    async with linked(network=network, limits=Limits(busy_bytes=100)) as link:
        link.connection.notify(request(b"x" * 500))
        with trio.move_on_after(5) as scope:
            await link.connection.room()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.peer.receive)
            with trio.fail_after(5):
                await link.connection.room()
        link.connection.notify(request(b"x" * 500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.connection.room)
            await wait_all_tasks_blocked()
            link.connection.close()  # nobody waits for ever


async def test_our_own_requests_never_stop_us_from_reading(autojump_clock: MockClock) -> None:
    """Both sides send much before they read: who reads only after sending would wait for ever."""
    network = MemoryNetwork(window=1000)
    async with linked(network=network) as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection.call, request(b"x" * 5000), 60)
        await wait_all_tasks_blocked()
        with trio.fail_after(10):
            await link.peer.send(request(b"y" * 5000, oneway=True))  # only then does it read
        for asked in await link.peer.receive():
            await link.peer.send(asked.reply())


async def test_an_unfinished_frame_costs_no_more_than_itself(autojump_clock: MockClock) -> None:
    size = 4 * 1024 * 1024
    frame = encode(request(b"x" * size))
    async with linked() as link:
        await link.peer.send(request())
        await link.peer.receive()
        tracemalloc.start()
        try:
            view = memoryview(frame)[:-1]
            for at in range(0, len(view), 50_000):
                await link.peer.stream.send_all(view[at : at + 50_000])
            await wait_all_tasks_blocked()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A bytearray that grows keeps an eighth in reserve.
        assert held <= size * 1.13 + 64 * 1024


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["reading", "writing"])
async def test_idle_is_neither_reading_nor_writing(autojump_clock: MockClock, busy: str) -> None:
    async with linked(limits=Limits(idle_seconds=120)) as link:
        for _ in range(3):
            await trio.sleep(100)
            if busy == "reading":
                await link.peer.send(request(oneway=True))
            else:
                link.connection.notify(request())
            await wait_all_tasks_blocked()
            link.connection.expire(trio.current_time())
            assert not link.connection.is_closed
        await trio.sleep(121)
        link.connection.expire(trio.current_time())
        assert link.connection.is_closed
        assert link.connection.reason == "idle for 120 s"
        await link.ended.wait()


async def test_a_connection_with_a_call_in_flight_is_not_idle(autojump_clock: MockClock) -> None:
    async with linked() as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection.call, request(), 1000)
        await trio.sleep(500)
        link.connection.expire(trio.current_time())
        assert not link.connection.is_closed
        nursery.cancel_scope.cancel()


async def test_a_frame_that_trickles_is_ended(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(limits=Limits(frame_seconds=60)) as link:
        frame = encode(request(b"x" * 100))
        for at in range(7):
            await link.peer.stream.send_all(frame[at : at + 1])  # never idle, never done
            await trio.sleep(10)
            link.connection.expire(trio.current_time())
        assert link.connection.is_closed
        assert "not complete after 60 s" in caplog.text
        await trio.sleep(10)
        link.connection.expire(trio.current_time())
        assert len(caplog.records) == 1


async def test_slow_whole_frames_are_welcome(autojump_clock: MockClock) -> None:
    async with linked(limits=Limits(frame_seconds=60)) as link:
        for _ in range(5):
            frame = encode(request(b"x", oneway=True))
            await link.peer.stream.send_all(frame[:10])
            await trio.sleep(50)
            link.connection.expire(trio.current_time())
            await link.peer.stream.send_all(frame[10:])
            await wait_all_tasks_blocked()
        assert link.endpoint.bodies == [b"x"] * 5
