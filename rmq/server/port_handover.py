"""Ports that stay open from a service of a process to the next service.

A client that connects between the two services waits in the system's queue for the next service, and is not
refused: clients that repeat a few times without a pause would give up too early.
"""

from __future__ import annotations

from collections.abc import Container

import anyio

from rmq.remoting.address import split_address
from rmq.remoting.network import Network
from rmq.remoting.transports.stream import Listener, Stream


class KeptPorts(Network):
    """A network whose listeners only `aclose` closes, but for the listeners at the ports of `closing`."""

    def __init__(self, network: Network, closing: Container[int]) -> None:
        self._network = network
        self._closing = closing
        self._kept: dict[str, Listener] = {}

    async def dial(self, address: str) -> Stream:
        return await self._network.dial(address)

    async def listen(self, address: str, *, held: bool = False) -> Listener:
        """Listen at an address; a second call for an address returns the open listener."""
        if split_address(address).port in self._closing:
            return await self._network.listen(address, held=held)
        if address not in self._kept:
            self._kept[address] = await self._network.listen(address, held=held)
        return _Kept(self._kept[address])

    async def aclose(self) -> None:
        """Close all listeners. Completes when cancelled."""
        with anyio.CancelScope(shield=True):
            while self._kept:
                _, listener = self._kept.popitem()
                await listener.aclose()


class _Kept(Listener):
    """A listener that a later service uses again."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def address(self) -> str:
        return self._listener.address

    async def accept(self) -> Stream:
        return await self._listener.accept()

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
