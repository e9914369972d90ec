"""Events: what happens around a client's messages, as values for those who watch over it. Pure."""

from __future__ import annotations

from attrs import frozen

from rmq.message import MessageQueue


@frozen
class Assigned:
    """The queues of a consumer have changed: `taken` are new, `given_up` are no longer its own. Those of the
    group's retry topic are not told."""

    group: str
    taken: tuple[MessageQueue, ...] = ()
    given_up: tuple[MessageQueue, ...] = ()
