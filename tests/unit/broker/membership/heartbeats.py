"""Heartbeats of clients."""

from __future__ import annotations

from typing import Any

from rmq.plugin import ACCOUNT
from rmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from tests.unit.broker.rig import START, Rig, Wire


def consumer(group: str, **topics: str) -> ConsumerData:
    subscriptions = [SubscriptionData(topic, text, sub_version=1) for topic, text in topics.items()]
    return ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", subscriptions)


def beat(rig: Rig, line: Wire, client_id: str, *data: Any, now: int = START) -> set[str]:
    """A heartbeat with these consumers and producers."""
    consumers = [item for item in data if isinstance(item, ConsumerData)]
    producers = [item for item in data if isinstance(item, ProducerData)]
    rig.let_pass(now - rig.now_ms)
    return rig.clients.heartbeat(HeartbeatData(client_id, producers, consumers), line, "JAVA", 407, now)


def wire(account: str) -> Wire:
    """A connection of an account."""
    made = Wire(f"10.0.0.7:{len(account)}")
    made.state[ACCOUNT] = account
    return made
