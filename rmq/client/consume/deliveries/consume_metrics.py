"""ConsumeMetrics: rates of consumption, for an administrator. Counted once a pull, not once a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import define, field, frozen

from rmq.protocol.bodies import ConsumeStatus

SAMPLES: Final = 3
"""A sample is taken with each heartbeat, so rates are those of the last one to one and a half minutes."""


@frozen
class Count:
    """Counts of one topic since the start: messages pulled, done, and failed."""

    pulled: int = 0
    finished: int = 0
    failed: int = 0


@define
class ConsumeMetrics:
    """Counts of each topic, and samples of them, from which rates are computed. `now` is in seconds."""

    pulled: dict[str, int] = field(factory=dict)
    failed: dict[str, int] = field(factory=dict)
    _samples: deque[tuple[float, dict[str, Count]]] = field(factory=lambda: deque(maxlen=SAMPLES))

    def pull(self, topic: str, count: int) -> None:
        """Count the messages of a pull."""
        self.pulled[topic] = self.pulled.get(topic, 0) + count

    def failure(self, topic: str) -> None:
        """Count a failed handler."""
        self.failed[topic] = self.failed.get(topic, 0) + 1

    def sample(self, now: float, pending: Mapping[str, int]) -> None:
        """Take a sample. `pending`: topic -> messages pulled and not done."""
        self._samples.append((now, self._counts(self.pulled, pending)))

    def of(self, topics: Iterable[str], now: float, pending: Mapping[str, int]) -> dict[str, ConsumeStatus]:
        """Messages a second of each topic since the oldest sample; failures since the start."""
        since, before = self._samples[0] if self._samples else (now, {})
        counts = self._counts(topics, pending)
        return {
            topic: _status(before.get(topic, Count()), count, now - since) for topic, count in counts.items()
        }

    def _counts(self, topics: Iterable[str], pending: Mapping[str, int]) -> dict[str, Count]:
        table = {}
        for topic in topics:
            pulled = self.pulled.get(topic, 0)
            table[topic] = Count(pulled, pulled - pending.get(topic, 0), self.failed.get(topic, 0))
        return table


def _status(before: Count, now: Count, seconds: float) -> ConsumeStatus:
    def rate(count: int) -> float:
        return max(0, count) / seconds if seconds > 0 else 0.0

    failed = now.failed - before.failed
    return ConsumeStatus(
        pull_tps=rate(now.pulled - before.pulled),
        consume_ok_tps=rate(now.finished - before.finished - failed),
        consume_failed_tps=rate(failed),
        consume_failed_msgs=now.failed,
    )
