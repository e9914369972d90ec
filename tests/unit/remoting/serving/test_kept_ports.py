"""Ports that stay open while one service of a process follows another."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmq.server.port_handover import KeptPorts
from rmq.testing.network import MemoryNetwork


async def test_who_connects_in_between_is_served_by_the_next(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    ports = KeptPorts(network, (10912,))
    first = await ports.listen("127.0.0.1:10911", held=True)
    with pytest.raises(ConnectionRefusedError):
        await network.dial("127.0.0.1:10911")
    with trio.move_on_after(1):
        await first.accept()
    await first.aclose()
    client = await network.dial("127.0.0.1:10911")
    second = await ports.listen("127.0.0.1:10911", held=True)
    assert second.address == first.address
    server = await second.accept()
    await client.send_all(b"hello")
    assert await server.receive_some() == b"hello"
    await second.aclose()
    await ports.aclose()
    with pytest.raises(ConnectionRefusedError):
        await network.dial("127.0.0.1:10911")


async def test_other_ports_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    ports = KeptPorts(network, (10912,))
    other = await ports.listen("127.0.0.1:10912")
    await other.aclose()
    with pytest.raises(ConnectionRefusedError):
        await network.dial("127.0.0.1:10912")
