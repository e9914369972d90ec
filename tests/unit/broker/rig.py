"""A whole broker over a store in memory, without an event loop, and connections that decode what they get.

Requests go in as bytes and through all of the broker (`ask`, `one`, `call`); tests of one part reach it under
its name: `rig.topics`, `rig.offsets`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from attrs import evolve

from rmq.broker.config import BrokerConfig
from rmq.broker.send_batches import make_broker
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, tags_code
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, encode_batch, host_bytes
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from rmq.testing.front import Wire

START = 1_700_000_000_000
ADDRESS = "10.0.0.9:10911"


class Rig:
    """A broker whose two clocks stand still until they are turned; `given` is for its constructor."""

    def __init__(
        self,
        *,
        config: BrokerConfig | None = None,
        disk: MemoryDisk | None = None,
        store: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
        memory_bytes: int | None = None,
        now_ms: int = START,
        seconds: float = 100.0,
        **settings: Any,
    ) -> None:
        self.now_ms, self.seconds = now_ms, seconds
        self.disk = disk or MemoryDisk(1)
        sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 2000}
        self.store_config = StoreConfig(
            **{"store_path_root_dir": "/store", "max_hash_slot_num": 64, "max_index_num": 1024}
            | sizes
            | (store or {})
        )
        host = host_bytes(ADDRESS)
        memory = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        self.store = Store(
            self.disk, self.store_config, store_host=host, now_ms=lambda: self.now_ms, **memory
        )
        self.store.load()
        names = {"broker_name": "wire-a", "broker_cluster_name": "WireCluster"}
        self.config = config or BrokerConfig(**names | settings)
        self.broker = make_broker(
            self.config,
            self.store,
            address=ADDRESS,
            ha_address="10.0.0.9:10912",
            now_ms=lambda: self.now_ms,
            clock=lambda: self.seconds,
            chance=Random(1),
            **(given or {}),
        )
        self.wire = Wire()
        self.settings = self.broker.settings
        self.topics, self.groups, self.offsets = self.broker.topics, self.broker.groups, self.broker.offsets
        self.clients, self.locks, self.filters = self.broker.clients, self.broker.locks, self.broker.filters
        self.stats, self.admin = self.broker.stats, self.broker.admin
        self.query, self.progress = self.broker.query, self.broker.progress

    def let_pass(self, ms: int) -> None:
        """Turn both clocks on."""
        self.now_ms += ms
        self.seconds += ms / 1000

    def ask(self, *requests: Command, wire: Wire | None = None) -> list[Command]:
        """Hand requests over as one chunk, as bytes, and return what comes back at once."""
        wire = wire or self.wire
        chunk = self.decoded(b"".join(map(encode, requests)))
        assert sum(getattr(one, "count", 1) for one in chunk) == len(requests)
        self.broker.handle(chunk, wire)  # type: ignore[arg-type]
        return wire.take()

    def decoded(self, data: bytes) -> list[Command]:
        """The requests that a connection makes of these bytes, by the engine of the broker."""
        return Decoder(lanes=self.broker.lanes).feed(data)

    def one(self, request: Command, *, wire: Wire | None = None) -> Command:
        """The only answer to a request."""
        (answer,) = self.ask(request, wire=wire)
        assert answer.opaque == request.opaque
        return answer

    def call(self, code: int, header: Any = None, body: bytes = b"", wire: Wire | None = None) -> Command:
        """The answer to a request of this code and header, which is sent over a connection of its own."""
        return self.answer(Command.request(code, header, body), wire or Wire())

    def answer(self, request: Command, wire: Wire) -> Command:
        """The answer to a request; what else came over the connection stays there."""
        self.broker.handle(self.decoded(encode(request)), wire)  # type: ignore[arg-type]
        (answer,) = [one for one in wire.received if one.is_response and one.opaque == request.opaque]
        wire.received.remove(answer)
        return answer

    def become_slave(self) -> None:
        """From now on the settings say that it copies another broker."""
        self.settings.replace(self.config, evolve(self.store.config, broker_role=BrokerRole.SLAVE))

    def topic(self, name: str, queues: int = 4, **more: Any) -> None:
        """Make a topic, as an administrator does."""
        self.topics.update(TopicConfig(name, queues, queues, **more))

    def put(self, topic: str, queue_id: int = 0, body: bytes = b"body", **more: Any) -> int:
        """Store a message, past the broker; returns its physical offset."""
        tags, keys = more.pop("tags", None), more.pop("keys", ())
        properties = {}
        if tags:
            properties[PROPERTY_TAGS] = tags
        if keys:
            properties[PROPERTY_KEYS] = " ".join(keys)
        record = Record(
            topic,
            queue_id,
            body,
            encode_properties({**properties, **more.pop("properties", {})}),
            tags_code=tags_code(tags),
            keys=more.pop("index", keys),
            **more,
        )
        self.store.put(record)
        self.store.commit()
        return record.physical_offset

    def saved(self, name: str) -> bytes | None:
        """The contents of config/<name>.json; None if the file was never written."""
        return self.store.config_text(name)

    def fill_disk(self) -> None:
        """From now on nothing new can be written: the disk is full."""
        self.disk.capacity = 0

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The bodies of a queue's messages, read from the store."""
        return [message.body for message in self.messages(topic, queue_id)]

    def messages(self, topic: str, queue_id: int = 0) -> list[Any]:
        found = []
        for offset in itertools.count(self.store.min_offset(topic, queue_id)):
            unit = self.store.unit(topic, queue_id, offset)
            if unit is None:
                return found
            found.append(self.store.message(unit[0]))
        raise AssertionError


def send(
    topic: str = "Orders",
    body: bytes = b"hello",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    properties: str | None = "UNIQ_KEY\x01AC11\x02WAIT\x01true\x02TAGS\x01TagA",
    oneway: bool = False,
    **fields: Any,
) -> Command:
    """A send request; `fields` are header fields."""
    values: dict[str, Any] = {
        "producer_group": "producers",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": START - 5,
        "flag": 0,
        "properties": properties,
        "reconsume_times": 0,
    } | fields
    return Command.request(int(code), SendMessageRequestHeader(**values), body, oneway=oneway)


def batch(topic: str = "Orders", bodies: Sequence[bytes] = (b"a", b"b", b"c"), **fields: Any) -> Command:
    """A batch send; each message has its own unique key and the tag TagB."""
    texts = (f"UNIQ_KEY\x01AC{number}\x02TAGS\x01TagB" for number in range(len(bodies)))
    data = encode_batch((0, one, text) for one, text in zip(bodies, texts, strict=True))
    return send(
        topic,
        data,
        code=RequestCode.SEND_BATCH_MESSAGE,
        **{"properties": "WAIT\x01true", "batch": True} | fields,
    )


def pull(topic: str = "Orders", offset: int = 0, **fields: Any) -> Command:
    """A pull request that brings its own subscription (everything) and does not wait."""
    values: dict[str, Any] = {
        "consumer_group": "readers",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "subscription": "*",
        "sub_version": 0,
        "expression_type": "TAG",
    } | fields
    return Command.request(RequestCode.PULL_MESSAGE, PullMessageRequestHeader(**values))


def tags(names: str) -> Iterator[str]:
    """Property texts, one for each letter."""
    return (f"TAGS\x01{name}" for name in names)


def aged(**store: Any) -> Rig:
    """A rig whose topic T has ten messages in queue 0, whose files are all expired but the last."""
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    rig = Rig(store={"mapped_file_size_commit_log": 4096, "delete_when": every_hour} | store)
    rig.topic("T")
    for _ in range(10):
        rig.put("T", body=bytes(1000))
    rig.let_pass(100 * 3_600_000)
    return rig
