"""What `client.admin` answers where RocketMQ has no shape of its own for it. Times are ms since 1970."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.trace import TraceContext


@frozen
class QueueProgress:
    """How far a group is in one queue. `last_timestamp`: when the last message that it consumed was stored;
    0 when unknown."""

    message_queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int

    @property
    def lag(self) -> int:
        """Messages that are left. Never negative: a broker reads both offsets one after the other, and a
        group may have been set beyond the end."""
        return max(0, self.broker_offset - self.consumer_offset)


@frozen
class GroupProgress:
    """How far a group is in all its queues, retry topic included; `consume_tps` messages a second."""

    group: str
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Messages that are left in all queues."""
        return sum(row.lag for row in self.queues)


@frozen
class OffsetReset:
    """One queue of a group that was reset: where it was, and where it goes on."""

    message_queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    new_offset: int


@frozen
class TopicRates:
    """One row of statsAll: a topic and a group that reads it; `group` is empty when none does.

    Rates are messages a second of the last minute; totals are of the last 24 hours."""

    topic: str
    group: str
    lag: int
    in_tps: float
    out_tps: float
    in_24h: int
    out_24h: int


@frozen
class Trace:
    """What the trace topic tells of one message, in the order in which it happened."""

    message_id: str
    events: list[TraceContext]


@frozen
class AclVersion:
    """The version of a broker's access control file: a counter and when it changed last."""

    cluster: str
    broker_name: str
    broker_address: str
    counter: int
    timestamp: int
    file: str = ""


@frozen
class AclAccount:
    """An account of access control. Permissions are ``topic=PUB|SUB`` and the like. `secret_key` is write
    only: what a server tells of it is not kept. `proof` is required, shown, optional, or empty, where the
    server decides; RocketMQ's servers have no such thing."""

    access_key: str
    secret_key: str = field(default="", repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()
    proof: str = ""


@frozen
class AclConfig:
    """The accounts of a broker, and addresses that need none."""

    global_white_addresses: tuple[str, ...]
    accounts: tuple[AclAccount, ...]


@frozen
class MessageTrack:
    """What a group did with a message: `state` is CONSUMED, CONSUMED_BUT_FILTERED, NOT_CONSUME_YET, PULL (it
    reads by its own pulls), NOT_ONLINE or UNKNOWN; `detail` says why, for the last two."""

    group: str
    state: str
    detail: str = ""


@frozen
class Lookup:
    """What a search by key found: messages, oldest first. `index_timestamp`: how far indexes reach."""

    messages: list[StoredMessage]
    index_timestamp: int


Tree = dict[str, Any]
"""Maps, lists, texts and numbers, as JSON and YAML write them."""
