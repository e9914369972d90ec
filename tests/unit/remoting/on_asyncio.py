"""Services on an asyncio loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import trio

from rmq.protocol.command import Command
from rmq.remoting import Connection, Limits, TcpNetwork, TlsConfig
from tests.unit.remoting.peers import Custom
from tests.unit.remoting.serving.servers import served

PATIENT = Limits(connect_seconds=30)  # a busy machine must not fail a test


@contextmanager
def service(tls: TlsConfig | None = None) -> Iterator[str]:
    """A trio service in a thread. A body of ``later`` is not answered, ``bye`` ends the connection."""
    ready, addresses, stop = threading.Event(), [], []

    def answer(asked: Command, connection: Connection) -> None:
        if asked.body == b"bye":
            connection.close()
        elif asked.body != b"later":
            connection.reply(asked.reply(body=asked.body))

    async def run() -> None:
        with trio.CancelScope() as scope:
            async with served(TcpNetwork(), Custom(answer), tls=tls) as (address,):
                addresses.append(address)
                stop.extend([trio.lowlevel.current_trio_token(), scope.cancel])
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert ready.wait(10)
    try:
        yield addresses[0]
    finally:
        stop[0].run_sync_soon(stop[1])
        thread.join(10)


def on_asyncio(test: Callable[[], Awaitable[None]]) -> None:
    anyio.run(test, backend="asyncio")
