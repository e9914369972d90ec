"""Handover of long polls: a slave reports its long polls to the master; if the slave dies, the master answers
them.

A Go client does not notice the end of a connection on which it waits for a response; no client notices that a
machine is gone. But a client takes a response from any broker, by the number (opaque) of its request. So a
slave that is the preferred replica (`failover.read_preference`) reports the long polls of such clients to its
master, on the link that also carries its progress. When the link ends, or the slave leaves the in-sync set,
the master answers these long polls: no message, and another broker to pull from. If the slave answers as
well, the client ignores the second response.

Another process of the same client would take such a response for a response to a pull of its own, of another
queue, and would skip messages. So the master answers only a client whose id belongs to exactly one
connection, and did so before the long poll began.

A row is a list: client id, group, topic, queue, offset, opaque, form of the header, and the ms for which the
poll may have waited. The id is empty for a client that has sent no heartbeat to the slave: the master does
not answer this client, but knows of its long poll, and reports a new high watermark to the slave at once.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final

from rmq.errors import RemoteProtocolError
from rmq.protocol import json
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode_pull_reply_head

if TYPE_CHECKING:
    from rmq.broker.consume.long_polling import ParkedPull
    from rmq.broker.consume.pull import Pull
    from rmq.broker.membership.clients import Clients
    from rmq.store.store import Store

_INT: Final = Struct(">i")

ROWS_MAX: Final = 20_000
"""Pulls that are known of one slave; of more, those that were told first are forgotten."""
ROWS_OF_A_TEXT: Final = 200


KEPT_MS: Final = 30_000
"""No client waits longer for a pull."""


class PollReporter:
    """A slave's: collects the rows that its master must get, while the link is up. Calls `wake` when a row is
    ready."""

    def __init__(self, pull: Pull, clients: Clients, wake: Callable[[], None]) -> None:
        self._pull = pull
        self._clients = clients
        self._wake = wake
        self._rows: list[list[Any]] = []

    def begin(self) -> None:
        """The link is up: report the long polls that wait already, too."""
        self._pull.watch_waiting(self._report)
        for held in self._pull.waiting():
            self._report(held, KEPT_MS)

    def end(self) -> None:
        """The link has ended."""
        self._pull.watch_waiting(None)
        self._rows.clear()

    def _report(self, held: ParkedPull, waited_ms: int = 0) -> None:
        header, request = held.header, held.request
        group = self._clients.consumer_group(header.consumer_group)
        member = None if group is None else group.members.get(held.connection)
        if len(self._rows) >= ROWS_MAX:
            return
        client_id = "" if member is None else member.client_id
        queue = header.consumer_group, header.topic, header.queue_id
        what = held.offset, request.opaque, request.serialization, waited_ms
        self._rows.append([client_id, *queue, *what])
        self._wake()

    def take(self) -> bytes:
        """The next rows to send; empty when nothing is new."""
        if not self._rows:
            return b""
        rows, self._rows = self._rows[:ROWS_OF_A_TEXT], self._rows[ROWS_OF_A_TEXT:]
        if self._rows:
            self._wake()
        return json.dumps(rows)


class HandedOverPolls:
    """A master's: the long polls of a slave, the last of each client and queue. `clock` (seconds) is that of
    `clients`."""

    def __init__(self, pull: Pull, clients: Clients, store: Store, clock: Callable[[], float]) -> None:
        self._pull = pull
        self._clients = clients
        self._store = store
        self._clock = clock
        self._rows: dict[tuple[str, str, str, int], tuple[int, int, int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, text: bytes) -> None:
        """Take rows of the slave. Raises RemoteProtocolError."""
        now = self._ms()
        try:
            for client_id, group, topic, queue_id, *numbers in json.loads(text):
                offset, opaque, serialization, waited_ms = map(int, numbers)
                _INT.pack(opaque)
                key = str(client_id), str(group), str(topic), int(queue_id)
                self._rows.pop(key, None)
                self._rows[key] = offset, opaque, serialization, now, now - waited_ms
        except (TypeError, ValueError, OverflowError, StructError) as error:
            raise RemoteProtocolError(f"the slave's waiting pulls cannot be read: {error!r}") from None
        while len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]

    def answer(self) -> int:
        """Answer the reported long polls for a slave that cannot, and forget the rows. Return the number of
        answers."""
        oldest = self._ms() - KEPT_MS
        rows, self._rows = self._rows, {}
        count = 0
        for (client_id, name, topic, queue_id), (offset, opaque, serialization, at, began) in rows.items():
            member = self._clients.only_member(name, client_id)
            if member is None or member.since_ms > began or at < oldest:
                continue
            request = Command(RequestCode.PULL_MESSAGE, opaque, 0, {}, serialization=serialization)
            low = self._store.min_offset(topic, queue_id)
            offsets = self._pull.preferred(queue_id), offset, low, max(low, offset)
            head = encode_pull_reply_head(request, ResponseCode.PULL_NOT_FOUND, "SLAVE_GONE", offsets, 0)
            member.connection.write(head)
            count += 1
        return count

    def _ms(self) -> int:
        return round(self._clock() * 1000)
