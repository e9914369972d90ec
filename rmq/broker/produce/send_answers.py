"""Answers to sends, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

from rmq.protocol import engine, json
from rmq.protocol.codes import LANGUAGE, VERSION, LanguageCode, ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import encode
from rmq.store.writer import Batch

if TYPE_CHECKING:
    from rmq.protocol._engine import SendRun
    from rmq.protocol.record import Record


class RecordsWithHeader(list["Record"]):
    """Records of a send whose response has more header fields (`header`), such as the handle of a recall."""

    def __init__(self, records: Iterable[Record], header: Mapping[str, str]) -> None:
        super().__init__(records)
        self.header = header


Records = list["Record"] | tuple["Record", ...] | Batch
Ack = tuple["Command", int, Records]
"""A send to acknowledge, the queue id that its producer is told, and its records."""


_PREFIX: Final = Struct(">ii")
_TEMPLATE: Final = (
    '{"code":0,"extFields":{"queueId":"%%d","TRACE_ON":"%s","MSG_REGION":"%s","msgId":"%s",'
    f'"queueOffset":"%%d"}},"flag":1,"language":"{LANGUAGE}","opaque":%%d,'
    f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
)
_BINARY: Final = Struct(">iIhBhiiii")
_LENGTH: Final = Struct(">i")
_BINARY_BIT: Final = ROCKETMQ << 24
_LANGUAGE: Final = int(LanguageCode[LANGUAGE])


def _name(name: str) -> bytes:
    return len(name).to_bytes(2, "big") + name.encode()


def _field(name: str, value: str) -> bytes:
    """A header field in the binary form."""
    data = value.encode()
    return _name(name) + _LENGTH.pack(len(data)) + data


def _literal(text: str) -> str:
    """`text` as it stands between the quotes of a JSON text in a template for `%`."""
    return json.dumps(text).decode()[1:-1].replace("%", "%%")


_QUEUE_ID: Final = _name("queueId")
_QUEUE_OFFSET: Final = _name("queueOffset")


class Answers:
    """Responses to sends as bytes. `host` is the address in offset message ids, of 8 or 20 bytes.

    Each message needs a response, so templates hold the broker's constant parts. Responses to batches are
    rare: those in the binary form, like all with extra header fields, go through the general encoder.
    """

    def __init__(self, host: bytes, *, region: str, trace_on: bool) -> None:
        prefix = host.hex().upper()
        self._id = f"{prefix}%016X"
        self._id_prefix = prefix.encode()
        self._region = region
        self._trace_on = "true" if trace_on else "false"
        constants = self._trace_on, _literal(region)
        self._template = (_TEMPLATE % (*constants, f"{prefix}%016X")).encode()
        self._batch_template = (_TEMPLATE % (*constants, "%b")).encode()
        fields = _field("TRACE_ON", self._trace_on) + _field("MSG_REGION", region)
        self._binary_fields = fields + _field("msgId", prefix + 16 * "0")[:-16]
        # The texts between the four numbers; "%%" is a "%" in the region's name.
        marked = self._template.replace(b"%%", b"\0").replace(b"%016X", b"%d")
        self._parts = tuple([part.replace(b"\0", b"%") for part in marked.split(b"%d")])
        self._binary_size = len(self._binary_fields + 16 * b"0" + _QUEUE_ID + _QUEUE_OFFSET) + 8

    def stored(self, acks: list[Ack] | SendRun) -> bytes:
        """The response frames of stored sends."""
        if not isinstance(acks, list):
            return self.of_run(acks)
        template, pack = self._template, _PREFIX.pack
        frames = []
        for request, queue_id, records in acks:
            if records.__class__ is not tuple:
                frames.append(self._encoded(request, queue_id, records))
                continue
            record: Record = records[0]  # type: ignore[assignment]  # a cast is felt for each message
            if request.serialization == JSON:
                header = template % (queue_id, record.physical_offset, record.queue_offset, request.opaque)
                size = len(header)
                frames.append(pack(size + 4, size))
                frames.append(header)
            else:
                frames += self._binary(request.opaque, queue_id, record)
        return b"".join(frames)

    def of_run(self, run: SendRun) -> bytes:
        """The response frames of a stored run of sends."""
        return run.replies(self._parts, self._binary_fields, _LANGUAGE, VERSION)

    def _binary(self, opaque: int, queue_id: int, record: Record) -> tuple[bytes, ...]:
        """The pieces of the frame in the binary form."""
        queue, place = b"%d" % queue_id, b"%d" % record.queue_offset
        size = self._binary_size + len(queue) + len(place)
        return (
            _BINARY.pack(size + 25, _BINARY_BIT | size + 21, 0, _LANGUAGE, VERSION, opaque, 1, 0, size),
            self._binary_fields,
            b"%016X" % record.physical_offset,
            _QUEUE_ID,
            _LENGTH.pack(len(queue)),
            queue,
            _QUEUE_OFFSET,
            _LENGTH.pack(len(place)),
            place,
        )

    def _encoded(self, request: Command, queue_id: int, records: Records) -> bytes:
        if isinstance(records, RecordsWithHeader) or request.serialization != JSON:
            return encode(request.reply(0, None, self._header(queue_id, records)))
        ids = self._ids_of_batch(records)
        header = self._batch_template % (queue_id, ids, _first_offset(records), request.opaque)
        return _PREFIX.pack(len(header) + 4, len(header)) + header

    def unsure(self, ack: Ack, code: ResponseCode) -> Command:
        """The response for stored messages of insufficient safety: `code` has the reason."""
        request, queue_id, records = ack
        return request.reply(code, None, self._header(queue_id, records))

    def _header(self, queue_id: int, records: Records) -> dict[str, str]:
        return {
            "msgId": self._ids(records),
            "queueId": str(queue_id),
            "queueOffset": str(_first_offset(records)),
            "MSG_REGION": self._region,
            "TRACE_ON": self._trace_on,
            **(records.header if isinstance(records, RecordsWithHeader) else {}),
        }

    def _ids_of_batch(self, records: Records) -> bytes:
        if engine.compiled is not None and isinstance(records, Batch):
            ids: bytes = engine.compiled.batch_ids(self._id_prefix, records.physical_offsets)
            return ids
        return self._ids(records).encode()

    def _ids(self, records: Records) -> str:
        """The offset message ids, as RocketMQ gives them for a batch: separated by commas."""
        offsets = (
            records.physical_offsets
            if isinstance(records, Batch)
            else [record.physical_offset for record in records]
        )
        return ",".join([self._id] * len(offsets)) % tuple(offsets)


def _first_offset(records: Records) -> int:
    """The queue offset of the first of these records."""
    return records.queue_offset if isinstance(records, Batch) else records[0].queue_offset
