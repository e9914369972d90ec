"""Queue locks: an ordered consumer's right to be the only consumer of its group in a queue.

A lock lasts 60 s from its last renewal, by a clock that only goes forward: a change of the wall time must not
hand a queue over. Clients renew every 20 s. Nothing is saved: after a restart of the broker the clients lock
again.

Holders are replicated to slaves of rmq, as rows of a table in the replication stream; renewals are not. When
a slave of a set with controllers becomes master, every lock starts a new period: its holder goes on, and
other clients wait as they would have at the former master. In such a set only a master with a lease locks:
another broker does not know the master's locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.tables.versioned import Changes, WhenReplicated, at_once, response_when
from rmq.errors import InvalidName, RemoteProtocolError, for_code
from rmq.message import MessageQueue, validate_text
from rmq.protocol import json
from rmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.shares import NOBODY, Holders, HoldersOf, Shares, by_account_and_address

if TYPE_CHECKING:
    from rmq.broker.role import Role
    from rmq.protocol.command import Command

LOCK_MS: Final = 60_000
FREE_MS: Final = 600_000
"""Milliseconds between two searches for expired locks while no lock exists."""

QUEUES_OF_A_REQUEST: Final = 10_000
_LISTED: Final = 8
LOCKS_MAX: Final = 200_000
"""Locks of all groups; more queues are not locked, so that their consumers wait."""

Lock = tuple[str, int, Holders]
"""The client that holds a queue, since when, and under whose names it counts."""

log = logging.getLogger("rmq.broker")


class Locks:
    """The table of locks: group -> queue -> holder and time. `now` is in ms of `clock`, which is in
    seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        holders_of: HoldersOf | None = None,
        *,
        role: Role,
        when_replicated: WhenReplicated = at_once,
    ) -> None:
        self._clock = clock
        self._holders_of = holders_of or by_account_and_address()
        self._table: dict[str, dict[MessageQueue, Lock]] = {}
        self._shares = Shares(LOCKS_MAX)
        self.changes = Changes()
        self._role = role
        self._when_replicated = when_replicated
        self._followed: dict[str, str] = {}  # a slave's: row -> client, as its master has said

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            RequestCode.LOCK_BATCH_MQ: self._on_lock,
            RequestCode.UNLOCK_BATCH_MQ: self._on_unlock,
        }

    def lock(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        client_id: str,
        now: int,
        holders: Holders = NOBODY,
    ) -> frozenset[MessageQueue]:
        """Lock or renew queues that are free, expired or held by the client already; return these queues."""
        held = self._table.setdefault(group, {})
        got = frozenset(queue for queue in queues if _is_free(held.get(queue), client_id, now))
        if full := self._shares.full(holders, len(got.difference(held))):
            got = got.intersection(held)
            log.warning("%s of group %s gets no more locks: %s", client_id, group, full)
        new: list[MessageQueue] = []
        for queue in sorted(got):
            before = held.get(queue)
            if before is None or before[0] != client_id:
                new.append(queue)
            if before is not None:
                self._shares.give(before[2])
            held[queue] = (client_id, now, holders)
            self._shares.add(holders)
        if new:
            self.changes.add(_row(group, queue) for queue in new)
            log.info("%s of group %s locks %s", client_id, group, _listed(new))
        if not held:
            del self._table[group]
        return got

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release the client's own locks."""
        held = self._table.get(group, {})
        mine = [queue for queue in sorted(set(queues)) if queue in held and held[queue][0] == client_id]
        for queue in mine:
            self._shares.give(held.pop(queue)[2])
        if mine:
            self.changes.add(_row(group, queue) for queue in mine)
            log.info("%s of group %s unlocks %s", client_id, group, _listed(mine))
        if not held:
            self._table.pop(group, None)

    def holder(self, group: str, queue: MessageQueue, now: int) -> str | None:
        """The holder of a queue's lock, or None."""
        entry = self._table.get(group, {}).get(queue)
        return None if entry is None or _is_expired(entry, now) else entry[0]

    def expire(self, now: int) -> int:
        """Forget expired locks; returns when to come again."""
        for group, held in list(self._table.items()):
            kept = {queue: entry for queue, entry in held.items() if not _is_expired(entry, now)}
            if len(kept) < len(held):
                released = [queue for queue in held if queue not in kept]
                self.changes.add(_row(group, queue) for queue in released)
                for queue in released:
                    self._shares.give(held[queue][2])
            if kept:
                self._table[group] = kept
            else:
                del self._table[group]
        return now + (LOCK_MS if self._table else FREE_MS)

    # --- rows for slaves ---

    def names(self) -> list[str]:
        """The names of all rows, one for each lock."""
        return [_row(group, queue) for group, held in self._table.items() for queue in held]

    def text_of(self, names: Collection[str]) -> bytes:
        """The holders of the existing locks of these names."""
        return json.dumps({name: entry[0] for name in names if (entry := self._entry(name)) is not None})

    def missing(self, names: Collection[str]) -> list[str]:
        """The names among these without a lock."""
        return [name for name in names if self._entry(name) is None]

    def rows_of(self, text: bytes) -> tuple[dict[str, str], None]:
        """The rows of such a text: name of the lock -> client. Raises RemoteProtocolError."""
        rows = json.loads(text)
        if not isinstance(rows, dict) or not all(isinstance(client, str) for client in rows.values()):
            raise RemoteProtocolError("the master's locks cannot be read")
        for name in rows:
            _parts(name)
        return rows, None

    def apply_delta(self, rows: Mapping[str, str], version: None, deleted: Collection[str] | None) -> bool:
        """A slave's: apply the master's `rows` and delete `deleted` (None: all other locks)."""
        before = dict(self._followed)
        if deleted is None:
            self._followed.clear()
        for name in deleted or ():
            self._followed.pop(name, None)
        self._followed |= rows
        return self._followed != before

    def held(self) -> dict[str, str]:
        """The locks that this broker knows, its own or its master's: name of the row -> client."""
        now = self._ms()
        own = {
            _row(group, queue): entry[0]
            for group, held in self._table.items()
            for queue, entry in held.items()
            if not _is_expired(entry, now)
        }
        return self._followed | own

    def take_over(self, rows: Mapping[str, str]) -> None:
        """Be the master of a set in which these locks are held: each lasts from now on."""
        now = self._ms()
        for name, client in rows.items():
            group, queue = _parts(name)
            held = self._table.setdefault(group, {})
            if queue in held:
                self._shares.give(held[queue][2])
            held[queue] = client, now, NOBODY
            self._shares.add(NOBODY)
        self.changes.add(rows)

    def _entry(self, name: str) -> Lock | None:
        group, queue = _parts(name)
        return self._table.get(group, {}).get(queue)

    def _ms(self) -> int:
        return round(self._clock() * 1000)

    # --- requests ---

    def _on_lock(self, request: Command, connection: Any, now: int) -> Command | None:
        body = LockBatchRequestBody.from_request(request.body)
        _check(body)
        if self._role.refuses_locks():
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, "queues are locked at the master of this set")
        got = self.lock(
            body.consumer_group, body.mq_set, body.client_id, self._ms(), self._holders_of(connection)
        )
        response = request.reply(body=LockBatchResponseBody(got).to_json())
        return response_when(self._when_replicated, self.changes, request, connection, response)

    def _on_unlock(self, request: Command, connection: Any, now: int) -> Command:
        body = UnlockBatchRequestBody.from_request(request.body)
        _check(body)
        self.unlock(body.consumer_group, body.mq_set, body.client_id)
        return request.reply()


def _row(group: str, queue: MessageQueue) -> str:
    return f"{group}\n{queue.topic}\n{queue.broker_name}\n{queue.queue_id}"  # names are printable


def _parts(name: str) -> tuple[str, MessageQueue]:
    """Raises RemoteProtocolError unless the text is a name of a row."""
    try:
        group, topic, broker, queue_id = name.split("\n")
        return group, MessageQueue(topic, broker, int(queue_id))
    except ValueError:
        raise RemoteProtocolError(f"{name[:80]!r} is not a lock") from None


def _check(body: LockBatchRequestBody | UnlockBatchRequestBody) -> None:
    """Raises ResponseError for names that no client has: they would stand in the table and in the log."""
    if len(body.mq_set) > QUEUES_OF_A_REQUEST:
        count = f"{len(body.mq_set)} queues in one request of client {body.client_id[:80]!r}"
        raise for_code(ResponseCode.SYSTEM_ERROR, f"{count}, at most {QUEUES_OF_A_REQUEST} are allowed")
    try:
        validate_text("client id", body.client_id)
        validate_text("consumer group", body.consumer_group)
        for queue in body.mq_set:
            validate_text("topic", queue.topic)
            validate_text("broker", queue.broker_name)
    except InvalidName as error:
        raise for_code(ResponseCode.SYSTEM_ERROR, str(error)) from None


def _listed(queues: list[MessageQueue]) -> str:
    more = len(queues) - _LISTED
    return ", ".join(map(str, queues[:_LISTED])) + (f" and {more} more" if more > 0 else "")


def _is_expired(entry: Lock, now: int) -> bool:
    return now - entry[1] > LOCK_MS


def _is_free(entry: Lock | None, client_id: str, now: int) -> bool:
    return entry is None or entry[0] == client_id or _is_expired(entry, now)
