"""Acknowledgements of sends: what a producer is told, as bytes.

The answer to a send is made once for each message, so its JSON form is a template with the broker's constants
filled in already; the other forms go through the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

from rmq.protocol import engine
from rmq.protocol.codes import LANGUAGE, VERSION, ResponseCode
from rmq.protocol.command import JSON, Command, encode

if TYPE_CHECKING:
    from rmq.protocol.record import Record


class Marked(list["Record"]):
    """Records whose acknowledgement says more: `header` are fields of it that others do not have."""

    def __init__(self, records: Iterable[Record], header: Mapping[str, str]) -> None:
        super().__init__(records)
        self.header = header


Records = list["Record"] | tuple["Record", ...]
Ack = tuple["Command", int, Records]
"""A request to acknowledge, the queue id that it is told, and its records."""

_PREFIX: Final = Struct(">ii")
_TEMPLATE: Final = (
    '{"code":0,"extFields":{"queueId":"%%d","TRACE_ON":"%s","MSG_REGION":"%s","msgId":"%s%%016X",'
    f'"queueOffset":"%%d"}},"flag":1,"language":"{LANGUAGE}","opaque":%%d,'
    f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
)


class Acks:
    """Makes acknowledgements. `host` is the address in offset message ids, of 8 or 20 bytes."""

    def __init__(self, host: bytes, *, region: str, trace_on: bool) -> None:
        self._id_prefix = host.hex().upper()
        self._region = region
        self._trace_on = "true" if trace_on else "false"
        self._template = (_TEMPLATE % (self._trace_on, region, self._id_prefix)).encode()

    def stored(self, acks: Iterable[Ack]) -> bytes:
        """The frames that say that these are stored."""
        template, pack = self._template, _PREFIX.pack
        frames = []
        for request, queue_id, records in acks:
            if request.serialization == JSON and records.__class__ is tuple:
                record = records[0]
                header = template % (queue_id, record.physical_offset, record.queue_offset, request.opaque)
                size = len(header)
                frames.append(pack(size + 4, size))
                frames.append(header)
            else:
                frames.append(self._encoded(request, queue_id, records))
        return b"".join(frames)

    def _encoded(self, request: Command, queue_id: int, records: Records) -> bytes:
        if isinstance(records, Marked):
            return encode(request.reply(0, None, self._header(queue_id, records)))
        offset = records[0].queue_offset
        return engine.encode_send_reply(
            request, self._ids(records), queue_id, offset, self._region, self._trace_on
        )

    def not_flushed(self, ack: Ack) -> Command:
        """The answer for messages that are stored but not known to be on disk in time."""
        request, queue_id, records = ack
        return request.reply(ResponseCode.FLUSH_DISK_TIMEOUT, None, self._header(queue_id, records))

    def _header(self, queue_id: int, records: Records) -> dict[str, str]:
        return {
            "msgId": self._ids(records),
            "queueId": str(queue_id),
            "queueOffset": str(records[0].queue_offset),
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace_on,
            **(records.header if isinstance(records, Marked) else {}),
        }

    def _ids(self, records: Iterable[Record]) -> str:
        """The offset message ids, as RocketMQ gives them for a batch: separated by commas."""
        return ",".join([f"{self._id_prefix}{record.physical_offset:016X}" for record in records])
