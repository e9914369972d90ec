"""Records of per-message delivery: its journal, and the dead letters of its groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq.broker.produce.acks import OwnCall
from rmq.errors import CorruptRecord
from rmq.protocol.codes import PERM_READ, PERM_WRITE
from rmq.protocol.properties import encode_properties, send_back_properties
from rmq.protocol.record import PROPERTIES_MAX, decode_record, record_of

if TYPE_CHECKING:
    from rmq.broker.produce.acks import Acknowledgement
    from rmq.broker.produce.append import Append
    from rmq.broker.tables.topics import Topics
    from rmq.errors import ResponseError
    from rmq.store.store import Store

log = logging.getLogger("rmq.broker")


class DeliveryRecords:
    """Puts these records into the pending batch."""

    def __init__(
        self, store: Store, topics: Topics, append: Append, acknowledgement: Acknowledgement
    ) -> None:
        self._store = store
        self._topics = topics
        self._append = append
        self._acknowledgement = acknowledgement

    def put(self, topic: str, body: bytes, on_done: Callable[[ResponseError | None], None] | None) -> None:
        """Put a record of the journal into its topic; `on_done` is called when it is as safe as the settings
        ask. Raises StoreError.
        """
        if self._topics.get(topic) is None:
            self._topics.create_retry(topic, PERM_WRITE | PERM_READ, 1)
        self._store.put_body(topic, body)
        if on_done is not None:
            self._acknowledgement.calls.append(OwnCall(on_done, topic))

    def put_dead_letter(self, group: str, data: memoryview, attempts: int, reason: str) -> None:
        """Put a dead letter of a group, from the record of a message that was tried so often. Raises
        StoreError, ResponseError.
        """
        try:
            message = decode_record(data, decompressed=False)
        except CorruptRecord as error:
            log.error("a message of group %s cannot become a dead letter: %s", group, error)
            return
        properties = send_back_properties(message)
        record = record_of(message, message.topic, 0, properties)
        record.reconsume_times = attempts
        self._append.give_up(record, group, properties, reason)
        text = encode_properties(properties)
        if len(text.encode()) > PROPERTIES_MAX:  # no room to say where it came from
            text = encode_properties(message.properties)
        record.properties = text
        self._append.put_own(record)
