"""Refusals: whether messages are taken now, and how requests that fail are answered.

RocketMQ's fast failure: a send that would wait too long is refused at once with a code that makes its
producer wait or go to another broker. A refusal is (response code, remark).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.error_responses import SYSTEM_ERROR, Refusal, unavailable
from rmq.protocol.codes import ResponseCode
from rmq.shares import Shares

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.broker.role import Role
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store


BUSY_SECONDS_MAX: Final = 1.0
"""Longest time in seconds for which sends are refused after a slow write; the next write then shows whether
the disk is fast again."""

LOOK_MS: Final = 100
"""For so long all counts as well once it was, as far as disk and settings go: a chunk may have one send."""

COUNT_SECONDS: Final = 0.05
COUNT_PARTS: Final = 64
"""While too many sends wait, senders count them again after COUNT_SECONDS, or when their number has changed
by one of COUNT_PARTS parts of the limit."""

LONG_ROUNDS: Final = 2
"""Long rounds of the event loop in a row after which sends are refused."""


_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)

log = logging.getLogger("rmq.broker")


class FlowControl:
    """State of the broker's readiness for messages: it takes none while it is closing, its disk is full, a
    write was slow, too many sends wait, or the event loop lags behind. `clock` is in seconds."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        acknowledgement: Acknowledgement,
        clock: Callable[[], float],
        role: Role,
        sender: Callable[[], Connection | None] = lambda: None,
    ) -> None:
        """Decides whether messages are refused now. `sender` returns the connection whose requests are being
        handled, if any."""
        self._sender = sender
        self._parked = Shares(0)  # as counted at `_parked_at`
        self._parked_at = -math.inf
        self._settings = settings
        self._store = store
        self._acknowledgement = acknowledgement
        self._clock = clock
        self._closed: Refusal | None = None
        self._role = role
        self._is_writable = True  # as the log says
        self._busy_until = 0.0
        self._busy_ms = 0.0
        self._round_ms = 0.0  # how long the last round of the loop took
        self._long_rounds = 0  # how many in a row were too long
        self._well_at = -LOOK_MS  # when all was well, in ms of wall time
        settings.derive(self.look_again)

    def close(self, reason: str) -> None:
        """Refuse messages from now on, so that their producers go elsewhere."""
        self._closed = unavailable(reason)
        self.look_again()

    def look_again(self) -> None:
        """Drop the result of the last check."""
        self._well_at = -LOOK_MS
        self._capacity = self._settings.broker.send_thread_pool_queue_capacity

    def wrote(self, seconds: float) -> None:
        """Take the seconds of a write: after a slow write sends are refused for a while."""
        if seconds * 1000 > self._store.config.os_page_cache_busy_time_out_mills:
            log.warning("a write took %.0f ms", seconds * 1000)
            self._busy_until = self._clock() + min(seconds, BUSY_SECONDS_MAX)
            self._busy_ms = seconds * 1000
            self.look_again()

    def round_took(self, seconds: float) -> bool:
        """Take the seconds of a round of the event loop, in which each connection is served once. Return
        whether the next round should be measured at once.

        A new request waits as long as a round. When a round is longer than a client waits for its response,
        each message would be stored for a client that has given up. A single long round may come from a
        machine that was busy elsewhere, so two in a row count. Refusals are quick, so messages are taken
        again only when rounds are half as long, after the gathered requests were answered.
        """
        self._log_disk_state()
        limit = self._settings.broker.wait_time_mills_in_send_queue
        self._round_ms = seconds * 1000
        refusing = self._long_rounds >= LONG_ROUNDS
        is_long = self._round_ms > (limit / 2 if refusing else limit)
        self._long_rounds = self._long_rounds + 1 if is_long else 0
        if self._long_rounds == LONG_ROUNDS:
            self.look_again()
            log.warning(
                "the broker is overloaded: sends would wait for %.0f ms and are refused", self._round_ms
            )
        elif refusing and not is_long:
            log.warning("the broker is no longer overloaded: it takes sends again")
        return is_long

    def _log_disk_state(self) -> None:
        """Log when the disk begins to refuse messages, and when it takes messages again."""
        disk = self._store.disk_state()
        if disk.is_writable != self._is_writable:
            self._is_writable = disk.is_writable
            if disk.is_writable:
                log.warning("messages are taken again: the disk is %.1f %% full", 100 * disk.ratio)
            else:
                log.error("NO MESSAGES ARE TAKEN: %s", disk.reason)

    def refusal(self, now_ms: int) -> Refusal | None:
        """Why no message is taken now; None when all is well."""
        if 0 <= now_ms - self._well_at < LOOK_MS and self._acknowledgement.waiting < self._capacity:
            return None
        refusal = self._refusal(now_ms)
        self._well_at = now_ms if refusal is None else -LOOK_MS
        return refusal

    def _refusal(self, now_ms: int) -> Refusal | None:
        if self._closed is not None:
            return self._closed
        if reason := self._role.refusal():
            return unavailable(reason)
        disk = self._store.disk_state()
        if not disk.is_writable:
            return unavailable(disk.reason)
        config = self._settings.broker
        if now_ms < config.start_accept_send_request_time_stamp:
            since = config.start_accept_send_request_time_stamp
            return SYSTEM_ERROR, f"broker unable to service, until {since}"
        return self._why_busy() if config.broker_fast_failure_enable else None

    def _has_share(self, most: int) -> bool:
        """True if the sender may have more waiting sends than the total allows, since few of the waiting
        sends are its own: an account or address alone is refused at half of `most`."""
        connection = self._sender()
        waiting = self._acknowledgement.waiting
        if connection is None or waiting >= most:
            return False
        now = self._clock()
        if now >= self._parked_at + COUNT_SECONDS or abs(waiting - self._parked.used) * COUNT_PARTS > most:
            self._parked, self._parked_at = Shares(most), now
            for sender, count in self._acknowledgement.parked():
                self._parked.add(self._settings.holders_of(sender), count)
        return not self._parked.full(self._settings.holders_of(connection))

    def _why_busy(self) -> Refusal | None:
        parked = self._acknowledgement.waiting
        capacity = self._settings.broker.send_thread_pool_queue_capacity
        if parked >= capacity and not self._has_share(2 * capacity):
            return _BUSY, (
                f"[OVERLOAD]system busy, start flow control for a while: {parked} sends wait for the disk, "
                f"sendThreadPoolQueueCapacity is {capacity}"
            )
        if self._long_rounds >= LONG_ROUNDS:
            wait = self._settings.broker.wait_time_mills_in_send_queue
            return _BUSY, (
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{self._round_ms:.0f} ms, waitTimeMillsInSendQueue is {wait}"
            )
        if self._busy_until and self._clock() < self._busy_until:
            limit = self._store.config.os_page_cache_busy_time_out_mills
            return _BUSY, (
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: the last write took "
                f"{self._busy_ms:.0f} ms, osPageCacheBusyTimeOutMills is {limit}"
            )
        return None
