"""Requests of RocketMQ 5.x for messages one by one (POP), as its Java client of 5.3.3 sends them.

The answer to a pop has no handle for each message: it has the time of the take, the first offset of each
queue, and the offsets of the messages; from these the client makes the handles (`ExtraInfoUtil` of RocketMQ).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rmq.errors import RemoteProtocolError
from rmq.message import RETRY_PREFIX, MessageQueue
from rmq.protocol.fields import Body, Int32, Int64

if TYPE_CHECKING:
    from attrs import define, field, frozen
else:
    from attrs import field

    from rmq.lazy_attrs import define, frozen

NACK_KIND: Final = "rmqGivesBack"
"""Header field of rmq in CHANGE_MESSAGE_INVISIBLETIME: the message is nacked. `BY_POLICY`: it is redelivered
by the retry policy of its group, else after the time of the request. `UNSEEN`: the same, but no application
has seen the message, and the attempt is not counted. RocketMQ's brokers ignore the field, and redeliver the
message after that time."""
BY_POLICY: Final = "policy"
UNSEEN: Final = "unseen"
HANDLE: Final = "POP_CK"
"""The property with which RocketMQ's brokers mark a redelivered message."""
POP_MAX_OF_ROCKETMQ: Final = 32
"""The most messages that RocketMQ's brokers pop at a time; a higher number is refused with the words
`REFUSAL_OF_MORE` in the remark."""
REFUSAL_OF_MORE: Final = "greater than 32"
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
"""The longest lease; a redelivery may be later."""
TAKEN: Final = "rmqTaken"
WAITING: Final = "rmqWaiting"
OLDEST_MS: Final = "rmqOldestMs"
"""Header fields of rmq in the response to POLLING_INFO, of a group in a topic or, without one, in all topics:
the messages that are leased, the messages that wait for a retry, and the age of the oldest lease."""
INIT_FROM_FIRST: Final = 0
"""`init_mode` of a new group that begins at the first message; 1 begins at the end."""
_LAST_DIGITS: Final = tuple(f"{number:03}" for number in range(1000))


@define
class PopMessageRequestHeader:
    """Header of POP_MESSAGE (200050). Times are in ms; `queue_id` -1 stands for any queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@define
class PopMessageResponseHeader:
    """Header of the response: the time of the take, the length of the leases, and the messages."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@define
class AckMessageRequestHeader:
    """Header of ACK_MESSAGE (200051); `extra_info` is the handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


@define
class ChangeInvisibleTimeRequestHeader:
    """Header of CHANGE_MESSAGE_INVISIBLETIME (200053). The time is in ms from now on."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


@define
class ChangeInvisibleTimeResponseHeader:
    """Header of the answer: the parts of the new handle."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


@define
class NotificationRequestHeader:
    """Header of NOTIFICATION (200054): the question whether a message can be popped."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None


@define
class NotificationResponseHeader:
    """Header of the answer."""

    has_msg: bool
    polling_full: bool = False


@define
class PollingInfoRequestHeader:
    """Header of POLLING_INFO (200055): the question how many polls wait."""

    consumer_group: str
    topic: str
    queue_id: Int32


@define
class PollingInfoResponseHeader:
    """Header of the answer."""

    polling_num: Int32


@define
class GetTopicConfigRequestHeader:
    """Header of GET_TOPIC_CONFIG (351)."""

    topic: str
    lo: bool | None = None


@define
class GetSubscriptionGroupConfigRequestHeader:
    """Header of GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


@frozen
class BatchAck(Body):
    """Acknowledgements of one batch, under RocketMQ's short names: offsets `so + i` for each bit `i` of `b`,
    which is Base64 of bytes, the lowest bit first.
    """

    c: str = ""
    t: str = ""
    r: str = "0"
    so: Int64 = 0
    q: Int32 = 0
    rq: Int32 = 0
    pt: Int64 = 0
    it: Int64 = 0
    b: str = ""

    def offsets(self) -> list[int]:
        """The queue offsets. Raises RemoteProtocolError."""
        return offsets_of(self.so, mask_of(self.b))


def bits_of(start: int, offsets: Sequence[int]) -> str:
    """The text of `BatchAck.b` for offsets from `start` on."""
    mask = 0
    for offset in offsets:
        mask |= 1 << offset - start
    return base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode()


class AckRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a `BatchAck` that name messages, as read from the usual form of a body."""

    c: str
    t: str
    so: int
    q: int
    pt: int
    it: int
    b: str

    def offsets(self) -> list[int]:
        """Same as `BatchAck.offsets`."""
        return offsets_of(self.so, mask_of(self.b))


class _AckRows(msgspec.Struct, gc=False, rename={"broker_name": "brokerName"}):
    broker_name: str
    acks: list[AckRow]


_read_acks: Final = msgspec.json.Decoder(_AckRows).decode


def read_acks(data: bytes) -> Sequence[AckRow | BatchAck]:
    """The acknowledgements of a body of BATCH_ACK_MESSAGE, with a fast path for the form that RocketMQ's
    client writes. Raises RemoteProtocolError."""
    try:
        return _read_acks(data).acks
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return BatchAckMessageRequestBody.from_request(data).acks


def offsets_of(start: int, mask: int) -> list[int]:
    """The offsets `start + i` of the bits `i` of a mask, in time that grows with its length alone."""
    digits, found = bin(mask)[:1:-1], []
    at = digits.find("1")
    while at >= 0:
        found.append(start + at)
        at = digits.find("1", at + 1)
    return found


def mask_of(bits: str) -> int:
    """The bits of an acknowledgement, from its first offset on. Raises RemoteProtocolError."""
    try:
        return int.from_bytes(binascii.a2b_base64(bits), "little")
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError(f"the bits of a batch acknowledgement cannot be read: {error}") from None


@frozen
class BatchAckMessageRequestBody(Body):
    """Body of BATCH_ACK_MESSAGE (200151)."""

    broker_name: str = ""
    acks: list[BatchAck] = field(factory=list)


@frozen
class QueryAssignmentRequestBody(Body):
    """Body of QUERY_ASSIGNMENT (400): the question for the queues of a group's client."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = ""
    message_model: str | None = None


@frozen
class MessageQueueAssignment(Body):
    """A queue of a client; `mode` is PULL or POP."""

    message_queue: dict[str, Any] = field(factory=dict)
    mode: str = "PULL"


@frozen
class SetMessageRequestModeRequestBody(Body):
    """Body of SET_MESSAGE_REQUEST_MODE (401): the choice whether a group pulls or pops a topic."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


RETRY_MARKS: Final = {"1": "_", "2": "+"}
"""Kinds of a handle that stand for a retry topic of RocketMQ's brokers, and the mark in its name."""


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic in which a taken message lies, by the kind in its handle: RocketMQ's brokers keep redelivered
    messages in a topic of the group, and expect its name in requests."""
    mark = RETRY_MARKS.get(kind)
    return topic if mark is None else f"{RETRY_PREFIX}{group}{mark}{topic}"


# ---- texts of the response to a pop ----


def start_offsets(starts: dict[int, int]) -> str:
    """The text of the first offsets: queue id -> offset."""
    return ";".join(f"0 {queue_id} {offset}" for queue_id, offset in starts.items())


def run_text(start: int, end: int) -> str:
    """The offsets from `start` up to `end`, separated by commas. The numbers of a thousand share their first
    digits, so a text is one join of texts that are kept for each thousand."""
    texts = []
    while start < end:
        high, low = divmod(start, 1000)
        stop = min(end, start - low + 1000)
        if high:
            between = f",{high}"
            texts.append(between[1:] + between.join(_LAST_DIGITS[low : low + stop - start]))
        else:
            texts.append(",".join(map(str, range(start, stop))))
        start = stop
    return texts[0] if len(texts) == 1 else ",".join(texts)


def message_offsets(offsets: dict[int, list[int]]) -> str:
    """The text of all offsets: queue id -> offsets, in order."""
    return ";".join(f"0 {queue_id} {','.join(map(str, some))}" for queue_id, some in offsets.items())


def parse_start_offsets(text: str | None) -> dict[int, int]:
    """Read such a text. Raises RemoteProtocolError."""
    try:
        words = [one.split(" ") for one in (text or "").split(";") if one]
        return {int(queue_id): int(offset) for kind, queue_id, offset in words if kind == "0"}
    except ValueError:
        raise RemoteProtocolError(f"the offsets {text!r:.100} of a pop cannot be read") from None


def assignment_json(queues: Sequence[MessageQueue], mode: str) -> list[dict[str, Any]]:
    """The queues of a client in the form of the response's body."""
    return [
        {
            "messageQueue": {"brokerName": one.broker_name, "queueId": one.queue_id, "topic": one.topic},
            "mode": mode,
        }
        for one in queues
    ]
