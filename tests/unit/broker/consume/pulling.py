"""Pulls of clients, and their heartbeats."""

from __future__ import annotations

from typing import Any

import trio.testing

from rmq.client.client import Client
from rmq.client.produce.producer import Producer
from rmq.message import tags_code
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from tests.sim.real_brokers.brokers import Set


def heartbeat(group: str, topic: str, tags: str = "*", *, version: int = 1, **fields: Any) -> Command:
    codes = frozenset(map(tags_code, tags.split("||"))) if tags != "*" else frozenset()
    wanted = SubscriptionData(topic, tags, frozenset(tags.split("||")), codes, version)
    data = ConsumerData(group, **({"message_model": "CLUSTERING"} | fields))
    data.subscription_data_set = [wanted]
    return Command.request(RequestCode.HEART_BEAT, None, HeartbeatData("c1", [], [data]).to_json())


async def begin(found: Set, client: Client, producer: Producer) -> None:
    """Have a message, and slaves that have heard that they are in sync."""
    await found.begin(client)
    assert await found.send(producer, "one")
    await trio.sleep(0.5)
