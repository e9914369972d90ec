"""Queue locks: an ordered consumer's right to consume a queue, given by the queue's broker.

A member consumes a queue only while it holds the queue's lock: it takes the lock before it queries the
offset, renews the lock every `lock_interval_ms`, and releases it only when the present message has ended and
its offset is committed. The next member begins at this offset, so the order holds through rebalance and
restart.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from rmq.client.session.requests import FAILURES
from rmq.client.session.session import Session
from rmq.message import MessageQueue
from rmq.remoting.connection import Connection
from rmq.remoting.loop import Wakeup, unwrap_groups

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

log = logging.getLogger("rmq.client.queue_locks")

TRUST_SECONDS: Final = 30.0
"""Seconds after the request for its renewal for which a lock is trusted: half of the broker's time-out, so
that the drift of clocks and the delay of an answer do not matter."""
EXPIRY_SECONDS: Final = 60.0
"""Seconds without a renewal after which a broker gives a lock to another member."""
RETRY_SECONDS: Final = 1.0
"""Pause before a failed renewal is repeated, in seconds."""


@frozen
class _Lock:
    """End of the trust in a lock, and the connection over which it was taken. When the connection has ended,
    the lock is not trusted until it is renewed: a restarted broker has forgotten the lock, and may have given
    the queue to another member."""

    until: float
    connection: Connection

    def holds_at(self, now: float) -> bool:
        return self.until > now and not self.connection.is_closed

    def is_unexpired_at(self, now: float) -> bool:
        """True if a broker without a restart still has the lock."""
        return self.until + (EXPIRY_SECONDS - TRUST_SECONDS) > now

    def is_ours_at(self, now: float) -> bool:
        return self.is_unexpired_at(now) and not self.connection.is_closed


class QueueLocks:
    """The locks that one member of a group holds."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._locks: dict[MessageQueue, _Lock] = {}
        self._renew_now = Wakeup()

    def holds(self, queue: MessageQueue) -> bool:
        """True if the queue may be consumed now."""
        lock = self._locks.get(queue)
        return lock is not None and lock.holds_at(self._session.now())

    def is_ours(self, queue: MessageQueue) -> bool:
        """True if no other member can have the queue: its broker cannot have given away the lock yet. If
        another member can have it, that member may have consumed more, so this one must not commit."""
        lock = self._locks.get(queue)
        return lock is not None and lock.is_ours_at(self._session.now())

    async def acquire(self, queues: Sequence[MessageQueue]) -> frozenset[MessageQueue]:
        """Take or renew the locks of queues of a broker; return the queues that are ours now. Raises as
        `Brokers.lock`. Cancelled: the broker may have given the locks."""
        address, connection = await self._connection(queues[0])
        got, lock = await self._ask(queues, address, connection)
        self._locks.update(dict.fromkeys(got, lock))
        return got

    async def _connection(self, queue: MessageQueue) -> tuple[str, Connection]:
        """The address of the queue's broker, and the connection to it."""
        address = self._session.brokers.master(queue)
        return address, await self._session.pool.connection(address)

    async def _ask(
        self, queues: Sequence[MessageQueue], address: str, connection: Connection
    ) -> tuple[frozenset[MessageQueue], _Lock]:
        """The queues, of these, whose locks the broker gives, with their locks."""
        assert len({queue.broker_name for queue in queues}) == 1, "each broker locks its own queues"
        session = self._session
        asked_at = session.now()  # from now, not from the answer: the broker's time begins in between
        got = await session.brokers.lock(address, self._group, session.client_id, queues)
        return got, _Lock(asked_at + TRUST_SECONDS, connection)

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release our locks of these queues. Failures are logged: the locks expire."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if self._locks.pop(queue, None) is not None:
                by_broker.setdefault(queue.broker_name, []).append(queue)
        if not by_broker:
            return
        with unwrap_groups():
            async with anyio.create_task_group() as tasks:  # brokers that hang do so at the same time
                for mine in by_broker.values():
                    tasks.start_soon(self._unlock, mine)

    async def _unlock(self, queues: Sequence[MessageQueue]) -> None:
        """Release locks at one broker."""
        session = self._session
        try:
            address = session.brokers.master(queues[0])
            await session.brokers.unlock(address, self._group, session.client_id, queues)
        except FAILURES as error:
            log.warning("cannot unlock queues at broker %s: %s", queues[0].broker_name, error)

    def forget(self, queue: MessageQueue) -> None:
        """Stop trusting this lock."""
        self._locks.pop(queue, None)

    def check_connections(self) -> None:
        """Renew at once when a connection has ended: its broker may have been restarted, without locks."""
        if any(lock.connection.is_closed for lock in self._locks.values()):
            self._renew_now.set()

    async def keep(
        self,
        queues: Callable[[], Iterable[MessageQueue]],
        is_overtaken: Callable[[MessageQueue], Awaitable[bool]],
        on_renewed: Callable[[MessageQueue], None],
        on_lost: Callable[[MessageQueue], None],
    ) -> None:
        """Renew our locks of the queues that `queues` returns, until cancelled. A lock that was released is
        not taken again: the next member would wait for its time-out. `is_overtaken` asks the broker whether
        the group is further in a queue than this member."""
        interval = self._session.config.lock_interval_ms / 1000
        pause = interval
        while True:
            await self._renew_now.wait(self._session.now() + pause)
            pause = interval
            by_broker: dict[str, list[MessageQueue]] = {}
            for queue in queues():
                by_broker.setdefault(queue.broker_name, []).append(queue)
            for mine in by_broker.values():
                try:
                    await self._renew(mine, is_overtaken, on_renewed, on_lost)
                except FAILURES as error:
                    pause = min(RETRY_SECONDS, interval)
                    log.warning("cannot renew the queue locks at broker %s: %s", mine[0].broker_name, error)

    async def _renew(
        self,
        queues: Sequence[MessageQueue],
        is_overtaken: Callable[[MessageQueue], Awaitable[bool]],
        on_renewed: Callable[[MessageQueue], None],
        on_lost: Callable[[MessageQueue], None],
    ) -> None:
        address, connection = await self._connection(queues[0])
        # Only now: while another broker, or the connection, was waited for, locks may have been released.
        before = {queue: self._locks[queue] for queue in queues if queue in self._locks}
        if not before:
            return
        got, lock = await self._ask([*before], address, connection)
        # A granted lock is not enough: if it could have expired at the broker since the last renewal, another
        # member may have had it, and have consumed more than this one.
        now = self._session.now()
        kept = {queue: old for queue, old in before.items() if queue in got and old.is_unexpired_at(now)}
        # Over a new connection the broker may have been restarted, and another member may have had the queue.
        # That member commits before it gives a queue up.
        doubtful = [queue for queue, old in kept.items() if old.connection is not lock.connection]
        lost = await _of_which(doubtful, is_overtaken)
        self._locks.update({queue: lock for queue in got if before[queue] is self._locks.get(queue)})
        for queue in before:
            if queue in kept and queue not in lost:
                on_renewed(queue)
            else:
                on_lost(queue)


async def _of_which(
    queues: Iterable[MessageQueue], holds: Callable[[MessageQueue], Awaitable[bool]]
) -> set[MessageQueue]:
    """The queues for which the condition holds, checked for all at the same time."""
    found = set[MessageQueue]()

    async def ask(queue: MessageQueue) -> None:
        if await holds(queue):
            found.add(queue)

    with unwrap_groups():
        async with anyio.create_task_group() as tasks:
            for queue in queues:
                tasks.start_soon(ask, queue)
    return found
