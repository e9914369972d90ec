"""Name servers: their settings, the brokers that each knows, key-value configs, and differences between
servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from attrs import frozen

from rmq.client.admin.topics import ORDER_CONF
from rmq.errors import RmqError
from rmq.operate.several import ask_each

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client


@frozen
class NameServer:
    """A name server. `brokers` are the known names; `error` is the reason for a missing answer. `settings`
    are empty when the account may not read settings."""

    address: str
    brokers: tuple[str, ...] = ()
    topics: int = 0
    settings: Mapping[str, str] | None = None
    error: str = ""


async def name_servers(
    connect: Callable[[str], AbstractAsyncContextManager[Client]], addresses: Sequence[str]
) -> list[NameServer]:
    """Query each name server by itself; `connect` makes a client of a single name server. A silent server has
    an `error`."""

    async def look(address: str) -> NameServer:
        try:
            async with connect(address) as client:
                admin = client.admin
                brokers = tuple(sorted((await admin.cluster_info()).broker_addr_table))
                topics = len(await admin.topics())
                return NameServer(address, brokers, topics, await _settings(admin, address))
        except RmqError as error:
            return NameServer(address, error=str(error))

    return list((await ask_each(addresses, look)).values())


async def _settings(admin: Admin, address: str) -> Mapping[str, str] | None:
    try:
        return (await admin.namesrv_config()).get(address)
    except RmqError:
        return None


def lacking(found: Sequence[NameServer]) -> dict[str, tuple[str, ...]]:
    """Name servers that answered and lack brokers that others know: address -> the names."""
    known = {name for one in found for name in one.brokers}
    missing = {one.address: tuple(sorted(known - set(one.brokers))) for one in found if not one.error}
    return {address: names for address, names in missing.items() if names}


async def key_values(admin: Admin, namespace: str = ORDER_CONF) -> dict[str, str]:
    """The key-value configs of a namespace, by key; by default the queues of ordered topics."""
    return dict(sorted((await admin.kv_configs(namespace)).items()))


async def put(admin: Admin, namespace: str, key: str, value: str) -> None:
    """Store a value at every name server. Raises as `client.admin`, with a note on the servers that have
    stored the value."""
    await admin.put_kv_config(namespace, key, value)


async def delete(admin: Admin, namespace: str, key: str) -> None:
    """Delete a value at every name server. Raises as `client.admin`, with a note on the servers that have
    deleted the value."""
    await admin.delete_kv_config(namespace, key)
