"""Messages in the form that consumers get, made for tests of handlers, which are functions."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from rmq.clock import wall_clock_ms
from rmq.message import PROPERTY_UNIQUE_KEY, PROPERTY_WAIT_STORE, Message, StoredMessage, with_properties

_numbers: Final = itertools.count(1)


def message(
    body: bytes = b"",
    *,
    topic: str = "Test",
    tags: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    reconsume_times: int = 0,
    queue_id: int = 0,
    queue_offset: int = 0,
    timestamp_ms: int | None = None,
    broker_name: str = "broker-a",
) -> StoredMessage:
    """A message for a handler, as if it was sent with these arguments: `reconsume_times` is 0 at the first
    try, `timestamp_ms` the time of its send and storage (ms since 1970; default: now). Each has an id of its
    own. Raises the errors of `rmq.Message`."""
    sent = Message(topic, body, tags=tags, keys=tuple(keys), properties=dict(properties or {}))
    given = with_properties(sent, {PROPERTY_UNIQUE_KEY: f"{next(_numbers):032X}"})
    del given[PROPERTY_WAIT_STORE]  # brokers do not keep it
    stamp = wall_clock_ms() if timestamp_ms is None else timestamp_ms
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=0,
        size=len(body),
        body=body,
        properties=given,
        body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        born_timestamp=stamp,
        born_host="127.0.0.1:40001",
        store_timestamp=stamp,
        store_host="127.0.0.1:10911",
        reconsume_times=reconsume_times,
        broker_name=broker_name,
    )
