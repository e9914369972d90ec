"""Links: the interface of producers and consumers to their connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_amqp.connection import Connection


class Link:
    """One link of a peer. `link` is proton's; nothing of it is used when the link has ended."""

    def __init__(self, connection: Connection, link: Any) -> None:
        self.connection = connection
        self.link = link
        self.pointer = link._impl
        self.is_ended = False

    def on_open(self) -> None:
        """The link is open."""

    def on_flow(self) -> None:
        """The peer has given credit, or taken it back."""

    def on_delivery(self, delivery: Any) -> None:
        """A delivery has come, or its state has changed."""

    def resume(self) -> None:
        """The peer has taken the sent bytes, after a call of `Connection.pause`."""

    def on_end(self, *, is_closed: bool) -> None:
        """The link has ended in order; without `is_closed` the peer may come back to its subscription."""

    def on_lost(self) -> None:
        """The connection has ended without a word."""
