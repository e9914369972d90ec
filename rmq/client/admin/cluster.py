"""Cluster: brokers and name servers: settings, figures, permissions, cleaning, key-value configs."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.client.admin.calls import Calls, each
from rmq.config import parse_properties
from rmq.errors import QueryNotFound
from rmq.protocol.bodies import BrokerStatsData, ConsumerOffsetSerializeWrapper, KVTable
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    PutKVConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)


class Cluster(Calls):
    """What `client.admin` does with brokers and name servers."""

    # --- brokers ---

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """The figures of a broker under RocketMQ's names, as brokerStatus shows them."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(KVTable.from_json(answer.body).table.items()))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """All settings of a broker under RocketMQ's names; secrets are never among them."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body.decode("utf-8", "replace"))

    async def update_broker_config(
        self, changes: Mapping[str, str], *, cluster: str = "", broker: str = ""
    ) -> list[str]:
        """Change settings of a broker, of all masters of a cluster, or of all masters, until the next start
        (Java's brokers also write them into their file). Returns the addresses. Raises ResponseError for a
        setting that cannot be changed at run time; then that broker has changed nothing.
        """
        body = _properties(changes)

        async def update(address: str) -> None:
            await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        await each(addresses, update)
        return addresses

    async def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData:
        """A counter of a broker over the last minute, hour and day: `name` such as ``TOPIC_PUT_NUMS``, `key`
        a topic, or ``topic@group``. Raises ResponseError when it has not counted that yet.
        """
        address = await self._broker_address(broker)
        header = ViewBrokerStatsDataRequestHeader(name, key)
        answer = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.from_json(answer.body)

    async def broker_offsets(self, broker: str) -> dict[str, dict[int, int]]:
        """The offsets of all groups: ``topic@group`` -> queue id -> offset."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        return ConsumerOffsetSerializeWrapper.from_json(answer.body).offset_table

    # --- cleaning ---

    async def clean_expired_queues(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Have brokers (slaves too) remove files of queues whose messages are gone. Returns the addresses."""
        return await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster, broker)

    async def delete_expired_logs(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Have brokers remove log files that are past their time now, at any hour. Returns the addresses."""
        return await self._clean(RequestCode.DELETE_EXPIRED_COMMITLOG, cluster, broker)

    async def clean_unused_topics(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Have brokers remove the queues of topics that do not exist any more. Returns the addresses."""
        return await self._clean(RequestCode.CLEAN_UNUSED_TOPIC, cluster, broker)

    async def _clean(self, code: RequestCode, cluster: str, broker: str) -> list[str]:
        async def clean(address: str) -> Command:
            return await self._ask(address, code)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker, slaves=True)
        return list(await each(addresses, clean))

    # --- write permission ---

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take the write permission from all topics of a broker, at every name server, so that producers
        leave it. Returns name server -> topics changed.
        """
        header = WipeWritePermOfBrokerRequestHeader(broker_name)
        answers = await self._tell_names(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return {
            address: answer.read(WipeWritePermOfBrokerResponseHeader).wipe_topic_count
            for address, answer in answers.items()
        }

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back. Returns name server -> topics changed."""
        header = AddWritePermOfBrokerRequestHeader(broker_name)
        answers = await self._tell_names(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return {
            address: answer.read(AddWritePermOfBrokerResponseHeader).add_topic_count
            for address, answer in answers.items()
        }

    # --- name servers ---

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """The settings of every name server: address -> name -> value."""
        answers = await self._tell_names(RequestCode.GET_NAMESRV_CONFIG)
        return {
            address: parse_properties(answer.body.decode("utf-8", "replace"))
            for address, answer in answers.items()
        }

    async def update_namesrv_config(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings of every name server. Returns their addresses. Raises ResponseError for a setting
        that cannot be changed at run time.
        """
        return list(await self._tell_names(RequestCode.UPDATE_NAMESRV_CONFIG, body=_properties(changes)))

    # --- key-value configs ---

    async def kv_config(self, namespace: str, key: str) -> str | None:
        """A value that name servers keep; None when there is none."""
        header = GetKVConfigRequestHeader(namespace, key)
        try:
            answer = await self._ask_names(RequestCode.GET_KV_CONFIG, header)
        except QueryNotFound:
            return None
        return answer.read(GetKVConfigResponseHeader).value

    async def kv_configs(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        try:
            answer = await self._ask_names(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except QueryNotFound:
            return {}
        return KVTable.from_json(answer.body).table

    async def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Keep a value, at every name server."""
        header = PutKVConfigRequestHeader(namespace, key, value)
        await self._tell_names(RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Forget a value, at every name server."""
        await self._tell_names(RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader(namespace, key))


_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "=": "\\=", ":": "\\:", " ": "\\ "}
)


def _properties(changes: Mapping[str, str]) -> bytes:
    """Settings as Java properties: a line end in a value must not begin a second setting."""
    lines = (f"{key.translate(_ESCAPES)}={value.translate(_ESCAPES)}\n" for key, value in changes.items())
    return "".join(lines).encode()
