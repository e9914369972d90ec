"""The stream of a door, for doors that read and write in tasks of their own."""

from __future__ import annotations

from typing import Any

import anyio

from rmq.doors import Door
from rmq.remoting.limits import Limits, MemoryBudget
from rmq.remoting.serving.doors import DoorConnection


class OneWay:
    """A connection whose peer sends nothing; its bytes are taken by the test."""

    peer = local = "10.0.0.1:1"
    certificate_name = ""


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
