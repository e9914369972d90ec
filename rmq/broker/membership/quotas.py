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
"""Accounts that are counted; those that have asked for nothing for longest are forgotten first."""


class _Bucket:
    """The present budget of an account for a figure: at most a second's worth, negative for a debt. A new
    rate begins with a full bucket; with the rate 0 everything may be used."""

    __slots__ = ("at", "left", "rate")

    def __init__(self) -> None:
        self.rate = self.left = self.at = 0.0

    def wait(self, rate: float, now: float) -> float:
        """Seconds until something may be used at this rate."""
        if rate != self.rate:
            self.rate, self.left, self.at = rate, rate, now
        if not rate:
            return 0.0
        self.left = min(self.rate, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now
        wait = -self.left / self.rate
        return wait if wait >= SHORTEST_WAIT_SECONDS else 0.0

    def use(self, amount: float) -> None:
        self.left = max(self.left - amount, -DEBT_SECONDS * self.rate)


class _Budget:
    """What an account may send, or be given: messages and bytes."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages, self.size = _Bucket(), _Bucket()

    def use(self, messages: int, size: int) -> None:
        self.messages.use(messages)
        self.size.use(size)


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
        self._budgets: dict[tuple[str, str], _Budget] = {}
        # by account and kind; the one that was asked for last is last
        self.throttled: dict[tuple[str, str], Throttled] = {}
        """By account and kind, `produce` or `consume`: for metrics."""

    def produce(self, peer: Peer, messages: int, size: int, *, most: float = 0.0) -> float:
        """Count a send; return for how many seconds it is to be held, at most `most`. Raises ResponseError
        when it would have to wait for longer, and does not count it."""
        found = self._quota_of(peer)
        if found is None:
            return 0.0
        account, quota = found
        budget, wait = self._budget(account, quota, "produce")
        if wait > most:
            self._note(account, "produce").refuse()
            raise throttled(account, "produce", wait)
        budget.use(messages, size)
        if wait:
            self._held(account, "produce", wait)
        return wait

    def consume_wait(self, peer: Peer) -> float:
        """For how many seconds a consumer is given nothing; 0 when it may be given messages now."""
        found = self._quota_of(peer)
        if found is None:
            return 0.0
        wait = min(self._budget(*found, "consume")[1], HOLD_PULL_SECONDS)
        if wait:
            self._held(found[0], "consume", wait)
        return wait

    def consumed(self, peer: Peer, messages: int, size: int) -> None:
        """Count messages that a consumer was given."""
        if (found := self._quota_of(peer)) is not None:
            self._budget(*found, "consume")[0].use(messages, size)

    def _budget(self, account: str, quota: Quota, kind: str) -> tuple[_Budget, float]:
        """The budget of an account, and the seconds until it may be used."""
        budget = self._budgets.pop((account, kind), None) or _Budget()
        while len(self._budgets) >= 2 * ACCOUNTS_MAX:
            del self._budgets[next(iter(self._budgets))]
        self._budgets[account, kind] = budget
        is_sent, now = kind == "produce", self._clock()
        messages = quota.produce_messages if is_sent else quota.consume_messages
        size = quota.produce_bytes if is_sent else quota.consume_bytes
        return budget, max(budget.messages.wait(messages, now), budget.size.wait(size, now))

    def _held(self, account: str, kind: str, seconds: float) -> None:
        self._note(account, kind).hold(seconds)

    def _note(self, account: str, kind: str) -> Throttled:
        noted = self.throttled.pop((account, kind), None) or Throttled()
        while len(self.throttled) >= 2 * ACCOUNTS_MAX:
            del self.throttled[next(iter(self.throttled))]
        self.throttled[account, kind] = noted
        return noted


def throttled(account: str, kind: str, seconds: float) -> ResponseError:
    """The refusal of a request of an account over its quota."""
    wait = f"retry in {max(1, round(seconds * 1000))} ms"
    remark = f"[THROTTLED]account {account} is over its quota to {kind}: {wait}"
    return for_code(ResponseCode.SYSTEM_BUSY, remark)
