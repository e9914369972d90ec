"""The broker as its plug-ins see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq.broker.admin.metrics_export import metrics_of
from rmq.message import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from rmq.protocol.record import decode_record
from rmq.server.plugin_host import PluginHost

if TYPE_CHECKING:
    from rmq.broker.broker import Broker
    from rmq.message import Message
    from rmq.plugin import OnAppended

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC})
"""Messages wait here under the topic that their property names."""


class BrokerMessages:
    """The `rmq.server.plugin_host.Messages` of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def address(self) -> str:
        """The address that clients get."""
        return self._broker.registration.address

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Same as `rmq.plugin.Host.put`."""
        self._broker.plugin_appends.now(message, on_done)

    def topic_of(self, physical_offset: int) -> str | None:
        """Same as `rmq.plugin.Host.topic_of`: the real topic of a message that waits. Raises
        CorruptRecord."""
        record = self._broker.store.confirmed(physical_offset)
        if record is None:
            return None
        message = decode_record(record, check_crc=False, decompressed=False)
        if message.topic not in WAITING_TOPICS:
            return message.topic
        return message.properties.get(PROPERTY_REAL_TOPIC) or message.topic

    def shared_changed(self) -> None:
        """Send the state to followers."""
        if self._broker.followed.shared is not None:
            self._broker.followed.shared.changed()

    def stats(self) -> Mapping[str, str]:
        """The metrics of brokerStatus."""
        return self._broker.admin.runtime(self._broker.now_ms())


def plugin_host(broker: Broker) -> PluginHost:
    """The broker as its plug-ins see it."""
    return PluginHost(
        broker, BrokerMessages(broker), now_ms=broker.now_ms, metrics=partial(metrics_of, broker)
    )
