"""Retry policies of groups: the delay between a failed attempt and the next delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.protocol.bodies import GroupRetryPolicy
else:
    from rmq.lazy_attrs import frozen

DEFAULT_DELAYS_MS: Final = (
    *(10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000),
    *(420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000),
)
"""The delays after the first and each further attempt of a group without a policy: RocketMQ's levels 3 to
18."""

DELAY_MAX_MS: Final = 40 * 86_400_000
DELAYS_MAX: Final = 1_000


@frozen
class RetryPolicy:
    """Delays between attempts: a list, or growing by a factor when `initial_ms` is given."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS
    initial_ms: int = 0
    max_ms: int = 0
    multiplier: float = 2.0

    @property
    def is_exponential(self) -> bool:
        """True if the delays grow by a factor."""
        return self.initial_ms > 0

    def delay_ms(self, attempt: int) -> int:
        """The delay after a failed attempt; the first attempt is 1."""
        if self.is_exponential:
            most = self.max_ms or self.initial_ms
            try:
                return int(min(self.initial_ms * self.multiplier ** (attempt - 1), most))
            except OverflowError:
                return most
        if not self.delays_ms:
            return 0
        return self.delays_ms[min(max(attempt, 1), len(self.delays_ms)) - 1]


_DEFAULT: Final = RetryPolicy()


def policy_of(given: GroupRetryPolicy | None) -> RetryPolicy:
    """The retry policy in a group's configuration; delays are cut to `DELAY_MAX_MS`."""
    if given is None:
        return _DEFAULT
    grows, listed = given.exponential_retry_policy, given.customized_retry_policy
    if given.type == "EXPONENTIAL":
        if grows is None:
            return RetryPolicy((), 5_000, 7_200_000, 2.0)
        most = _bounded(grows.max)
        return RetryPolicy((), max(1, _bounded(grows.initial)), most, float(max(1, grows.multiplier)))
    if listed is None or not listed.next:
        return _DEFAULT
    return RetryPolicy(tuple(map(_bounded, listed.next[:DELAYS_MAX])))


def _bounded(ms: int) -> int:
    return min(max(0, ms), DELAY_MAX_MS)
