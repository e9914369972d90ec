"""Quotas of accounts: messages and bytes a second that an account may send, and that it may be given.

An account over its quota has to wait. A request over RocketMQ's port is held, and handled when its time has
come: RocketMQ's clients know no code on which they would wait, but each waits for its answer. A send that
would be held for longer than its client waits is refused with SYSTEM_BUSY and the time to wait
(`throttled`). A door says whether its clients' sends are held so (gRPC) or refused (AMQP, which holds the
credit). What a consumer is given is counted afterwards, and its next pull is held for
as long as that was too much.

An account that used nothing for a second may send as much as for one second at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.errors import ResponseError, for_code
from rmq.protocol.auth.quota import Quota
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmq.plugin import Peer

HOLD_SEND_SECONDS: Final = 2.0
"""A send is held for so long at most: clients of RocketMQ wait 3 s for its answer."""
HOLD_PULL_SECONDS: Final = 10.0
"""A pull is held for so long at most, and answered without messages then: clients wait 30 s for it."""
DEBT_SECONDS: Final = 60.0
"""So much is remembered of what an account was given beyond its quota."""
SHORTEST_WAIT_SECONDS: Final = 1e-6
"""A shorter wait is none. It is an error of rounding: the clock may show the same time after it."""
ACCOUNTS_MAX: Final = 10_000
"""Accounts that are counted; those that have used nothing for longest are forgotten first."""


class _Bucket:
    """The present budget of an account for a figure: at most a second's worth, negative for a debt."""

    __slots__ = ("at", "left", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate, self.left, self.at = rate, rate, now

    def wait(self, now: float) -> float:
        """Seconds until something may be used."""
        self.left = min(self.rate, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now
        wait = -self.left / self.rate
        return wait if wait >= SHORTEST_WAIT_SECONDS else 0.0

    def use(self, amount: float) -> None:
        self.left = max(self.left - amount, -DEBT_SECONDS * self.rate)


class Throttled:
    """Requests of an account that were held or refused for its quota, and seconds that they were held."""

    __slots__ = ("held", "refused", "seconds")

    def __init__(self) -> None:
        self.held = self.refused = 0
        self.seconds = 0.0

    def hold(self, seconds: float) -> None:
        """Count a request that is held."""
        self.held += 1
        self.seconds += seconds

    def refuse(self) -> None:
        """Count a request that is refused."""
        self.refused += 1


class Quotas:
    """See the module. `quota_of(peer)` gives the account of a peer and its quota, None without one; `clock`
    is in seconds."""

    def __init__(
        self, clock: Callable[[], float], quota_of: Callable[[Peer], tuple[str, Quota] | None]
    ) -> None:
        self._clock = clock
        self._quota_of = quota_of
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self.throttled: dict[tuple[str, str], Throttled] = {}
        """By account and kind, `produce` or `consume`: for metrics."""

    def produce(self, peer: Peer, messages: int, size: int, *, most: float = 0.0) -> float:
        """Count a send; return for how many seconds it is to be held, at most `most`. Raises ResponseError
        when it would have to wait for longer, and does not count it."""
        found = self._quota_of(peer)
        if found is None:
            return 0.0
        account, quota = found
        wait = self._wait(account, quota, "produce")
        if wait > most:
            self._note(account, "produce").refuse()
            raise throttled(account, "produce", wait)
        self._use(account, quota, "produce", messages, size)
        if wait:
            self._held(account, "produce", wait)
        return wait

    def consume_wait(self, peer: Peer) -> float:
        """For how many seconds a consumer is given nothing; 0 when it may be given messages now."""
        found = self._quota_of(peer)
        if found is None:
            return 0.0
        wait = min(self._wait(*found, "consume"), HOLD_PULL_SECONDS)
        if wait:
            self._held(found[0], "consume", wait)
        return wait

    def consumed(self, peer: Peer, messages: int, size: int) -> None:
        """Count messages that a consumer was given."""
        if (found := self._quota_of(peer)) is not None:
            self._wait(*found, "consume")
            self._use(*found, "consume", messages, size)

    def _rates(self, quota: Quota, kind: str) -> tuple[tuple[str, float], ...]:
        if kind == "produce":
            return (("produce messages", quota.produce_messages), ("produce bytes", quota.produce_bytes))
        return (("consume messages", quota.consume_messages), ("consume bytes", quota.consume_bytes))

    def _wait(self, account: str, quota: Quota, kind: str) -> float:
        now, longest = self._clock(), 0.0
        for name, rate in self._rates(quota, kind):
            key = account, name
            if not rate:
                self._buckets.pop(key, None)
                continue
            bucket = self._buckets.get(key)
            if bucket is None or bucket.rate != rate:
                while len(self._buckets) >= 4 * ACCOUNTS_MAX:
                    del self._buckets[next(iter(self._buckets))]
                bucket = self._buckets[key] = _Bucket(rate, now)
            longest = max(longest, bucket.wait(now))
        return longest

    def _use(self, account: str, quota: Quota, kind: str, messages: int, size: int) -> None:
        for (name, rate), amount in zip(self._rates(quota, kind), (messages, size), strict=True):
            if rate:
                self._buckets[account, name].use(amount)

    def _held(self, account: str, kind: str, seconds: float) -> None:
        self._note(account, kind).hold(seconds)

    def _note(self, account: str, kind: str) -> Throttled:
        while len(self.throttled) >= 2 * ACCOUNTS_MAX:
            del self.throttled[next(iter(self.throttled))]
        return self.throttled.setdefault((account, kind), Throttled())


def throttled(account: str, kind: str, seconds: float) -> ResponseError:
    """The refusal of a request of an account over its quota."""
    wait = f"retry in {max(1, round(seconds * 1000))} ms"
    remark = f"[THROTTLED]account {account} is over its quota to {kind}: {wait}"
    return for_code(ResponseCode.SYSTEM_BUSY, remark)
