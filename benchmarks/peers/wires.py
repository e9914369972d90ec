"""The loads of `benchmarks.peers`: requests built once, a window of them in flight on one connection.

    python -m benchmarks.peers.wires WIRE PORT SIZE WINDOW BATCH WARM SECONDS [RATE]

Each wire sends the same bytes again and again and counts the acknowledgements, so that the load costs a
microsecond a message whoever the broker is. Prints {"event": "measuring"} after the warm-up and one line of
results at the end. A refusal ends it. With RATE, so many messages a second are sent, each when it is due,
whatever is answered by then, and each one's latency counts from that time on: an open load, so that a broker
that stands still is not spared the messages that would have come. As many as 100,000 may be on their way.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.headers import SendMessageRequestHeader
from rmq.protocol.record import encode_batch

TOPIC = "Peers"
READ_BYTES = 1 << 18
QUEUES = 4
SHARES = (0.5, 0.99, 0.999)
MOST_ON_THEIR_WAY = 100_000


class Wire:
    """A connection to a broker: `requests` are sent in turn, each with `batch` messages."""

    requests: tuple[bytes, ...]

    topic = TOPIC

    def __init__(
        self,
        port: int,
        size: int,
        batch: int,
        queues: Sequence[int] = range(QUEUES),
        number: int = 0,
        made: int = QUEUES,
    ) -> None:
        self.batch = max(batch, 1)
        self.is_batch = batch > 0
        self.queues = queues
        self.number = number  # of several connections of one load
        self.made = made  # queues that this connection has to make, which are all: 0 if another one does
        self.body = os.urandom(size // 2).hex().encode()
        self.sock = socket.create_connection(("127.0.0.1", port), 20)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._frames: list[bytes] = []
        self.open()

    def open(self) -> None:
        """Say hello, make the topic and `requests`."""
        raise NotImplementedError

    def answered(self, data: bytes) -> int:
        """How many messages these bytes acknowledge. Raises ValueError for a refusal."""
        raise NotImplementedError

    def frames(self, data: bytes) -> list[bytes]:
        """The whole frames behind their lengths of four bytes; the rest is kept for the next call."""
        data, at, found = self._rest + data, 0, []
        while len(data) - at >= 4:
            (size,) = struct.unpack_from(">I", data, at)
            if len(data) - at < 4 + size:
                break
            found.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        self._rest = data[at:]
        return found

    def ask(self, frame: bytes) -> bytes:
        """Send a frame and wait for the next one."""
        self.sock.sendall(struct.pack(">I", len(frame)) + frame)
        return self.next_frame()

    def next_frame(self) -> bytes:
        """The next frame that comes."""
        while not self._frames:
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise ValueError("the broker hung up")
            self._frames += self.frames(data)
        return self._frames.pop(0)


W = TypeVar("W", bound=Wire)


class Rmq(Wire):
    """RocketMQ's remoting: SEND_MESSAGE_V2, or SEND_BATCH_MESSAGE, with a JSON header."""

    def open(self) -> None:
        self.requests = tuple(self.sending(self.topic, queue) for queue in self.queues)

    def sending(self, topic: str, queue: int) -> bytes:
        """The request that sends to a queue."""
        now = int(time.time() * 1000)
        properties = "UNIQ_KEY\x01" + "7F0000010B2C18B4AAC2000000000000\x02"
        code, body = RequestCode.SEND_MESSAGE_V2, self.body
        if self.is_batch:
            code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch([(0, body, properties)] * self.batch)
            properties = "WAIT\x01true\x02"  # of the batch itself clients say no more
        header = SendMessageRequestHeader(
            "peers", topic, "TBW102", 4, queue, 0, now, 0, properties, 0, batch=self.is_batch
        )
        return encode(Command.request(code, header, body))

    def answered(self, data: bytes) -> int:
        found = self.frames(data)
        if not all(b'"code":0' in frame for frame in found):
            raise ValueError(next(frame for frame in found if b'"code":0' not in frame))
        return len(found) * self.batch


class Nats(Wire):
    """NATS: PUB with a reply subject, which JetStream answers; one request a message."""

    replicas = 1

    def open(self) -> None:
        self.hello()
        self.make_stream(self.topic)
        self.sock.sendall(b"SUB acks 2\r\n")
        self.requests = (b"PUB %b acks %d\r\n%b\r\n" % (self.topic.encode(), len(self.body), self.body),)

    def hello(self) -> None:
        """Begin the connection."""
        words = {"verbose": False, "pedantic": False, "headers": True, "lang": "raw", "version": "1"}
        self.sock.sendall(b"CONNECT %b\r\nSUB made 1\r\n" % json.dumps(words).encode())

    def make_stream(self, name: str) -> bytes:
        """Make a stream; what the server says of it."""
        stream = {"name": name, "subjects": [name], "storage": "file", "num_replicas": self.replicas}
        config = json.dumps(stream).encode()
        subject = b"$JS.API.STREAM.CREATE." + name.encode()
        self.sock.sendall(b"PUB %b made %d\r\n%b\r\n" % (subject, len(config), config))
        told = b""
        while b"stream_create_response" not in told or not told.endswith(b"\r\n"):
            told += self.sock.recv(READ_BYTES)
        return told

    def answered(self, data: bytes) -> int:
        data = self._rest + data
        if b'"error"' in data or b"-ERR" in data:
            raise ValueError(data[:200])
        if data.startswith(b"PING\r\n") or b"\r\nPING\r\n" in data:
            self.sock.sendall(b"PONG\r\n")
        end = data.rfind(b"\r\n") + 2
        self._rest = data[end:]
        return data.count(b'"seq":', 0, end)


class Redis(Wire):
    """Redis: XADD of one field, pipelined."""

    def open(self) -> None:
        self.sock.sendall(b"*2\r\n$3\r\nDEL\r\n$%d\r\n%b\r\n" % (len(self.topic), self.topic.encode()))
        assert self.sock.recv(100).startswith(b":")
        self.requests = (self.adding(self.topic),)

    def adding(self, key: str) -> bytes:
        """The request that adds to a stream."""
        parts = (b"XADD", key.encode(), b"*", b"b", self.body)
        return b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)

    def answered(self, data: bytes) -> int:
        if b"ERR" in data:
            raise ValueError(data[:200])
        return data.count(b"-")  # one in each id


TOPIC_EXISTS = 36


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class Kafka(Wire):
    """Kafka: Produce version 3 with acks=1, a record batch of one message or of many."""

    acks = 1
    partitions = QUEUES

    def open(self) -> None:
        topic = _text(self.topic)
        while True:  # it makes the topic when it is asked for it, and says that it leads it a moment later
            told = self.ask(struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 1) + topic)
            at = told.find(topic)
            made = struct.pack(">i", self.partitions)
            if at > 0 and told[at - 2 : at] == b"\0\0" and told[at + len(topic) + 1 :][:4] == made:
                break
            time.sleep(0.2)
        self.prepare()

    def prepare(self) -> None:
        """Make the requests."""
        topic = _text(self.topic)
        records = b"".join(self._record(number) for number in range(self.batch))
        now = int(time.time() * 1000)
        rest = struct.pack(">hiqqqhii", 0, self.batch - 1, now, now, -1, -1, -1, self.batch) + records
        stored = struct.pack(">ibI", -1, 2, crc32c(rest)) + rest
        batch = struct.pack(">qi", 0, len(stored)) + stored
        requests = []
        for partition in self.queues:
            frame = struct.pack(">hhih", 0, 3, 7, -1) + struct.pack(">hhi", -1, self.acks, 30_000)
            frame += struct.pack(">i", 1) + topic + struct.pack(">iii", 1, partition, len(batch)) + batch
            requests.append(struct.pack(">I", len(frame)) + frame)
        self.requests = tuple(requests)
        self._error_at = 4 + 4 + len(topic) + 4 + 4

    def make_topic(self, assigned: Sequence[Sequence[int]], settings: Mapping[str, str]) -> None:
        """Make the topic (CreateTopics, version 0): for each partition its nodes, the leader first. Raises
        ValueError if it cannot be made; that it is there is fine."""
        parts = [struct.pack(">ih", -1, -1), struct.pack(">i", len(assigned))]
        for partition, nodes in enumerate(assigned):
            parts.append(struct.pack(f">ii{len(nodes)}i", partition, len(nodes), *nodes))
        parts.append(struct.pack(">i", len(settings)))
        parts += [_text(name) + _text(value) for name, value in settings.items()]
        topic = struct.pack(">i", 1) + _text(self.topic) + b"".join(parts)
        told = self.ask(struct.pack(">hhih", 19, 0, 2, -1) + topic + struct.pack(">i", 30_000))
        (error,) = struct.unpack(">h", told[-2:])
        if error not in (0, TOPIC_EXISTS):
            raise ValueError(f"CreateTopics: error {error}")

    def _record(self, number: int) -> bytes:
        inner = b"\0\0" + varint(number) + varint(-1) + varint(len(self.body)) + self.body + varint(0)
        return varint(len(inner)) + inner

    def answered(self, data: bytes) -> int:
        found = self.frames(data)
        for frame in found:
            if frame[self._error_at : self._error_at + 2] != b"\0\0":
                raise ValueError(f"error {frame[self._error_at : self._error_at + 2]!r}")
        return len(found) * self.batch


class Rabbit(Wire):
    """RabbitMQ's stream protocol: Publish with one message or many, confirmed by their ids."""

    def _command(self, key: int, *parts: bytes) -> bytes:
        return self.ask(struct.pack(">HHI", key, 1, 1) + b"".join(parts))

    def log_in(self) -> None:
        """Open the connection."""
        self._command(0x11, struct.pack(">i", 0))
        self._command(0x12)
        login = b"\0guest\0guest"
        told = self._command(0x13, _text("PLAIN"), struct.pack(">i", len(login)), login)
        if told[8:10] != b"\0\1":
            raise ValueError(f"refused: {told!r}")
        tune = self.next_frame()
        self.sock.sendall(struct.pack(">I", len(tune)) + tune)
        self._command(0x15, _text("/"))

    def open(self) -> None:
        self.log_in()
        self.make_stream(self.topic)
        self.requests = (self.publishing(1, self.topic),)

    def make_stream(self, name: str) -> None:
        """Make a stream."""
        self._command(0x0D, _text(name), struct.pack(">i", 0))

    def publishing(self, publisher: int, stream: str) -> bytes:
        """Say that this publisher writes to a stream; the request with which it does."""
        told = self._command(0x01, bytes([publisher]), _text(""), _text(stream))
        if told[8:10] != b"\0\1":
            raise ValueError(f"refused: {told!r}")
        messages = b"".join(
            struct.pack(">QI", number, len(self.body)) + self.body for number in range(self.batch)
        )
        frame = struct.pack(">HHBi", 0x02, 1, publisher, self.batch) + messages
        return struct.pack(">I", len(frame)) + frame

    def answered(self, data: bytes) -> int:
        count = 0
        for frame in self.frames(data):
            key, _ = struct.unpack_from(">HH", frame)
            if key == 0x03:
                count += int(struct.unpack_from(">i", frame, 5)[0])
            elif key != 0x17:  # a heartbeat
                raise ValueError(f"{key:#x}: {frame[:40]!r}")
        return count


class Amqp(Wire):
    """AMQP 0-9-1 to a quorum queue of RabbitMQ, with confirms; one request a message."""

    _FRAME = struct.Struct(">BHI")
    _METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"

    def open(self) -> None:
        self.sock.sendall(b"AMQP\0\0\x09\x01")
        self._expect(10, 10)
        self._say(0, 10, 11, struct.pack(">I", 0), b"\x05PLAIN", b"\0\0\0\x0c\0guest\0guest", b"\x05en_US")
        tune = self._expect(10, 30)
        (self._frame_bytes,) = struct.unpack_from(">I", tune, 6)
        self._say(0, 10, 31, tune[4:10], b"\0\0")  # without heartbeats
        self._ask(0, (10, 40), b"\x01/\0\0")
        self._ask(1, (20, 10), b"\0")
        table = b"\x0cx-queue-type" + b"S" + struct.pack(">I", 6) + b"quorum"
        name = bytes([len(self.topic)]) + self.topic.encode()
        self._ask(1, (50, 10), b"\0\0" + name + b"\x02" + struct.pack(">I", len(table)) + table)
        self._ask(1, (85, 10), b"\0")
        publish = self._frame(self._METHOD, 1, struct.pack(">HHH", 60, 40, 0) + b"\0" + name + b"\0")
        head = struct.pack(">HHQHB", 60, 0, len(self.body), 1 << 12, 2)  # kept over restarts
        publish += self._frame(self._HEADER, 1, head)
        room = self._frame_bytes - 8
        for at in range(0, len(self.body), room):
            publish += self._frame(self._BODY, 1, self.body[at : at + room])
        self.requests = (publish,)
        self._low, self._singles = 0, set[int]()

    def _frame(self, kind: int, channel: int, payload: bytes) -> bytes:
        return self._FRAME.pack(kind, channel, len(payload)) + payload + self._END

    def _say(self, channel: int, kind: int, method: int, *parts: bytes) -> None:
        payload = struct.pack(">HH", kind, method) + b"".join(parts)
        self.sock.sendall(self._frame(self._METHOD, channel, payload))

    def _ask(self, channel: int, method: tuple[int, int], *parts: bytes) -> bytes:
        self._say(channel, *method, *parts)
        return self._expect(method[0], method[1] + 1)

    def _expect(self, kind: int, method: int) -> bytes:
        told = self.next_frame()
        if struct.unpack_from(">HH", told) != (kind, method):
            raise ValueError(told)
        return told

    def frames(self, data: bytes) -> list[bytes]:
        """The payloads of whole frames."""
        data, at, found = self._rest + data, 0, []
        while len(data) - at >= 8:
            size = self._FRAME.unpack_from(data, at)[2]
            if len(data) - at < size + 8:
                break
            found.append(data[at + 7 : at + 7 + size])
            at += size + 8
        self._rest = data[at:]
        return found

    def answered(self, data: bytes) -> int:
        count = 0
        for frame in self.frames(data):
            kind, method = struct.unpack_from(">HH", frame)
            if (kind, method) != (60, 80):
                raise ValueError(frame)
            tag, has_more = struct.unpack_from(">QB", frame, 4)
            if has_more:
                count += tag - self._low - sum(one <= tag for one in self._singles)
                self._low, self._singles = tag, {one for one in self._singles if one > tag}
            else:
                count += 1
                self._singles.add(tag)
        return count


def varint(value: int) -> bytes:
    """Kafka's: zigzag, seven bits a byte."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def crc32c(data: bytes) -> int:
    """Castagnoli's CRC, which Kafka's record batches have."""
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


WIRES: dict[str, type[Wire]] = {
    "rmq": Rmq,
    "kafka": Kafka,
    "nats": Nats,
    "redis": Redis,
    "rabbitmq": Rabbit,
    "amqp": Amqp,
}


def topic_of(kind: type[W], topic: str) -> type[W]:
    """A kind of connection, to another topic."""
    return type(kind.__name__, (kind,), {"topic": topic})


def ring_of(requests: Sequence[bytes], room: int) -> tuple[memoryview, list[int]]:
    """The requests in turn, so many that `room` of them from any on lie together, and where each begins."""
    around = [requests[number % len(requests)] for number in range(len(requests) + room)]
    starts = [0, *itertools.accumulate(map(len, around))]
    return memoryview(b"".join(around)), starts


def run(wire: Wire, window: int, warm: float, seconds: float) -> tuple[int, float]:
    """Keep the window full; how many messages were acknowledged after the warm-up, and in how long."""
    sock, requests, turn = wire.sock, wire.requests, 0
    room = max(window // wire.batch, 1)
    ring, starts = ring_of(requests, room)
    free, owed, counted, begin = room, 0, 0, 0.0
    start = time.perf_counter()
    while True:
        if free:
            sock.sendall(ring[starts[turn] : starts[turn + free]])
            turn = (turn + free) % len(requests)
            free = 0
        data = sock.recv(READ_BYTES)
        if not data:
            raise ValueError("the broker hung up")
        got = wire.answered(data) + owed
        free, owed = divmod(got, wire.batch)
        now = time.perf_counter()
        if begin:
            counted += free * wire.batch
            if now - begin >= seconds:
                return counted, now - begin
        elif now - start >= warm:
            begin = now
            print(json.dumps({"event": "measuring"}), flush=True)


class Histogram:
    """Latencies in µs, counted as HdrHistogram does: buckets of the same relative width, of under 1 %."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count, self.most = 0, 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        whole = int(value)
        shift = max(whole.bit_length() - 8, 0)
        bucket = whole >> shift << shift
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.count += count
        self.most = max(self.most, value)

    def at(self, share: float) -> float:
        """The value that this share of all values does not pass, 0..1."""
        left = share * self.count
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return float(bucket)
        return self.most


class Source(Protocol):
    """Where messages are seen again: a connection that reads them."""

    sock: socket.socket

    def taken(self, data: bytes) -> int:
        """The number of messages in these bytes."""


def run_paced(
    wire: Wire, rate: float, warm: float, seconds: float, source: Source | None = None
) -> tuple[Histogram, float]:
    """Send at a rate; the latencies from when a message was due until it was acknowledged, or seen at the
    source if there is one, and the seconds measured. What is missing at the end counts as if it came then."""
    sock, requests, batch = wire.sock, wire.requests, wire.batch
    sock.setblocking(False)
    histogram, sent, answered, seen, turn = (
        Histogram(),
        0,
        0,
        0,
        0,
    )  # sent, answered: requests; seen: messages
    unsent = memoryview(b"")
    start = time.perf_counter()
    begin = start + warm
    is_measuring = False
    with selectors.DefaultSelector() as waiting:
        waiting.register(sock, selectors.EVENT_READ)
        if source:
            waiting.register(source.sock, selectors.EVENT_READ, source)
        while True:
            now = time.perf_counter()
            if not is_measuring and now >= begin:
                is_measuring = True
                print(json.dumps({"event": "measuring"}), flush=True)
            is_over = now >= begin + seconds
            if is_over and (seen >= sent * batch or now > begin + 2 * seconds):
                for number in range(seen, sent * batch):  # they take longer than this
                    histogram.add((now - start - (number // batch + 1) * batch / rate) * 1e6)
                return histogram, seconds
            if not is_over and not unsent and (sent - answered) * batch < MOST_ON_THEIR_WAY:
                due = int((now - start) * rate / batch) - sent
                if due > 0:
                    due = min(due, 512)
                    unsent = memoryview(
                        b"".join(requests[(turn + number) % len(requests)] for number in range(due))
                    )
                    turn, sent = (turn + due) % len(requests), sent + due
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[sock.send(unsent) :]
            next_due = start + (sent + 1) * batch / rate
            pause = 0.001 if unsent else max(0.0, min(next_due - time.perf_counter(), 0.05))
            for key, _ in waiting.select(pause if pause > 0.0002 else 0):
                data = key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]
                if not data:
                    raise ValueError("the broker hung up")
                if key.data:
                    got = key.data.taken(data)
                else:
                    got = wire.answered(data)
                    answered += got // batch
                if key.data is not source:
                    continue
                now = time.perf_counter()
                for number in range(seen, seen + got):
                    due_at = start + (number // batch + 1) * batch / rate
                    if due_at >= begin:
                        histogram.add(max(now - due_at, 0.0) * 1e6)
                seen += got


def latencies(found: Histogram) -> dict[str, float]:
    """What is told of latencies, in µs."""
    return {f"p{share * 100:g}": found.at(share) for share in SHARES} | {"max": found.most}


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    port, size, window, batch, warm, seconds, *paced = map(float, numbers)
    wire = WIRES[name](int(port), int(size), int(batch))
    if paced:
        found, took = run_paced(wire, paced[0], warm, seconds)
        print(
            json.dumps({"messages": found.count, "rate": found.count / took} | latencies(found)), flush=True
        )
        sys.exit()
    count, took = run(wire, int(window), warm, seconds)
    print(json.dumps({"messages": count, "rate": count / took}), flush=True)
