"""AsyncioPoller: on asyncio, reads the sockets of connections in functions that the loop calls.

A task that waits for bytes costs a turn of the loop for each chunk, a tenth of the time of a send. In this
module the function that the loop calls reads, decodes and wakes the waiting calls; the connection's task only
runs for work that must wait, as with a server's `Poller`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import sniffio

from rmq.remoting.loop import current_loop

if TYPE_CHECKING:
    import asyncio


class AsyncioPoller:
    """See the module. One serves any number of connections of the running loop."""

    is_running: Final = True
    spares_tasks: Final = False
    """A client has few connections, and calls over each of them."""
    alone: Final = -1
    """No descriptor is treated otherwise for being the only one."""

    def __init__(self) -> None:
        from asyncio import get_running_loop  # whoever calls this has loaded it

        self._call_soon = get_running_loop().call_soon

    def send_soon(self, send: Callable[[], None]) -> None:
        """Call `send` once other functions and tasks have had their turn; it must not block or raise."""
        self._call_soon(send)

    def note(self, descriptor: int) -> None:
        """A chunk has come from a descriptor: nothing to do."""

    async def attend(self, descriptor: int, on_readable: Callable[[], bool]) -> None:
        """Call `on_readable` whenever the descriptor can be read, until it returns False, or raises an error,
        which this call then raises. `on_readable` must not block, and may be called without data.

        No other code may wait for the descriptor at the same time, and the descriptor stays open. Cancelled:
        the calls end.
        """
        from asyncio import get_running_loop  # whoever calls this has loaded it

        loop = get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            if ended.done():
                return
            try:
                if not on_readable():
                    ended.set_result(None)
            except Exception as error:
                ended.set_exception(error)

        # It is called outside of any task, where only this says which library runs.
        sniffio.current_async_library_cvar.set("asyncio")
        loop.add_reader(descriptor, read)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)


def asyncio_poller() -> AsyncioPoller | None:
    """One for the running loop, where that is asyncio's and calls functions for sockets."""
    return AsyncioPoller() if current_loop().name == "asyncio" and sys.platform != "win32" else None
