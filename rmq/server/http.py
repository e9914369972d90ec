"""HTTP pages of a server for its operators: which pages it has, and at which address."""

from __future__ import annotations

import hmac
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from rmq.errors import ConfigError, PortInUse
from rmq.plugin import METRICS, Answer, Asked, Page
from rmq.remoting.address import join_address
from rmq.remoting.loop import unwrap_groups
from rmq.remoting.network import Network
from rmq.remoting.transports.websocket_policy import WebSocketAccess
from rmq.server.health import Health
from rmq.server.process import Supervisor
from rmq.server.settings import ServerSettings

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

log = logging.getLogger("rmq.http")


PROBES: Final = ("/healthz", "/ready")
"""Pages for supervisors: half of the port's places are reserved for them."""


def brings_token(asked: Asked, token: bytes) -> bool:
    """True if a GET has ``Authorization: Bearer`` with this token."""
    kind, _, word = asked.headers.get(b"authorization", b"").partition(b" ")
    return kind.lower() == b"bearer" and hmac.compare_digest(word.strip(), token)


def health_pages(health: Health, token: bytes = b"") -> dict[str, Page]:
    """`/healthz`, which is answered for as long as the event loop runs, and `/ready`, which is 503 with the
    missing parts until the server is ready. With `token` only requests that carry it see the missing
    parts."""

    async def alive(asked: Asked) -> Answer:
        return Answer(b"alive\n")

    async def ready(asked: Asked) -> Answer:
        text = health.text()
        if token and not brings_token(asked, token):
            text = text.partition("\n")[0] + "\n"
        return Answer(text.encode(), 200 if health.is_ready else 503)

    return dict(zip(PROBES, (alive, ready), strict=True))


async def report_to_supervisor(health: Health) -> None:
    """Report the server's state to systemd, for as long as the event loop runs, as often as its watchdog
    requires. Returns at once without systemd."""
    supervisor = Supervisor()
    if not supervisor.is_asking:
        return
    try:
        while True:
            supervisor.report(health)
            await anyio.sleep(supervisor.period)
    finally:
        supervisor.stopping()


def _token(path: str) -> bytes:
    """The token of metricsTokenFile. Raises ConfigError when the file has no token."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            token = file.readline().strip()
    except OSError as error:
        raise ConfigError("metricsTokenFile", path, f"a file that can be read ({error.strerror})") from None
    if not token:
        raise ConfigError("metricsTokenFile", path, "a file with a token, for healthDetailsNeedToken")
    return token


@frozen
class Served:
    """The pages of a server by their paths: a caller may add pages to the table. Without an address they are
    not served."""

    pages: dict[str, Page]
    address: str = ""

    def listens(self) -> dict[str, str]:
        """The address of the pages, for the start banner."""
        return {"health": f"http://{self.address}/ready"} if self.address else {}


@asynccontextmanager
async def served_pages(network: Network, config: ServerSettings, health: Health) -> AsyncIterator[Served]:
    """Serve the pages of a server for the length of the block, those of its health from the beginning, if the
    plugin `metrics` is loaded, which opens the port.

    Raises PortInUse, which names metricsPort, OSError, and ConfigError for a token that cannot be read. The
    block's own error comes out bare.
    """
    if METRICS not in config.plugins:
        yield Served({})
        return
    from rmq.server.pages import serve  # with h11: 20 ms, only for servers with the port

    token = _token(config.metrics_token_file) if config.health_details_need_token else b""
    own = (config.metrics_address, socket.gethostname())
    hosts = WebSocketAccess(hosts=config.web_socket_hosts, own=own)

    address = join_address(config.metrics_address, config.metrics_port)
    try:
        listener = await network.listen(address)
    except PortInUse as error:
        raise PortInUse(error.address, "metricsPort") from None
    log.info("health and metrics on http://%s/ready and /metrics", listener.address)
    served = Served(health_pages(health, token), listener.address)
    with unwrap_groups():
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(serve, listener, served.pages, hosts)
            yield served
            nursery.cancel_scope.cancel()
