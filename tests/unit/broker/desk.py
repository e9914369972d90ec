"""A broker's tables over a store in memory, and connections that only remember what was written to them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from rmq.broker.admin import Admin
from rmq.broker.clients import Clients
from rmq.broker.config import BrokerConfig, Settings
from rmq.broker.filter import FilterTable
from rmq.broker.groups import Groups
from rmq.broker.locks import Locks
from rmq.broker.offsets import Offsets
from rmq.broker.progress import LongAnswers, Progress
from rmq.broker.query import Query
from rmq.broker.stats import Stats
from rmq.broker.tables import Tables
from rmq.broker.topics import Topics
from rmq.errors import ResponseError
from rmq.message import PROPERTY_KEYS, PROPERTY_TAGS, tags_code
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.command import Command
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, host_bytes
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

SESSIONS = Path(__file__).parents[2] / "golden" / "wire_sessions"
START = 1_700_000_000_000


class Line:
    """A connection: `sent` holds the commands written to it, in order."""

    def __init__(self, peer: str = "10.0.0.1:40001") -> None:
        self.peer_address = peer
        self.local_address = "10.0.0.9:10911"
        self.state: dict[str, Any] = {}
        self.is_closed = False
        self.sent: list[Command] = []

    def notify(self, command: Command) -> None:
        assert command.is_oneway
        self.sent.append(command)

    def reply(self, response: Command) -> None:
        self.sent.append(response)

    def close(self, reason: str = "", cause: BaseException | None = None) -> None:
        self.is_closed = True

    def take(self) -> list[tuple[int, dict[str, str]]]:
        """(code, header) of what was sent since the last time."""
        taken = [(command.code, dict(command.ext)) for command in self.sent]
        self.sent.clear()
        return taken


@define
class Clock:
    """The time, in ms."""

    now: int = START

    def seconds(self) -> float:
        """As a clock of a broker."""
        return self.now / 1000


@define
class Saved:
    """A file of config/: its texts in order; `broken` makes saving fail."""

    texts: list[bytes] = field(factory=list)
    broken: Exception | None = None

    def save(self, data: bytes) -> None:
        if self.broken is not None:
            raise self.broken
        self.texts.append(data)


class Desk:
    """The parts that answer clients and administrators, wired as a broker wires them."""

    def __init__(self, config: BrokerConfig | None = None, **store_settings: Any) -> None:
        self.config = config or BrokerConfig(broker_name="wire-a", broker_cluster_name="WireCluster")
        self.clock = Clock()
        self.disk = MemoryDisk()
        small = {
            "mapped_file_size_commit_log": 1 << 20,
            "mapped_file_size_consume_queue": 4_000,
            "max_hash_slot_num": 64,
            "max_index_num": 256,
        }
        self.store = Store(
            self.disk,
            StoreConfig(store_path_root_dir="/store", **{**small, **store_settings}),
            store_host=host_bytes("10.0.0.9:10911"),
            now_ms=lambda: self.clock.now,
            memory_bytes=1 << 20,
        )
        self.store.load()
        self.saved = {name: Saved() for name in ("topics", "groups", "offsets")}
        self.settings = Settings(self.config, self.store.config)
        self.stats = Stats(START, cluster=self.config.broker_cluster_name)
        self.topics = Topics(
            self.settings,
            save=self.saved["topics"].save,
            now_ms=lambda: self.clock.now,
            on_change=lambda: None,
        )
        self.groups = Groups(self.settings, save=self.saved["groups"].save, now_ms=lambda: self.clock.now)
        self.absent: set[str] = set()  # groups that may not commit offsets
        self.offsets = Offsets(
            self.settings, self.topics, self.store, group_exists=lambda group, _: group not in self.absent
        )
        self.filters = FilterTable(self.settings, lambda: self.clock.now, self.clock.seconds)
        self.clients = Clients(
            self.settings,
            groups=self.groups,
            topics=self.topics,
            filters=self.filters,
            clock=self.clock.seconds,
        )
        self.locks = Locks(self.clock.seconds)
        self.query = Query(self.store, self.clients, self.filters)
        tables = Tables(self.topics, self.groups, self.offsets, self.clients, self.filters, self.stats)
        self.progress = Progress(self.settings, self.store, tables, LongAnswers())
        self.gauges: dict[str, str] = {}
        self.delay_offsets: dict[int, int] = {}
        self.commits: list[list[tuple[str, int]]] = []  # the queues at each time that the chunk was committed
        self.admin = Admin(
            self.settings,
            self.store,
            tables,
            commit_pending=lambda: self.commits.append(list(self.store.queues())),
            gauges=lambda: self.gauges,
            delay_offsets=lambda: self.delay_offsets,
        )
        self.handlers = self._handlers()

    def _handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        handlers: dict[int, Callable[[Command, Any, int], Command | None]] = {}
        parts = (self.offsets, self.clients, self.locks, self.query, self.progress, self.admin)
        for part in parts:
            assert not handlers.keys() & part.handlers().keys()
            handlers.update(part.handlers())
        return handlers

    def become_slave(self) -> None:
        """From now on the settings say that it copies another broker."""
        self.settings.replace(self.config, evolve(self.store.config, broker_role=BrokerRole.SLAVE))

    def ask(self, code: int, header: Any = None, body: bytes = b"", line: Line | None = None) -> Command:
        """Hand a request to its part and return the answer, refusals included."""
        request = Command.request(code, header, body)
        return self.answer(request, line or Line())

    def answer(self, request: Command, line: Line) -> Command:
        try:
            response = self.handlers[request.code](request, line, self.clock.now)
        except ResponseError as error:
            return request.reply(error.code, error.remark)
        if response is None:  # it took several slices
            response = line.sent.pop()
        assert response.opaque == request.opaque
        return response

    def topic(self, name: str, queues: int = 4, **more: Any) -> None:
        self.topics.update(TopicConfig(name, queues, queues, **more))

    def put(self, topic: str, queue_id: int = 0, body: bytes = b"body", **more: Any) -> int:
        """Store a message; returns its physical offset."""
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


def aged(**store_settings: Any) -> Desk:
    """A desk whose topic T has ten messages in queue 0, whose files are all expired but the last."""
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    desk = Desk(mapped_file_size_commit_log=4096, delete_when=every_hour, **store_settings)
    desk.topic("T")
    for _ in range(10):
        desk.put("T", body=bytes(1000))
    desk.clock.now += 100 * 3_600_000
    return desk


@define
class Exchange:
    """A captured request with its captured answer, and the one-way requests that came before it."""

    request: dict[str, Any]
    response: dict[str, Any] | None
    notices: list[dict[str, Any]] = field(factory=list)

    @property
    def code(self) -> int:
        return int(self.request["code"])

    def command(self) -> Command:
        """The request as our decoder gives it."""
        line = self.request
        return Command(
            line["code"],
            line["opaque"],
            line["flag"],
            line.get("ext") or {},
            body_of(line),
            language=line["language"],
            version=line["version"],
        )


def body_of(line: dict[str, Any]) -> bytes:
    return base64.b64decode(line.get("body_b64") or "")


def session(name: str) -> Iterator[Exchange]:
    """The requests to the broker in a captured session, in order, with their answers."""
    lines = [json.loads(text) for text in (SESSIONS / f"{name}.jsonl").read_text().splitlines()]
    brokers = ("broker", "master", "master_vip")
    frames = [line for line in lines if line.get("target") in brokers and "code" in line]
    for at, line in enumerate(frames):
        if line["dir"] != "c2s" or line["kind"] == "response":
            continue
        yield _exchange(line, [later for later in frames[at + 1 :] if later["conn"] == line["conn"]])


def _exchange(line: dict[str, Any], later: list[dict[str, Any]]) -> Exchange:
    notices = []
    for frame in later:
        if frame["dir"] == "s2c" and frame["kind"] == "oneway":
            notices.append(frame)
        if frame["kind"] == "response" and frame["opaque"] == line["opaque"] and frame["dir"] == "s2c":
            return Exchange(line, frame, notices)
    return Exchange(line, None)
