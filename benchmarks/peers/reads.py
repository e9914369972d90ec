"""The readers of `benchmarks.peers`: a backlog is read to its end, by one connection or by several.

    python -m benchmarks.peers.reads WIRE PORT SIZE CONNECTIONS COUNT FILL

With FILL 1 the backlog is sent first, to a topic of its own. Each connection reads all COUNT messages, and
asks as the clients of its broker do: rmq 32 messages of each of four queues, Kafka 1 MiB of each of four
partitions, NATS (a pull consumer without acknowledgements) and Redis 256 messages, RabbitMQ ten chunks ahead.
Prints {"event": "measuring"} once all are connected and one line of results at the end.
"""

from __future__ import annotations

import json
import re
import selectors
import struct
import sys
import time

from benchmarks.peers.wires import READ_BYTES, WIRES, Kafka, Nats, Rabbit, Redis, Rmq, Wire, topic_of
from rmq.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.headers import PullMessageRequestHeader

TOPIC = "PeersBacklog"
ALONE = ("nats", "redis")
"""Whose protocols take one message a request."""
MANY = 256
QUEUES = 4
_NEXT = re.compile(rb'"nextBeginOffset":"(\d+)"')
_LAST = re.compile(rb'"maxOffset":"(\d+)"')
_OPAQUE = re.compile(rb'"opaque":(\d+)')


class Reader(Wire):
    """A connection that reads. `begin` asks first; `taken` counts what came, and asks for more."""

    topic = TOPIC

    def begin(self) -> None:
        """Ask for the first messages."""
        raise NotImplementedError

    def taken(self, data: bytes) -> int:
        """The number of messages in these bytes. Raises ValueError for a refusal."""
        raise NotImplementedError


class RmqReader(Reader, Rmq):
    """Pulls of four queues in flight."""

    def open(self) -> None:
        self._offsets = [0] * QUEUES
        self._queue_of: dict[int, int] = {}

    flags = PULL_SUBSCRIPTION
    suspend_ms = 0
    goes_on = False
    """Pull when the end is reached, too."""

    def begin(self) -> None:
        for queue in range(QUEUES):
            self.pull(queue)

    def pull(self, queue: int) -> None:
        """Ask for the next messages of a queue."""
        offset = self._offsets[queue]
        header = PullMessageRequestHeader(
            "peers-read", self.topic, queue, offset, 32, self.flags, 0, self.suspend_ms, "*", 1, "TAG"
        )
        command = Command.request(RequestCode.PULL_MESSAGE, header)
        self._queue_of[command.opaque] = queue
        self.sock.sendall(encode(command))

    def taken(self, data: bytes) -> int:
        count = 0
        for frame in self.frames(data):
            head = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]
            following, last, opaque = _NEXT.search(head), _LAST.search(head), _OPAQUE.search(head)
            if following is None or last is None or opaque is None:
                raise ValueError(head)
            queue = self._queue_of.pop(int(opaque[1]))
            count += int(following[1]) - self._offsets[queue]
            self._offsets[queue] = int(following[1])
            if self.goes_on or int(following[1]) < int(last[1]):
                self.pull(queue)
        return count


class KafkaReader(Reader, Kafka):
    """Fetch version 4 of four partitions."""

    def open(self) -> None:
        self._offsets = [0] * QUEUES

    def begin(self) -> None:
        topic = struct.pack(">h", len(self.topic)) + self.topic.encode()
        frame = struct.pack(">hhih", 1, 4, 9, -1) + struct.pack(">iiiibi", -1, 100, 1, 50 << 20, 0, 1)
        frame += topic + struct.pack(">i", QUEUES)
        for partition, offset in enumerate(self._offsets):
            frame += struct.pack(">iqi", partition, offset, 1 << 20)
        self.sock.sendall(struct.pack(">I", len(frame)) + frame)

    def taken(self, data: bytes) -> int:
        count = 0
        for frame in self.frames(data):
            at = 4 + 4 + 4 + 2 + len(self.topic)
            (partitions,) = struct.unpack_from(">i", frame, at)
            at += 4
            for _ in range(partitions):
                partition, error, _, _, aborted, size = struct.unpack_from(">ihqqii", frame, at)
                if error or aborted > 0:
                    raise ValueError(f"partition {partition}: error {error}")
                at += 30
                count += self._batches(partition, frame, at, at + max(size, 0))
                at += max(size, 0)
            self.begin()
        return count

    def _batches(self, partition: int, frame: bytes, at: int, stop: int) -> int:
        before = self._offsets[partition]
        while stop - at >= 61:
            base, size = struct.unpack_from(">qi", frame, at)
            if at + 12 + size > stop:
                break  # the last may be cut
            self._offsets[partition] = base + struct.unpack_from(">i", frame, at + 23)[0] + 1
            at += 12 + size
        return self._offsets[partition] - before


class NatsReader(Reader, Nats):
    """A pull consumer of its own that acknowledges nothing, 256 messages at a time."""

    def open(self) -> None:
        self._name = f"r{time.monotonic_ns()}"
        hello = {"verbose": False, "pedantic": False, "headers": True, "lang": "raw", "version": "1"}
        config = {"deliver_policy": "all", "ack_policy": "none", "name": self._name}
        make = json.dumps({"stream_name": self.topic, "config": config}).encode()
        subject = f"$JS.API.CONSUMER.CREATE.{self.topic}.{self._name}".encode()
        self.sock.sendall(
            b"CONNECT %b\r\nSUB made 1\r\nPUB %b made %d\r\n%b\r\n"
            % (json.dumps(hello).encode(), subject, len(make), make)
        )
        told = b""
        while b"consumer_create_response" not in told:
            told += self.sock.recv(READ_BYTES)
        if b'"error"' in told:
            raise ValueError(told)
        self.sock.sendall(b"SUB box 2\r\n")
        self._left = 0

    def begin(self) -> None:
        ask = json.dumps({"batch": MANY, "expires": 10**10}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.topic}.{self._name}".encode()
        self.sock.sendall(b"PUB %b box %d\r\n%b\r\n" % (subject, len(ask), ask))
        self._left += MANY

    def taken(self, data: bytes) -> int:
        data = self._rest + data
        if (at := data.find(b"-ERR")) >= 0:
            raise ValueError(data[at : at + 200])
        if b"PING\r\n" in data:
            self.sock.sendall(b"PONG\r\n")
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        self._rest = data[end:]
        count = data.count(b"MSG %b 2 $JS.ACK" % self.topic.encode(), 0, end)
        self._left -= count
        if self._left <= MANY // 2:
            self.begin()
        return count


class RedisReader(Reader, Redis):
    """XRANGE of 256 messages at a time."""

    def open(self) -> None:
        self._after = b"-"

    def begin(self) -> None:
        parts = (b"XRANGE", self.topic.encode(), self._after, b"+", b"COUNT", b"%d" % MANY)
        self.sock.sendall(b"*6\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        self._expected = b""

    def taken(self, data: bytes) -> int:
        self._rest += data
        if not self._expected:
            at = self._rest.find(b"\r\n")
            if at < 0:
                return 0
            self._expected = self._rest[1:at]
        count = int(self._expected)
        if not count:
            raise ValueError("the backlog is at its end")
        if self.whole(count):
            self.begin()
            return count
        return 0

    def whole(self, count: int) -> int:
        """If so many entries are there to their end, that number, and the last id is known; else 0."""
        # Each entry has an id, which alone has a "-", and ends with its only body.
        last = self._rest.rfind(b"-")
        is_whole = self._rest.count(b"-") == count and self._rest.count(b"\r\n", last) == 6
        if not is_whole or not self._rest.endswith(b"\r\n"):
            return 0
        begin = self._rest.rfind(b"\n", 0, last) + 1
        self._after = b"(" + self._rest[begin : self._rest.find(b"\r", begin)]
        self._rest = b""
        return count


class RabbitReader(Reader, Rabbit):
    """A subscription from the first chunk, ten chunks ahead."""

    def open(self) -> None:
        self.log_in()

    def begin(self) -> None:
        name = struct.pack(">h", len(self.topic)) + self.topic.encode()
        frame = struct.pack(">HHIB", 0x07, 1, 9, 1) + name + struct.pack(">HHI", 1, 10, 0)
        self.sock.sendall(struct.pack(">I", len(frame)) + frame)

    def taken(self, data: bytes) -> int:
        count = chunks = 0
        for frame in self.frames(data):
            (key,) = struct.unpack_from(">H", frame)
            if key == 0x08:
                count += struct.unpack_from(">I", frame, 9)[0]
                chunks += 1
            elif key == 0x8007 and frame[8:10] != b"\0\1":
                raise ValueError(f"refused: {frame!r}")
        if chunks:
            frame = struct.pack(">HHBH", 0x09, 1, 1, chunks)
            self.sock.sendall(struct.pack(">I", len(frame)) + frame)
        return count


READERS: dict[str, type[Reader]] = {
    "rmq": RmqReader,
    "kafka": KafkaReader,
    "nats": NatsReader,
    "redis": RedisReader,
    "rabbitmq": RabbitReader,
}


def run(readers: list[Reader], count: int) -> tuple[int, float]:
    """Have each read so many messages; return the number of all of them, and the seconds it took."""
    left = dict.fromkeys(readers, count)
    start = time.perf_counter()
    with selectors.DefaultSelector() as waiting:
        for reader in readers:
            waiting.register(reader.sock, selectors.EVENT_READ, reader)
            reader.begin()
        while waiting.get_map():
            ready = waiting.select(30)
            if not ready:
                raise ValueError("nothing has come for 30 s")
            for key, _ in ready:
                reader = key.data
                data = reader.sock.recv(READ_BYTES)
                if not data:
                    raise ValueError("the broker hung up")
                left[reader] -= reader.taken(data)
                if left[reader] <= 0:
                    waiting.unregister(reader.sock)
    return count * len(readers) - sum(left.values()), time.perf_counter() - start


def fill(wire: Wire, count: int) -> None:
    """Send so many messages, some requests at a time."""
    for first in range(0, count, 8 * wire.batch):
        wanted = min(8 * wire.batch, count - first)
        requests = -(-wanted // wire.batch)
        wire.sock.sendall(b"".join(wire.requests[number % len(wire.requests)] for number in range(requests)))
        while wanted > 0:
            wanted -= wire.answered(wire.sock.recv(READ_BYTES))


if __name__ == "__main__":
    name, port, size, connections, wanted, is_empty = sys.argv[1], *map(int, sys.argv[2:])
    if is_empty:
        fill(topic_of(WIRES[name], TOPIC)(port, size, 0 if name in ALONE else 32), wanted)
    made = [READERS[name](port, 2, 0) for _ in range(connections)]
    print(json.dumps({"event": "measuring"}), flush=True)
    total, took = run(made, wanted)
    print(json.dumps({"messages": total, "rate": total / took}), flush=True)
