"""HTTP for those who look after a server: which pages it has, and where they are served."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from rmq.errors import PortInUse
from rmq.health import Health
from rmq.plugin import METRICS
from rmq.process import Supervisor
from rmq.remoting.address import join_address
from rmq.remoting.loop import bare_errors
from rmq.remoting.network import Network

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.late_attrs import frozen

PLAIN: Final = "text/plain; charset=utf-8"

log = logging.getLogger("rmq.http")


@frozen
class Answer:
    """What a page says; `more` are further header lines."""

    body: bytes
    status: int = 200
    content_type: str = PLAIN
    more: tuple[tuple[str, str], ...] = ()


@frozen
class Asked:
    """A GET: what follows `?` in its target, and its header lines by their names in lower case."""

    query: bytes
    headers: Mapping[bytes, bytes]


Page = Callable[[Asked], Awaitable[Answer]]


def health_pages(health: Health) -> dict[str, Page]:
    """`/healthz`, which is answered for as long as the event loop runs, and `/ready`, which is 503 with what
    lacks until the server is ready. Neither needs a token: they say nothing of what the server keeps."""

    async def alive(asked: Asked) -> Answer:
        return Answer(b"alive\n")

    async def ready(asked: Asked) -> Answer:
        return Answer(health.text().encode(), 200 if health.is_ready else 503)

    return {"/healthz": alive, "/ready": ready}


class Probed(Protocol):
    """Settings of a server that may have a port for pages."""

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that are loaded."""

    @property
    def metrics_address(self) -> str:
        """Where the port is."""

    @property
    def metrics_port(self) -> int:
        """The port; 0 takes any free one."""


async def tell_supervisor(health: Health) -> None:
    """Tell systemd how a server is, for as long as it lives: this stops with the event loop, as its watchdog
    wants. Returns at once when nobody asks."""
    supervisor = Supervisor()
    if not supervisor.is_asking:
        return
    try:
        while True:
            supervisor.tell(health)
            await anyio.sleep(supervisor.period)
    finally:
        supervisor.stopping()


@frozen
class Served:
    """The pages of a server by their paths: more may be put into the table. Without an address nobody serves
    them."""

    pages: dict[str, Page]
    address: str = ""

    def listens(self) -> dict[str, str]:
        """Where, for those who start the server."""
        return {"health": f"http://{self.address}/ready"} if self.address else {}


@asynccontextmanager
async def served_pages(network: Network, config: Probed, health: Health) -> AsyncIterator[Served]:
    """Serve the pages of a server for the length of the block, those of its health from the beginning, if the
    plugin `metrics` is loaded, which opens the port.

    Raises PortInUse, which names metricsPort, and OSError. The block's own error comes out bare.
    """
    if METRICS not in config.plugins:
        yield Served({})
        return
    from rmq.remoting.pages import serve  # with h11: 20 ms, for those who have the port

    address = join_address(config.metrics_address, config.metrics_port)
    try:
        listener = await network.listen(address)
    except PortInUse as error:
        raise PortInUse(error.address, "metricsPort") from None
    log.info("health and metrics on http://%s/ready and /metrics", listener.address)
    served = Served(health_pages(health), listener.address)
    with bare_errors():
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(serve, listener, served.pages)
            yield served
            nursery.cancel_scope.cancel()
