"""Outgoing messages of a producer: checked, given an id, compressed and made into requests. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from json.encoder import encode_basestring as quoted
from typing import Final, TypedDict

from attrs import define, evolve, field, frozen

from rmq.client.config import ClientConfig
from rmq.client.session.results import SendResult
from rmq.errors import (
    ConfigError,
    InvalidMessage,
    InvalidMessageType,
    InvalidType,
    RemoteProtocolError,
    check_number,
    check_type,
)
from rmq.message import (
    AUTO_CREATE_TOPIC,
    NOT_SENDABLE_TOPICS,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
    PROPERTY_UNIQUE_KEY,
    REPLY_TOPIC_POSTFIX,
    RESERVED_PROPERTIES,
    RETRY_PREFIX,
    Message,
    MessageQueue,
    StoredMessage,
    validate_topic,
    with_namespace,
    with_properties,
)
from rmq.protocol import engine
from rmq.protocol.codes import FLAG_ONEWAY, LANGUAGE, VERSION, RequestCode
from rmq.protocol.command import Command, next_opaque
from rmq.protocol.frames import Framed, json_frame
from rmq.protocol.headers import RECALL_HANDLE
from rmq.protocol.properties import PROPERTY_DELAY_MS, PROPERTY_DELIVER_MS, encode_properties
from rmq.protocol.record import NUL_IN_PROPERTIES, PROPERTIES_MAX, compress, compressed_flag, encode_batch

STATUSES = {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 12: "FLUSH_SLAVE_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE"}
"""Response codes of a stored send -> its status."""

BATCH_MESSAGES: Final = 1000
"""Messages of one request, at most: the header of its answer has the place of each, and a header over 64 KiB
is not read."""
COMPRESSED = compressed_flag()
SEND = int(RequestCode.SEND_MESSAGE_V2)
BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


@define
class Outgoing:
    """A message, or a batch, ready to go to any queue of its topic."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    unique_id: str
    is_batch: bool = False
    code: int = SEND
    more: Mapping[str, str] | None = None
    """Further fields of the header, by their short names."""


class DeliveryTime(TypedDict, total=False):
    """The fields of a `Message` for its delivery time."""

    delay_ms: int | None
    deliver_at_ms: int | None


def delivery_time(
    delay_ms: int | None, delay: float | timedelta | None, deliver_at: datetime | None
) -> DeliveryTime:
    """The delivery time in ms. Raises InvalidType, and ConfigError when there are several times, or for a
    datetime without a time zone."""
    if (delay_ms is not None) + (delay is not None) + (deliver_at is not None) > 1:
        given = {"delay_ms": delay_ms, "delay": delay, "deliver_at": deliver_at}
        raise ConfigError("delay", given, "only one of delay_ms, delay and deliver_at")
    if delay is not None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        check_number("delay", seconds, 0, whole=False)
        return {"delay_ms": round(seconds * 1000)}
    if deliver_at is not None:
        check_type("deliver_at", deliver_at, datetime, "a datetime with a time zone")
        if deliver_at.tzinfo is None:
            expected = "a datetime with a time zone, such as datetime.now(UTC)"
            raise ConfigError("deliver_at", deliver_at, expected)
        return {"deliver_at_ms": round(deliver_at.timestamp() * 1000)}
    return {"delay_ms": delay_ms} if delay_ms is not None else {}


def pack(
    message: Message,
    unique_id: str,
    config: ClientConfig,
    *,
    extra: Mapping[str, str] | None = None,
    sys_flag: int = 0,
    code: int = SEND,
) -> Outgoing:
    """Check a message and encode it; `extra` are properties of RocketMQ's own. Raises InvalidName,
    InvalidMessage."""
    try:
        topic = message.topic
    except AttributeError:
        raise InvalidType("message", message, "an rmq.Message") from None
    check_topic(topic)
    if config.namespace:
        topic = with_namespace(config.namespace, topic)
        extra = {**(extra or {}), PROPERTY_INSTANCE_ID: config.namespace}
    body = message.body
    _check_body(body, config.max_message_size)
    if config.compress_over and len(body) >= config.compress_over:
        body, sys_flag = compress(body, level=config.compress_level), sys_flag | COMPRESSED
    properties = properties_text(message, unique_id, extra, config.max_delay_level)
    return Outgoing(topic, bytes(body), sys_flag, message.flag, properties, unique_id, code=int(code))


def pack_batch(
    messages: Sequence[Message],
    unique_ids: Sequence[str],
    config: ClientConfig,
    extras: Sequence[Mapping[str, str]] | None = None,
) -> list[Outgoing]:
    """Check a batch and encode it: a single topic, no delays, the same `wait_store`; a request for each
    `max_message_size` bytes or `BATCH_MESSAGES`. `extras` are further properties of each message. Raises
    InvalidName, InvalidMessage."""
    if not messages:
        raise InvalidMessage(remark="the batch is empty")
    for message in messages:
        check_type("messages", message, Message, "a list of rmq.Message")
    first = messages[0]
    check_topic(first.topic)
    most = config.max_message_size
    own = {PROPERTY_INSTANCE_ID: config.namespace} if config.namespace else {}
    parts: list[tuple[list[bytes], list[str]]] = []
    room = -1
    for message, unique_id, extra in zip(
        messages, unique_ids, extras or repeat(own), strict=extras is not None
    ):
        _check_fits(message, first)
        _check_body(message.body, most)
        text = properties_text(message, unique_id, {**own, **extra} if extras else own)
        piece = encode_batch([(message.flag, message.body, text)])
        if len(piece) > most:
            raise InvalidMessage(
                remark=f"message {unique_id} of the batch has {len(piece)} bytes with its properties, at most"
                f" {most} are allowed (max_message_size)"
            )
        if len(piece) > room or len(parts[-1][1]) >= BATCH_MESSAGES:
            parts.append(([], []))
            room = most
        room -= len(piece)
        parts[-1][0].append(piece)
        parts[-1][1].append(unique_id)
    wait = encode_properties({"WAIT": "true" if first.wait_store else "false"})
    topic = with_namespace(config.namespace, first.topic)
    return [
        Outgoing(topic, b"".join(pieces), 0, first.flag, wait, ",".join(ids), is_batch=True, code=BATCH)
        for pieces, ids in parts
    ]


def check_topic(topic: str) -> None:
    """Raises InvalidName, or InvalidMessage for topics that are reserved to brokers."""
    validate_topic(topic)
    if topic in NOT_SENDABLE_TOPICS:
        raise InvalidMessage(remark=f"{topic} is a system topic: applications cannot send to it")


def _check_body(body: bytes, most: int) -> None:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessageType(remark=f"the body is a {type(body).__name__}, not bytes")
    if not body:
        raise InvalidMessage(remark="the body is empty; RocketMQ needs at least one byte")
    if len(body) > most:
        raise InvalidMessage(
            remark=f"the body has {len(body)} bytes, at most {most} are allowed (max_message_size)"
        )


def _check_fits(message: Message, first: Message) -> None:
    if message.topic != first.topic:
        raise InvalidMessage(
            remark=f"the messages of a batch have one topic, not {first.topic} and {message.topic}"
        )
    if message.is_delayed:
        raise InvalidMessage(remark="a message of a batch cannot be delayed")
    if message.wait_store != first.wait_store:
        raise InvalidMessage(remark="the messages of a batch have the same wait_store")
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(remark="messages to retry topics are not sent in batches")


def properties_text(
    message: Message, unique_id: str, extra: Mapping[str, str] | None = None, max_delay_level: int = 18
) -> str:
    """The property text of a message. Raises InvalidMessage for names and values that it cannot hold."""
    own = message.properties
    if not (own or extra or message.keys or message.tags or message.is_delayed):
        wait = "true" if message.wait_store else "false"
        return f"{PROPERTY_UNIQUE_KEY}\x01{unique_id}\x02WAIT\x01{wait}"
    message.check_types()  # again: the fields may have been set since
    if not RESERVED_PROPERTIES.isdisjoint(own):
        names = ", ".join(sorted(RESERVED_PROPERTIES.intersection(own)))
        raise InvalidMessage(remark=f"the property names {names} are RocketMQ's own")
    merged = with_properties(message, {PROPERTY_UNIQUE_KEY: unique_id})
    if message.is_delayed:
        merged |= _delivery_time(message, max_delay_level)
    if extra is not None:
        merged |= extra
    return checked_properties(merged)


def _delivery_time(message: Message, max_delay_level: int) -> dict[str, str]:
    times = (message.delay_level or None, message.deliver_at_ms, message.delay_ms)
    if sum(time is not None for time in times) > 1:
        raise InvalidMessage(remark="only one of delay_level, deliver_at_ms and delay_ms is possible")
    for name in ("delay_level", "deliver_at_ms", "delay_ms"):
        time = getattr(message, name)
        if time is not None and time < 0:
            raise InvalidMessage(remark=f"{name} = {time}: expected at least 0")
    if message.delay_level > max_delay_level:
        raise InvalidMessage(
            remark=f"delay_level = {message.delay_level}: expected at most {max_delay_level}, the number of"
            " levels that brokers have (max_delay_level)"
        )
    if message.deliver_at_ms is not None:
        return {PROPERTY_DELIVER_MS: str(message.deliver_at_ms)}
    return {PROPERTY_DELAY_MS: str(message.delay_ms)} if message.delay_ms is not None else {}


def checked_properties(properties: dict[str, str]) -> str:
    """The text of a property map. Raises InvalidMessage when it cannot be read back."""
    try:
        text = encode_properties(properties)
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(remark=f"a property is not Unicode text: {error}") from None
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties) - 1:
        raise InvalidMessage(remark="property names and values cannot have the characters 0x01 and 0x02")
    if "\0" in text:
        raise InvalidMessage(remark=NUL_IN_PROPERTIES)
    if size > PROPERTIES_MAX:
        raise InvalidMessage(remark=f"the properties have {size} bytes, at most {PROPERTIES_MAX} are allowed")
    return text


QUEUES_MAX: Final = 4096
"""Number of queues whose texts a template keeps."""
_frame_send = None if engine.compiled is None else engine.compiled.frame_send
_Ends = tuple[str, str, tuple[bytes, bytes, bytes, bytes]]
_HEADER_END: Final = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


@frozen
class SendTemplate:
    """The common part of a producer's requests."""

    group: str
    default_topic_queue_nums: str
    default_topic: str = AUTO_CREATE_TOPIC
    _ends: dict[MessageQueue, _Ends] = field(factory=dict, eq=False, repr=False)

    def framed(self, outgoing: Outgoing, queue: MessageQueue, now_ms: int) -> Framed | Command:
        """The request of `request`, with its frame where that can be made at once: a third of the work."""
        if outgoing.more is not None or outgoing.topic != queue.topic:
            return self.request(outgoing, queue, now_ms)
        ends = self._ends.get(queue)
        if ends is None:
            if len(self._ends) >= QUEUES_MAX:
                self._ends.clear()
            ends = self._ends[queue] = self._ends_for(queue)
        opaque = next_opaque()
        if _frame_send is not None:
            numbers = outgoing.code, outgoing.sys_flag, now_ms, outgoing.flag
            frame = _frame_send(
                ends[2], numbers, outgoing.properties, outgoing.is_batch, opaque, outgoing.body
            )
            if frame is not None:
                return Framed(outgoing.code, opaque, frame)
        header = (
            f'{{"code":{outgoing.code}{ends[0]}{outgoing.sys_flag}","g":"{now_ms}","h":"{outgoing.flag}",'
            f'"i":{quoted(outgoing.properties)},"j":"0","k":"false","m":'
            f'"{"true" if outgoing.is_batch else "false"}"{ends[1]}{opaque}{_HEADER_END}'
        )
        return Framed(outgoing.code, opaque, json_frame(header, outgoing.body))

    def _ends_for(self, queue: MessageQueue) -> _Ends:
        """The constant parts of a header for the queue, before and behind the variable part, and all of them
        as bytes."""
        group, topic, broker = quoted(self.group), quoted(queue.topic), quoted(queue.broker_name)
        default, count = quoted(self.default_topic), quoted(self.default_topic_queue_nums)
        before = (
            f',"extFields":{{"a":{group},"b":{topic},"c":{default},"d":{count},"e":"{queue.queue_id}","f":"'
        )
        behind = f',"n":{broker}}},"flag":0,"language":"{LANGUAGE}","opaque":'
        parts = b'{"code":', before.encode(), behind.encode(), _HEADER_END.encode()
        return before, behind, parts

    def request(
        self, outgoing: Outgoing, queue: MessageQueue, now_ms: int, *, oneway: bool = False
    ) -> Command:
        """The request that sends `outgoing` to `queue`: the header in its short form, as Java's clients
        send it.
        """
        ext = {
            "a": self.group,
            "b": outgoing.topic,
            "c": self.default_topic,
            "d": self.default_topic_queue_nums,
            "e": str(queue.queue_id),
            "f": str(outgoing.sys_flag),
            "g": str(now_ms),
            "h": str(outgoing.flag),
            "i": outgoing.properties,
            "j": "0",
            "k": "false",
            "m": "true" if outgoing.is_batch else "false",
            "n": queue.broker_name,
        }
        if outgoing.more is not None:
            ext.update(outgoing.more)
        return Command(outgoing.code, next_opaque(), FLAG_ONEWAY if oneway else 0, ext, outgoing.body)


def read_result(response: Command, queue: MessageQueue, unique_id: str) -> SendResult:
    """The result of a stored send. Raises RemoteProtocolError when parts of the answer are missing."""
    ext = response.ext
    try:
        queue_id = int(ext["queueId"])
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            STATUSES[response.code],
            queue,
            int(ext["queueOffset"]),
            unique_id,
            ext["msgId"],
            ext.get("transactionId"),
            ext.get("MSG_REGION") or "DefaultRegion",
            ext.get(RECALL_HANDLE),
        )
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"the answer to a send to {queue.broker_name} lacks {error}") from None


def joined(results: Sequence[SendResult]) -> SendResult:
    """The result of a batch that took several requests."""
    return evolve(
        results[0],
        status=next((result.status for result in results if result.status != "SEND_OK"), "SEND_OK"),
        message_id=",".join(result.message_id for result in results),
        offset_message_id=",".join(result.offset_message_id for result in results),
        parts=tuple(results),
    )


def each(result: SendResult) -> Iterator[SendResult]:
    """The results of a batch's single messages, in order."""
    for part in result.parts or (result,):
        places = part.offset_message_id.split(",")
        last = len(places) - 1
        for at, unique_id in enumerate(part.message_ids):
            yield SendResult(
                part.status,
                part.message_queue,
                part.queue_offset + at,
                unique_id,
                places[min(at, last)],
                part.transaction_id,
                part.region,
                part.recall_handle,
            )


# Request and reply: a producer sends a request message, a consumer of it replies, and the reply comes back
# to the producer. The request has an id (CORRELATION_ID), the producer's client id (REPLY_TO_CLIENT) and its
# time to live (TTL). The reply is sent to the broker that the request came through; the broker pushes it
# over the connection of the producer's heartbeat.

REPLY: Final = "reply"
"""The type of a reply message."""


def request_properties(client_id: str, timeout: float) -> dict[str, str]:
    """The properties that make a message a request."""
    return {
        PROPERTY_CORRELATION_ID: str(uuid.uuid4()),
        PROPERTY_REPLY_TO_CLIENT: client_id,
        PROPERTY_TTL: str(max(int(timeout * 1000), 1)),
    }


def asker_waits_until(message: StoredMessage) -> int | None:
    """The time, in ms since 1970, until which the requester waits for the reply; None for any message but a
    request.

    The time to live counts from the birth or the storage of the request, whichever is later, since either
    host may have a slow clock. RocketMQ's client for Go writes the time to live in seconds, all other clients
    in ms: a number below 1,000 counts as seconds. So a request of another client that lives for less than a
    second may be delivered too late; otherwise no request of Go's client would be delivered.
    """
    given = message.properties
    ttl = given.get(PROPERTY_TTL, "")
    since = max(message.born_timestamp, message.store_timestamp)
    if PROPERTY_REPLY_TO_CLIENT not in given or not ttl.isdecimal() or not since:
        return None
    return since + int(ttl) * (1000 if int(ttl) < 1000 else 1)


def reply_to(
    asked: StoredMessage, body: bytes, unique_id: str, config: ClientConfig
) -> tuple[Outgoing, MessageQueue]:
    """The reply to `asked`, and its address. Raises InvalidMessage for a message that is no request."""
    given = asked.properties
    cluster, to = given.get(PROPERTY_CLUSTER), given.get(PROPERTY_REPLY_TO_CLIENT)
    if not cluster or not to or PROPERTY_CORRELATION_ID not in given:
        raise InvalidMessage(
            remark=f"message {asked.message_id} is not a request: reply only to messages that `request` sent"
        )
    extra = {
        PROPERTY_MESSAGE_TYPE: REPLY,
        PROPERTY_CORRELATION_ID: given[PROPERTY_CORRELATION_ID],
        PROPERTY_REPLY_TO_CLIENT: to,
        PROPERTY_TTL: given.get(PROPERTY_TTL, "0"),
    }
    queue = MessageQueue(f"{cluster}_{REPLY_TOPIC_POSTFIX}", asked.broker_name, 0)
    outgoing = pack(
        Message(queue.topic, body),
        unique_id,
        config,
        extra=extra,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    return outgoing, queue
