"""Links: the interface of producers and consumers to their connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection


class Link:
    """One link of a peer. `link` is proton's; no part of it is used when the link has ended."""

    def __init__(self, connection: Connection, link: Any) -> None:
        self.connection = connection
        self.link = link
        self.pointer = link._impl
        self.is_ended = False

    def on_open(self) -> None:
        """Note that the link is open."""

    def on_flow(self) -> None:
        """Note that the peer has given credit, or taken it back."""

    def on_delivery(self, delivery: Any) -> None:
        """Handle a new delivery, or a changed state of a delivery."""

    def resume(self) -> None:
        """Continue: the peer has taken the sent bytes, after a call of `Connection.pause`."""

    def on_end(self, *, is_closed: bool) -> None:
        """Note the graceful end of the link; without `is_closed` the peer may come back to its
        subscription."""

    def on_lost(self) -> None:
        """Note that the connection has ended without closing the link."""
