"""Rules: the permissions that each request needs, in a table: request code -> Rule. A code without a rule is
refused.

The facts about RocketMQ are pinned by tests/golden/acl_rules.json. docs/design/security.md says why this
table requires more. Headers are read by the same reader that the handler uses, so that both understand a
request alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from attrs import field, frozen

from rmq.errors import AccessDenied, RemoteProtocolError, StoreError
from rmq.message import AUTO_CREATE_TOPIC, RETRY_PREFIX, TRACE_TOPIC
from rmq.protocol import codes, pop
from rmq.protocol.bodies import (
    HEARTBEAT_VALUES,
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    UnlockBatchRequestBody,
)
from rmq.protocol.codes import (
    CONTROLLER_ASK,
    CONTROLLER_MESSAGE,
    CONTROLLER_OPERATE,
    CONTROLLER_STATUS,
    IDEMPOTENT_SEND,
    RECALL_MESSAGE,
)
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from rmq.protocol.headers import REQUEST_HEADERS, RecallMessageRequestHeader, SendMessageRequestHeader
from rmq_acl.accounts import Account
from rmq_acl.permissions import ANY, PUB, SUB, allows
from rmq_acl.verify import Sender

Need = tuple[str, str, int]
"""(TOPIC or GROUP, its name, PUB, SUB or ANY)."""
TopicOf = Callable[[int], "str | None"]
"""The topic of the message at a physical offset; None without one."""

TOPIC: Final = "topic"
GROUP: Final = "group"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"

HEADERS: Final[Mapping[int, Any]] = {
    **REQUEST_HEADERS,
    RECALL_MESSAGE: RecallMessageRequestHeader,
    codes.LITE_PULL_MESSAGE: REQUEST_HEADERS[Code.PULL_MESSAGE],
    codes.POP_MESSAGE: pop.PopMessageRequestHeader,
    codes.ACK_MESSAGE: pop.AckMessageRequestHeader,
    codes.CHANGE_MESSAGE_INVISIBLETIME: pop.ChangeInvisibleTimeRequestHeader,
    codes.NOTIFICATION: pop.NotificationRequestHeader,
    codes.POLLING_INFO: pop.PollingInfoRequestHeader,
    codes.GET_TOPIC_CONFIG: pop.GetTopicConfigRequestHeader,
    codes.GET_SUBSCRIPTIONGROUP_CONFIG: pop.GetSubscriptionGroupConfigRequestHeader,
    IDEMPOTENT_SEND: SendMessageRequestHeader,
}


class Level(IntEnum):
    """Classes of peers that may send the request."""

    ACCOUNT = 0
    """Any account, and white addresses; the needs are checked as well."""
    SERVER = 1
    """Other servers of the cluster: administrators and addresses of the global white list."""
    ADMIN = 2
    """Administrators, proved by a signature."""


@frozen
class Rule:
    """The needs of a request code."""

    level: Level
    needs: Callable[[Command, TopicOf], Iterable[Need]] = field(default=lambda command, topic_of: ())


def check(command: Command, sender: Sender, topic_of: TopicOf) -> Level:
    """Refuse a forbidden request; return the kind of the request. Raises AccessDenied."""
    rule = RULES.get(command.code)
    if rule is None:
        raise AccessDenied(remark=f"request code={command.code} is not known to the access rules")
    account, level = sender.account, rule.level
    if level:
        _check_level(command.code, level, sender)
    elif account is not None and not account.is_unlimited:
        for kind, name, needed in needs_of(command, topic_of):
            if not may(account, kind, name, needed):
                raise AccessDenied(remark=_refusal(kind, name))
    return level


def may(account: Account, kind: str, name: str, needed: int) -> bool:
    """True if an account may do an action with a topic or a group."""
    if kind == GROUP:
        return allows(needed, account.group_permission(name))
    if name == TRACE_TOPIC and needed == PUB:
        return True  # every client may write its traces
    return allows(needed, account.topic_permission(name))


TRACE_CODES: Final = frozenset(
    (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, IDEMPOTENT_SEND)
)
"""Requests whose messages go to the topic of traces."""


def has_rights(account: Account) -> bool:
    """True if an account has any permission, and so has events to trace."""
    given = (*account.topics.values(), *account.groups.values(), account.default_topic, account.default_group)
    return account.is_unlimited or any(allows(ANY, one) for one in given)


def is_free_trace(account: Account, command: Command) -> bool:
    """True if a send goes to the topic of traces, from an account without other permissions."""
    return not has_rights(account) and command.read(HEADERS[command.code]).topic == TRACE_TOPIC


def needs_of(command: Command, topic_of: TopicOf) -> Iterable[Need]:
    """The resources of a request. Raises AccessDenied for an unreadable request, since its effect is
    unknown."""
    try:
        return RULES[command.code].needs(command, topic_of)
    except (RemoteProtocolError, StoreError, ValueError, TypeError) as error:
        raise AccessDenied(remark=f"request code={command.code} cannot be read: {error}") from None


def _check_level(code: int, level: Level, sender: Sender) -> None:
    account = sender.account
    if account is None and level is Level.SERVER:
        return
    if account is None or not account.admin:
        who = "the address of" if account is None else f"accessKey={account.access_key}"
        where = " the sender" if account is None else ""
        remark = f"Need admin permission for request code={code}, but {who}{where} is not"
        raise AccessDenied(remark=remark)
    if not sender.is_signed:
        who = f"accessKey={account.access_key}"
        raise AccessDenied(remark=f"Check signature failed for {who}: an address is no proof for code={code}")


def _refusal(kind: str, name: str) -> str:
    if kind == TOPIC and name.startswith(RETRY_PREFIX):
        kind, name = GROUP, name[len(RETRY_PREFIX) :]
    return f"No default permission for {kind}:{name[:255]}"


# ---- topics and groups of requests ----


def _fields(
    topic: str | None = None, group: str | None = None, action: int = SUB
) -> Callable[..., list[Need]]:
    """Needs by the names of header fields; a field without a value needs nothing."""

    def needs(command: Command, topic_of: TopicOf) -> list[Need]:
        header = command.read(HEADERS[command.code])
        found: list[Need] = []
        if topic is not None and getattr(header, topic) is not None:
            found.append((TOPIC, getattr(header, topic), action))
        if group is not None and getattr(header, group) is not None:
            found.append((GROUP, getattr(header, group), SUB))
        return found

    return needs


def _send(command: Command, topic_of: TopicOf) -> tuple[Need]:
    topic = command.read(HEADERS[command.code]).topic
    # A retry topic is written by the consumers of its group, when they send a message back.
    return ((TOPIC, topic, SUB if topic.startswith(RETRY_PREFIX) else PUB),)


def _send_back(command: Command, topic_of: TopicOf) -> list[Need]:
    """A message that is sent back is copied to the group's retry topic: only a client that may read the
    message may copy it."""
    header = command.read(HEADERS[command.code])
    topic = topic_of(header.offset)
    needs: list[Need] = [(GROUP, header.group, SUB)]
    return needs if topic is None else [*needs, (TOPIC, topic, SUB)]


def _pull(command: Command, topic_of: TopicOf) -> list[Need]:
    """Needs of a pull: a client that may read a topic may inspect it with RocketMQ's tools, whose group
    stores no offset."""
    header = command.read(HEADERS[command.code])
    needs: list[Need] = [(TOPIC, header.topic, SUB)]
    return needs if header.consumer_group == TOOLS_GROUP else [*needs, (GROUP, header.consumer_group, SUB)]


def _stored(action: int, offset_field: str) -> Callable[..., list[Need]]:
    """Needs of a request that names a message by its place only: the needs of its topic."""

    def needs(command: Command, topic_of: TopicOf) -> list[Need]:
        topic = topic_of(getattr(command.read(HEADERS[command.code]), offset_field))
        return [] if topic is None else [(TOPIC, topic, action)]

    return needs


def _heartbeat(command: Command, topic_of: TopicOf) -> list[Need]:
    needs: list[Need] = []
    if not command.body:
        return needs
    for consumer in HeartbeatData.from_request(command.body, most=HEARTBEAT_VALUES).consumer_data_set:
        needs.append((GROUP, consumer.group_name, SUB))
        needs += ((TOPIC, data.topic, SUB) for data in consumer.subscription_data_set)
    return needs


def _locks(body: type[LockBatchRequestBody] | type[UnlockBatchRequestBody]) -> Callable[..., list[Need]]:
    def needs(command: Command, topic_of: TopicOf) -> list[Need]:
        asked = body.from_request(command.body)
        topics = sorted({queue.topic for queue in asked.mq_set})
        return [(GROUP, asked.consumer_group, SUB), *((TOPIC, topic, SUB) for topic in topics)]

    return needs


def _batch_ack(command: Command, topic_of: TopicOf) -> list[Need]:
    """Needs of all acknowledgements of a batch."""
    acks = pop.read_acks(command.body)
    needs: list[Need] = [(TOPIC, topic, SUB) for topic in sorted({ack.t for ack in acks})]
    return needs + [(GROUP, group, SUB) for group in sorted({ack.c for ack in acks})]


def _assignment(command: Command, topic_of: TopicOf) -> list[Need]:
    asked = pop.QueryAssignmentRequestBody.from_request(command.body)
    return [(TOPIC, asked.topic, SUB), (GROUP, asked.consumer_group, SUB)]


def _polls(command: Command, topic_of: TopicOf) -> list[Need]:
    """Figures of a group, in one topic or all."""
    header = command.read(HEADERS[command.code])
    needs: list[Need] = [(GROUP, header.consumer_group, SUB)]
    return [*needs, (TOPIC, header.topic, SUB)] if header.topic else needs


def _check_client(command: Command, topic_of: TopicOf) -> list[Need]:
    asked = CheckClientRequestBody.from_request(command.body)
    needs: list[Need] = [(GROUP, asked.group, SUB)]
    data = asked.subscription_data
    return needs if data is None else [*needs, (TOPIC, data.topic, SUB)]


def _route(command: Command, topic_of: TopicOf) -> list[Need]:
    """Needs of a route: a client that may read or write a topic may know its route; the default topic is open
    to all."""
    topic = command.read(HEADERS[command.code]).topic
    if topic in (AUTO_CREATE_TOPIC, TRACE_TOPIC):
        return []
    return [(TOPIC, topic, ANY)]


_TOPIC_SUB: Final = Rule(Level.ACCOUNT, _fields("topic"))
_TOPIC_ANY: Final = Rule(Level.ACCOUNT, _fields("topic", action=ANY))
_GROUP_SUB: Final = Rule(Level.ACCOUNT, _fields(None, "consumer_group"))
_BOTH_SUB: Final = Rule(Level.ACCOUNT, _fields("topic", "consumer_group"))
_SEND: Final = Rule(Level.ACCOUNT, _send)
_SERVER: Final = Rule(Level.SERVER)
_ADMIN: Final = Rule(Level.ADMIN)

_CLIENTS: Final[dict[int, Rule]] = {
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND,
    Code.SEND_BATCH_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE_V2: _SEND,
    IDEMPOTENT_SEND: _SEND,
    RECALL_MESSAGE: Rule(Level.ACCOUNT, _fields("topic", action=PUB)),
    Code.END_TRANSACTION: Rule(Level.ACCOUNT, _stored(PUB, "commit_log_offset")),
    Code.CONSUMER_SEND_MSG_BACK: Rule(Level.ACCOUNT, _send_back),
    Code.PULL_MESSAGE: Rule(Level.ACCOUNT, _pull),
    codes.LITE_PULL_MESSAGE: Rule(Level.ACCOUNT, _pull),
    Code.QUERY_CONSUMER_OFFSET: _BOTH_SUB,
    Code.UPDATE_CONSUMER_OFFSET: _BOTH_SUB,
    codes.POP_MESSAGE: _BOTH_SUB,
    codes.ACK_MESSAGE: _BOTH_SUB,
    codes.BATCH_ACK_MESSAGE: Rule(Level.ACCOUNT, _batch_ack),
    codes.CHANGE_MESSAGE_INVISIBLETIME: _BOTH_SUB,
    codes.NOTIFICATION: _BOTH_SUB,
    codes.POLLING_INFO: Rule(Level.ACCOUNT, _polls),
    codes.QUERY_ASSIGNMENT: Rule(Level.ACCOUNT, _assignment),
    codes.GET_TOPIC_CONFIG: _TOPIC_ANY,
    codes.GET_SUBSCRIPTIONGROUP_CONFIG: Rule(Level.ACCOUNT, _fields(None, "group")),
    Code.HEART_BEAT: Rule(Level.ACCOUNT, _heartbeat),
    Code.UNREGISTER_CLIENT: _GROUP_SUB,
    Code.CHECK_CLIENT_CONFIG: Rule(Level.ACCOUNT, _check_client),
    Code.GET_CONSUMER_LIST_BY_GROUP: _GROUP_SUB,
    Code.LOCK_BATCH_MQ: Rule(Level.ACCOUNT, _locks(LockBatchRequestBody)),
    Code.UNLOCK_BATCH_MQ: Rule(Level.ACCOUNT, _locks(UnlockBatchRequestBody)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC_SUB,
    Code.GET_MAX_OFFSET: _TOPIC_SUB,
    Code.GET_MIN_OFFSET: _TOPIC_SUB,
    Code.GET_EARLIEST_MSG_STORETIME: _TOPIC_SUB,
    Code.QUERY_MESSAGE: _TOPIC_SUB,
    Code.VIEW_MESSAGE_BY_ID: Rule(Level.ACCOUNT, _stored(SUB, "offset")),
    Code.QUERY_CONSUME_QUEUE: _BOTH_SUB,
    Code.GET_TOPIC_STATS_INFO: _TOPIC_ANY,
    Code.GET_CONSUME_STATS: _BOTH_SUB,
    Code.QUERY_CONSUME_TIME_SPAN: Rule(Level.ACCOUNT, _fields("topic", "group")),
    Code.GET_CONSUMER_CONNECTION_LIST: _GROUP_SUB,
    Code.GET_ROUTEINFO_BY_TOPIC: Rule(Level.ACCOUNT, _route),
    Code.GET_BROKER_CLUSTER_INFO: Rule(Level.ACCOUNT),
}
"""Requests of applications and of owners of topics and groups."""

_SERVERS: Final = (
    Code.REGISTER_BROKER,
    Code.UNREGISTER_BROKER,
    Code.QUERY_DATA_VERSION,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    codes.GET_ALL_MESSAGE_REQUEST_MODE,
    CONTROLLER_MESSAGE,
    CONTROLLER_ASK,
)
"""Requests of brokers to a name server or a controller, of slaves to their master, and of controllers to each
other."""

_ADMINS: Final = (
    Code.QUERY_BROKER_OFFSET,
    Code.UPDATE_AND_CREATE_TOPIC,
    codes.SET_MESSAGE_REQUEST_MODE,
    Code.GET_TOPIC_CONFIG_LIST,
    Code.GET_TOPIC_NAME_LIST,
    Code.UPDATE_BROKER_CONFIG,
    Code.GET_BROKER_CONFIG,
    Code.TRIGGER_DELETE_FILES,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    Code.PUT_KV_CONFIG,
    Code.GET_KV_CONFIG,
    Code.DELETE_KV_CONFIG,
    Code.GET_KVLIST_BY_NAMESPACE,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.DELETE_SUBSCRIPTIONGROUP,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_ALL_PRODUCER_INFO,
    Code.WIPE_WRITE_PERM_OF_BROKER,
    Code.ADD_WRITE_PERM_OF_BROKER,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_UNIT_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    Code.SUSPEND_CONSUMER,
    Code.RESUME_CONSUMER,
    Code.RESET_CONSUMER_OFFSET_IN_BROKER,
    Code.ADJUST_CONSUMER_THREAD_POOL,
    Code.WHO_CONSUME_THE_MESSAGE,
    Code.DELETE_TOPIC_IN_BROKER,
    Code.DELETE_TOPIC_IN_NAMESRV,
    Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.REGISTER_FILTER_SERVER,
    Code.REGISTER_MESSAGE_FILTER_CLASS,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE,
    Code.DELETE_EXPIRED_COMMITLOG,
    Code.CLEAN_UNUSED_TOPIC,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.QUERY_CORRECTION_OFFSET,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.CLONE_GROUP_OFFSET,
    Code.VIEW_BROKER_STATS_DATA,
    Code.GET_BROKER_CONSUME_STATS,
    Code.RESUME_CHECK_HALF_MESSAGE,
    Code.UPDATE_NAMESRV_CONFIG,
    Code.GET_NAMESRV_CONFIG,
    CONTROLLER_STATUS,
    CONTROLLER_OPERATE,
)
"""Requests that change the cluster, or show more of it than one topic or group."""

CLIENT_CODES: Final = frozenset(
    {
        Code.CHECK_TRANSACTION_STATE,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        Code.RESET_CONSUMER_CLIENT_OFFSET,
        Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""Requests of a broker to a client; no server accepts them."""

RULES: Final[Mapping[int, Rule]] = {
    int(code): rule
    for table in (_CLIENTS, dict.fromkeys(_SERVERS, _SERVER), dict.fromkeys(_ADMINS, _ADMIN))
    for code, rule in table.items()
}
