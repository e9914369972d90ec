"""Calls of a 5.x client, by gRPC."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from rmq_grpc import schema
from rmq_grpc.statuses import Code

from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.grpc.channel import Channel, channel
from tests.unit.grpc.proxied import HOST, ProxiedCluster

PORT = 8081


WORDS = {number: word for word, number in Code.items()}


Message = schema.message("Message")


MessageType = schema.enum("MessageType")


Settings = schema.message("Settings")


def cluster(**settings: Any) -> Cluster:
    """A broker with the door; in a test for both doors, a broker behind a proxy in its second run."""
    topics = {"Orders": 4}
    if DOOR.get() == "proxy":
        own = {name: settings[name] for name in PROXY_SETTINGS if name in settings}
        return ProxiedCluster("a", topics=topics, proxy_settings=own, **_without(settings, own))
    settings = {"plugins": ("grpc",), "plugin_settings": {"grpcPort": str(PORT)}} | settings
    return Cluster("a", topics=topics, **settings)


def _without(settings: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in own}


DOOR: ContextVar[str] = ContextVar("DOOR", default="broker")


PROXY_SETTINGS = ("acl_enable", "acl_file", "connection_buffer_bytes", "plugins", "plugin_settings")


@asynccontextmanager
async def client(
    running: Cluster, client_id: str = "client@1", port: int | None = PORT, host: str = "10.0.8.1"
) -> AsyncIterator[Channel]:
    assert isinstance(running.network, MemoryNetwork)
    address = f"{HOST}:{PORT}" if isinstance(running, ProxiedCluster) else running["a"].address
    if port is not None:
        address = f"{address.partition(':')[0]}:{port}"
    async with channel(running.network.host(host), address, client_id) as one:
        yield one


def message(body: bytes = b"hello", topic: str = "Orders", **system: Any) -> Any:
    made = Message(body=body)
    made.topic.name = topic
    made.system_properties.message_id = system.pop("message_id", "01" + "0" * 32)
    made.system_properties.message_type = MessageType[system.pop("type", "NORMAL")]
    for name, value in system.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name == "delivery_ms":
            made.system_properties.delivery_timestamp.seconds = value // 1000
            made.system_properties.delivery_timestamp.nanos = value % 1000 * 1_000_000
        else:
            setattr(made.system_properties, name, value)
    return made


def request(name: str, **fields: Any) -> Any:
    made = schema.message(f"{name}Request")()
    for field, value in fields.items():
        if field in ("topic", "group"):
            getattr(made, field).name = value
        elif field.endswith(("_duration", "_timeout")):
            getattr(made, field).seconds = value
        else:
            setattr(made, field, value)
    return made


def sending(*messages: Any) -> Any:
    return schema.message("SendMessageRequest")(messages=messages)


def receiving(
    group: str = "G", topic: str = "Orders", batch: int = 32, seconds: int = 30, poll: int = 5
) -> Any:
    made = request("ReceiveMessage", group=group, batch_size=batch, invisible_duration=seconds)
    made.message_queue.topic.name = topic
    made.long_polling_timeout.seconds = poll
    return made


def acking(*handles: str, group: str = "G", topic: str = "Orders") -> Any:
    made = request("AckMessage", group=group, topic=topic)
    for handle in handles:
        made.entries.add(receipt_handle=handle, message_id="id")
    return made


def ending(message_id: str, transaction_id: str, decision: str = "COMMIT", topic: str = "Orders") -> Any:
    made = request("EndTransaction", topic=topic, message_id=message_id, transaction_id=transaction_id)
    made.resolution = schema.enum("TransactionResolution")[decision]
    return made


async def received(one: Channel, asked: Any, **metadata: str) -> tuple[str, list[Any]]:
    """The status and the messages of a receive; its answer ends with the time of the broker."""
    answers = await one.ask("ReceiveMessage", asked, **metadata)
    assert answers[-1].WhichOneof("content") == "delivery_timestamp"
    assert [answer.WhichOneof("content") for answer in answers[1:-1]] == ["message"] * (len(answers) - 2)
    return WORDS[answers[0].status.code], [answer.message for answer in answers[1:-1]]


def word(answer: Any) -> str:
    return WORDS[answer.status.code]


async def telemetry(one: Channel, **kinds: Any) -> tuple[Any, Any]:
    """Begin the stream of a client by its settings; returns the call and the settings of the broker."""
    call = await one.begin("Telemetry")
    command = schema.message("TelemetryCommand")(settings=Settings(**kinds))
    await call.send(command)
    answers = await call.until(1)
    return call, answers[0].settings if answers else None


def consumer(group: str = "G", topic: str = "Orders") -> dict[str, Any]:
    subscription = schema.message("Subscription")()
    subscription.group.name = group
    entry = subscription.subscriptions.add()
    entry.topic.name, entry.expression.expression = topic, "*"
    return {"client_type": 3, "subscription": subscription}


def producer(*topics: str) -> dict[str, Any]:
    publishing = schema.message("Publishing")()
    for topic in topics:
        publishing.topics.add(name=topic)
    return {"client_type": 1, "publishing": publishing}


ACCOUNTS = """accounts:
  - {accessKey: writer01, secretKey: writer-secret-1, topicPerms: [Orders=PUB]}
  - {accessKey: reader01, secretKey: reader-secret-1, topicPerms: [Orders=SUB], groupPerms: [G=SUB]}
"""


def signed(user: str, secret: str, date: str = "20261126T120000Z") -> dict[str, str]:
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x_mq_date_time": date}
