"""Name servers: their settings, routes, and key-value configs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from attrs import frozen

from rmq.dashboard.access.hidden import shown
from rmq.dashboard.access.roles import Role
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import RmqError
from rmq.operate import topics as operate_topics

ORDER_CONF = "ORDER_TOPIC_CONFIG"


@frozen
class NameServerRow:
    """A name server and its settings; `error` is the reason if they are unknown."""

    address: str
    settings: dict[str, str]
    error: str


@operation("GET", "/name-servers")
async def name_servers(call: Call) -> list[NameServerRow]:
    """The name servers of the cluster, with their settings."""
    try:
        found = await call.admin.namesrv_config()
    except RmqError as error:
        return [NameServerRow(address, {}, str(error)) for address in call.admin.name_servers]
    return [
        NameServerRow(address, {name: shown(name, value) for name, value in sorted(settings.items())}, "")
        for address, settings in found.items()
    ]


@frozen
class RouteRow:
    """The queues of a topic at one broker, as name servers give them to clients."""

    cluster: str
    broker: str
    addresses: list[str]
    read_queues: int
    write_queues: int
    perm: str


@operation("GET", "/name-servers/route")
async def route(call: Call, *, topic: str) -> list[RouteRow]:
    """The brokers to which the name servers send the clients of a topic."""
    return [
        RouteRow(
            one.cluster,
            one.broker,
            [f"{address} ({number})" for number, address in one.addresses.items()],
            one.read_queues,
            one.write_queues,
            one.perm,
        )
        for one in await operate_topics.routes(call.admin, topic)
    ]


@operation("GET", "/name-servers/configs")
async def kv_configs(call: Call, *, namespace: str = ORDER_CONF) -> dict[str, str]:
    """The key-value configs of a namespace."""
    return dict(sorted((await call.admin.kv_configs(namespace)).items()))


@frozen
class KvChange:
    """A key-value config that was put or deleted."""

    namespace: str
    key: str


Named = Annotated[str, msgspec.Meta(min_length=1)]


@operation("PUT", "/name-servers/configs", Role.ADMIN)
async def put_kv_config(call: Call, *, namespace: Named, key: Named, value: str) -> KvChange:
    """Keep a value at every name server."""
    await call.admin.put_kv_config(namespace, key, value)
    return KvChange(namespace, key)


@operation("DELETE", "/name-servers/configs", Role.ADMIN)
async def delete_kv_config(call: Call, *, namespace: Named, key: Named) -> KvChange:
    """Forget a value, at every name server."""
    await call.admin.delete_kv_config(namespace, key)
    return KvChange(namespace, key)
