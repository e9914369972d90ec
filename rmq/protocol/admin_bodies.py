"""The JSON bodies in which a running consumer answers an administrator; see `rmq.protocol.bodies`."""

from __future__ import annotations

from typing import Annotated

from attrs import define, field

from rmq.message import MessageQueue
from rmq.protocol import codes
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.body import Body
from rmq.protocol.fields import Int32, Int64

CMResult = Annotated[str, codes.CMResult]


@define
class ProcessQueueInfo(Body):
    """The window of a queue in a consumer."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = field(default=0, metadata={"java": "cachedMsgSizeInMiB"})
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


@define
class ConsumeStatus(Body):
    """Rates of a consumer for one topic; times in ms."""

    pull_rt: float = field(default=0.0, metadata={"java": "pullRT"})
    pull_tps: float = field(default=0.0, metadata={"java": "pullTPS"})
    consume_rt: float = field(default=0.0, metadata={"java": "consumeRT"})
    consume_ok_tps: float = field(default=0.0, metadata={"java": "consumeOKTPS"})
    consume_failed_tps: float = field(default=0.0, metadata={"java": "consumeFailedTPS"})
    consume_failed_msgs: Int64 = 0


@define
class ConsumerRunningInfo(Body):
    """What a consumer says of itself when an administrator asks."""

    properties: dict[str, str] = field(factory=dict)
    subscription_set: list[SubscriptionData] = field(factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(factory=dict)
    status_table: dict[str, ConsumeStatus] = field(factory=dict)
    jstack: str | None = None


@define
class ConsumeMessageDirectlyResult(Body):
    """What became of a message that an administrator gave to a consumer."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0
