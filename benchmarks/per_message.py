"""What messages one by one cost the broker, beside push consumption, for batches of 32.

    python -m benchmarks.per_message [--batches 2000] [--rounds 5] [--size 128]

A push consumer's request is a pull that commits the offset of the one before. A consumer of single messages
pops, and acknowledges. The first table is the broker's own code, without sockets; the second is a broker's
process, over one connection with one request at a time, whose peer waits without sleep: a core that sleeps is
dear to wake. The store writes to real files. Rounds alternate; each figure is the lowest CPU of its rounds,
for 32 messages.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from rmq.broker.__main__ import calm_collector
from rmq.broker.config import BrokerConfig
from rmq.broker.send_batches import make_broker
from rmq.protocol import codes
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, TopicConfig
from rmq.protocol.codes import (
    PULL_COMMIT_OFFSET,
    PULL_SUSPEND,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    RequestCode,
)
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import CreateTopicRequestHeader, PullMessageRequestHeader, SendMessageRequestHeader
from rmq.protocol.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    bits_of,
    parse_start_offsets,
)
from rmq.protocol.record import Record, encode_batch, host_bytes
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

TOPIC = "Orders"
QUEUES = 4
COUNT = 32
TIMED = 50
"""Requests timed by one reading of the clock, which costs a microsecond and more."""
BODY_BYTES: Final = 128
TEXT = "UNIQ_KEY\x01C000020210265FFD2B276908570000{:04X}\x02WAIT\x01true\x02TAGS\x01TagA"


class Sink:
    """A connection that keeps the last frame written to it."""

    def __init__(self, port: int) -> None:
        self.peer_address = f"127.0.0.1:{port}"
        self.local_address = "127.0.0.1:10911"
        self.state: dict[str, object] = {}
        self.is_closed = self.is_busy = False
        self.frame: bytes | Sequence[bytes] = b""

    def write(self, frame: bytes | Sequence[bytes]) -> None:
        """Take a frame."""
        self.frame = frame

    answer = write

    def flush(self) -> None:
        """Bytes are delivered on write."""

    def reply(self, response: Command) -> None:
        """Take a response."""
        self.frame = encode(response)

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Take a request of the broker."""
        self.frame = frame or encode(command)

    def taken(self) -> Command:
        """The last answer."""
        return decoded(self.frame)


def decoded(frame: bytes | Sequence[bytes]) -> Command:
    """The command of a frame."""
    (answer,) = Decoder().feed(frame if isinstance(frame, bytes) else b"".join(frame))
    return answer


class Bench:
    """A broker over real files, with messages in all queues of a topic."""

    def __init__(self, folder: str, messages: int, size: int) -> None:
        def now_ms() -> int:
            return time.time_ns() // 1_000_000

        store_config = StoreConfig(store_path_root_dir=folder)
        self.store = Store(RealDisk(), store_config, store_host=host_bytes("127.0.0.1:10911"), now_ms=now_ms)
        self.store.load()
        config = BrokerConfig(broker_name="bench", max_taken_messages_of_group=1_000_000)
        self.broker = make_broker(
            config,
            self.store,
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            now_ms=now_ms,
            clock=time.monotonic,
        )
        self.broker.topics.update(TopicConfig(TOPIC, QUEUES, QUEUES))
        self.sink = Sink(40001)
        self.requests = Decoder(lanes=self.broker.lanes)
        body = bytes(size)
        for number in range(messages):
            record = Record(TOPIC, number % QUEUES, body, TEXT.format(number & 0xFFFF), born_host=bytes(8))
            self.store.put(record)
            if number % 64 == 63:
                self.store.commit()
        self.store.commit()
        while self.store.dispatch():
            pass
        self.ack_ns = 0

    def send(self, data: bytes) -> None:
        """Hand a request over, and do what is due."""
        broker = self.broker
        broker.handle(self.requests.feed(data), self.sink)  # type: ignore[arg-type]
        if self.due():
            broker.steps.deadlines(time.monotonic())

    def due(self) -> bool:
        """Whether the broker's loop would be woken now."""
        return self.broker.deadlines.next <= time.monotonic()


def heartbeat(group: str) -> bytes:
    """The heartbeat of a member of a group."""
    data = ConsumerData(
        group,
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        [SubscriptionData(topic=TOPIC, sub_string="*")],
    )
    body = HeartbeatData("bench@1", [], [data]).to_json()
    return encode(Command.request(RequestCode.HEART_BEAT, None, body))


def pull_frames(group: str, batches: int) -> list[bytes]:
    """Pulls of all messages, each with a commit."""
    frames = []
    for number in range(batches):
        queue_id, at = number % QUEUES, number // QUEUES * COUNT
        header = PullMessageRequestHeader(
            group, TOPIC, queue_id, at, COUNT, PULL_COMMIT_OFFSET | PULL_SUSPEND, at, 15_000, "*", 0, "TAG"
        )
        frames.append(encode(Command.request(RequestCode.PULL_MESSAGE, header)))
    return frames


def pop_frame(group: str) -> bytes:
    """A pop of 32 messages."""
    header = PopMessageRequestHeader(group, TOPIC, -1, COUNT, 60_000, 15_000, 0, 0, "TAG", "*")
    return encode(Command.request(codes.POP_MESSAGE, header))


def pulls(bench: Bench, group: str, batches: int) -> Callable[[], int]:
    """Pulls of all messages."""
    frames = pull_frames(group, batches)

    def run() -> int:
        began = time.thread_time_ns()
        for frame in frames:
            bench.send(frame)
        spent = time.thread_time_ns() - began
        assert bench.sink.taken().code == 0
        return spent

    bench.send(heartbeat(group))
    return run


def acknowledgement(group: str, *answers: Command) -> bytes:
    """The acknowledgement of all messages of some pops, as RocketMQ's client sends it."""
    acks = []
    for answer in answers:
        header = answer.read(PopMessageResponseHeader)
        times = header.pop_time, header.invisible_time
        for queue_id, start in parse_start_offsets(header.start_offset_info).items():
            bits = bits_of(start, range(start, start + COUNT))
            acks.append(BatchAck(group, TOPIC, "0", start, queue_id, 0, *times, bits))
    body = BatchAckMessageRequestBody("bench", acks).to_json()
    return encode(Command.request(codes.BATCH_ACK_MESSAGE, None, body))


def pops(bench: Bench, group: str, batches: int) -> Callable[[], int]:
    """Pops of all messages, each with an acknowledgement of the batch."""
    pop = pop_frame(group)

    def run() -> int:
        pop_ns = bench.ack_ns = 0
        for _ in range(batches // TIMED):
            frames = []
            began = time.thread_time_ns()
            for _ in range(TIMED):
                bench.send(pop)
                frames.append(bench.sink.frame)
            pop_ns += time.thread_time_ns() - began
            answers = list(map(decoded, frames))
            assert all(answer.code == 0 for answer in answers), answers
            acks = [acknowledgement(group, answer) for answer in answers]
            began = time.thread_time_ns()
            for ack in acks:
                bench.send(ack)
            bench.ack_ns += time.thread_time_ns() - began
            assert bench.sink.taken().code == 0
        return pop_ns + bench.ack_ns

    return run


# ---- a process ----


def serve(folder: str) -> None:
    """The other process: a broker on a free port; prints its address."""
    from functools import partial

    import trio

    from rmq.broker.runtime import service

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            config = BrokerConfig(namesrv_addr="", listen_port=0, broker_name="bench")
            store_config = StoreConfig(store_path_root_dir=folder)
            (address, *_) = await nursery.start(partial(service.run, config, store_config))
            calm_collector()
            print(address, flush=True)

    trio.run(run)


class Peer:
    """A connection to the process, and the CPU that the process has taken."""

    def __init__(self, address: str, pid: int) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder()
        self._received: list[Command] = []
        self._pid = pid

    def cpu(self) -> int:
        """Nanoseconds of all its threads."""
        paths = glob.glob(f"/proc/{self._pid}/task/*/schedstat")
        return sum(int(Path(path).read_text().split()[0]) for path in paths)

    def _received_bytes(self) -> bytes:
        """Wait without sleep: what the broker's send costs depends on whether its peer sleeps."""
        while True:
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv(1 << 20, socket.MSG_DONTWAIT)

    def call(self, *frames: bytes) -> list[Command]:
        """Send requests in one piece; return their answers."""
        self._socket.sendall(b"".join(frames))
        while sum(one.is_response for one in self._received) < len(frames):
            self._received += self._decoder.feed(self._received_bytes())
        answers, self._received = [one for one in self._received if one.is_response], []
        assert all(one.code == 0 for one in answers), answers
        return answers


def fill(peer: Peer, batches: int, size: int = BODY_BYTES) -> None:
    """Make the topic, and send its messages."""
    content = bytes(size)
    header = CreateTopicRequestHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", 0, False)
    peer.call(encode(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)))
    for number in range(batches):
        body = encode_batch((0, content, TEXT.format(at)) for at in range(COUNT))
        head = SendMessageRequestHeader(
            "p", TOPIC, "TBW102", 4, number % QUEUES, 0, 0, 0, "WAIT\x01true", 0, batch=True
        )
        peer.call(encode(Command.request(RequestCode.SEND_BATCH_MESSAGE, head, body)))


def measured(peer: Peer, name: str, group: str, batches: int) -> float:
    """Microseconds of CPU for 32 messages."""
    frames, pop = pull_frames(group, batches), pop_frame(group)
    if name == PULLS:
        peer.call(heartbeat(group))
    began, acks = peer.cpu(), []
    for frame in frames:
        if name == PULLS:
            peer.call(frame)
        elif name == EACH:
            peer.call(acknowledgement(group, *peer.call(pop)))
        elif name == TOGETHER:
            pieces = [acknowledgement(group, *acks), pop] if acks else [pop]
            acks = [one for one in peer.call(*pieces) if "popTime" in one.ext]
        else:
            acks += peer.call(pop)
            if len(acks) == SHARING:
                peer.call(acknowledgement(group, *acks))
                acks = []
    return (peer.cpu() - began) / batches / 1000


PULLS: Final = "pull with commit"
EACH: Final = "pop, and an acknowledgement of each batch"
TOGETHER: Final = "pop, in one write with the batch's acknowledgement"
SHARED: Final = "pop, and 16 batches in one acknowledgement"
SHARING: Final = 16


def of_a_process(batches: int, rounds: int, size: int) -> None:
    """Print the second table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.per_message", "--serve", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            peer = Peer(process.stdout.readline().strip(), process.pid)
            fill(peer, batches, size)
            costs: dict[str, list[float]] = {PULLS: [], EACH: [], TOGETHER: [], SHARED: []}
            for number in range(rounds):
                for name, some in costs.items():
                    some.append(measured(peer, name, f"g{number}{len(name)}", batches))
        finally:
            process.terminate()
            process.wait()
    print("a broker's process: least, and median of the rounds' quotients")
    for name, some in costs.items():
        quotient = median(one / pull for one, pull in zip(some, costs[PULLS], strict=True))
        print(f"  {name:52} {min(some):8.1f} µs {quotient:6.2f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=BODY_BYTES, help="bytes of a body")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, options.batches * COUNT, options.size)
        calm_collector()
        pull_costs, pop_costs, ack_costs = [], [], []
        for number in range(options.rounds):
            pull_costs.append(pulls(bench, f"pull{number}", options.batches)())
            pop_costs.append(pops(bench, f"pop{number}", options.batches)())
            ack_costs.append(bench.ack_ns)
        pull, pop, ack = (min(costs) / options.batches / 1000 for costs in (pull_costs, pop_costs, ack_costs))
    print("the broker's own code")
    print(f"  {PULLS:52} {pull:8.1f} µs")
    print(f"  {EACH:52} {pop:8.1f} µs {pop / pull:6.2f}, the latter {ack:.1f} µs")
    of_a_process(options.batches, options.rounds, options.size)


if __name__ == "__main__":
    main()
