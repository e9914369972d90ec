"""The loads of `benchmarks.peers` on replicated brokers: as `crowds`, with the wires of sets.

    python -m benchmarks.peers.replicated WIRE PORTS SIZE WINDOW BATCH CONNECTIONS QUEUES WARM SECONDS

`kafka` writes with acks=all to a topic whose first node leads all partitions and that takes nothing while one
of three replicas is out of sync; `nats` writes to a stream of three replicas, on a connection to its leader.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time

from benchmarks.peers.crowds import WAIT_SECONDS, main, wait_until_taken
from benchmarks.peers.wires import Kafka, Nats, Rmq, Wire

NODES = (1, 2, 3)
_LEADER = re.compile(rb'"leader":"n(\d+)"')


class RmqReplicated(Rmq):
    """A master that answers when its slaves have the message."""

    def open(self) -> None:
        super().open()
        wait_until_taken(self)


class KafkaReplicated(Kafka):
    """Four partitions of three replicas, all led by the first node."""

    acks = -1

    def open(self) -> None:
        first, *others = NODES
        self.make_topic([[first, *others]] * self.made, {"min.insync.replicas": str(len(NODES))})
        super().open()
        wait_until_taken(self)


class NatsReplicated(Nats):
    """A stream of three replicas. Nodes are called n and their port: the connection moves to the leader."""

    replicas = len(NODES)

    def open(self) -> None:
        until, told = time.monotonic() + WAIT_SECONDS, b"no answer"
        self.hello()
        self.sock.settimeout(2.0)  # a cluster that has no leader yet does not answer
        while not (leader := _LEADER.search(told)):
            if time.monotonic() > until:
                raise ValueError(told)
            time.sleep(0.5)
            with contextlib.suppress(TimeoutError):
                told = self.make_stream(self.topic)
        self.sock.settimeout(20.0)
        if int(leader[1]) != self.sock.getpeername()[1]:
            self.sock.close()
            self.sock = socket.create_connection(("127.0.0.1", int(leader[1])), 20)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().open()
        wait_until_taken(self)


SETS: dict[str, type[Wire]] = {"rmq": RmqReplicated, "kafka": KafkaReplicated, "nats": NatsReplicated}

if __name__ == "__main__":
    main(SETS)
