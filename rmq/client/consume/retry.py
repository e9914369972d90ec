"""Retry: the delay before the redelivery of a failed message, by its handler or its consumer. Pure.

    raise rmq.Retry("out of stock", after=2.5)                          this message, in 2.5 s
    client.consumer(..., retry=rmq.Backoff(1, 60, tries=5))             all failures: 1, 2, 4, 8 s

RocketMQ knows 18 delays, `messageDelayLevel`. Brokers of rmq use any number of seconds; a send-back names
both, and RocketMQ's own brokers take the level, which is the next longer delay.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from rmq.client.consume.message_view import PulledMessage
from rmq.client.consume.process_queue import ProcessQueue
from rmq.errors import ConfigError, CorruptRecord, check_number, check_type
from rmq.protocol.properties import reason_of

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.message import StoredMessage
else:
    from rmq.lazy_attrs import frozen

LEVEL_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The delays of RocketMQ's levels 1 to 18, the defaults of a broker's messageDelayLevel."""
FIRST_LEVEL: Final = 3
"""The level of a message's first retry without another delay; each further retry is a level longer."""
AFTER_MAX: Final = 40 * 86_400
"""Longest delay of a redelivery, in seconds, as with `delay_ms`."""


def check_after(after: float | None) -> None:
    """Raises InvalidType, ConfigError unless `after` is None or a number of seconds in the allowed range."""
    if after is not None:
        check_number("after", after, 0, whole=False)
        if after > AFTER_MAX:
            raise ConfigError("after", after, f"seconds, at most {AFTER_MAX} (40 days)")


@frozen
class Delay:
    """Delay of a redelivery: `seconds`, or for a broker with fixed delays `level`. Level 0 leaves it to the
    broker, -1: the dead letters."""

    level: int = 0
    seconds: float | None = None

    @classmethod
    def of(cls, seconds: float) -> Delay:
        """The delay of so many seconds, with the next longer level; the longest level where none is
        longer."""
        return cls(min(bisect_left(LEVEL_SECONDS, seconds) + 1, len(LEVEL_SECONDS)), seconds)

    @classmethod
    def requested(cls, delay_level: int, after: float | None) -> Delay | None:
        """A handler's delay; None without one. Raises InvalidType, ConfigError, also for both arguments."""
        check_number("delay_level", delay_level, -1)
        check_after(after)
        if after is None:
            return cls(delay_level) if delay_level else None
        if delay_level:
            raise ConfigError("after", after, "no delay_level together with after")
        return cls.of(after)

    @property
    def in_seconds(self) -> float | None:
        """The delay for a broker without levels; None leaves it to the broker."""
        if self.seconds is None and self.level > 0:
            return float(LEVEL_SECONDS[min(self.level, len(LEVEL_SECONDS)) - 1])
        return self.seconds

    @property
    def milliseconds(self) -> int | None:
        """`seconds` in the brokers' unit."""
        return None if self.seconds is None else round(self.seconds * 1000)

    def describe(self, times: int) -> str:
        """Words for a log, for a message that failed `times` times before."""
        if self.level < 0:
            return "given up"
        seconds = self.seconds
        if seconds is None:
            level = self.level or FIRST_LEVEL + times
            seconds = LEVEL_SECONDS[min(level, len(LEVEL_SECONDS)) - 1]
        return f"redelivered in {seconds:g} s"


@frozen
class Backoff:
    """A consumer's policy for failed messages: the first retry after `first` seconds, then `factor` times as
    long each time, at most `max` seconds.

    `tries` is the number of deliveries before a message becomes a dead letter; the default is
    `max_reconsume_times`. A `Retry` with a time takes precedence. Raises InvalidType, ConfigError.
    """

    first: float
    max: float
    tries: int | None = None
    factor: float = 2.0

    def __attrs_post_init__(self) -> None:
        check_number("first", self.first, 0, whole=False)
        check_number("max", self.max, self.first, whole=False)
        check_after(self.max)
        check_number("factor", self.factor, 1, whole=False)
        if self.tries is not None:
            check_number("tries", self.tries, 1)

    def seconds(self, times: int) -> float:
        """The delay in seconds after a failure of a message that failed `times` times before: 0 for its first
        failure."""
        try:
            return min(self.first * self.factor**times, self.max)
        except OverflowError:
            return self.max


class Retry(Exception):
    """Raised by a handler, or in a delivery's block, to nack the message: the broker redelivers it.

    `after` is the delay in seconds, up to 40 days. RocketMQ's own brokers know 18 delays and take the next
    longer, at most 2 h; brokers of rmq use the exact delay. `delay_level` names such a delay instead; -1
    makes the message a dead letter at once. Without both, the consumer's `retry` decides, or else the group's
    next delay. For an ordered consumer only level -1 has a meaning: a failed message holds up its queue, for
    `after` or `suspend_queue_ms`. `reason` is logged, and the dead letter shows it. A Retry is no error:
    `on_error="raise"` does not raise it. Raises InvalidType, ConfigError.
    """

    def __init__(self, reason: str = "", *, delay_level: int = 0, after: float | None = None) -> None:
        check_type("reason", reason, str, "text; delay_level and after are given by name")
        self.delay = Delay.requested(delay_level, after)
        super().__init__(reason)
        self.reason = reason
        self.delay_level = delay_level
        self.after = after


def delay_of(
    error: Exception | None, asked: Delay | None, policy: Backoff | None, times: int, usual: int = 0
) -> Delay:
    """The delay of a message that ended with `error`: the handler's (`asked`), by its error or its delivery,
    else that of `policy`, else the `usual` level. `times` is the number of earlier failures."""
    if isinstance(error, Retry):
        asked = error.delay or asked
    if asked is not None:
        return asked
    return Delay(usual) if policy is None else Delay.of(policy.seconds(times))


def reason_text(error: Exception | None) -> str:
    """The broker's text for `error`."""
    return error.reason if isinstance(error, Retry) else reason_of(error)


def named(message: StoredMessage) -> str:
    """Words for a log that identify a message, with everything by which it can be found."""
    window = message.window if isinstance(message, PulledMessage) else None
    try:
        return _named(message, window)
    except CorruptRecord as error:
        place = f" of {window.queue}" if window is not None else ""
        return f"the damaged message at offset {message.queue_offset}{place} ({error})"


def _named(message: StoredMessage, window: ProcessQueue | None) -> str:
    tag = f", tag {message.tags}" if message.tags else ""
    keys = f", keys {' '.join(message.keys)}" if message.keys else ""
    lies_in = "" if window is None or window.queue.topic == message.topic else f"in {window.queue.topic}, "
    place = f"{lies_in}queue {message.queue_id} of {message.broker_name}, offset {message.queue_offset}"
    return f"message {message.message_id} of {message.topic} ({place}{tag}{keys})"
