"""Messages, message queues and their identities: the objects that an application sends and receives.

Also the words that RocketMQ reserves: property names, system topics, prefixes of topics and groups, the form
of message ids, and Java's string hash, on which tags, index keys and sharding keys rest.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import Any, Final

from attrs import define, field, frozen

from rmq.errors import (
    InvalidMessage,
    InvalidMessageType,
    InvalidName,
    InvalidType,
    LocalProtocolError,
    check_type,
)

# --- properties ---

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE = "WAIT"
PROPERTY_DELAY_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_REPLY_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"

KEY_SEPARATOR = " "

RESERVED_PROPERTIES = frozenset(
    value for name, value in globals().items() if name.startswith("PROPERTY_") and isinstance(value, str)
)
"""Names that an application may not use for its own properties."""

# --- topics and groups ---

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
TIMER_TOPIC = "rmq_sys_wheel_timer"
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
NOT_SENDABLE_TOPICS = SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that a producer may not send to."""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The broker's own group, whose offsets say up to which half message all transactions are decided."""

NAME_LENGTH_MAX = 127
TEXT_LENGTH_MAX = 255
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def validate_topic(topic: str) -> str:
    """Return `topic`. Raises InvalidName unless it is 1 to 127 of the characters ``%|a-zA-Z0-9_-``, and
    InvalidType when it is no text."""
    try:
        return _validated("topic", topic)
    except TypeError:
        raise InvalidType("topic", topic, "the name of a topic as text") from None


def is_topic(name: str) -> bool:
    """True if a topic may have this name."""
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def validate_group(group: str) -> str:
    """Return `group`. Raises as `validate_topic`, but for a name of more than 120 characters: its retry topic
    ``%RETRY%group`` would have more than the 127 characters of a topic, so its messages could not be
    redelivered."""
    try:
        return _validated("group", group)
    except TypeError:
        raise InvalidType("group", group, "the name of a group as text") from None


def validate_text(kind: str, text: str) -> str:
    """Return `text`, a name without a rule of its own: a client id, a producer group.

    Raises InvalidName unless it is printable and has 255 characters at most, the limit of RocketMQ's clients
    for a group.
    """
    if len(text) > TEXT_LENGTH_MAX:
        reason = f"it has {len(text)} characters, at most {TEXT_LENGTH_MAX} are allowed"
        raise InvalidName(kind, f"{text[:60]}...", reason)
    if not text.isprintable():
        raise InvalidName(kind, text, "it has characters that cannot be printed")
    return text


@lru_cache(maxsize=4096)
def _validated(kind: str, name: str) -> str:
    if not name:
        raise InvalidName(kind, name, "it is empty")
    most = NAME_LENGTH_MAX - len(RETRY_PREFIX) if kind == "group" else NAME_LENGTH_MAX
    if len(name) > most:
        reason = f"it has {len(name)} characters, at most {most} are allowed"
        raise InvalidName(kind, name[: 2 * NAME_LENGTH_MAX], reason)
    if not _NAME.fullmatch(name):
        raise InvalidName(kind, name, "only letters, digits and the characters % | _ - are allowed")
    return name


def retry_topic(group: str) -> str:
    """The topic in which failed messages of `group` wait for redelivery."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of `group`'s dead letters."""
    return DLQ_PREFIX + group


# --- namespaces: names as the cluster knows them, ``namespace%name`` ---

NAMESPACE_SEPARATOR = "%"


def with_namespace(namespace: str, name: str) -> str:
    """`name` inside `namespace`; a name that already is in the namespace, or is the system's, stays as it
    is."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split(name)
    head = namespace + NAMESPACE_SEPARATOR
    return name if rest.startswith(head) else prefix + head + rest


def without_namespace(namespace: str, name: str) -> str:
    """`name` without `namespace`, if the name is in it."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + NAMESPACE_SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX))


# --- messages ---


@frozen(order=True)
class MessageQueue:
    """One queue of a topic on one broker: the unit of order, of allocation and of offsets.

    Raises InvalidType for a field of a wrong type."""

    topic: str
    broker_name: str
    queue_id: int

    def __attrs_post_init__(self) -> None:
        if not (type(self.topic) is type(self.broker_name) is str and type(self.queue_id) is int):
            check_type("topic", self.topic, str, "the name of a topic as text")
            check_type("broker_name", self.broker_name, str, "the name of a broker as text")
            check_type("queue_id", self.queue_id, int, "an int")


def average_share(queues: int, members: int, index: int) -> range:
    """Indexes of the queues that the member at `index` of `members` gets of `queues`, as by RocketMQ's
    AllocateMessageQueueAveragely: neighbours; the first members get one more."""
    share, odd = divmod(queues, members)
    start = index * share + min(index, odd)
    return range(start, start + share + (index < odd))


def _keys(value: str | Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    try:
        keys = tuple(value)
    except TypeError:
        raise InvalidMessageType(remark=f"keys = {value!r}: expected text, or a list of texts") from None
    for key in keys:
        if not isinstance(key, str):
            raise InvalidMessageType(remark=f"keys = {value!r}: expected text, or a list of texts")
        if key.split() != [key]:  # brokers and consumers split keys at blanks
            raise InvalidMessage(remark=f"keys = {value!r}: expected keys without blanks, not {key!r}")
    return keys


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_properties(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value)) and all(map(_is_text, value.values()))


_TYPES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "topic": (_is_text, "the name of a topic as text"),
    "body": (lambda value: isinstance(value, (bytes, bytearray, memoryview)), "bytes"),
    "tags": (lambda value: value is None or _is_text(value), "one tag as text, or None"),
    "properties": (_is_properties, "a dict of texts, name to value"),
    "flag": (_is_int, "an int"),
    "wait_store": (lambda value: isinstance(value, bool), "True or False"),
    "delay_level": (_is_int, "an int, one of the levels of messageDelayLevel; 0 for none"),
    "deliver_at_ms": (
        lambda value: value is None or _is_int(value),
        "a time as an int, ms since 1970, or None",
    ),
    "delay_ms": (lambda value: value is None or _is_int(value), "an int, ms, or None"),
}
"""Field of a message -> the types that its value may have."""


@define(eq=False)
class Message:
    """A message to send. `body` is bytes; `keys` are looked up by the index; `delay_level` 0 is at once.

    `deliver_at_ms` (ms since 1970) or `delay_ms` set any delivery time up to 40 days ahead, as in RocketMQ 5;
    brokers of RocketMQ 4.9 ignore both and deliver at once. Only one of the three is given. `properties` are
    the application's own: names and values are text without the characters 0x01 and 0x02. `keys` are texts
    without blanks; a single text is split at its blanks.

    Raises InvalidMessageType, a TypeError, for a field of a wrong type, and InvalidMessage, a ValueError, for
    a key with a blank.
    """

    topic: str
    body: bytes
    tags: str | None = field(default=None, kw_only=True)
    keys: tuple[str, ...] = field(default=(), kw_only=True, converter=_keys)
    properties: dict[str, str] = field(factory=dict, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    delay_level: int = field(default=0, kw_only=True)
    wait_store: bool = field(default=True, kw_only=True)
    deliver_at_ms: int | None = field(default=None, kw_only=True)
    delay_ms: int | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.check_types()

    def check_types(self) -> None:
        """Raises InvalidMessageType, which names the field, unless each field is of its type."""
        # One expression for all fields, as this runs for every message.
        if not (
            type(self.topic) is str
            and type(self.body) is bytes
            and (self.tags is None or type(self.tags) is str)
            and type(self.properties) is dict
            and (
                not self.properties
                or {*map(type, self.properties), *map(type, self.properties.values())} == {str}
            )
            and type(self.flag) is int
            and type(self.delay_level) is int
            and type(self.wait_store) is bool
            and self.deliver_at_ms is None
            and self.delay_ms is None
        ):
            for name, (is_allowed, expected) in _TYPES.items():
                value = getattr(self, name)
                if not is_allowed(value):
                    raise InvalidMessageType(remark=f"{name} = {value!r:.200}: expected {expected}")

    @property
    def is_delayed(self) -> bool:
        """True if the message is to be delivered later."""
        return bool(self.delay_level) or self.deliver_at_ms is not None or self.delay_ms is not None


@define(eq=False)
class StoredMessage:
    """A message of a broker's store. Offsets are positions: `queue_offset` in its queue, `physical_offset` in
    the commit log (bytes); `size` is that of the whole record; times are ms."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    born_host: str = ""
    store_timestamp: int = 0
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    broker_name: str = ""

    @property
    def tags(self) -> str | None:
        """The tags, by which consumers can filter; None without any."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, by which the message can be found."""
        return tuple(self.properties.get(PROPERTY_KEYS, "").split())

    @property
    def offset_message_id(self) -> str:
        """The id that names the message's place: the storing host and the physical offset, in hex."""
        host, _, port = self.store_host.rpartition(":")
        address = ipaddress.ip_address(host.strip("[]")).packed
        return offset_message_id(address + struct.pack(">i", int(port)), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id, or the offset id when the producer set none."""
        return self.properties.get(PROPERTY_UNIQUE_KEY) or self.offset_message_id

    @property
    def delay_level(self) -> int:
        """The delay level of the send; 0 for none."""
        text = self.properties.get(PROPERTY_DELAY_LEVEL, "0")
        return int(text) if text.isdigit() else 0

    @property
    def message_queue(self) -> MessageQueue:
        """The queue of the message."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


# --- ids ---


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Upper-case hex of `host` (address of 4 or 16 bytes, port of 4) and the 8-byte physical offset."""
    return (host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[str, int]:
    """("ip:port", physical offset) of an offset message id. Raises LocalProtocolError for any other text."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise LocalProtocolError(f"{text!r} is not an offset message id: 32 or 56 hex digits are expected")
    port, offset = struct.unpack(">iq", data[-12:])
    if not 0 <= port < 65536:
        raise LocalProtocolError(
            f"{text!r} is not an offset message id, since {port} is no port; if it is a producer's unique id,"
            " look for it in its topic (queryMsgByUniqueKey)"
        )
    address = ipaddress.ip_address(data[:-12])
    return (f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"), offset


class UniqueIds:
    """Makes a producer's unique message ids, equal in form to the Java client's.

    Upper-case hex of the address (4 or 16 bytes), 2 bytes of `pid`, 4 bytes that differ between the makers of
    a process, 4 bytes of milliseconds since the month began (local time), a 2-byte counter.

    The time never goes back: while the clock does, it stands, and goes on by a millisecond with each round of
    the counter. In a new month, where the milliseconds begin again, the 4 bytes are others.
    """

    def __init__(
        self, address: bytes, pid: int, now_ms: Callable[[], int], maker: bytes | None = None
    ) -> None:
        self._machine = (address + (pid & 0xFFFF).to_bytes(2, "big")).hex().upper()
        self._maker = int.from_bytes(maker or os.urandom(4), "big")
        self._prefix = ""
        self._now_ms = now_ms
        self._counter = 0
        self._ms = -1
        self._round = 0  # the counter of the first id with this time
        self._month_start = self._month_end = 0

    def next(self) -> str:
        """A unique id: no other call gives it, on this machine or another."""
        now, counter = self._now_ms(), self._counter
        if now > self._ms:
            self._ms, self._round = now, counter
            if now >= self._month_end:
                self._begin_month(now)
        self._counter = (counter + 1) & 0xFFFF
        text = f"{self._prefix}{(self._ms - self._month_start) & 0xFFFFFFFF:08X}{counter:04X}"
        if self._counter == self._round:  # all counters of this time are spent
            self._ms += 1
        return text

    def _begin_month(self, now: int) -> None:
        if self._month_end:
            self._maker = (self._maker + 1) & 0xFFFFFFFF
        self._prefix = f"{self._machine}{self._maker:08X}"
        self._month_start, self._month_end = _month_of(now)


def _month_of(now_ms: int) -> tuple[int, int]:
    first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (first.year + 1, 1) if first.month == 12 else (first.year, first.month + 1)
    return round(first.timestamp() * 1000), round(first.replace(year=year, month=month).timestamp() * 1000)


# --- Java's string hash ---

_POWERS = [power & 0xFFFFFFFF for power in accumulate(repeat(31, 511), mul, initial=1)][::-1]


def java_hash(text: str) -> int:
    """The result of Java's String.hashCode: sum of unit[i] * 31^(n-1-i) over UTF-16 units, signed 32 bits."""
    if text.isascii():
        units: Iterable[int] = text.encode("ascii")
        length = len(text)
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units, length = struct.unpack(f">{len(data) // 2}H", data), len(data) // 2
    if length <= len(_POWERS):
        value: int = sum(map(mul, units, _POWERS[len(_POWERS) - length :]))
    else:
        value = 0
        for unit in units:
            value = (31 * value + unit) & 0xFFFFFFFF
    return (value + 0x80000000 & 0xFFFFFFFF) - 0x80000000


def tags_code(tags: str | None) -> int:
    """The tags code of a consume queue unit: Java's hash of the tags, 0 without."""
    if not tags:
        return 0
    # Peers choose the texts: long ones would make the cache as large as 4,096 of the longest.
    return _code_of_short(tags) if len(tags) <= _CACHED_TAGS else java_hash(tags)


_CACHED_TAGS = 128  # characters
_code_of_short = lru_cache(maxsize=4096)(java_hash)


def with_properties(message: Message, extra: Mapping[str, str]) -> dict[str, str]:
    """All properties of `message` as they are sent: the application's, its tags, keys, delay, and `extra`."""
    merged = dict(message.properties)
    if message.keys:
        merged[PROPERTY_KEYS] = KEY_SEPARATOR.join(message.keys)
    if message.tags:
        merged[PROPERTY_TAGS] = message.tags
    if message.delay_level:
        merged[PROPERTY_DELAY_LEVEL] = str(message.delay_level)
    merged[PROPERTY_WAIT_STORE] = "true" if message.wait_store else "false"
    merged.update(extra)
    return merged
