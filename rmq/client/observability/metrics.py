"""ClientMetrics: counts of a client's sends and deliveries, and the lag of its consumers.

An observer: each send and each handler costs two calls more. `PrometheusMetrics` and `OpenTelemetry` show the
figures; `collect` returns them for any other use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from attrs import frozen

from rmq.client.session.observer import Observer
from rmq.errors import RmqError
from rmq.message import Message, StoredMessage, without_namespace
from rmq.metrics import Histogram, Metric, single

if TYPE_CHECKING:
    from rmq.client.session.results import SendResult
    from rmq.client.session.session import Session


V = TypeVar("V")


def error_type(error: BaseException | None) -> str:
    """The class of an error as OpenTelemetry's `error.type` has it; "" for none."""
    if error is None:
        return ""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Lags:
    """The backlog of a client's consumers, queried at intervals."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.by_topic: dict[tuple[str, str], int] = {}
        """(group, topic) -> messages in this client's queues, at the last query."""

    async def watch(self, session: Session) -> None:
        """Query until cancelled. Consumers whose brokers do not answer have no figure."""
        while True:
            await anyio.sleep(self.seconds)
            found = Counter[tuple[str, str]]()
            for group, member in [*session.members.items()]:
                try:
                    lags = await member.lag()
                except RmqError:
                    continue
                for queue, lag in lags.items():
                    found[short(session, group), short(session, queue.topic)] += lag
            self.by_topic = dict(found)


def short(session: Session | None, name: str) -> str:
    """A topic or group without the client's namespace."""
    return name if session is None else without_namespace(session.config.namespace, name)


ROWS_MOST: Final = 2_000
"""Rows of a figure. Topics come and go beside a process that runs for a year."""


class _Rows(defaultdict[tuple[str, ...], V]):
    """A figure's rows by their labels. With too many rows the oldest goes that counts nothing now; a counter
    that comes again begins at 0."""

    is_gauge = False

    def __missing__(self, labels: tuple[str, ...]) -> V:
        if len(self) >= ROWS_MOST:
            ended = (one for one, value in self.items() if not (self.is_gauge and value))
            self.pop(next(ended, labels), None)
        return super().__missing__(labels)


class _Gauge(_Rows[int]):
    is_gauge = True


@frozen
class _Began:
    labels: tuple[str, ...]
    at: float
    count: int = 1


class ClientMetrics(Observer):
    """Figures of a client: durations of sends and handlers, sends in flight, retries of sends, redeliveries,
    lags.

    A send's `outcome` is "ok", "oneway", or the class of its error, a handler's "ok" or the class. Lags are
    queried every `lag_seconds`.
    """

    def __init__(self, *, lag_seconds: float = 15.0) -> None:
        self._session: Session | None = None
        self._sends = _Rows(Histogram)
        self._handlers = _Rows(Histogram)
        self._consumed = _Rows(int)
        self._redelivered = _Rows(int)
        self._sending = 0
        self._handling = _Gauge(int)
        self._lags = Lags(lag_seconds)

    def attach(self, session: Session) -> None:
        self._session = session

    async def run(self) -> None:
        assert self._session is not None, "attach the observer first"
        await self._lags.watch(self._session)

    def _now(self) -> float:
        return 0.0 if self._session is None else self._session.now()

    def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> _Began:
        self._sending += 1
        return _Began((message.topic,), self._now())

    def sent(self, token: _Began, result: SendResult | None, error: BaseException | None) -> None:
        self._sending -= 1
        outcome = error_type(error) or ("oneway" if result is None else "ok")
        self._sends[(*token.labels, outcome)].observe(self._now() - token.at)

    def consuming(self, group: str, messages: Sequence[StoredMessage]) -> _Began:
        labels = short(self._session, group), messages[0].topic
        self._handling[labels] += len(messages)
        again = sum(message.reconsume_times > 0 for message in messages)
        if again:
            self._redelivered[labels] += again
        return _Began(labels, self._now(), len(messages))

    def consumed(self, token: _Began, error: BaseException | None) -> None:
        outcome = error_type(error) or "ok"
        self._handling[token.labels] -= token.count
        self._consumed[(*token.labels, outcome)] += token.count
        self._handlers[(*token.labels, outcome)].observe(self._now() - token.at)

    def collect(self) -> list[Metric]:
        """The present figures, with names in Prometheus' form without the prefix `rmq_`."""
        session = self._session
        return [
            Metric(
                "client_send_duration_seconds",
                "histogram",
                "Sends, with all their attempts; each message of a batch counts",
                [(labels, histogram.copy()) for labels, histogram in self._sends.items()],
                ("topic", "outcome"),
            ),
            single("client_sends_in_flight", "gauge", "Sends that have not ended", self._sending),
            Metric(
                "client_send_retries",
                "counter",
                "Attempts of sends after their first",
                [((short(session, topic),), count) for topic, count in session.send_retries.items()]
                if session is not None
                else [],
                ("topic",),
            ),
            Metric(
                "client_consume_duration_seconds",
                "histogram",
                "Handlers and deliveries' blocks; a batch counts once",
                [(labels, histogram.copy()) for labels, histogram in self._handlers.items()],
                ("group", "topic", "outcome"),
            ),
            Metric(
                "client_consumed_messages",
                "counter",
                "Messages that handlers and deliveries' blocks had",
                [*self._consumed.items()],
                ("group", "topic", "outcome"),
            ),
            Metric(
                "client_consuming_messages",
                "gauge",
                "Messages that handlers and deliveries' blocks have now",
                [*self._handling.items()],
                ("group", "topic"),
            ),
            Metric(
                "client_redelivered_messages",
                "counter",
                "Messages that were not consumed when they were delivered before",
                [*self._redelivered.items()],
                ("group", "topic"),
            ),
            Metric(
                "client_lag_messages",
                "gauge",
                "Backlog of this client's queues, in messages",
                [*self._lags.by_topic.items()],
                ("group", "topic"),
            ),
        ]
