"""A cluster with the AMQP door, its client, and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_amqp import values
from rmq_amqp.sections import VALUE, Sections

from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.amqp.client import ACCEPTED, Client, Consumer, connected, proton

PORT = 5672


REJECTED, RELEASED, MODIFIED = 0x25, 0x26, 0x27


def cluster(**settings: Any) -> Cluster:
    settings = {"plugins": ("amqp",), "plugin_settings": {"amqpPort": str(PORT)}} | settings
    return Cluster("a", **({"topics": {"Orders": 4}} | settings))


@asynccontextmanager
async def client(
    running: Cluster,
    container: str = "client",
    host: str = "10.0.8.1",
    port: int | None = PORT,
    broker: str = "a",
    scheme: str = "",
    **named: Any,
) -> AsyncIterator[Client]:
    assert isinstance(running.network, MemoryNetwork)
    address = running[broker].address
    if port is not None:
        address = f"{address.partition(':')[0]}:{port}"
    async with connected(running.network.host(host), scheme + address, container, **named) as one:
        yield one


def text(body: str, **fields: Any) -> Sections:
    annotations = {values.Symbol("x-opt-jms-msg-type"): values.Byte(5)}
    return Sections(VALUE, body, durable=True, annotations=annotations, **fields)


async def bodies(consumer: Consumer, count: int, *, state: int = ACCEPTED) -> list[Any]:
    """Receive messages, and settle each at once; returns their bodies."""
    found = []
    for _ in range(count):
        delivery, message = await consumer.receive()
        found.append(message.body)
        await consumer.settle(delivery, state)
    return found


def selector(condition: str) -> dict[Any, Any]:
    described = proton.Described(proton.ulong(0x0000468C00000004), condition)
    return {proton.symbol("jms-selector"): described}
