"""Cluster: finds the brokers and name servers for an administrator's requests; methods for settings, metrics,
permissions, cleaning, key-value configs.

All methods of `client.admin` raise ConnectFailed, ConnectionLost, RequestTimeout, Unreachable when no name
server answers, NoRoute for an unknown topic, the ResponseError of a refusal (including AccessDenied), and
RemoteProtocolError for an unreadable response. Nothing is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from rmq.client.session.session import Session
from rmq.config import parse_properties
from rmq.errors import NETWORK_ERRORS, ConfigError, NoRoute, QueryNotFound, RmqError, Unreachable, for_code
from rmq.message import retry_topic
from rmq.protocol.bodies import (
    BrokerData,
    BrokerStatsData,
    ClusterInfo,
    ClusterReport,
    ConsumerOffsetSerializeWrapper,
    KVTable,
    MissingBroker,
    TopicRouteData,
)
from rmq.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.fields import encode
from rmq.protocol.headers import (
    FORGET_MISSING,
    WITH_MISSING,
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

log = logging.getLogger(__name__)

T = TypeVar("T")


def is_address(broker: str) -> bool:
    """True if a broker is given by its address, not by its name."""
    return ":" in broker


class Cluster:
    """Requests to brokers, to a name server, to all name servers; and the methods of `client.admin` about
    these servers themselves."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers that this client knows."""
        return list(self._session.name_servers.addresses)

    async def _ask(
        self, address: str, code: RequestCode, header: Any = None, body: bytes = b"", timeout: float = 0
    ) -> Command:
        """Send a request to a broker; any response but SUCCESS is raised as its ResponseError."""
        return await self._session.brokers.call(address, code, header, body, timeout)

    async def _send(self, address: str, request: Command) -> Command:
        """Send a prepared request as `_ask` does, for a request with more than a header and a body."""
        brokers = self._session.brokers
        response = await brokers.pool.call(address, request, brokers.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        return response

    async def call(self, address: str, request: Command) -> Command:
        """Send a request unchanged to a server; returns the response, whatever its code. Raises the errors of
        the network."""
        brokers = self._session.brokers
        return await brokers.pool.call(address, request, brokers.timeout)

    async def _ask_names(self, code: RequestCode, header: Any = None) -> Command:
        """Send a request to the name servers in order until one can be reached."""
        failures: dict[str, Exception] = {}
        for address in self.name_servers:
            try:
                return await self._ask(address, code, header)
            except NETWORK_ERRORS as error:
                log.info("name server %s does not answer, asking the next: %s", address, error)
                failures[address] = error
        raise Unreachable("", failures)

    async def _ask_name_servers(
        self, code: RequestCode, header: Any = None, body: bytes = b""
    ) -> dict[str, Command]:
        """Send a request to every name server: name servers do not share data. Returns address ->
        response."""

        async def ask(address: str) -> Command:
            return await self._ask(address, code, header, body)

        return await each(self.name_servers, ask)

    # --- brokers and routes ---

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and their clusters."""
        answer = await self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.from_json(answer.body)

    async def cluster_report(self) -> ClusterReport:
        """All brokers as in `cluster_info`, with the missing and the refused brokers. RocketMQ's name server
        reports neither."""
        answer = await self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO, {WITH_MISSING: "true"})
        return ClusterReport.from_json(answer.body)

    async def missing_brokers(self) -> list[MissingBroker] | None:
        """Brokers that left the name servers without a drain and did not come back; None from RocketMQ's name
        server, which does not keep them."""
        answer = await self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO, {WITH_MISSING: "true"})
        is_reported = b'"missingBrokers"' in answer.body
        return ClusterReport.from_json(answer.body).missing_brokers if is_reported else None

    async def forget_missing(self, broker_name: str) -> dict[str, int]:
        """Let every name server forget the missing brokers of a name, which will not come back. Returns name
        server -> number of forgotten brokers. A name server without missing brokers of the name gets no
        request: RocketMQ's would take the write permission of a running broker."""
        fields = {**encode(WipeWritePermOfBrokerRequestHeader(broker_name)), FORGET_MISSING: "true"}

        async def forget(address: str) -> int:
            answer = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, {WITH_MISSING: "true"})
            missing = ClusterReport.from_json(answer.body).missing_brokers
            if not any(one.broker_name == broker_name for one in missing):
                return 0
            answer = await self._ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields)
            return answer.read(WipeWritePermOfBrokerResponseHeader).wipe_topic_count

        return await each(self.name_servers, forget)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """The queues of a topic and their brokers. Raises NoRoute."""
        return await self._session.name_servers.route(topic, self._session.brokers.timeout)

    async def broker_addresses(
        self, *, cluster: str = "", broker: str = "", slaves: bool = False
    ) -> list[str]:
        """The masters (and `slaves`) of a cluster, of a broker's name, or of all clusters; a `broker` that is
        an address stands for itself. Raises ConfigError for a name that no name server knows.
        """
        if is_address(broker):
            return [broker]
        info = await self.cluster_info()
        if cluster and cluster not in info.cluster_addr_table:
            raise ConfigError("cluster", cluster, f"one of {sorted(info.cluster_addr_table)}")
        if broker and broker not in info.broker_addr_table:
            raise ConfigError("broker", broker, f"an address, or one of {sorted(info.broker_addr_table)}")
        names = [broker] if broker else sorted(info.cluster_addr_table.get(cluster, info.broker_addr_table))
        brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
        return [address for data in brokers for address in _addresses(data, slaves)]

    async def _brokers_of(self, topic: str) -> dict[str, str]:
        """Broker name -> the address for a request: the master's, or a slave's when there is no master."""
        route = await self.topic_route(topic)
        return {data.broker_name: readable(data) for data in route.broker_datas if data.broker_addrs}

    async def _brokers_of_group(self, group: str) -> dict[str, str]:
        """The brokers that know a group, by its retry topic; all brokers when the group has none."""
        try:
            return await self._brokers_of(retry_topic(group))
        except NoRoute:
            table = (await self.cluster_info()).broker_addr_table
            return {name: readable(data) for name, data in table.items() if data.broker_addrs}

    async def _broker_address(self, broker: str) -> str:
        """The address of a broker's name; an address stands for itself."""
        if is_address(broker):
            return broker
        data = (await self.cluster_info()).broker_addr_table.get(broker)
        if data is None or not data.broker_addrs:
            raise ConfigError("broker", broker, "an address host:port or the name of a registered broker")
        return readable(data)

    # --- brokers ---

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """The metrics of a broker under RocketMQ's names, as brokerStatus shows them."""
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
        (Java's brokers also write them into their file). Return the addresses. Raises ResponseError for a
        setting that cannot be changed at run time; that broker has then changed nothing."""
        body = _properties(changes)

        async def update(address: str) -> None:
            await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

        addresses = await self.broker_addresses(cluster=cluster, broker=broker)
        await each(addresses, update)
        return addresses

    async def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData:
        """A counter of a broker over the last minute, hour and day: `name` such as ``TOPIC_PUT_NUMS``, `key`
        a topic, or ``topic@group``. Raises ResponseError when the broker has no such counter yet."""
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
        """Remove the files of queues without messages, at brokers and slaves. Returns the addresses."""
        return await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster, broker)

    async def delete_expired_logs(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Remove log files that are past their time now, at any hour. Returns the addresses."""
        return await self._clean(RequestCode.DELETE_EXPIRED_COMMITLOG, cluster, broker)

    async def clean_unused_topics(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Remove the queues of topics that do not exist any more. Returns the addresses."""
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
        answers = await self._ask_name_servers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return {
            address: answer.read(WipeWritePermOfBrokerResponseHeader).wipe_topic_count
            for address, answer in answers.items()
        }

    async def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Give the write permission back. Returns name server -> topics changed."""
        header = AddWritePermOfBrokerRequestHeader(broker_name)
        answers = await self._ask_name_servers(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return {
            address: answer.read(AddWritePermOfBrokerResponseHeader).add_topic_count
            for address, answer in answers.items()
        }

    # --- name servers ---

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """The settings of every name server: address -> name -> value."""
        answers = await self._ask_name_servers(RequestCode.GET_NAMESRV_CONFIG)
        return {
            address: parse_properties(answer.body.decode("utf-8", "replace"))
            for address, answer in answers.items()
        }

    async def update_namesrv_config(self, changes: Mapping[str, str]) -> list[str]:
        """Change settings of every name server. Returns their addresses. Raises ResponseError for a setting
        that cannot be changed at run time.
        """
        return list(
            await self._ask_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, body=_properties(changes))
        )

    # --- key-value configs ---

    async def kv_config(self, namespace: str, key: str) -> str | None:
        """A value that name servers keep; None without one."""
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
        await self._ask_name_servers(RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Remove a value, at every name server."""
        await self._ask_name_servers(
            RequestCode.DELETE_KV_CONFIG, DeleteKVConfigRequestHeader(namespace, key)
        )


async def each(addresses: Iterable[str], call: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Call each server in order; the first error ends the calls, with a note on the servers called before."""
    done: dict[str, T] = {}
    for address in addresses:
        try:
            done[address] = await call(address)
        except RmqError as error:
            if done:
                error.add_note(f"done before that: {', '.join(done)}")
            raise
    return done


def readable(data: BrokerData) -> str:
    """The master's address, or that of the slave with the lowest id."""
    return data.broker_addrs[min(data.broker_addrs)]


def offline(group: str) -> RmqError:
    """The error for a group without members."""
    return for_code(ResponseCode.CONSUMER_NOT_ONLINE, f"group {group} has no member that is connected")


def _addresses(data: BrokerData, slaves: bool) -> list[str]:
    by_id = sorted(data.broker_addrs.items())
    return [address for broker_id, address in by_id if slaves or broker_id == MASTER_ID]


_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "=": "\\=", ":": "\\:", " ": "\\ "}
)


def _properties(changes: Mapping[str, str]) -> bytes:
    """Settings as Java properties: a line end in a value must not begin a second setting."""
    lines = (f"{key.translate(_ESCAPES)}={value.translate(_ESCAPES)}\n" for key, value in changes.items())
    return "".join(lines).encode()
