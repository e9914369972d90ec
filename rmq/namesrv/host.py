"""What plugins see of the name server that they run in."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, TypeVar

from rmq.errors import LocalProtocolError
from rmq.metrics import Metric, connection_metrics, single
from rmq.server.process import VERSION

if TYPE_CHECKING:
    from rmq.message import Message
    from rmq.namesrv.config import NamesrvConfig
    from rmq.namesrv.handlers import NameServer
    from rmq.plugin import OnAppended, Peer
    from rmq.protocol.command import Command

T = TypeVar("T")


class PluginHost:
    """The `rmq.plugin.Host` of a name server: it stores no message."""

    def __init__(self, server: NameServer, wall_ms: Callable[[], int]) -> None:
        self._server = server
        self.now_ms = wall_ms

    @property
    def config(self) -> NamesrvConfig:
        """The name server's configuration."""
        return self._server.config

    @property
    def address(self) -> str:
        """Empty: no client is told a name server's address."""
        return ""

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Raises LocalProtocolError."""
        raise LocalProtocolError("a name server stores no messages")

    def topic_of(self, physical_offset: int) -> str | None:
        """None: a name server stores no message."""
        return None

    def answer_saved(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command:
        """The answer; the file is written at once."""
        return then(write())

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """The file is written at once."""
        try:
            then(write())
        except Exception as error:
            fail(error)

    def shared_changed(self) -> None:
        """Nothing: name servers follow nobody."""

    def stats(self) -> Mapping[str, str]:
        """Empty: brokerStatus is a broker's."""
        return {}

    def metrics(self) -> list[Metric]:
        """How much the name server knows."""
        routes = self._server.routes
        brokers = sum(len(broker.broker_addrs) for broker in routes.cluster_info().broker_addr_table.values())
        topics = len(routes.topics().topic_list)
        end = self._server.certificate_end
        about = "Always 1: the version that this name server is"
        until = "When the TLS certificate ends, in seconds since 1970; 0 without one"
        return [
            Metric("build_info", "gauge", about, [((VERSION,), 1)], ("version",)),
            single("certificate_end_seconds", "gauge", until, 0 if end is None else end.timestamp()),
            single("namesrv_brokers", "gauge", "Brokers that are registered, slaves too", brokers),
            single("namesrv_topics", "gauge", "Topics that have a route", topics),
            *self._server.controller_metrics(),
            *connection_metrics(self._server.acceptors, self._server.budget),
        ]

    def metrics_in_slices(self, *, queues: bool = False) -> Generator[None, None, list[Metric]]:
        """The same; there are no queues here."""
        yield
        return self.metrics()
