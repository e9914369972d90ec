"""The way of a send through the client, as docs/design/client.md draws it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from trio.testing import MockClock

from rmq.message import Message
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection

from .world import World

SEND_PATH = ["Producer.send", "Sender.send", "Sender._attempt", "Pool.call", "Connection.call"]
"""At most five frames: each is paid for by every send."""


async def test_a_send_goes_to_the_connection_in_few_steps(
    setting: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[list[str]] = []
    call = Connection.call

    async def seen(connection: Connection, command: Command, timeout: float) -> Command:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            frame: Any = sys._getframe(1)
            path = ["Connection.call"]
            while frame is not None and frame.f_code.co_qualname.startswith(("Pool", "Sender", "Producer")):
                path.append(frame.f_code.co_qualname)
                frame = frame.f_back
            paths.append(path[::-1])
        return await call(connection, command, timeout)

    monkeypatch.setattr(Connection, "call", seen)
    async with setting.connect() as client, client.producer("p") as producer:
        await producer.send(Message("T", b"dials"))
        await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"x"), sharding_key="k")
    assert paths == [SEND_PATH] * 3
