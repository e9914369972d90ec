"""What plugins see of the broker that they run in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.tables.versioned import Slices, drain
from rmq.message import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rmq.protocol.record import decode_record

if TYPE_CHECKING:
    from rmq.broker.broker import Broker
    from rmq.broker.config import BrokerConfig
    from rmq.message import Message
    from rmq.metrics import Metric
    from rmq.plugin import OnAppended, Peer
    from rmq.protocol.command import Command

T = TypeVar("T")


WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC})
"""Messages wait here under the topic that their property names."""


class PluginHost:
    """The `rmq.plugin.Host` of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def config(self) -> BrokerConfig:
        """The broker's configuration."""
        return self._broker.config

    @property
    def address(self) -> str:
        """What clients are told."""
        return self._broker.registration.address

    def now_ms(self) -> int:
        """Wall time in ms."""
        return self._broker.now_ms()

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """As `rmq.plugin.Host.put`."""
        self._broker.append_message(message, on_done)

    def topic_of(self, physical_offset: int) -> str | None:
        """The topic of a stored message, the real one of a message that waits; None when there is none.

        Raises CorruptRecord.
        """
        record = self._broker.store.confirmed(physical_offset)
        if record is None:
            return None
        message = decode_record(record, check_crc=False, decompressed=False)
        if message.topic not in WAITING_TOPICS:
            return message.topic
        return message.properties.get(PROPERTY_REAL_TOPIC) or message.topic

    def answer_saved(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command | None:
        """The answer when `write` has run, in a thread."""
        return self._broker.saved_answers.answer(request, peer, write, then)

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """Run `write` in a thread."""
        self._broker.saved_answers.save(write, then, fail)

    def shared_changed(self) -> None:
        """Tell followers."""
        if self._broker.followed.shared is not None:
            self._broker.followed.shared.changed()

    def stats(self) -> Mapping[str, str]:
        """The metrics of brokerStatus."""
        return self._broker.admin.runtime(self._broker.now_ms())

    def metrics(self) -> list[Metric]:
        """The broker's metrics."""
        return drain(metrics_of(self._broker))

    def metrics_in_slices(self, *, queues: bool = False) -> Slices[list[Metric]]:
        """As `metrics`, in slices; `queues`: with those of each queue."""
        return metrics_of(self._broker, queues=queues)
