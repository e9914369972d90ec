"""Calls: how an administrator's requests find the brokers and name servers that they are for.

All methods of `client.admin` raise what these raise: ConnectFailed, ConnectionLost, RequestTimeout, NoRoute
for a topic that no name server knows, the ResponseError of what a server refuses, and RemoteProtocolError for
an answer that cannot be read. Nothing is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from rmq.client.name_servers import UNREACHABLE
from rmq.client.session import Session
from rmq.errors import ConfigError, NoRoute, RmqError, for_code
from rmq.message import retry_topic
from rmq.protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from rmq.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from rmq.protocol.command import Command

log = logging.getLogger(__name__)

T = TypeVar("T")


class Calls:
    """Requests to brokers, to one name server, to all name servers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers that this client knows."""
        return list(self._session.names.addresses)

    async def _ask(
        self, address: str, code: RequestCode, header: Any = None, body: bytes = b"", timeout: float = 0
    ) -> Command:
        """Send a request to a broker; any answer but SUCCESS is raised as its ResponseError."""
        return await self._session.brokers.call(address, code, header, body, timeout)

    async def _send(self, address: str, request: Command) -> Command:
        """As `_ask`, for a request that is more than a header and a body."""
        brokers = self._session.brokers
        response = await brokers.pool.call(address, request, brokers.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        return response

    async def _ask_names(self, code: RequestCode, header: Any = None) -> Command:
        """Send a request to the name servers one by one until one can be reached."""
        failure: RmqError | None = None
        for address in self.name_servers:
            try:
                return await self._ask(address, code, header)
            except UNREACHABLE as error:
                log.info("name server %s: %s", address, error)
                failure = error
        assert failure is not None
        raise failure

    async def _tell_names(
        self, code: RequestCode, header: Any = None, body: bytes = b""
    ) -> dict[str, Command]:
        """Send a request to every name server: they do not know of each other. Returns address -> answer."""

        async def tell(address: str) -> Command:
            return await self._ask(address, code, header, body)

        return await each(self.name_servers, tell)

    # --- where ---

    async def cluster_info(self) -> ClusterInfo:
        """All brokers with their addresses, and which cluster they belong to."""
        answer = await self._ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.from_json(answer.body)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where the queues of a topic are. Raises NoRoute."""
        return await self._session.names.route(topic, self._session.brokers.timeout)

    async def broker_addresses(
        self, *, cluster: str = "", broker: str = "", slaves: bool = False
    ) -> list[str]:
        """The masters (and `slaves`) of a cluster, of a broker's name, or of all clusters; a `broker` that is
        an address stands for itself. Raises ConfigError for a name that no name server knows.
        """
        if ":" in broker:
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
        """Broker name -> the address to ask: the master's, or a slave's when there is no master."""
        route = await self.topic_route(topic)
        return {data.broker_name: readable(data) for data in route.broker_datas if data.broker_addrs}

    async def _brokers_of_group(self, group: str) -> dict[str, str]:
        """The brokers that know a group, by its retry topic; all brokers when it has none."""
        try:
            return await self._brokers_of(retry_topic(group))
        except NoRoute:
            table = (await self.cluster_info()).broker_addr_table
            return {name: readable(data) for name, data in table.items() if data.broker_addrs}

    async def _broker_address(self, broker: str) -> str:
        """The address of a broker's name; an address stands for itself."""
        if ":" in broker:
            return broker
        data = (await self.cluster_info()).broker_addr_table.get(broker)
        if data is None or not data.broker_addrs:
            raise ConfigError("broker", broker, "an address host:port or the name of a registered broker")
        return readable(data)


async def each(addresses: Iterable[str], call: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Call each server, one after the other; the first error ends it, with a note on those that were done."""
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
    """What is raised for a group that has no member."""
    return for_code(ResponseCode.CONSUMER_NOT_ONLINE, f"group {group} has no member that is connected")


def _addresses(data: BrokerData, slaves: bool) -> list[str]:
    by_id = sorted(data.broker_addrs.items())
    return [address for broker_id, address in by_id if slaves or broker_id == MASTER_ID]
