"""Message trace in the broker, as a plug-in: `plugins = trace`.

Clients write traces themselves, to the topic RMQ_SYS_TRACE_TOPIC. With this plug-in the topic exists, even if
topics are not created on first use; with `traceStoreEnable=true` the broker adds a row for each stored
message, with its time and place. These rows have the same topic, form and keys; the tools of RocketMQ skip
their type.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Final

import trio

from rmq.errors import ResponseError, StoreError
from rmq.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    Message,
    offset_message_id,
)
from rmq.plugin import Host, Plugin, StoredEvent
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import Record, host_text
from rmq.protocol.trace import TraceBean, TraceContext, TraceType, encode, index_keys

__all__ = ["TracePlugin"]

STORE_KEY: Final = "traceStoreEnable"
WAITING_MAX: Final = 20_000
"""Rows that may wait to be written; past that number the oldest are dropped."""
ROWS_OF_A_MESSAGE: Final = 100
PAUSE_SECONDS: Final = 0.5

log = logging.getLogger("rmq.trace")


class TracePlugin(Plugin):
    """Writes a row for each stored message, some 100 ms later, many in one trace message."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        self.enabled = config.get(STORE_KEY, "").strip().lower() == "true"
        self.topic: str = host.config.msg_trace_topic_name
        self.dropped = 0
        self._waiting: deque[TraceContext] = deque(maxlen=WAITING_MAX)

    def on_stored(self, event: StoredEvent) -> None:
        """Note the stored messages; those of the broker itself and of traces are not traced."""
        topic = event.topic
        if not self.enabled or topic == self.topic or topic in SYSTEM_TOPICS:
            return
        if topic.startswith(SYSTEM_TOPIC_PREFIX):
            return
        self.dropped += max(0, len(self._waiting) + len(event.records) - WAITING_MAX)
        self._waiting.extend(self._row(record, event.store_host) for record in event.records)

    def _row(self, record: Record, store_host: bytes) -> TraceContext:
        properties = decode_properties(record.properties)
        place = offset_message_id(store_host, record.physical_offset)
        bean = TraceBean(
            record.topic,
            properties.get(PROPERTY_UNIQUE_KEY) or place,
            place,
            properties.get(PROPERTY_TAGS, ""),
            properties.get(PROPERTY_KEYS, ""),
            host_text(store_host),
            body_length=len(record.body),
        )
        cost_ms = max(0, record.store_timestamp - record.born_timestamp)
        region = self.host.config.region_id
        return TraceContext(TraceType.STORE, (bean,), record.store_timestamp, region, "", cost_ms)

    async def run(self) -> None:
        """Write the gathered rows at intervals, for as long as the broker runs."""
        while self.enabled:
            await trio.sleep(PAUSE_SECONDS)
            while self._waiting:
                self.write()
                await trio.lowlevel.checkpoint()

    def write(self) -> None:
        """Store a trace message with the waiting rows. If it cannot be stored the rows are dropped: traces
        may be lost, messages may not."""
        waiting = self._waiting
        rows = [waiting.popleft() for _ in range(min(len(waiting), ROWS_OF_A_MESSAGE))]
        if not rows:
            return
        keys = tuple(dict.fromkeys(key for row in rows for key in index_keys(row)))
        body = "".join(map(encode, rows)).encode()
        try:
            self.host.put(Message(self.topic, body, keys=keys))
        except (StoreError, ResponseError) as error:
            self.dropped += len(rows)
            log.warning("%d trace rows are dropped (%d so far): %s", len(rows), self.dropped, error)
