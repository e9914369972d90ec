"""A client of the line protocol, over any network."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import anyio
import pytest

from rmq.remoting.network import Network
from rmq.remoting.transports.stream import Stream

PACKAGE = pathlib.Path(__file__).parent / "package"


class Line:
    """One connection; `said` are the lines that have come."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.said: list[str] = []
        self.is_at_end = False
        self._rest = b""

    @classmethod
    async def dial(cls, network: Network, address: str) -> Line:
        """Connect."""
        return cls(await network.dial(address))

    async def send(self, *lines: str) -> None:
        """Send lines at once."""
        await self.stream.send_all("".join(f"{line}\n" for line in lines).encode())

    async def read(self) -> bool:
        """Read more; False at the end."""
        with anyio.fail_after(300):
            data = bytes(await self.stream.receive_some(65536))
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += [line.decode() for line in lines]
        self.is_at_end = not data
        return bool(data)

    async def until(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """Read until this holds of all lines, and return them."""
        with anyio.fail_after(60):
            while not holds(self.said):
                assert await self.read(), f"the end, after {self.said}"
        return self.said

    async def ask(self, line: str) -> str:
        """Send a line; the next line that is no message."""
        count = len(self.answers())
        await self.send(line)
        await self.until(lambda said: len(self.answers()) > count)
        return self.answers()[count]

    def answers(self) -> list[str]:
        """The lines that are neither messages nor word of an acknowledgement."""
        return [line for line in self.said if not line.startswith(("MSG ", "ACKED "))]

    def messages(self) -> list[tuple[int, int, str]]:
        """Queue, offset and body of each message that has come."""
        rows = (line.split(" ", 4) for line in self.said if line.startswith("MSG "))
        return [(int(queue), int(offset), body) for _, _, queue, offset, body in rows]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the package installed."""
    monkeypatch.syspath_prepend(str(PACKAGE))
