"""HTTP for those who look after a server: pages by GET, one request a connection, read by h11."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NoReturn, Protocol

import anyio
import h11
from attrs import frozen

from rmq.errors import PortInUse
from rmq.health import Health
from rmq.plugin import METRICS
from rmq.process import Supervisor
from rmq.remoting.address import join_address
from rmq.remoting.loop import bare_errors, broken_errors
from rmq.remoting.network import Network
from rmq.remoting.server import Acceptor
from rmq.remoting.stream import Listener, Stream

READ_BYTES: Final = 4096
SECONDS: Final = 10.0
"""For a whole request and its answer."""
PEERS: Final = 16
"""At a time, half of them of one address; more are closed at once."""
SHARE: Final = 0.03
"""How much of the descriptors that connections may have these may take."""
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


async def serve(listener: Listener, pages: Mapping[str, Page]) -> NoReturn:
    """Answer until cancelled; closes the listener then. `pages`, by their paths, may come while it runs.

    What a peer does wrong ends its connection only; so does a page that fails, which is logged.
    """

    async def answer(stream: Stream) -> None:
        try:
            with anyio.move_on_after(SECONDS):
                await _converse(stream, pages)
        except broken_errors(h11.LocalProtocolError) as error:
            log.debug("a request broke off: %s", error)

    try:
        async with anyio.create_task_group() as nursery:
            await Acceptor(PEERS, share=SHARE).run(listener, answer, nursery)
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


async def _converse(stream: Stream, pages: Mapping[str, Page]) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        request = await _request(stream, connection)
    except h11.RemoteProtocolError as error:
        await _send(stream, connection, Answer(b"this is no HTTP request\n", error.error_status_hint))
        return
    if request is not None:
        await _send(stream, connection, await _answer(request, pages))


async def _answer(request: h11.Request, pages: Mapping[str, Page]) -> Answer:
    if request.method != b"GET":
        return Answer(b"only GET\n", 405)
    path, _, query = request.target.partition(b"?")
    page = pages.get(path.decode("ascii", "replace"))
    if page is None:
        return Answer(f"only {', '.join(sorted(pages))}\n".encode(), 404)
    return await page(Asked(query, dict(request.headers)))


async def _request(stream: Stream, connection: h11.Connection) -> h11.Request | None:
    """The request; None when the peer leaves without one."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


async def _send(stream: Stream, connection: h11.Connection, answer: Answer) -> None:
    headers = [
        *answer.more,
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Connection", "close"),
    ]
    data = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    await stream.send_all(data + (connection.send(h11.Data(data=answer.body)) or b""))
