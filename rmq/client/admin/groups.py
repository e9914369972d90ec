"""Groups: subscription groups and their settings, connected members and their state, and the progress of
groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from attrs import frozen

from rmq.client.admin.cluster import Cluster, each, offline
from rmq.client.consume.pull import first_since
from rmq.errors import (
    ConfigError,
    ConsumerNotOnline,
    NoRoute,
    ResponseError,
    RmqError,
    SystemFailure,
    for_code,
)
from rmq.message import MessageQueue, dlq_topic, is_topic, retry_topic, validate_group
from rmq.protocol.bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicStatsTable,
)
from rmq.protocol.codes import POLLING_INFO, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.protocol.pop import OLDEST_MS, TAKEN, WAITING, PollingInfoRequestHeader


@frozen
class DeliveryFigures:
    """Figures of a group with per-message delivery: leased messages, messages that wait for a retry, the age
    of the oldest lease in ms, and the long polls."""

    taken: int
    waiting: int
    oldest_ms: int
    polls: int


SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)
"""Groups that every broker has for RocketMQ's own tools."""

RUNNING_INFO_SECONDS = 15.0
"""Time-out of a request that the broker forwards to a member: the broker itself waits up to 10 s."""


TO_THE_END = -1
"""The timestamp that stands for the end of every queue."""


log = logging.getLogger(__name__)


@frozen
class QueueProgress:
    """Progress of a group in a queue. `last_timestamp`: store time of the last consumed message; 0 when
    unknown."""

    message_queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int

    @property
    def lag(self) -> int:
        """Unconsumed messages. Never negative: a broker reads both offsets one after the other, and a group's
        offset may lie beyond the end."""
        return max(0, self.broker_offset - self.consumer_offset)


@frozen
class GroupProgress:
    """Progress of a group in all its queues, retry topic included; `consume_tps` messages a second."""

    group: str
    queues: list[QueueProgress]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Unconsumed messages in all queues."""
        return sum(row.lag for row in self.queues)


@frozen
class OffsetReset:
    """A reset queue of a group: the offset before, and the new offset."""

    message_queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    new_offset: int


class Groups(Cluster):
    """Methods of `client.admin` for consumer and producer groups."""

    async def groups(self, *, cluster: str = "", broker: str = "", system: bool = False) -> list[str]:
        """The names of the consumer groups that brokers have settings for, sorted."""
        names: set[str] = set()
        for address in await self.broker_addresses(cluster=cluster, broker=broker):
            names.update(await self.group_configs(address, system=system))
        return sorted(names)

    async def group_configs(self, broker: str, *, system: bool = True) -> dict[str, SubscriptionGroupConfig]:
        """The consumer groups of a broker, by name; without `system`, only groups of users."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupWrapper.from_json(answer.body).subscription_group_table
        return {name: group for name, group in sorted(table.items()) if system or not is_system_group(name)}

    async def group_config(self, group: str, *, cluster: str = "") -> dict[str, SubscriptionGroupConfig]:
        """The settings of a group: master's address -> config; masters that do not know the group are left
        out."""
        found = {}
        for address in await self.broker_addresses(cluster=cluster):
            configs = await self.group_configs(address)
            if group in configs:
                found[address] = configs[group]
        return found

    async def create_group(
        self,
        group: str,
        *,
        cluster: str = "",
        broker: str = "",
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enable: bool = True,
        broadcast_enable: bool = True,
    ) -> list[str]:
        """Create a consumer group, or change it, on a broker, on all masters of a cluster, or on all masters.
        Returns their addresses. Raises InvalidName, ConfigError."""
        config = SubscriptionGroupConfig(
            group,
            consume_enable=consume_enable,
            consume_broadcast_enable=broadcast_enable,
            retry_queue_nums=retry_queues,
            retry_max_times=retry_max_times,
        )
        return await self.put_group(config, cluster=cluster, broker=broker)

    async def put_group(
        self, config: SubscriptionGroupConfig, *, cluster: str = "", broker: str = ""
    ) -> list[str]:
        """Create or change a group as `create_group` does, with all settings of a group."""
        validate_group(config.group_name)
        body = config.to_json()

        async def put(address: str) -> None:
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        await each(addresses, put)
        return addresses

    async def delete_group(
        self, group: str, *, cluster: str = "", broker: str = "", remove_offset: bool = False
    ) -> list[str]:
        """Delete a consumer group from a broker, all masters of a cluster, or all masters; `remove_offset`
        also deletes its offsets. Unless only from a single broker, its retry topic and its dead letters are
        deleted too. Return the addresses."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offset)
        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        # RocketMQ's brokers take a group under any name, and refuse to delete a topic under some of them.
        own = [topic for topic in (retry_topic(group), dlq_topic(group)) if not broker and is_topic(topic)]

        async def delete(address: str) -> None:
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            for topic in own:
                await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic))

        await each(addresses, delete)
        for topic in own:
            names = DeleteTopicFromNamesrvRequestHeader(topic, cluster or None)
            await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, names)
        return addresses

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The consumer groups that read a topic or have offsets in it, sorted. Raises NoRoute."""
        header = QueryTopicConsumeByWhoRequestHeader(topic)
        found: set[str] = set()
        for address in (await self._brokers_of(topic)).values():
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            found.update(GroupList.from_json(answer.body).group_list)
        return sorted(found)

    # --- connections ---

    async def consumer_connection(self, group: str, *, broker: str = "") -> ConsumerConnection:
        """The connected members of a consumer group, and their subscriptions, by all brokers together, or by
        a single `broker`. Raises ConsumerNotOnline without connected members."""
        header = GetConsumerConnectionListRequestHeader(group)
        whole: ConsumerConnection | None = None
        failure: RmqError = offline(group)
        for address in await self._brokers_to_ask(group, broker):
            try:
                answer = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except ConsumerNotOnline as error:
                failure = error
                continue
            part = ConsumerConnection.from_json(answer.body)
            whole = part if whole is None else _merged(whole, part)
        if whole is None or not whole.connection_set:
            raise failure
        return whole

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """The members of a producer group that are connected to the brokers of `topic`. Raises NoRoute, and
        the ResponseError of a broker when no broker knows a member."""
        header = GetProducerConnectionListRequestHeader(group)
        whole = ProducerConnection()
        failure: RmqError | None = None
        for address in (await self._brokers_of(topic)).values():
            try:
                answer = await self._ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except SystemFailure as error:
                failure = error
                continue
            known = {one.client_id for one in whole.connection_set}
            members = ProducerConnection.from_json(answer.body).connection_set
            whole.connection_set += [one for one in members if one.client_id not in known]
        if not whole.connection_set and failure is not None:
            raise failure
        return whole

    async def producers(self, broker: str) -> dict[str, list[ProducerInfo]]:
        """All producer groups of one broker with their members."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return dict(sorted(ProducerTableInfo.from_json(answer.body).data.items()))

    # --- members ---

    async def consumer_running_info(
        self, group: str, client_id: str, *, broker: str = "", stack: bool = False
    ) -> ConsumerRunningInfo:
        """State of a member: settings, queues, rates; with `stack`, also the stacks of its threads or tasks.
        A broker forwards the request. Raises the last broker's error when no broker could forward it."""
        header = GetConsumerRunningInfoRequestHeader(group, client_id, stack)
        failure: RmqError = offline(group)
        for address in await self._brokers_to_ask(group, broker):
            try:
                answer = await self._ask(
                    address,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    header,
                    timeout=RUNNING_INFO_SECONDS,
                )
            except RmqError as error:
                failure = error
                continue
            return ConsumerRunningInfo.from_json(answer.body)
        raise failure

    async def consumer_status(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """The offsets that members have in memory: client id -> queue -> offset, of all members or one."""
        header = GetConsumerStatusRequestHeader(topic, group, client_id or None)
        table: dict[str, dict[MessageQueue, int]] = {}
        for address in (await self._brokers_of(topic)).values():
            answer = await self._ask(
                address,
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                header,
                timeout=RUNNING_INFO_SECONDS,
            )
            for member, offsets in GetConsumerStatusBody.from_json(answer.body).consumer_table.items():
                table.setdefault(member, {}).update(offsets)
        return table

    async def _brokers_to_ask(self, group: str, broker: str) -> list[str]:
        if broker:
            return [await self._broker_address(broker)]
        return list((await self._brokers_of_group(group)).values())

    # --- offsets: progress of groups, and setting offsets ---

    async def delivery_figures(self, address: str, group: str, topic: str = "") -> DeliveryFigures:
        """The figures of a group with per-message delivery at a broker, in all topics or one. Raises
        ResponseError for a broker that has no per-message delivery."""
        header = PollingInfoRequestHeader(group, topic, -1)
        request = Command.request(POLLING_INFO, header)
        answer = await self._session.pool.call(address, request, self._session.brokers.timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark, address)
        taken, waiting, oldest = (int(answer.ext.get(name, 0)) for name in (TAKEN, WAITING, OLDEST_MS))
        return DeliveryFigures(taken, waiting, oldest, int(answer.ext.get("pollingNum", 0)))

    async def consume_stats(self, group: str, topic: str = "") -> GroupProgress:
        """Progress of a group, in all topics or one. A broker without the group adds no rows. Raises
        ConsumerNotOnline when no broker has any."""
        whole = ConsumeStats()
        for address in (await self._brokers_of_group(group)).values():
            part = await self._consume_stats(address, group, topic)
            whole.offset_table.update(part.offset_table)
            whole.consume_tps += part.consume_tps
        if not whole.offset_table:
            raise ConsumerNotOnline(None, f"no broker has offsets of group {group}: has it consumed yet?")
        return GroupProgress(group, _rows(whole), whole.consume_tps)

    async def consumer_progress(self, group: str, topic: str = "") -> list[QueueProgress]:
        """The queues of a group, by topic, broker and number. Raises as `consume_stats`."""
        return (await self.consume_stats(group, topic)).queues

    async def unread_beyond(self, topic: str, queues: int) -> dict[str, list[QueueProgress]]:
        """Group -> its queues of a topic from number `queues` on that hold unread messages: a topic with only
        `queues` read queues would hide them. Empty for a topic that does not exist."""
        found = {}
        try:
            groups = await self.groups_of_topic(topic)
        except NoRoute:
            return {}
        for group in groups:
            try:
                rows = await self.consumer_progress(group, topic)
            except (NoRoute, ResponseError) as error:  # the broker decides, and may refuse
                log.info("cannot read the progress of group %s: %s", group, error)
                continue
            if left := [row for row in rows if row.message_queue.queue_id >= queues and row.lag]:
                found[group] = left
        return found

    async def broker_consume_stats(
        self, broker: str, *, ordered: bool = False, timeout: float = 0
    ) -> list[GroupProgress]:
        """The progress of all groups on one broker; `ordered` only in ordered topics. `timeout` in seconds: a
        broker with many groups may need a long time."""
        address = await self._broker_address(broker)
        header = GetConsumeStatsInBrokerHeader(ordered)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout=timeout)
        listed = ConsumeStatsList.from_json(answer.body).consume_stats_list
        return [
            GroupProgress(
                group, [row for one in stats for row in _rows(one)], sum(one.consume_tps for one in stats)
            )
            for table in listed
            for group, stats in table.items()
        ]

    async def consume_time_span(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """For each queue, the store times of its first message, of its last message, and of the last consumed
        message of the group, and the delay in ms. Raises NoRoute."""
        header = QueryConsumeTimeSpanRequestHeader(topic, group)
        spans: list[QueueTimeSpan] = []
        for address in (await self._brokers_of(topic)).values():
            answer = await self._ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans += QueryConsumeTimeSpanBody.from_json(answer.body).consume_time_span_set
        return spans

    # --- setting offsets ---

    async def reset_offset(
        self, group: str, topic: str, timestamp: int, *, force: bool = True, cpp: bool = False
    ) -> list[OffsetReset]:
        """Let a group go on from the first messages stored at `timestamp` (ms) or later; -1 is the end.

        The broker sends the offsets to connected members, which use them at once; without members the stored
        offsets are set. Without `force`, a queue is only ever set back. `cpp` selects the form for members
        written in C++. Raises NoRoute.
        """
        done: list[OffsetReset] = []
        for address in (await self._brokers_of(topic)).values():
            before = await self._positions(address, group, topic)
            try:
                after = await self._reset_members(
                    address, ResetOffsetRequestHeader(topic, group, timestamp, force), cpp
                )
            except ConsumerNotOnline:
                after = await self._reset_stored(address, group, before, timestamp, force)
            unknown = QueueProgress(MessageQueue(topic, "", 0), 0, 0, 0)
            for queue, offset in sorted(after.items()):
                was = before.get(queue, unknown)
                done.append(OffsetReset(queue, was.broker_offset, was.consumer_offset, offset))
        return done

    async def skip_accumulated(self, group: str, topic: str, *, force: bool = True) -> list[OffsetReset]:
        """Let a group continue at the end of every queue: unconsumed messages are skipped for good."""
        return await self.reset_offset(group, topic, TO_THE_END, force=force)

    async def set_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, online: bool = False
    ) -> None:
        """Set the stored offsets of a group, queue by queue.

        Connected members ignore the change and soon store their own offsets, so this is refused with
        ConfigError while any are connected, unless `online` is set. Raises NoRoute.
        """
        if not online and await self._is_online(group):
            raise ConfigError(
                "group", group, "a group without connected members (stop them, or reset by time)"
            )
        addresses: dict[str, str] = {}
        for topic in {queue.topic for queue in offsets}:
            addresses.update(await self._brokers_of(topic))
        for queue, offset in offsets.items():
            if queue.broker_name not in addresses:
                raise NoRoute(
                    queue.topic, self.name_servers, f"the topic has no queues on broker {queue.broker_name}"
                )
            await self._set_offset(addresses[queue.broker_name], group, queue, offset)

    async def clone_offsets(
        self, source: str, target: str, topic: str = "", *, unsubscribed: bool = True
    ) -> None:
        """Copy the offsets of `source` to `target`, in a topic or in all; without `unsubscribed`, only in
        topics to which `source` subscribes now, if it is connected. Raises ConsumerNotOnline when no broker
        knows the source."""
        header = CloneGroupOffsetRequestHeader(source, target, topic or None, unsubscribed)
        addresses = (await self._brokers_of_group(source)).values()
        if not addresses:
            raise offline(source)
        for address in addresses:
            await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _consume_stats(self, address: str, group: str, topic: str) -> ConsumeStats:
        header = GetConsumeStatsRequestHeader(group, topic or None)
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
        return ConsumeStats.from_json(answer.body)

    async def _is_online(self, group: str) -> bool:
        try:
            await self.consumer_connection(group)
        except ConsumerNotOnline:
            return False
        return True

    async def _positions(self, address: str, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        """The group's offsets in the topic's queues at a broker; the begin of a queue without an offset."""
        rows = _rows(await self._consume_stats(address, group, topic))
        known = {row.message_queue: row for row in rows if row.message_queue.topic == topic}
        if known:
            return known
        header = GetTopicStatsInfoRequestHeader(topic)
        answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        table = TopicStatsTable.from_json(answer.body).offset_table
        return {
            queue: QueueProgress(queue, ends.max_offset, ends.min_offset, 0) for queue, ends in table.items()
        }

    async def _reset_members(
        self, address: str, header: ResetOffsetRequestHeader, cpp: bool
    ) -> dict[MessageQueue, int]:
        request = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        if cpp:
            request.language = "CPP"
        answer = await self._send(address, request)
        return ResetOffsetBody.from_json(answer.body).offset_table

    async def _reset_stored(
        self,
        address: str,
        group: str,
        before: Mapping[MessageQueue, QueueProgress],
        timestamp: int,
        force: bool,
    ) -> dict[MessageQueue, int]:
        after = {}
        for queue, row in before.items():
            target = row.broker_offset
            if timestamp != TO_THE_END:
                target = await first_since(self._session, group, queue, timestamp)
            if force or target <= row.consumer_offset:
                await self._set_offset(address, group, queue, target)
                after[queue] = target
            else:
                after[queue] = row.consumer_offset
        return after

    async def _set_offset(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        await self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


def is_system_group(name: str) -> bool:
    """True if a group belongs to RocketMQ itself."""
    return name in SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")


def _merged(one: ConsumerConnection, other: ConsumerConnection) -> ConsumerConnection:
    known = {connection.client_id for connection in one.connection_set}
    one.connection_set += [new for new in other.connection_set if new.client_id not in known]
    one.subscription_table = {**other.subscription_table, **one.subscription_table}
    return one


def _rows(stats: ConsumeStats) -> list[QueueProgress]:
    return [
        QueueProgress(queue, row.broker_offset, row.consumer_offset, row.last_timestamp)
        for queue, row in sorted(stats.offset_table.items())
    ]
