"""The tail readers of `benchmarks.peers`: messages come at a rate, and a consumer reads each as it comes.

    python -m benchmarks.peers.tails WIRE PORT SIZE BATCH RATE WARM SECONDS

One connection sends to one queue, partition or stream, whose order tells which message is which; another one
reads, each as the clients of its broker do: rmq by long polls of 32 messages, Kafka by fetches of up to 1 MiB
that wait 100 ms at most, NATS by a pull consumer of 256, Redis by XREAD BLOCK of 256, RabbitMQ by a
subscription. A latency counts from when a message was due to be sent until the reader had it. Prints
{"event": "measuring"} after the warm-up and one line of results at the end.
"""

from __future__ import annotations

import json
import os
import re
import sys

from benchmarks.peers.crowds import CROWDS
from benchmarks.peers.reads import MANY, READERS, Reader, RedisReader, RmqReader
from benchmarks.peers.wires import WIRES, latencies, run_paced, topic_of
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND

SUSPEND_MS = 15_000


class RmqTail(RmqReader):
    """A long poll of one queue."""

    flags = PULL_SUBSCRIPTION | PULL_SUSPEND
    suspend_ms = SUSPEND_MS
    goes_on = True

    def begin(self) -> None:
        self.pull(0)


class RedisTail(RedisReader):
    """XREAD, which waits for the next messages."""

    def open(self) -> None:
        self._after = b"0"
        self._head = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n%b\r\n\*(\d+)\r\n" % self.topic.encode())

    def begin(self) -> None:
        key = self.topic.encode()
        parts = (b"XREAD", b"COUNT", b"%d" % MANY, b"BLOCK", b"0", b"STREAMS", key, self._after)
        self.sock.sendall(b"*8\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        self._rest = b""

    def taken(self, data: bytes) -> int:
        self._rest += data
        head = self._head.match(self._rest)
        if head is None:
            if self._rest.startswith(b"-"):
                raise ValueError(self._rest)
            return 0
        count = self.whole(int(head[1]))
        if count:
            self._after = self._after[1:]  # "(" is XRANGE's
            self.begin()
        return count


TAILS: dict[str, type[Reader]] = READERS | {"rmq": RmqTail, "redis": RedisTail}


def main() -> None:
    """What the command line asks for."""
    name, *numbers = sys.argv[1:]
    port, size, batch, rate, warm, seconds = map(float, numbers)
    topic = f"PeersTail{os.getpid()}"
    kinds = CROWDS if name == "rmq" else WIRES  # makes the topic
    writer = topic_of(kinds[name], topic)(int(port), int(size), int(batch), range(1), made=4)
    reader = topic_of(TAILS[name], topic)(int(port), 2, 0)
    reader.begin()
    found, took = run_paced(writer, rate, warm, seconds, reader)
    print(json.dumps({"messages": found.count, "rate": found.count / took} | latencies(found)), flush=True)


if __name__ == "__main__":
    main()
