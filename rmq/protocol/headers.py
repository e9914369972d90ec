"""The typed headers of commands: one attrs class for each request and response header of RocketMQ 4.9.7.

On the wire a header is a flat map of texts (`extFields`). `decode` makes a value from such a map, `encode`
makes the map. A field has RocketMQ's name in snake_case; where the Java name does not follow from it, the
metadata has the Java name. Positional order is RocketMQ's order, except that keyword-only fields stand last.
The facts are pinned by tests/golden/headers.json.

The classes of messages, pulls and offset updates are built for every message: plain slots, nothing in
`__init__` but assignments.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field

from rmq.errors import RemoteProtocolError
from rmq.protocol import fields
from rmq.protocol.fields import REQUIRED, Int32, Int64, decode, encode

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from rmq.lazy_attrs import define, frozen

__all__ = [
    "REQUEST_HEADERS",
    "WARNING",
    "decode",
    "decode_send_v2",
    "encode",
    "encode_send_v2",
]


TOPIC_CREATED_MS: Final = "rmqTopicCreatedMs"
"""A header field of rmq, which RocketMQ ignores: the creation of the offset's topic."""
OWN: Final = {"java": TOPIC_CREATED_MS}
"""Metadata of a field with that name."""

WARNING: Final = "warning"
"""A header field of rmq in the response to a heartbeat: the faults of the client's groups."""


@define
class AddWritePermOfBrokerRequestHeader:
    """Header of ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@define
class AddWritePermOfBrokerResponseHeader:
    """Header of the answer to ADD_WRITE_PERM_OF_BROKER (327)."""

    add_topic_count: Int32


@define
class CheckTransactionStateRequestHeader:
    """Header of CHECK_TRANSACTION_STATE (39)."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@define
class CloneGroupOffsetRequestHeader:
    """Header of CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@define
class ConsumeMessageDirectlyResultRequestHeader:
    """Header of CONSUME_MESSAGE_DIRECTLY (309)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


@define
class ConsumerSendMsgBackRequestHeader:
    """Header of CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    bname: str | None = None


@define
class CreateAccessConfigRequestHeader:
    """Header of UPDATE_AND_CREATE_ACL_CONFIG (50)."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@define
class CreateTopicRequestHeader:
    """Header of UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False


@define
class DeleteAccessConfigRequestHeader:
    """Header of DELETE_ACL_CONFIG (51)."""

    access_key: str


@define
class DeleteKVConfigRequestHeader:
    """Header of DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@define
class DeleteSubscriptionGroupRequestHeader:
    """Header of DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    remove_offset: bool = False


@define
class DeleteTopicFromNamesrvRequestHeader:
    """Header of DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


@define
class DeleteTopicRequestHeader:
    """Header of DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


@define
class EndTransactionRequestHeader:
    """Header of END_TRANSACTION (37)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str = field(kw_only=True)
    transaction_id: str | None = None
    bname: str | None = None


@define
class GetAllProducerInfoRequestHeader:
    """Header of GET_ALL_PRODUCER_INFO (328)."""


@define
class GetBrokerAclConfigResponseHeader:
    """Header of the answer to GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str = field(kw_only=True)
    broker_addr: str = field(kw_only=True)
    cluster_name: str = field(kw_only=True)


@define
class GetBrokerConfigResponseHeader:
    """Header of the answer to GET_BROKER_CONFIG (26)."""

    version: str


@define
class GetConsumeStatsInBrokerHeader:
    """Header of GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


@define
class GetConsumeStatsRequestHeader:
    """Header of GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


@define
class GetConsumerConnectionListRequestHeader:
    """Header of GET_CONSUMER_CONNECTION_LIST (203)."""

    consumer_group: str


@define
class GetConsumerListByGroupRequestHeader:
    """Header of GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


@define
class GetConsumerRunningInfoRequestHeader:
    """Header of GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@define
class GetConsumerStatusRequestHeader:
    """Header of GET_CONSUMER_STATUS_FROM_CLIENT (221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""

    topic: str
    group: str
    client_addr: str | None = None


@define
class GetEarliestMsgStoretimeRequestHeader:
    """Header of GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


@define
class GetEarliestMsgStoretimeResponseHeader:
    """Header of the answer to GET_EARLIEST_MSG_STORETIME (32)."""

    timestamp: Int64


@define
class GetKVConfigRequestHeader:
    """Header of GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@define
class GetKVConfigResponseHeader:
    """Header of the answer to GET_KV_CONFIG (101)."""

    value: str | None = None


@define
class GetKVListByNamespaceRequestHeader:
    """Header of GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@define
class GetMaxOffsetRequestHeader:
    """Header of GET_MAX_OFFSET (30)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


@define
class GetMaxOffsetResponseHeader:
    """Header of the answer to GET_MAX_OFFSET (30)."""

    offset: Int64


@define
class GetMinOffsetRequestHeader:
    """Header of GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


@define
class GetMinOffsetResponseHeader:
    """Header of the answer to GET_MIN_OFFSET (31)."""

    offset: Int64


@define
class GetProducerConnectionListRequestHeader:
    """Header of GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


@define
class GetRouteInfoRequestHeader:
    """Header of GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@define
class GetTopicStatsInfoRequestHeader:
    """Header of GET_TOPIC_STATS_INFO (202)."""

    topic: str


@define
class GetTopicsByClusterRequestHeader:
    """Header of GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@define
class NotifyConsumerIdsChangedRequestHeader:
    """Header of NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    consumer_group: str


@define
class PullMessageRequestHeader:
    """Header of PULL_MESSAGE (11)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64 = field(default=0, metadata=REQUIRED)
    expression_type: str | None = None
    bname: str | None = None
    topic_created_ms: Int64 | None = field(default=None, metadata=OWN)


@define
class PullMessageResponseHeader:
    """Header of the answer to PULL_MESSAGE (11)."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_created_ms: Int64 | None = field(default=None, metadata=OWN)


@define
class PutKVConfigRequestHeader:
    """Header of PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@define
class QueryConsumeQueueRequestHeader:
    """Header of QUERY_CONSUME_QUEUE (321)."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


@define
class QueryConsumeTimeSpanRequestHeader:
    """Header of QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


@define
class QueryConsumerOffsetRequestHeader:
    """Header of QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    bname: str | None = None
    topic_created_ms: Int64 | None = field(default=None, metadata=OWN)


@define
class QueryConsumerOffsetResponseHeader:
    """Header of the answer to QUERY_CONSUMER_OFFSET (14)."""

    offset: Int64
    topic_created_ms: Int64 | None = field(default=None, metadata=OWN)


@define
class QueryCorrectionOffsetHeader:
    """Header of QUERY_CORRECTION_OFFSET (308)."""

    filter_groups: str | None = None
    compare_group: str = field(kw_only=True)
    topic: str = field(kw_only=True)


@define
class QueryDataVersionRequestHeader:
    """Header of QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@define
class QueryDataVersionResponseHeader:
    """Header of the answer to QUERY_DATA_VERSION (322)."""

    changed: bool


@define
class QueryMessageRequestHeader:
    """Header of QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


@define
class QueryMessageResponseHeader:
    """Header of the answer to QUERY_MESSAGE (12)."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


@define
class QueryTopicConsumeByWhoRequestHeader:
    """Header of QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    topic: str


@define
class RegisterBrokerRequestHeader:
    """Header of REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0


ALL_TOPICS: Final = "allTopics"
"""A header field of rmq in REGISTER_BROKER, "true" when the body has all topics of the broker: other topics
of the broker are removed. A Java broker also sends single topics in the same form, without a mark."""


SET_EPOCH: Final = "setEpoch"
"""A header field of rmq: the epoch of a master that controllers have elected, which registers only with their
lease."""


WITH_MISSING: Final = "rmqMissing"
"""A header field of rmq in GET_BROKER_CLUSTER_INFO, "true" for missing and refused brokers in the
response."""


FORGET_MISSING: Final = "rmqForget"
"""A header field of rmq in WIPE_WRITE_PERM_OF_BROKER, "true" to forget the missing brokers of the name, and
to change nothing else."""


@define
class RegisterBrokerResponseHeader:
    """Header of the answer to REGISTER_BROKER (103)."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@define
class RegisterFilterServerRequestHeader:
    """Header of REGISTER_FILTER_SERVER (301)."""

    filter_server_addr: str


@define
class RegisterMessageFilterClassRequestHeader:
    """Header of REGISTER_MESSAGE_FILTER_CLASS (302)."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int32 = field(metadata={"java": "classCRC"})


@define
class ReplyMessageRequestHeader:
    """Header of PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str = field(kw_only=True)
    store_host: str = field(kw_only=True)
    store_timestamp: Int64 = 0


@define
class ResetOffsetRequestHeader:
    """Header of RESET_CONSUMER_CLIENT_OFFSET (220), INVOKE_BROKER_TO_RESET_OFFSET (222)."""

    topic: str
    group: str
    timestamp: Int64 = 0
    is_force: bool = False


@define
class ResumeCheckHalfMessageRequestHeader:
    """Header of RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: str | None = None


@define
class SearchOffsetRequestHeader:
    """Header of SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    bname: str | None = None


@define
class SearchOffsetResponseHeader:
    """Header of the answer to SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    offset: Int64


@define
class SendMessageRequestHeader:
    """Header of SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324), and under its short names, which RocketMQ calls
    SendMessageRequestHeaderV2, of 310, 320 and 325.

    The one list of these fields: all decoders and encoders, of text maps, JSON and binary, are made of it.
    """

    producer_group: str = field(metadata={"short": "a"})
    topic: str = field(metadata={"short": "b"})
    default_topic: str = field(metadata={"short": "c"})
    default_topic_queue_nums: Int32 = field(metadata={"short": "d"})
    queue_id: Int32 = field(metadata={"short": "e"})
    sys_flag: Int32 = field(metadata={"short": "f"})
    born_timestamp: Int64 = field(metadata={"short": "g"})
    flag: Int32 = field(metadata={"short": "h"})
    properties: str | None = field(default=None, metadata={"short": "i"})
    reconsume_times: Int32 | None = field(default=None, metadata={"short": "j"})
    unit_mode: bool = field(default=False, metadata={"short": "k"})
    batch: bool = field(default=False, metadata={"short": "m"})
    max_reconsume_times: Int32 | None = field(default=None, metadata={"short": "l"})
    bname: str | None = field(default=None, metadata={"short": "n"})


PRODUCER_ID: Final = "producerId"
SEQUENCE: Final = "sequence"
"""Two more fields of IDEMPOTENT_SEND: the producer that numbers its messages, and the number of the batch's
first message."""


@define
class SendMessageResponseHeader:
    """Header of the answer to every kind of send (10, 310, 320, 324, 325)."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None


@define
class UnRegisterBrokerRequestHeader:
    """Header of UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


@define
class UnregisterClientRequestHeader:
    """Header of UNREGISTER_CLIENT (35)."""

    client_id: str = field(metadata={"java": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@define
class UpdateConsumerOffsetRequestHeader:
    """Header of UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    bname: str | None = None
    topic_created_ms: Int64 | None = field(default=None, metadata=OWN)


@define
class UpdateGlobalWhiteAddrsConfigRequestHeader:
    """Header of UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: str
    acl_file_full_path: str


@define
class ViewBrokerStatsDataRequestHeader:
    """Header of VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


@define
class ViewMessageRequestHeader:
    """Header of VIEW_MESSAGE_BY_ID (33)."""

    offset: Int64


@define
class WipeWritePermOfBrokerRequestHeader:
    """Header of WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


@define
class WipeWritePermOfBrokerResponseHeader:
    """Header of the answer to WIPE_WRITE_PERM_OF_BROKER (205)."""

    wipe_topic_count: Int32


REQUEST_HEADERS: Final[dict[int, type[Any] | None]] = {
    10: SendMessageRequestHeader,
    11: PullMessageRequestHeader,
    12: QueryMessageRequestHeader,
    13: None,
    14: QueryConsumerOffsetRequestHeader,
    15: UpdateConsumerOffsetRequestHeader,
    17: CreateTopicRequestHeader,
    21: None,
    22: None,
    23: None,
    25: None,
    26: None,
    27: None,
    28: None,
    29: SearchOffsetRequestHeader,
    30: GetMaxOffsetRequestHeader,
    31: GetMinOffsetRequestHeader,
    32: GetEarliestMsgStoretimeRequestHeader,
    33: ViewMessageRequestHeader,
    34: None,
    35: UnregisterClientRequestHeader,
    36: ConsumerSendMsgBackRequestHeader,
    37: EndTransactionRequestHeader,
    38: GetConsumerListByGroupRequestHeader,
    39: CheckTransactionStateRequestHeader,
    40: NotifyConsumerIdsChangedRequestHeader,
    41: None,
    42: None,
    43: None,
    45: None,
    46: None,
    50: CreateAccessConfigRequestHeader,
    51: DeleteAccessConfigRequestHeader,
    52: None,
    53: UpdateGlobalWhiteAddrsConfigRequestHeader,
    54: None,
    100: PutKVConfigRequestHeader,
    101: GetKVConfigRequestHeader,
    102: DeleteKVConfigRequestHeader,
    103: RegisterBrokerRequestHeader,
    104: UnRegisterBrokerRequestHeader,
    105: GetRouteInfoRequestHeader,
    106: None,
    200: None,
    201: None,
    202: GetTopicStatsInfoRequestHeader,
    203: GetConsumerConnectionListRequestHeader,
    204: GetProducerConnectionListRequestHeader,
    205: WipeWritePermOfBrokerRequestHeader,
    206: None,
    207: DeleteSubscriptionGroupRequestHeader,
    208: GetConsumeStatsRequestHeader,
    209: None,
    210: None,
    211: None,
    212: None,
    213: None,
    214: None,
    215: DeleteTopicRequestHeader,
    216: DeleteTopicFromNamesrvRequestHeader,
    219: GetKVListByNamespaceRequestHeader,
    220: ResetOffsetRequestHeader,
    221: GetConsumerStatusRequestHeader,
    222: ResetOffsetRequestHeader,
    223: GetConsumerStatusRequestHeader,
    224: GetTopicsByClusterRequestHeader,
    300: QueryTopicConsumeByWhoRequestHeader,
    301: RegisterFilterServerRequestHeader,
    302: RegisterMessageFilterClassRequestHeader,
    303: QueryConsumeTimeSpanRequestHeader,
    304: None,
    305: None,
    306: None,
    307: GetConsumerRunningInfoRequestHeader,
    308: QueryCorrectionOffsetHeader,
    309: ConsumeMessageDirectlyResultRequestHeader,
    310: SendMessageRequestHeader,
    311: None,
    312: None,
    313: None,
    314: CloneGroupOffsetRequestHeader,
    315: ViewBrokerStatsDataRequestHeader,
    316: None,
    317: GetConsumeStatsInBrokerHeader,
    318: None,
    319: None,
    320: SendMessageRequestHeader,
    321: QueryConsumeQueueRequestHeader,
    322: QueryDataVersionRequestHeader,
    323: ResumeCheckHalfMessageRequestHeader,
    324: SendMessageRequestHeader,
    325: SendMessageRequestHeader,
    326: ReplyMessageRequestHeader,
    327: AddWritePermOfBrokerRequestHeader,
    328: GetAllProducerInfoRequestHeader,
    329: None,
}


def decode_send_v2(ext: Mapping[str, Any]) -> SendMessageRequestHeader:
    """Read the one-letter header of codes 310, 320 and 325; raises as `decode`."""
    return fields.decode_short(SendMessageRequestHeader, ext)


def encode_send_v2(value: SendMessageRequestHeader) -> dict[str, str]:
    """The one-letter header of codes 310, 320 and 325."""
    return fields.encode_short(value)


# --- an addition of RocketMQ 5.x: the recall of a scheduled message ---
#
# A producer names a delivery time by a property; the answer to its send carries a handle, which
# RECALL_MESSAGE takes back as long as the message has not been delivered.

RECALL_HANDLE: Final = "recallHandle"
"""The header field in the response to a send."""


@define
class RecallMessageRequestHeader:
    """Header of RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@define
class RecallMessageResponseHeader:
    """Header of the answer to RECALL_MESSAGE (370): the unique key of the message."""

    msg_id: str


@frozen
class RecallHandle:
    """The handle of a scheduled message: its topic, broker, delivery time (ms) and unique key."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def __str__(self) -> str:
        """The text that clients hold: base64 of the four, after the version."""
        words = f"v1 {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(words.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """The handle in its text form. Raises RemoteProtocolError."""
        try:
            version, topic, broker_name, deliver_ms, unique_key = (
                base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")[:5]
            )
            handle = cls(topic, broker_name, int(deliver_ms), unique_key)
        except (ValueError, binascii.Error):
            version, handle = "", None
        if version != "v1" or handle is None:
            raise RemoteProtocolError("recall handle is invalid")
        return handle
