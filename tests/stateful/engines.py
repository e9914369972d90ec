"""A broker with one of the two engines, and frames for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from random import Random
from struct import Struct
from types import ModuleType
from typing import Any

import attrs

from rmq.broker.config import BrokerConfig
from rmq.broker.send_batches import make_broker
from rmq.broker.wakeups import Wakeups
from rmq.errors import AccessDenied, RemoteProtocolError
from rmq.plugin import Hooks, StoredEvent
from rmq.protocol.codes import PULL_SUBSCRIPTION
from rmq.protocol.command import Command
from rmq.protocol.fields import short_name
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import SendMessageRequestHeader
from rmq.protocol.record import host_bytes
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

START = 1_795_253_354_000


ROOT = "/store"


FOLDERS = ("commitlog", "consumequeue", "index")


PEERS = ("10.0.0.1:40001", "[fd00::7]:40002", "10.0.0.1:40003", "10.0.0.2:40001")


SECRET = "Secret"


_LENGTHS = Struct(">iI")


_HEAD = Struct(">hBhiii")


FIELDS = attrs.fields(SendMessageRequestHeader)


SHORT = [short_name(field) for field in FIELDS]


def json_frame(code: int, opaque: int, flag: int, fields: dict[str, Any], body: bytes, style: str) -> bytes:
    """A frame whose header is JSON: in Java's order, or in another way that some client may have."""
    head: dict[str, Any] = {"code": code, "extFields": fields, "flag": flag, "language": "JAVA"}
    head |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 435}
    if style == "backwards":
        head = dict(reversed(head.items()))
    separators = (", ", ": ") if style == "spaced" else (",", ":")
    header = json.dumps(head, ensure_ascii=style == "escaped", separators=separators).encode()
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def pull_frame(
    opaque: int, fields: dict[str, Any], *, style: str = "java", code: int = 11, flag: int = 0
) -> bytes:
    """The frame of a pull; `fields` replace those of an ordinary one, or take them out by None."""
    ext: dict[str, Any] = {
        "consumerGroup": "readers",
        "topic": "Orders",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": str(PULL_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    ext |= fields
    return json_frame(code, opaque, flag, {k: v for k, v in ext.items() if v is not None}, b"", style)


def binary_frame(code: int, opaque: int, flag: int, fields: dict[str, Any], body: bytes) -> bytes:
    """A frame whose header is in the ROCKETMQ form."""
    ext = b""
    for name, value in fields.items():
        text = str(value).encode()
        ext += len(name).to_bytes(2, "big") + name.encode() + len(text).to_bytes(4, "big") + text
    header = _HEAD.pack(code, 0, 435, opaque, flag, 0) + len(ext).to_bytes(4, "big") + ext
    return _LENGTHS.pack(4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def plain_send(chance: Random, opaque: int) -> bytes:
    """The frame of a send as most clients write it."""
    pairs = [("UNIQ_KEY", f"AC11{chance.getrandbits(40):010X}"), ("WAIT", "true")]
    pairs += [("TAGS", chance.choice(["T", "TagA"]))] * (chance.random() < 0.5)
    pairs += [("KEYS", chance.choice(["k1", "k1 k2", " a  b ", " "]))] * (chance.random() < 0.3)
    pairs += [("color", chance.choice(["blue", "deep red", "~"]))] * (chance.random() < 0.2)
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + chance.choice(["", "", "\x02"])
    values = ["producers", chance.choice(["Orders", "Orders", "New1"]), "TBW102", 4, chance.randrange(4)]
    values += [chance.choice([0, 0, 1, 2]), START - chance.randrange(9), chance.randrange(3), text, 0, False]
    fields = dict(zip(SHORT, map(_text, values), strict=False))
    body = chance.randbytes(chance.choice([0, 1, 30, 63, 64, 100, 200, 300]))
    if chance.random() < 0.3:
        return binary_frame(310, opaque, 0, fields, body)
    return json_frame(310, opaque, 0, fields, body, "java")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Peer:
    """A connection that keeps the bytes of what is written to it."""

    def __init__(self, peer: str) -> None:
        self.peer_address, self.local_address = peer, "10.0.0.9:10911"
        self.state: dict[str, Any] = {}
        self.is_closed = self.is_busy = False
        self.frames = b""

    def write(self, frame: bytes | Sequence[bytes]) -> None:
        self.frames += frame if isinstance(frame, bytes) else b"".join(frame)

    answer = write

    def flush(self) -> None:
        """Flush nothing: all bytes are in memory."""

    def reply(self, response: Command) -> None:
        self.write(encode(response))

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Same as `rmq.remoting.connection.Connection.notify`."""
        self.reply(command)

    def take(self) -> list[bytes]:
        """The frames that came, by the requests that they answer."""
        frames = []
        while self.frames:
            stop = 4 + int.from_bytes(self.frames[:4], "big")
            frames.append(self.frames[:stop])
            self.frames = self.frames[stop:]
        return sorted(frames, key=lambda frame: Decoder().feed(frame)[0].opaque)


class Slave:
    """A slave, as far as its master needs one."""

    acknowledged = 0


def refuse_secrets(peer: Any, command: Command) -> None:
    if (command.ext.get("b") or command.ext.get("topic")) == SECRET:
        raise AccessDenied(remark="it is secret")


class Side:
    """A broker, its disk and its connections. `in_turns` gives it one request at a time."""

    def __init__(
        self,
        *,
        in_turns: bool,
        seed: int,
        sizes: dict[str, int],
        waits: str,
        plugins: bool,
        compiled: ModuleType | None,
    ) -> None:
        self.in_turns = in_turns
        self.now_ms = START
        self.disk = MemoryDisk(seed)
        syncs, replicates = waits in ("disk", "both"), waits in ("slave", "both")
        self.config = StoreConfig(
            store_path_root_dir=ROOT,
            max_hash_slot_num=8,
            max_index_num=40,
            max_message_size=8_000,
            flush_disk_type=FlushDiskType.SYNC_FLUSH if syncs else FlushDiskType.ASYNC_FLUSH,
            broker_role=BrokerRole.SYNC_MASTER if replicates else BrokerRole.ASYNC_MASTER,
            **sizes,  # type: ignore[arg-type]
        )
        host = host_bytes("10.0.0.9:10911")
        if in_turns:
            compiled = None
        self.store = Store(
            self.disk, self.config, store_host=host, now_ms=lambda: self.now_ms, compiled=compiled
        )
        self.store.load()
        saves = {"new_topics": lambda: None} if waits in ("topics", "both") else {}
        self.broker = make_broker(
            BrokerConfig(
                broker_name="a",
                broker_cluster_name="Cluster",
                region_id="Région",
                enable_property_filter=True,
            ),
            self.store,
            address="10.0.0.9:10911",
            ha_address="10.0.0.9:10912",
            now_ms=lambda: self.now_ms,
            clock=lambda: self.now_ms / 1000,
            chance=Random(seed),
            wake=Wakeups(**saves),
            compiled=compiled,
        )
        self.events: list[tuple[Any, ...]] = []
        if plugins:
            self.broker.use_plugins(Hooks(requests=(refuse_secrets,), stored=(self.on_stored,)))
        self.slave: Any = Slave()
        if replicates:
            self.broker.acknowledgement.replicas.join(self.slave, "10.0.0.8:1", lambda: None)
        self.peers = [Peer(peer) for peer in PEERS]
        self.decoders = [self.decoder() for _ in PEERS]

    def decoder(self) -> Decoder:
        return Decoder(1 << 20, lanes=self.broker.lanes)

    def on_stored(self, event: StoredEvent) -> None:
        self.events += [(record.topic, record.physical_offset, record.size) for record in event.records]

    def receive(self, at: int, data: bytes) -> str:
        """Bytes come on a connection; why it ended, if it did."""
        try:
            requests = self.decoders[at].feed(data)
        except RemoteProtocolError as error:
            self.decoders[at] = self.decoder()
            return str(error)
        while requests:
            chunk = requests[:1] if self.in_turns else requests
            requests = requests[self.broker.handle(chunk, self.peers[at]) :]  # type: ignore[arg-type]
        return ""

    def receive_round(self, pieces: Sequence[tuple[int, bytes]]) -> list[str]:
        """Bytes come on several connections in one round of the poller."""
        if self.in_turns:
            return [self.receive(at, data) for at, data in pieces]
        self.broker.begin_round()
        ended = [self.receive(at, data) for at, data in pieces]
        self.broker.end_round()
        return ended

    def files(self) -> dict[str, bytes]:
        """The bytes of log, queues and index."""
        found = {}
        for folder in FOLDERS:
            for path in self._paths(os.path.join(ROOT, folder)):
                found[path] = self.disk.load(path) or b""
        return found

    def _paths(self, path: str) -> list[str]:
        names = self.disk.list(path)
        return [one for name in sorted(names) for one in self._paths(os.path.join(path, name))] or [path]
