"""PluginHost: the server of a plug-in, as the plug-in sees it, for all kinds of servers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rmq.errors import LocalProtocolError

if TYPE_CHECKING:
    from rmq.message import Message
    from rmq.metrics import Metric
    from rmq.plugin import OnAppended, Peer
    from rmq.protocol.command import Command
    from rmq.server.deferred import DeferredSaves

T = TypeVar("T")


class Served(Protocol):
    """A server, with the parts that its plug-ins use."""

    @property
    def config(self) -> Any:
        """The present configuration, frozen."""

    @property
    def deferred_saves(self) -> DeferredSaves:
        """The files that are written beside the loop."""


class MetricsInSlices(Protocol):
    """Makes the metrics of a server."""

    def __call__(self, *, queues: bool = False) -> Generator[None, None, Sequence[Metric]]:
        """Same as `rmq.plugin.Host.metrics_in_slices`."""


def at_once(make: Callable[[], Sequence[Metric]]) -> MetricsInSlices:
    """Metrics of a server with few figures: `make()` gives all, without rows for queues."""

    def metrics(*, queues: bool = False) -> Generator[None, None, Sequence[Metric]]:
        yield
        return make()

    return metrics


class Messages(Protocol):
    """The messages of a server, with the functions that its plug-ins use."""

    @property
    def address(self) -> str:
        """The address that clients get."""

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Same as `rmq.plugin.Host.put`."""

    def topic_of(self, physical_offset: int) -> str | None:
        """Same as `rmq.plugin.Host.topic_of`."""

    def shared_changed(self) -> None:
        """Same as `rmq.plugin.Host.shared_changed`."""

    def stats(self) -> Mapping[str, str]:
        """Same as `rmq.plugin.Host.stats`."""


class NoMessages:
    """Stand-in for the messages of a server that stores none and has no replicas; `server` is its kind."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.address = ""

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Raises LocalProtocolError."""
        raise LocalProtocolError(f"a {self._server} stores no messages: load the plug-in in a broker")

    def topic_of(self, physical_offset: int) -> str | None:
        """None: the server has no messages."""
        return None

    def shared_changed(self) -> None:
        """Do nothing: the server has no replicas."""

    def stats(self) -> Mapping[str, str]:
        """No rows: only brokers have brokerStatus."""
        return {}


class PluginHost:
    """The `rmq.plugin.Host` of a server; `now_ms` is the clock of message stamps."""

    def __init__(
        self,
        server: Served,
        messages: Messages,
        *,
        now_ms: Callable[[], int],
        metrics: MetricsInSlices,
    ) -> None:
        self._server = server
        self._messages = messages
        self.now_ms = now_ms
        self.metrics_in_slices = metrics
        self.put = messages.put
        self.topic_of = messages.topic_of
        self.shared_changed = messages.shared_changed
        self.stats = messages.stats

    @property
    def config(self) -> Any:
        """The present configuration."""
        return self._server.config

    @property
    def address(self) -> str:
        """The address registered for clients; empty without an address."""
        return self._messages.address

    def answer_saved(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command | None:
        """Same as `rmq.plugin.Host.answer_saved`."""
        return self._server.deferred_saves.answer(request, peer, write, then)

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """Same as `rmq.plugin.Host.save`."""
        self._server.deferred_saves.save(write, then, fail)

    def metrics(self) -> Sequence[Metric]:
        """Same as `rmq.plugin.Host.metrics`."""
        slices = self.metrics_in_slices()
        while True:
            try:
                next(slices)
            except StopIteration as end:
                metrics: Sequence[Metric] = end.value
                return metrics
