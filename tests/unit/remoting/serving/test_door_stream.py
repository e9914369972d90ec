"""The stream of a door, for doors that read and write in tasks of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from rmq.doors import Door
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.serving.doors import DoorConnection


class OneWay:
    """A connection whose peer sends nothing; its bytes are taken by the test."""

    peer = local = "10.0.0.1:1"
    certificate_name = ""


MIB = 1 << 20


def connection(budget: MemoryBudget) -> DoorConnection:
    """The connection of a peer that has proved nothing."""
    stream: Any = OneWay()
    return DoorConnection(Door(name="d", serve=serve, port=1), stream, b"", Limits(), budget)


async def serve(stream: Any, host: Any) -> None:
    """No work."""


async def test_all_tasks_that_wait_for_room_are_woken() -> None:
    door = Door(name="d", serve=serve, port=1)
    stream: Any = OneWay()
    one = DoorConnection(door, stream, b"", Limits(), MemoryBudget(1 << 30))
    one.write(bytes(Limits().pause_bytes + 1))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.drain)
            tasks.start_soon(one.drain)
            await anyio.wait_all_tasks_blocked()
            one.close()


async def test_a_newcomer_stays_when_strangers_whose_requests_a_door_keeps_use_up_the_budget(
    autojump_clock: MockClock,
) -> None:
    """In an earlier version the bytes that doors keep had no time: a newcomer whose first response was on its
    way was cut off."""
    budget = MemoryBudget(MIB)
    strangers = [connection(budget) for _ in range(20)]
    for one in strangers[:9]:
        one.hold(100_000)
    await anyio.sleep(0.5)
    newcomer = connection(budget)
    newcomer.write(b"settings")  # its peer has not taken them yet
    await anyio.sleep(0.5)
    for one in strangers[9:]:
        one.hold(100_000)
        await anyio.sleep(0.01)
    assert budget.held <= MIB
    assert not newcomer.is_closed
    assert [one.is_closed for one in strangers[:9]] == [True] * 9, "the oldest have gone first"


@pytest.mark.parametrize(("proves", "seconds"), [(False, 2), (True, 10)])
async def test_a_request_that_a_door_keeps_must_be_complete_soon_while_memory_is_tight(
    autojump_clock: MockClock, proves: bool, seconds: int
) -> None:
    budget = MemoryBudget(MIB)
    stranger, whole, small = (connection(budget) for _ in range(3))
    stranger.has_proved = proves
    now = anyio.current_time()
    stranger.hold(400_000, now)
    whole.hold(400_000, math.inf)  # waits for room in the store: the peer owes nothing
    small.hold(1_000, now)
    for one in (stranger, whole, small):
        one.expire(now + seconds)
        assert not one.is_closed
    for one in (whole, small, stranger):
        one.expire(now + seconds + 0.1)
    assert (stranger.is_closed, whole.is_closed, small.is_closed) == (True, False, False)
    assert "while others need the memory" in stranger.reason


async def test_what_a_door_keeps_counts_from_its_oldest_part(autojump_clock: MockClock) -> None:
    one = connection(MemoryBudget(MIB))
    one.has_proved = True
    one.hold(100_000)
    await anyio.sleep(1)
    one.hold(200_000)
    assert 1 <= one.waste(anyio.current_time()) < 1.1
    one.hold(100_000, anyio.current_time())  # the oldest is complete
    assert one.waste(anyio.current_time()) < 0.1
    one.hold(0)
    await anyio.sleep(1)
    assert one.waste(anyio.current_time()) == 0


class Taking(OneWay):
    """A connection whose peer takes so many bytes at once."""

    sends_now = True

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def send_now(self, buffers: Sequence[bytes]) -> int:
        part = b"".join(buffers)[: self.room]
        self.taken += part
        self.room -= len(part)
        return len(part)

    async def send_all(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.taken += data

    async def aclose(self) -> None:
        """No work."""


async def test_bytes_are_sent_at_once_as_far_as_the_peer_takes_them_and_the_rest_in_order() -> None:
    stream = Taking(5)
    wire: Any = stream
    door = Door(name="d", serve=send_three, port=1)
    one = DoorConnection(door, wire, b"", Limits(), MemoryBudget(1 << 30))
    await one.run(cast(Any, stream))
    assert stream.taken == b"oneTWOthree"


async def send_three(stream: Any, host: Any) -> None:
    stream.send(b"one")
    assert host.taken == b"one", "without a turn of the event loop"
    stream.send(b"TWO")
    assert host.taken == b"oneTW"
    stream.send(b"three")
    assert host.taken == b"oneTW", "behind what waits"
    await anyio.sleep(0)
