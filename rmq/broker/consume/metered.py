"""Metered requests: sends and pulls of accounts with a quota, held until their time comes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.consume.read import NOT_FOUND
from rmq.broker.membership.quotas import HOLD_SEND_SECONDS, Quotas
from rmq.protocol.codes import (
    IDEMPOTENT_SEND,
    LITE_PULL_MESSAGE,
    MASTER_ID,
    POLLING_TIMEOUT,
    POP_MESSAGE,
    RequestCode,
)
from rmq.protocol.frames import encode_pull_reply_head
from rmq.protocol.headers import PullMessageRequestHeader

if TYPE_CHECKING:
    from rmq.plugin import Peer
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.server.deferred import DeferredCalls
    from rmq.shares import HoldersOf
    from rmq.store.store import Store

Handler = Callable[["Command", Any, int], "Command | None"]

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        IDEMPOTENT_SEND,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, LITE_PULL_MESSAGE})
TAKES: Final = frozenset({POP_MESSAGE})
BATCHES: Final = frozenset({RequestCode.SEND_BATCH_MESSAGE, IDEMPOTENT_SEND})
HELD_BYTES: Final = 64 << 20
"""Bytes of sends that may be held, of all accounts; more are refused."""


class MeteredRequests:
    """Holds requests over a quota. `run_late(handler, request, connection)` handles a request after its
    chunk."""

    def __init__(
        self,
        quotas: Quotas,
        store: Store,
        deferrals: DeferredCalls,
        holders_of: HoldersOf,
        run_late: Callable[[Handler, Command, Connection], None],
    ) -> None:
        self.quotas = quotas
        self._store = store
        self._deferrals = deferrals
        self._holders_of = holders_of
        self._run_late = run_late
        self._held: dict[Peer, int] = {}
        self._held_bytes = 0

    def on_close(self, connection: Peer) -> None:
        """A connection has ended: forget its requests."""
        self._deferrals.on_close(connection)
        self._held_bytes -= self._held.pop(connection, 0)

    def holds(self, request: Command, handler: Handler, connection: Connection) -> bool:
        """Hold and count the request if it must be handled later; return whether it is held. Requests of an
        account are handled in their order. Raises ResponseError for a send that would be held too long, and
        when too many requests are held."""
        code, quotas = request.code, self.quotas
        if code in SENDS:
            size = len(request.body)
            count = batch_count(request.body) if code in BATCHES else 1
            most = HOLD_SEND_SECONDS if self._held_bytes + size <= HELD_BYTES else 0.0
            wait = quotas.produce(connection, count, size, most=most)
            late = partial(self._send, handler, request, connection)
        elif code in PULLS or code in TAKES:
            wait = quotas.consume_wait(connection)
            late = partial(self._pull, handler, request, connection)
        else:
            return False
        if wait:
            self._deferrals.add(connection, self._holders_of(connection), wait, late)
            self._count(connection, len(request.body))
        return wait > 0

    def holds_send(self, peer: Peer, size: int, store: Callable[[], None]) -> bool:
        """Hold and count a message of a door's client if it must be stored later; return whether it is held.
        `store` is called when its time comes. Raises ResponseError if the message would be held too long, and
        when too many calls wait."""
        most = HOLD_SEND_SECONDS if self._held_bytes + size <= HELD_BYTES else 0.0
        wait = self.quotas.produce(peer, 1, size, most=most)
        if wait:
            late = partial(self._store_late, store, peer, size)
            self._deferrals.add(peer, self._holders_of(peer), wait, late)
            self._count(peer, size)
        return wait > 0

    def _store_late(self, store: Callable[[], None], peer: Peer, size: int) -> None:
        self._count(peer, -size)
        store()

    def _count(self, connection: Peer, size: int) -> None:
        if held := self._held.get(connection, 0) + size:
            self._held[connection] = held
        else:
            self._held.pop(connection, None)
        self._held_bytes += size

    def _send(self, handler: Handler, request: Command, connection: Connection) -> None:
        self._count(connection, -len(request.body))
        self._run_late(handler, request, connection)

    def _pull(self, handler: Handler, request: Command, connection: Connection) -> None:
        """Handle a pull that was held, or answer it without messages while the account is over its quota."""
        self._count(connection, -len(request.body))
        if not self.quotas.consume_wait(connection):
            self._run_late(handler, request, connection)
        elif request.code in TAKES:
            connection.reply(request.reply(POLLING_TIMEOUT, "the account is over its quota"))
        else:
            header = request.read(PullMessageRequestHeader)
            topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
            ends = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            offsets = (MASTER_ID, offset, *ends)
            remark = "the account is over its quota"
            connection.write(encode_pull_reply_head(request, int(NOT_FOUND), remark, offsets, 0))


def batch_count(body: bytes) -> int:
    """The number of messages in a batch; 1 for a body that is no batch, which its handler refuses."""
    count, at, end = 0, 0, len(body)
    while at + 4 <= end:
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 4:
            break
        count, at = count + 1, at + size
    return max(count, 1)
