"""Topics: list, show, create, change and delete them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import anyio
from attrs import evolve

from rmq.client.admin.cluster import Cluster, each, is_address
from rmq.errors import NoRoute, QueryNotFound, Unreachable, check_number, for_code
from rmq.message import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    MessageQueue,
    validate_topic,
)
from rmq.protocol.bodies import (
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from rmq.protocol.codes import HIDE_UNREAD, PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetTopicsByClusterRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PutKVConfigRequestHeader,
)

ORDER_CONF = "ORDER_TOPIC_CONFIG"
"""The namespace of key-value configs for ordered topics: the number of their queues on each broker."""

REGISTERED_SECONDS = 2.0
"""Longest wait for a change to reach a name server, in seconds. Brokers report a change at once, but not
before they answer."""


class Topics(Cluster):
    """Topic methods of `client.admin`. Names are the cluster's full names: no namespace is added."""

    async def topics(self, *, cluster: str = "") -> list[str]:
        """The names of all topics, of a `cluster` or of all, sorted, including system topics, retry topics
        and dead letter topics."""
        if cluster:
            header = GetTopicsByClusterRequestHeader(cluster)
            answer = await self._ask_names(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        else:
            answer = await self._ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.from_json(answer.body).topic_list)

    async def system_topics(self, broker: str = "") -> list[str]:
        """The topics that brokers create for themselves, by the name server or by a `broker`."""
        if broker:
            address = await self._broker_address(broker)
            answer = await self._ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        else:
            answer = await self._ask_names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        return sorted(TopicList.from_json(answer.body).topic_list)

    async def topic_clusters(self, topic: str) -> list[str]:
        """The names of the clusters that have the topic. Raises NoRoute."""
        return sorted({data.cluster for data in (await self.topic_route(topic)).broker_datas})

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """The ends of every queue: minimum and maximum offset, and the time of the last message (ms; 0
        without messages). Raises NoRoute, TopicNotExist."""
        header = GetTopicStatsInfoRequestHeader(topic)
        table: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._brokers_of(topic)).values():
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            table.update(TopicStatsTable.from_json(answer.body).offset_table)
        return dict(sorted(table.items()))

    async def topic_configs(self, broker: str, *, system: bool = True) -> dict[str, TopicConfig]:
        """The topics of a broker, by name; without `system`, only topics of users, without retry and dead
        letter topics."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicConfigSerializeWrapper.from_json(answer.body).topic_config_table
        if not system:
            hidden = set(await self.system_topics(address))
            table = {name: topic for name, topic in table.items() if not _is_internal(name, hidden)}
        return dict(sorted(table.items()))

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The settings of a topic on each of its masters: broker name -> config. Raises NoRoute."""
        found = {}
        for name, address in (await self._brokers_of(topic)).items():
            configs = await self.topic_configs(address)
            if topic in configs:
                found[name] = configs[topic]
        return found

    async def create_topic(
        self,
        topic: str,
        *,
        cluster: str = "",
        broker: str = "",
        queues: int = 8,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
    ) -> list[str]:
        """Create a topic, or change it, on a `broker` (name or address), on all masters of a `cluster`, or on
        all masters. Returns their addresses, once a name server has the change (or after
        `REGISTERED_SECONDS`). Raises InvalidName, ConfigError.

        With `order`, the name servers keep the number of queues of each broker, so that the absence of a
        broker does not move keys to other queues.
        """
        check_number("queues", queues, 1)
        config = TopicConfig(topic, queues, queues, perm, order=order)
        return await self.put_topic(config, cluster=cluster, broker=broker)

    async def put_topic(
        self,
        config: TopicConfig,
        *,
        cluster: str = "",
        broker: str = "",
        hide_unread: bool = False,
        drop_attributes: Collection[str] = (),
    ) -> list[str]:
        """Create or change a topic as `create_topic` does, with every field: read and write queues, flags,
        order.

        A broker of rmq raises ResponseError when the topic would get fewer queues to read and the removed
        queues hold unread messages, unless `hide_unread`; see `unread_beyond`. RocketMQ's broker hides such
        messages. `attributes` of the config, such as ``message.type``, are set, and `drop_attributes` are
        removed; the topic's other attributes stay.
        """
        validate_topic(config.topic_name)
        header = CreateTopicRequestHeader(
            config.topic_name,
            AUTO_CREATE_TOPIC,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_filter_type,
            config.topic_sys_flag,
            config.order,
        )

        async def put(address: str) -> None:
            request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            more = {HIDE_UNREAD: "true"} if hide_unread else {}
            given = [f"+{name}={value}" for name, value in (config.attributes or {}).items()]
            if words := [*given, *(f"-{name}" for name in sorted(drop_attributes))]:
                more["attributes"] = ",".join(words)
            if more:
                request = request.with_ext({**request.ext, **more})
            await self._send(address, request)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        await each(addresses, put)
        if config.order:
            await self._note_order(config, addresses, whole=not broker)
        with anyio.move_on_after(REGISTERED_SECONDS), suppress(Unreachable):
            while not await self._is_registered(config, addresses):
                await anyio.sleep(REGISTERED_SECONDS / 100)
        return addresses

    async def _is_registered(self, config: TopicConfig, addresses: list[str]) -> bool:
        """True if a name server has the present topic from the brokers at these addresses, so that a client
        that sends at once finds the topic. Raises Unreachable when no name server answers."""
        try:
            route = await self.topic_route(config.topic_name)
        except Unreachable:
            raise
        except NoRoute:
            return False
        shape = (config.read_queue_nums, config.write_queue_nums, config.perm)
        known = {
            data.broker_name
            for data in route.queue_datas
            if (data.read_queue_nums, data.write_queue_nums, data.perm) == shape
        }
        there = {
            address
            for data in route.broker_datas
            if data.broker_name in known
            for address in data.broker_addrs.values()
        }
        return there >= set(addresses)

    async def _note_order(self, config: TopicConfig, addresses: list[str], *, whole: bool) -> None:
        """Store the queues of an ordered topic at the name servers; the entries of other brokers stay."""
        table = (await self.cluster_info()).broker_addr_table
        names = [name for name, data in table.items() if set(data.broker_addrs.values()) & set(addresses)]
        counts = {} if whole else _parse_order(await self.order_conf(config.topic_name) or "")
        counts.update(dict.fromkeys(names, str(config.write_queue_nums)))
        text = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()))
        await self.put_order_conf(config.topic_name, text)

    async def set_topic_perm(
        self, topic: str, perm: int, *, cluster: str = "", broker: str = ""
    ) -> dict[str, TopicConfig]:
        """Change the permission: a sum of PERM_READ (4) and PERM_WRITE (2). Return address -> the former
        config. Raises NoRoute, TopicNotExist when the given brokers lack the topic."""
        if not is_address(broker):
            await self.topic_route(topic)
        before: dict[str, TopicConfig] = {}
        for address in await self.broker_addresses(cluster=cluster, broker=broker):
            config = (await self.topic_configs(address)).get(topic)
            if config is not None:
                before[address] = config
                await self.put_topic(evolve(config, perm=perm), broker=address)
        if not before:
            where = broker or cluster or "any broker"
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} is not on {where}")
        return before

    async def delete_topic(self, topic: str, *, cluster: str = "", broker: str = "") -> list[str]:
        """Delete a topic with its messages from a broker, all masters of a cluster, or all masters; unless
        only from a single `broker`, also from the name servers. Return the brokers' addresses."""
        header = DeleteTopicRequestHeader(topic)

        async def delete(address: str) -> None:
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        await each(addresses, delete)
        if not broker:
            names_header = DeleteTopicFromNamesrvRequestHeader(topic, cluster or None)
            await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, names_header)
        return addresses

    # --- order ---

    async def order_conf(self, topic: str) -> str | None:
        """The queues of an ordered topic, as ``broker:count;broker:count``; None without them."""
        try:
            answer = await self._ask_names(
                RequestCode.GET_KV_CONFIG, GetKVConfigRequestHeader(ORDER_CONF, topic)
            )
        except QueryNotFound:
            return None
        return answer.read(GetKVConfigResponseHeader).value

    async def put_order_conf(self, topic: str, conf: str) -> None:
        """Store the queues of an ordered topic, at all name servers."""
        header = PutKVConfigRequestHeader(ORDER_CONF, topic, conf)
        await self._ask_name_servers(RequestCode.PUT_KV_CONFIG, header)

    async def delete_order_conf(self, topic: str) -> None:
        """Remove the queues of an ordered topic, at all name servers."""
        await self._ask_name_servers(
            RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader(ORDER_CONF, topic)
        )

    async def topic_exists(self, topic: str, *, broker: str = "") -> bool:
        """True if a name server knows a route for the topic; if `broker` is an address, if this broker has
        the topic. Raises Unreachable when no name server answers."""
        if is_address(broker):
            return topic in await self.topic_configs(broker)
        try:
            await self.topic_route(topic)
        except Unreachable:
            raise
        except NoRoute:
            return False
        return True


def _is_internal(name: str, system: set[str]) -> bool:
    return name in system or name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _parse_order(text: str) -> dict[str, str]:
    pairs = (item.partition(":") for item in text.split(";") if item)
    return {name: count for name, _, count in pairs}
