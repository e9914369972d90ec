"""Waiting pulls: those that wait at a slave, which its master answers when the slave dies.

A Go client does not see that a connection has ended over which it waits for an answer; no client does when a
machine is gone. They take an answer from any broker, though: by the number (opaque) of the request. So a
slave that is the reading place (`failover.read_preference`) tells its master which pulls of such clients wait
there, over the link by which it reports how far it has the log. When the link ends, or the slave is in sync
no more, the master answers them in its place: there is nothing, and another broker to ask. If the slave does
answer, too, or has, then nobody waits for the second answer, and the client leaves it aside.

An answer that came to another process would be taken for one to a pull of its own, of another queue, and
would have it skip messages. So only a client is answered whose id one connection has, and had before the pull
began to wait.

A row of what is told is a list: client id, group, topic, queue, offset, opaque, form of the header, and for
how many ms it may have waited. The id is empty of a client that has sent no heartbeat there: nobody is
answered then, but the master knows that somebody waits, and says at once how far it may read.
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
    """A slave: what it has to tell of its waiting pulls, as long as its link is up. `wake` is called when
    there is something."""

    def __init__(self, pull: Pull, clients: Clients, wake: Callable[[], None]) -> None:
        self._pull = pull
        self._clients = clients
        self._wake = wake
        self._rows: list[list[Any]] = []

    def begin(self) -> None:
        """The link is up: tell those that wait already, too."""
        self._pull.watch_waiting(self._tell)
        for held in self._pull.waiting():
            self._tell(held, KEPT_MS)

    def end(self) -> None:
        """The link has ended."""
        self._pull.watch_waiting(None)
        self._rows.clear()

    def _tell(self, held: ParkedPull, waited_ms: int = 0) -> None:
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
        """What is to be told next; empty when there is nothing."""
        if not self._rows:
            return b""
        rows, self._rows = self._rows[:ROWS_OF_A_TEXT], self._rows[ROWS_OF_A_TEXT:]
        if self._rows:
            self._wake()
        return json.dumps(rows)


class HandedOverPolls:
    """A master: the pulls that wait at one slave, the last one of each client and queue. `clock` (seconds) is
    that of `clients`."""

    def __init__(self, pull: Pull, clients: Clients, store: Store, clock: Callable[[], float]) -> None:
        self._pull = pull
        self._clients = clients
        self._store = store
        self._clock = clock
        self._rows: dict[tuple[str, str, str, int], tuple[int, int, int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, text: bytes) -> None:
        """Know what the slave tells. Raises RemoteProtocolError."""
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
        """Answer them, for a slave that cannot, and forget them; returns how many were answered."""
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
