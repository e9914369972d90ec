"""Counters and moving windows of messages in and out, per topic, per group and in all.

Counting is a dictionary look-up and three additions, once for each topic or pull of a chunk; it knows no
clock. `step(now)` samples every counter: each 10 s for the window of a minute, each 10 minutes for the
hour, each hour for the day, which are RocketMQ's windows. The metrics of the whole broker are sampled with
them; their rates are also taken against the present moment, so they do not stand still between two samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from attrs import field

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from rmq.lazy_attrs import define, frozen

MINUTE_STEP_MS: Final = 10_000
HOUR_STEP_MS: Final = 600_000
DAY_STEP_MS: Final = 3_600_000

_MINUTE_SAMPLES: Final = 7
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLES: Final = 25
_TOTAL_SAMPLES: Final = 61
_RATE_WINDOWS_MS: Final = (10_000, 60_000, 600_000)

_LATENCY_LIMITS_MS: Final = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_LATENCY_NAMES: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)

Sample = tuple[int, int, int]
"""Messages, bytes and calls up to a moment."""


@frozen
class Window:
    """A counter in a window: `sum`, per second (`tps`) and per call (`average`)."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0


class _Meter:
    """Messages, bytes and calls since the start, and their samples. Equal samples are one object."""

    __slots__ = ("calls", "count", "day", "hour", "minute", "size")

    def __init__(self) -> None:
        self.count = self.size = self.calls = 0
        nothing: Sample = (0, 0, 0)
        # Lists, because there are three for each topic: an empty deque takes seven times their memory.
        self.minute, self.hour, self.day = [nothing], [nothing], [nothing]

    def add(self, count: int, size: int, calls: int = 1) -> None:
        self.count += count
        self.size += size
        self.calls += calls

    def sample(self, samples: list[Sample], most: int) -> None:
        last = samples[-1]
        fresh = (self.count, self.size, self.calls)
        samples.append(last if last == fresh else fresh)
        del samples[:-most]


@frozen
class Totals:
    """The whole broker's counts up to a moment. `found` and `missed` are pulls, `given` their messages."""

    at_ms: int
    put: int = 0
    found: int = 0
    missed: int = 0
    given: int = 0


@define
class _Latencies:
    """Times of storing, by RocketMQ's classes, for the running and for the last whole minute."""

    now: list[int] = field(factory=lambda: [0] * len(_LATENCY_NAMES))
    last: list[int] = field(factory=lambda: [0] * len(_LATENCY_NAMES))
    longest_ms: int = 0
    since_ms: int = 0

    def add(self, elapsed_ms: float, count: int) -> None:
        whole = int(elapsed_ms)
        index = 0 if whole <= 0 else 1 + sum(whole >= limit for limit in _LATENCY_LIMITS_MS[1:])
        self.now[index] += count
        self.longest_ms = max(self.longest_ms, whole)

    def turn(self, now: int) -> None:
        if now - self.since_ms >= 60_000:
            self.last, self.now, self.since_ms = self.now, [0] * len(_LATENCY_NAMES), now

    def percentile(self, share: float) -> float:
        """The upper limit, in ms, of the class that this share of the puts does not exceed."""
        counts = [sum(pair) for pair in zip(self.last, self.now, strict=True)]
        left = share * sum(counts)
        for limit, count in zip((*_LATENCY_LIMITS_MS, self.longest_ms), counts, strict=True):
            left -= count
            if left <= 0:
                return float(min(limit, self.longest_ms))
        return float(self.longest_ms)

    def text(self) -> str:
        counts = [sum(pair) for pair in zip(self.last, self.now, strict=True)]
        return "".join(f"{name}:{count} " for name, count in zip(_LATENCY_NAMES, counts, strict=True))


class Stats:
    """The broker's counters. `cluster` is the key of its own totals, as in RocketMQ."""

    def __init__(self, now: int, *, cluster: str = "") -> None:
        self.boot_ms = now
        self.failed_puts = 0
        self.longest_read_ms = 0.0
        self._cluster = cluster
        self._put: dict[str, _Meter] = {}
        self._get: dict[str, _Meter] = {}
        self._sent_back: dict[str, _Meter] = {}
        self._all_put = _Meter()
        self._all_get = _Meter()
        self._missed = 0
        self._latencies = _Latencies(since_ms=now)
        self._minutes: deque[int] = deque((now,), _MINUTE_SAMPLES)
        self._hours: deque[int] = deque((now,), _HOUR_SAMPLES)
        self._days: deque[int] = deque((now,), _DAY_SAMPLES)
        self._totals: deque[Totals] = deque((Totals(now),), _TOTAL_SAMPLES)
        self._today = _day(now)
        self._this_morning = self._yesterday_morning = Totals(now)

    # --- counting ---

    def put(self, topic: str, count: int, size: int) -> None:
        """`count` messages of `size` bytes in all were stored for a topic: one call for a chunk."""
        self.put_all(((topic, count, size),))

    def put_all(self, counts: Sequence[tuple[str, int, int]]) -> int:
        """Count (topic, messages, bytes) that were stored together, of which a topic may have several; return
        the number of messages."""
        table, total, total_size = self._put, 0, 0
        for topic, count, size in counts:
            meter = table.get(topic)
            if meter is None:
                meter = table[topic] = _Meter()
            meter.count += count
            meter.size += size
            meter.calls += 1
            total += count
            total_size += size
        self._all_put.add(total, total_size, len(counts))
        return total

    def get(self, group: str, topic: str, count: int, size: int, calls: int = 1) -> None:
        """So many pulls, mostly one, gave a group `count` messages of `size` bytes in all."""
        key = f"{topic}@{group}"
        meter = self._get.get(key)
        if meter is None:
            meter = self._get[key] = _Meter()
        meter.add(count, size, calls)
        self._all_get.add(count, size, calls)

    def miss(self) -> None:
        """One pull found nothing."""
        self._missed += 1

    def read(self, elapsed_ms: float) -> None:
        """One pull's look into the store took so long."""
        if elapsed_ms > self.longest_read_ms:  # a call of max() is felt here
            self.longest_read_ms = elapsed_ms

    def send_back(self, group: str, topic: str) -> None:
        """One message came back from a group to be consumed again."""
        self._sent_back.setdefault(f"{topic}@{group}", _Meter()).add(1, 0)

    def stored(self, elapsed_ms: float, count: int) -> None:
        """`count` messages were stored together, which took so long."""
        self._latencies.add(elapsed_ms, count)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's counters."""
        self._put.pop(topic, None)
        for table in (self._get, self._sent_back):
            for key in [key for key in table if key.startswith(f"{topic}@")]:
                del table[key]

    def delete_group(self, group: str) -> None:
        """Forget a group's counters."""
        for table in (self._get, self._sent_back):
            for key in [key for key in table if key.endswith(f"@{group}")]:
                del table[key]

    # --- totals since the start: messages and bytes ---

    @property
    def missed(self) -> int:
        """Pulls that found nothing."""
        return self._missed

    def totals_in(self) -> list[tuple[str, int, int]]:
        """(topic, messages, bytes) that were stored."""
        return [(topic, meter.count, meter.size) for topic, meter in self._put.items()]

    def totals_out(self) -> list[tuple[tuple[str, str], int, int]]:
        """((topic, group), messages, bytes) that were handed out."""
        return _by_pair(self._get)

    def totals_sent_back(self) -> list[tuple[tuple[str, str], int, int]]:
        """((topic, group), messages, 0) that came back from consumers."""
        return _by_pair(self._sent_back)

    # --- sampling ---

    def step(self, now: int) -> int:
        """Take the samples that are due; returns when to come again, in ms like `now`."""
        if _due(self._minutes, now, MINUTE_STEP_MS):
            self._totals.append(self._total(now))
            self._latencies.turn(now)
            self._sample("minute", self._minutes, now)
        if _due(self._hours, now, HOUR_STEP_MS):
            self._sample("hour", self._hours, now)
        if _due(self._days, now, DAY_STEP_MS):
            self._sample("day", self._days, now)
        if self._today != _day(now):
            self._today = _day(now)
            self._yesterday_morning, self._this_morning = self._this_morning, self._total(now)
        return self._minutes[-1] + MINUTE_STEP_MS

    def _sample(self, window: str, times: deque[int], now: int) -> None:
        times.append(now)
        for meter in self._meters():
            meter.sample(getattr(meter, window), times.maxlen or 1)

    def _meters(self) -> list[_Meter]:
        tables = (self._put, self._get, self._sent_back)
        return [self._all_put, self._all_get, *(meter for table in tables for meter in table.values())]

    def _total(self, now: int) -> Totals:
        got = self._all_get
        return Totals(now, self._all_put.count, got.calls, self._missed, got.count)

    # --- reading ---

    def windows(self, name: str, key: str, now: int | None = None) -> tuple[Window, Window, Window] | None:
        """Minute, hour and day of a counter by RocketMQ's name (TOPIC_PUT_NUMS …) and key, if any.

        They end with the last sample, or, with `now`, at this moment, which is what a person wants to see.
        """
        place = self._places().get(name)
        if place is None:
            return None
        table, index = place
        meter = table.get(key)
        if meter is None:
            return None
        rows = (
            (meter.minute, self._minutes, MINUTE_STEP_MS),
            (meter.hour, self._hours, HOUR_STEP_MS),
            (meter.day, self._days, DAY_STEP_MS),
        )
        if now is None:
            minute, hour, day = (_window(samples, times, index) for samples, times, _ in rows)
        else:
            minute, hour, day = (_live_window(meter, *row, index, now) for row in rows)
        return minute, hour, day

    def _places(self) -> dict[str, tuple[Mapping[str, _Meter], int]]:
        return {
            "TOPIC_PUT_NUMS": (self._put, 0),
            "TOPIC_PUT_SIZE": (self._put, 1),
            "GROUP_GET_NUMS": (self._get, 0),
            "GROUP_GET_SIZE": (self._get, 1),
            "SNDBCK_PUT_NUMS": (self._sent_back, 0),
            "BROKER_PUT_NUMS": ({self._cluster: self._all_put}, 0),
            "BROKER_GET_NUMS": ({self._cluster: self._all_get}, 0),
        }

    def consume_tps(self, group: str, topic: str, now: int | None = None) -> float:
        """Messages a second that a group was given of a topic in the last minute; `now` as in `windows`."""
        windows = self.windows("GROUP_GET_NUMS", f"{topic}@{group}", now)
        return 0.0 if windows is None else windows[0].tps

    def runtime(self, now: int) -> dict[str, str]:
        """The metrics of GET_BROKER_RUNTIME_INFO that come from here, under RocketMQ's names."""
        put = self._all_put
        return {
            "bootTimestamp": str(self.boot_ms),
            "runtime": _duration(now - self.boot_ms),
            "putMessageTimesTotal": str(max(1, put.count)),  # never 0, as in RocketMQ
            "putMessageSizeTotal": str(put.size),
            "putMessageAverageSize": str(put.size / max(1, put.count)),
            "putMessageFailedTimes": str(self.failed_puts),
            "putMessageEntireTimeMax": str(self._latencies.longest_ms),
            "putMessageDistributeTime": self._latencies.text(),
            "putLatency99": f"{self._latencies.percentile(0.99):.2f}",
            "putLatency999": f"{self._latencies.percentile(0.999):.2f}",
            "getMessageEntireTimeMax": str(int(self.longest_read_ms)),
            **self._rates(now),
            **self._days_totals(now),
        }

    def _rates(self, now: int) -> dict[str, str]:
        ends = [self._since(now, window) for window in _RATE_WINDOWS_MS]
        last = self._total(now)

        def text(*names: str) -> str:
            return " ".join(str(sum(_rate(first, last, name) for name in names)) for first in ends)

        return {
            "putTps": text("put"),
            "getFoundTps": text("found"),
            "getMissTps": text("missed"),
            "getTotalTps": text("found", "missed"),
            "getTransferedTps": text("given"),
        }

    def _since(self, now: int, window_ms: int) -> Totals:
        """The youngest sample that is at least as old as the window, or the oldest that there is."""
        for sample in reversed(self._totals):
            if now - sample.at_ms >= window_ms:
                return sample
        return self._totals[0]

    def _days_totals(self, now: int) -> dict[str, str]:
        moments = {
            "YesterdayMorning": self._yesterday_morning,
            "TodayMorning": self._this_morning,
            "TodayNow": self._total(now),
        }
        result = {}
        for name, totals in moments.items():
            result[f"msgPutTotal{name}"] = str(totals.put)
            result[f"msgGetTotal{name}"] = str(totals.given)
        return result


def _by_pair(meters: Mapping[str, _Meter]) -> list[tuple[tuple[str, str], int, int]]:
    rows = []
    for key, meter in meters.items():
        topic, _, group = key.partition("@")
        rows.append(((topic, group), meter.count, meter.size))
    return rows


def _due(times: deque[int], now: int, step_ms: int) -> bool:
    # A clock that was set back must not stop the sampling.
    return abs(now - times[-1]) >= step_ms


def _day(now: int) -> int:
    return datetime.fromtimestamp(now / 1000).toordinal()


def _window(samples: list[Sample], times: deque[int], index: int) -> Window:
    return _between(samples[0], samples[-1], times[-1] - times[-len(samples)], index)


def _live_window(
    meter: _Meter, samples: list[Sample], times: deque[int], step_ms: int, index: int, now: int
) -> Window:
    """From a sample to this moment."""
    ages = [now - times[at - len(samples)] for at in range(len(samples))]
    whole = step_ms * ((times.maxlen or 1) - 1)
    oldest = 1 if ages[0] > whole and len(ages) > 1 else 0
    return _between(samples[oldest], (meter.count, meter.size, meter.calls), ages[oldest], index)


def _between(first: Sample, last: Sample, span_ms: int, index: int) -> Window:
    total = last[index] - first[index]
    calls = last[2] - first[2]
    tps = total * 1000 / span_ms if span_ms > 0 else 0.0
    return Window(total, tps, total / calls if calls > 0 else 0.0)


def _rate(first: Totals, last: Totals, name: str) -> float:
    span_ms = last.at_ms - first.at_ms
    difference: int = getattr(last, name) - getattr(first, name)
    return difference * 1000 / span_ms if span_ms > 0 else 0.0


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(elapsed_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
