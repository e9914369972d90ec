"""Groups: subscription groups and their settings, who is connected, and what members say of themselves."""

from __future__ import annotations

from rmq.client.admin.calls import Calls, each, offline
from rmq.errors import ConsumerNotOnline, RmqError, SystemFailure
from rmq.message import MessageQueue, dlq_topic, retry_topic, validate_group
from rmq.protocol.bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

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
"""The broker asks the member and waits up to 10 s itself."""


class Groups(Calls):
    """What `client.admin` does with consumer and producer groups."""

    async def groups(self, *, cluster: str = "", broker: str = "", system: bool = False) -> list[str]:
        """The names of the consumer groups that brokers have settings for, sorted."""
        names: set[str] = set()
        for address in await self.broker_addresses(cluster=cluster, broker=broker):
            names.update(await self.group_configs(address, system=system))
        return sorted(names)

    async def group_configs(self, broker: str, *, system: bool = True) -> dict[str, SubscriptionGroupConfig]:
        """The consumer groups of one broker, by name; without `system`, those of users only."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = SubscriptionGroupWrapper.from_json(answer.body).subscription_group_table
        return {name: group for name, group in sorted(table.items()) if system or not is_system_group(name)}

    async def group_config(self, group: str, *, cluster: str = "") -> dict[str, SubscriptionGroupConfig]:
        """How a group is set up: master's address -> config; masters that do not know it are left out."""
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
        """Make a consumer group, or change it, on a broker, on all masters of a cluster, or on all masters.
        Returns their addresses. Raises InvalidName, ConfigError.
        """
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
        """As `create_group`, with all settings that a group has."""
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
        also forgets where it was. Unless only from one broker, its retry topic and its dead letters go too.
        Returns the addresses.
        """
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offset)
        addresses = await self.broker_addresses(cluster=cluster, broker=broker)

        async def delete(address: str) -> None:
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
            if not broker:
                for topic in (retry_topic(group), dlq_topic(group)):
                    await self._ask(
                        address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic)
                    )

        await each(addresses, delete)
        if not broker:
            for topic in (retry_topic(group), dlq_topic(group)):
                names = DeleteTopicFromNamesrvRequestHeader(topic, cluster or None)
                await self._tell_names(RequestCode.DELETE_TOPIC_IN_NAMESRV, names)
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
        """The members of a consumer group that are connected, and what they subscribe to; as all brokers
        know them together, or one `broker`. Raises ConsumerNotOnline when there are none.
        """
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
        the ResponseError of a broker when no broker knows any.
        """
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
        """What a member says of itself: settings, queues, rates; with `stack`, also what its threads or tasks
        do now. A broker passes the question on. Raises the last broker's error when none could.
        """
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


def is_system_group(name: str) -> bool:
    """Whether a group belongs to RocketMQ itself."""
    return name in SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")


def _merged(one: ConsumerConnection, other: ConsumerConnection) -> ConsumerConnection:
    known = {connection.client_id for connection in one.connection_set}
    one.connection_set += [new for new in other.connection_set if new.client_id not in known]
    one.subscription_table = {**other.subscription_table, **one.subscription_table}
    return one
