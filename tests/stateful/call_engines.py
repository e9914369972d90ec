"""Brokers of both engines with the gRPC door, without a network: bytes in, frames of answers out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any

from hpack import Encoder
from rmq_grpc import schema
from rmq_grpc.calls import Calls
from rmq_grpc.service import SEND, Session

from rmq.broker.doors import DoorPeer
from tests.stateful.engines import START, Side

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ADDRESS = "10.0.8.1:4001"
SendRequest = schema.message("SendMessageRequest")
Message = schema.message("Message")
MessageType = schema.enum("MessageType")

Frames = dict[int, list[tuple[int, int, bytes]]]


class Stream:
    """A door's stream without a network: it keeps what is sent."""

    certificate_name = ""
    is_busy = False

    def __init__(self, address: str) -> None:
        self.peer_address, self.local_address = address, "10.0.0.9:8081"
        self.state: dict[str, Any] = {}
        self.is_closed = self.has_proved = False
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data

    def hold(self, count: int, since: float | None = None) -> None:
        """Hold nothing: there is no budget."""

    def close(self, reason: str = "") -> None:
        self.is_closed = True

    def frames(self) -> Frames:
        """The frames since the last call, by their streams."""
        found: Frames = {}
        data, self.sent = self.sent, b""
        while data:
            size = int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.setdefault(stream_id, []).append((data[3], data[4], data[9 : 9 + size]))
            data = data[9 + size :]
        return found


class Door:
    """A connection of a broker's gRPC door."""

    def __init__(self, side: Side, address: str = ADDRESS) -> None:
        self.side = side
        self.stream: Any = Stream(address)
        self.host = DoorPeer(side.broker, "grpc", self.stream)
        self.session = Session(self.host, self.stream, clock=side.broker.clock)
        soon = self.host.soon
        clock = side.broker.clock
        self.calls = Calls(self.stream, self.session, clock=clock, most_bytes=8 << 20, soon=soon)

    def feed(self, data: bytes) -> str:
        """Bytes come, and the loop goes round; the name of the error that they cause."""
        try:
            self.calls.feed(data, self.host.turn)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            for _ in range(3):
                self.side.broker.steps.deadlines(self.side.broker.clock())
        return ""


class Client:
    """The bytes of a client's calls."""

    def __init__(self, client_id: str = "client@1") -> None:
        self.client_id = client_id
        self._encoder = Encoder()
        self._next = 1
        self.begin = PREFACE + _frame(4, 0, 0, b"") + _frame(8, 0, 0, (1 << 30).to_bytes(4, "big"))

    def call(self, method: str, message: bytes, *, style: str = "java", **more: str) -> bytes:
        """A call with its message; `style` says how its frames lie."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method if method.startswith("/") else SEND.replace("SendMessage", method),
            ":authority": "broker",
            "content-type": "application/grpc",
            "te": "trailers",
            "x-mq-client-id": self.client_id,
        }
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        block = self._encoder.encode(list(headers.items()))
        stream_id, self._next = self._next, self._next + 2
        data = bytes((style == "packed",)) + len(message).to_bytes(4, "big") + message
        if style == "short":
            data = data[:-1]
        head = _frame(1, 4, stream_id, block)
        if style == "node":
            return head + _frame(0, 0, stream_id, data) + _frame(0, 1, stream_id, b"")
        if style == "pieces":
            middle = len(data) // 2
            return head + _frame(0, 0, stream_id, data[:middle]) + _frame(0, 1, stream_id, data[middle:])
        return head + _frame(0, 1, stream_id, data)


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


class Pair:
    """A broker with the compiled engine, and one with the pure engine, which get the same bytes."""

    def __init__(self, compiled: ModuleType | None, seed: int = 1, **given: Any) -> None:
        settings: dict[str, Any] = {"sizes": {}, "waits": "", "plugins": False} | given
        self.sides = [
            Side(in_turns=False, seed=seed, compiled=engine, **settings) for engine in (compiled, None)
        ]
        self.doors: dict[int, list[Door]] = {}
        self.clients: dict[int, Client] = {}

    def both(self, act: Callable[[Side], Any]) -> None:
        first, other = (act(side) for side in self.sides)
        assert first == other

    def connect(self, number: int) -> Client:
        """The client with a number, connected."""
        if number not in self.clients:
            self.clients[number] = client = Client(f"client@{number}")
            self.doors[number] = [Door(side, f"10.0.8.{number}:4001") for side in self.sides]
            self.feed(number, client.begin)
        return self.clients[number]

    def feed(self, number: int, data: bytes) -> Frames:
        """Bytes of a client come at both; what both answer."""
        first, other = (door.feed(data) for door in self.doors[number])
        assert first == other
        frames = self.compare(number)
        if first or self.doors[number][0].stream.is_closed:
            del self.clients[number], self.doors[number]
        return frames

    def compare(self, number: int) -> Frames:
        one, other = self.sides
        frames, expected = (door.stream.frames() for door in self.doors[number])
        assert frames == expected
        assert one.store.max_physical_offset == other.store.max_physical_offset
        assert one.broker.append.turn == other.broker.append.turn
        assert one.broker.stats.totals_in() == other.broker.stats.totals_in()
        assert one.broker.stats.failed_puts == other.broker.stats.failed_puts
        assert one.broker.histograms.write.counts == other.broker.histograms.write.counts
        assert one.broker.acknowledgement.waiting == other.broker.acknowledgement.waiting
        assert one.broker.door_peers.sends.used == other.broker.door_peers.sends.used
        return frames

    def compare_files(self) -> None:
        """Compare logs, queues and indexes."""
        for side in self.sides:
            while side.store.dispatch():
                pass
            side.store.flush_queues()
        one, other = (side.files() for side in self.sides)
        assert one.keys() == other.keys()
        for path, data in one.items():
            assert data == other[path], path


# ---- requests ----

TEXTS = ("", "a", "TagA", "two words", " ", " a", "a|b", "~", "x" * 130, "é", "日本", "tab\t", "\x7f", "\x01")
NAMES = ("colour", "b", "KEYS", "WAIT", "xWAIT", "TIMER_DEL_UNIQKEY", "CLUSTER", "MSG_REGION", "DELAY")
TOPICS = ("Orders", "Orders", "Orders", "Other", "Typed", "Ordered", "Shut", "New1", "no/topic", "TBW102", "")
OTHER_TOPICS = (
    "SCHEDULE_TOPIC_XXXX",
    "%RETRY%G",
    "%DLQ%G",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRACE_TOPIC",
    "é",
)


def plain_request(chance: Random, topic: str = "Orders") -> Any:
    """A request as most clients write it."""
    made = Message(body=chance.randbytes(chance.choice([1, 30, 64, 200, 300])))
    made.topic.name = topic
    system = made.system_properties
    system.message_id = f"01{chance.getrandbits(64):032X}"
    system.message_type = chance.choice([0, 1, 1, 2])
    system.body_encoding = chance.choice([0, 1])
    if chance.random() < 0.5:
        system.tag = chance.choice(["T", "TagA"])
    if chance.random() < 0.4:
        system.keys.extend(chance.choice([["k1"], ["k1", "k2"], ["", "a", "a"]]))
    if chance.random() < 0.7:
        system.born_timestamp.seconds = START // 1000
        system.born_timestamp.nanos = chance.choice([0, 999_999, 1_000_000, 999_999_999])
    if chance.random() < 0.5:
        system.born_host = "app-1"
    if chance.random() < 0.3:
        system.queue_id = chance.randrange(9)
    if chance.random() < 0.2:
        system.body_digest.type, system.body_digest.checksum = 1, "DEADBEEF"
    if chance.random() < 0.3:
        system.message_group = f"group-{chance.randrange(9)}"
        system.message_type = 2
    for name in chance.sample(["colour", "b", "a", "zz", "traceparent"], chance.choice([0, 0, 1, 2, 5])):
        made.user_properties[name] = chance.choice(["", "red", "deep red", "~"])
    return SendRequest(messages=[made])


def odd_request(chance: Random) -> bytes:
    """A request that breaks a rule, or nearly does, or is written in a way that no client has; its bytes."""
    made = plain_request(chance, chance.choice(TOPICS + OTHER_TOPICS * (chance.random() < 0.2)))
    one = made.messages[0]
    system = one.system_properties
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        text = chance.choice(TEXTS)
        match chance.randrange(20):
            case 0:
                system.tag = text
            case 1:
                system.keys.append(text)
            case 2:
                system.message_id = chance.choice([text, "i" * 64, "i" * 65, "i" * 3_000])
            case 3:
                system.message_group = chance.choice([text, "g" * 63, "g" * 64, "é" * 31])
            case 4:
                one.user_properties[chance.choice(NAMES)] = text
            case 5:
                one.user_properties[text] = "x"
            case 6:
                for number in range(chance.choice([14, 16, 17, 128, 129])):
                    one.user_properties[f"name{number:03}"] = "v" * chance.choice([0, 1, 30])
            case 7:
                one.user_properties["long"] = "v" * chance.choice(
                    [4_000, 4_080, 4_096, 7_900, 16_380, 16_384]
                )
            case 8:
                system.keys.extend("k" for _ in range(chance.choice([15, 16, 17])))
            case 9:
                one.body = chance.randbytes(chance.choice([0, 1, 7_000, 7_999, 8_000, 8_001]))
            case 10:
                system.body_encoding = chance.choice([2, 3, -1])
            case 11:
                system.message_type = chance.choice([3, 4, 5, 6, 99, -1])
            case 12:
                system.delivery_timestamp.seconds = chance.choice([0, START // 1000 + 60, 1 << 40])
            case 13:
                system.trace_context = text
            case 14:
                system.born_timestamp.seconds = chance.choice([0, 1, -1, (1 << 33) - 1, 1 << 33, (1 << 62)])
                system.born_timestamp.nanos = chance.choice([0, 1_000_000_000, -1, (1 << 31) - 1])
            case 15:
                system.born_host = text
            case 16:
                system.queue_id = chance.choice([-1, 1 << 30, (1 << 31) - 1])
            case 17:
                made.messages.append(plain_request(chance).messages[0])
            case 18:
                one.ClearField(chance.choice(["topic", "system_properties", "body"]))
            case 19:
                system.store_host, system.receipt_handle = text, text
                one.topic.resource_namespace = text
    data: bytes = made.SerializeToString()
    match chance.randrange(12):
        case 0:  # fields of a message in two parts, or twice
            first = plain_request(chance).messages[0].SerializeToString()
            data = _sized(1, first + one.SerializeToString())
        case 1:  # an unknown field
            data = _sized(
                1, one.SerializeToString() + chance.choice([b"\x28\x01", b"\x7a\x00", b"\xfa\x01\x00"])
            )
        case 2:  # fields in another order
            parts = [
                _sized(3, system.SerializeToString()),
                _sized(4, one.body),
                _sized(1, one.topic.SerializeToString()),
            ]
            chance.shuffle(parts)
            data = _sized(1, b"".join(parts))
        case 3:  # a length in more bytes than it needs
            body = one.SerializeToString()
            data = (
                b"\x0a" + bytes((len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14)) + body
            )
        case 4 | 5:
            data = damaged(chance, data)
    return data


def damaged(chance: Random, data: bytes) -> bytes:
    """Bytes of which some are changed, missing or new."""
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(4):
            case 0:
                made[at:at] = chance.randbytes(chance.choice([1, 2, 9]))
            case 1:
                del made[at : at + chance.choice([1, 2, 9])]
            case 2 if at < len(made):
                made[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            case 3 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
    return bytes(made)


def _sized(number: int, data: bytes) -> bytes:
    size, length = len(data), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | 2,)) + length + data
