"""The loads of `benchmarks.peers` with many connections, many queues, or bodies of any size.

    python -m benchmarks.peers.crowds WIRE PORTS SIZE WINDOW BATCH CONNECTIONS QUEUES WARM SECONDS

Each connection keeps WINDOW messages in flight, to its share of the QUEUES in turn. PORTS is a port, or
several with commas, which the connections have in turn. A queue is rmq's and Java's queue, Kafka's partition,
and a stream of its own at NATS, Redis and RabbitMQ. Prints {"event": "measuring"} after the warm-up, and one
line of results at the end, with the latencies from when a request was sent until it was acknowledged. Each
acknowledgement counts for the oldest request of its connection: brokers that answer out of order have a
longer p50 and a shorter p99 so.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence

from benchmarks.peers.wires import (
    READ_BYTES,
    TOPIC,
    Histogram,
    Kafka,
    Nats,
    Rabbit,
    Redis,
    Rmq,
    Wire,
    latencies,
    ring_of,
    topic_of,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.headers import CreateTopicRequestHeader

CROWD = "PeersCrowd"
TOPIC_QUEUES = 1000
WAIT_SECONDS = 60.0
PUBLISHERS = 255
"""That a connection to RabbitMQ's streams may have."""


def wait_until_taken(wire: Wire) -> None:
    """Send a request of each queue until all are taken: a set takes none before all replicas follow,
    Kafka none for a moment after it made a topic.

    Raises ValueError with the last refusal if that lasts too long.
    """
    until = time.monotonic() + WAIT_SECONDS
    for request in wire.requests:
        while True:
            wire.sock.sendall(request)
            try:
                got = 0
                while got < wire.batch:
                    got += wire.answered(wire.sock.recv(1 << 16))
                break
            except ValueError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


class RmqCrowd(Rmq):
    """Topics of up to a thousand queues each."""

    def open(self) -> None:
        for first in range(0, self.made, TOPIC_QUEUES):
            count, topic = min(self.made - first, TOPIC_QUEUES), self._topic_of(first)
            header = CreateTopicRequestHeader(topic, "TBW102", count, count, 6, "SINGLE_TAG")
            self.sock.sendall(encode(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
            if b'"code":0' not in (told := self.next_frame()):
                raise ValueError(told)
        self.requests = tuple(
            self.sending(self._topic_of(queue), queue % TOPIC_QUEUES) for queue in self.queues
        )

    def _topic_of(self, queue: int) -> str:
        return self.topic if queue < TOPIC_QUEUES else f"{self.topic}-{queue // TOPIC_QUEUES}"


class KafkaCrowd(Kafka):
    """A topic of so many partitions."""

    def open(self) -> None:
        if self.made:
            self.make_topic([[1]] * self.made, {})
            self.partitions = self.made
            super().open()
            wait_until_taken(self)
        else:
            self.prepare()


class NatsCrowd(Nats):
    """So many streams; each connection has its acknowledgements on a subject of its own."""

    def open(self) -> None:
        self.hello()
        for queue in range(self.made):
            self.make_stream(f"{self.topic}{queue:05}")
        acks = b"acks%05d" % self.number
        self.sock.sendall(b"SUB %b 2\r\n" % acks)
        form = b"PUB %b %b %d\r\n%b\r\n"
        self.requests = tuple(
            form % (f"{self.topic}{queue:05}".encode(), acks, len(self.body), self.body)
            for queue in self.queues
        )


class RedisCrowd(Redis):
    """So many keys."""

    def open(self) -> None:
        self.requests = tuple(self.adding(f"{self.topic}{queue:05}") for queue in self.queues)


class RabbitCrowd(Rabbit):
    """So many streams, each with a publisher on the connections that write to it."""

    def open(self) -> None:
        self.log_in()
        for queue in range(self.made):
            self.make_stream(f"{self.topic}{queue:05}")
        if len(self.queues) > PUBLISHERS:
            raise ValueError(f"{len(self.queues)} streams on one connection")
        self.requests = tuple(
            self.publishing(number, f"{self.topic}{queue:05}") for number, queue in enumerate(self.queues)
        )


CROWDS: dict[str, type[Wire]] = {
    "rmq": RmqCrowd,
    "kafka": KafkaCrowd,
    "nats": NatsCrowd,
    "redis": RedisCrowd,
    "rabbitmq": RabbitCrowd,
}


class Flow:
    """One connection with its window: when which requests were sent."""

    def __init__(self, wire: Wire, window: int) -> None:
        self.wire = wire
        self._room = max(window // wire.batch, 1)
        self._ring, self._starts = ring_of(wire.requests, self._room)
        self._turn = self._owed = 0
        self._sent: deque[list[float]] = deque()

    def begin(self) -> None:
        """Fill the window."""
        self._send(self._room)

    def _send(self, count: int) -> None:
        turn = self._turn
        self._sent.append([time.perf_counter(), count])
        self.wire.sock.sendall(self._ring[self._starts[turn] : self._starts[turn + count]])
        self._turn = (turn + count) % len(self.wire.requests)

    def read(self, histogram: Histogram | None) -> int:
        """Take what has come and send as many again; the number of messages acknowledged."""
        data = self.wire.sock.recv(READ_BYTES)
        if not data:
            raise ValueError("the broker hung up")
        free, self._owed = divmod(self.wire.answered(data) + self._owed, self.wire.batch)
        if not free:
            return 0
        now, left = time.perf_counter(), free
        while left:
            first = self._sent[0]
            taken = min(left, int(first[1]))
            if histogram:
                histogram.add((now - first[0]) * 1e6, taken * self.wire.batch)
            left -= taken
            first[1] -= taken
            if not first[1]:
                self._sent.popleft()
        self._send(free)
        return free * self.wire.batch


def run(wires: Iterable[Wire], window: int, warm: float, seconds: float) -> tuple[int, float, Histogram]:
    """Keep all windows full; messages acknowledged after the warm-up, in how many seconds, and latencies."""
    flows = [Flow(wire, window) for wire in wires]
    counted, histogram = 0, Histogram()
    with selectors.DefaultSelector() as waiting:
        for flow in flows:
            waiting.register(flow.wire.sock, selectors.EVENT_READ, flow)
            flow.begin()
        start, begin = time.perf_counter(), 0.0
        while True:
            ready = waiting.select(30)
            if not ready:
                raise ValueError("nothing has come for 30 s")
            for key, _ in ready:
                got = key.data.read(histogram if begin else None)
                counted += got if begin else 0
            now = time.perf_counter()
            if begin and now - begin >= seconds:
                return counted, now - begin, histogram
            if not begin and now - start >= warm:
                begin = now
                print(json.dumps({"event": "measuring"}), flush=True)


def connected(
    kind: type[Wire], ports: Sequence[int], size: int, batch: int, connections: int, queues: int
) -> list[Wire]:
    """The connections, each with its share of the queues; the first to each port makes them."""
    share = max(queues // connections, 1)
    wires = []
    for number in range(connections):
        first = number * share % queues
        made = queues if number < len(ports) else 0
        port = ports[number % len(ports)]
        wires.append(kind(port, size, batch, range(first, first + share), number, made))
    return wires


def main(kinds: dict[str, type[Wire]]) -> None:
    """What the command line asks for."""
    name, told, *numbers = sys.argv[1:]
    size, window, batch, connections, queues = map(int, numbers[:5])
    warm, seconds = map(float, numbers[5:])
    ports = [int(port) for port in told.split(",")]
    kind = topic_of(kinds[name], f"{CROWD}{queues}" if kinds is CROWDS else TOPIC)
    wires = connected(kind, ports, size, batch, connections, queues)
    count, took, histogram = run(wires, window, warm, seconds)
    results = {"messages": count, "rate": count / took} | latencies(histogram)
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(CROWDS)
