"""CPU cost of the protocol's hot functions, in microseconds of this process for each frame or message.

    python -m benchmarks.micro_protocol [ROUNDS]

The figure is the best of five runs: what the code costs when nothing else disturbs it.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable

from rmq.broker.produce.send_answers import Ack, Answers
from rmq.protocol import frames, headers, record
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.frames import encode

CHUNK = 64
BODY = bytes(range(128))
SEND = headers.SendMessageRequestHeader(
    "BenchmarkProducer", "BenchmarkTest", "TBW102", 4, 2, 0, 1_700_000_000_123, 0,
    "UNIQ_KEY\x017F0000010001000000000000ABCD0001\x02WAIT\x01true\x02TAGS\x01TagA", 0, False, False,
)  # fmt: skip
PULL = headers.PullMessageRequestHeader(
    "BenchmarkConsumer", "BenchmarkTest", 3, 42_000, 32, 2, 0, 15_000, "*", 1_700_000_000_456, "TAG"
)
UPDATE = headers.UpdateConsumerOffsetRequestHeader("BenchmarkConsumer", "BenchmarkTest", 3, 42_000)


def java_frame(code: int, header: object, body: bytes = b"") -> bytes:
    """A JSON frame with the members in Java's order."""
    command = Command.request(code, header, body)
    members = {
        "code": code,
        "extFields": dict(command.ext),
        "flag": 0,
        "language": "JAVA",
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 407,
    }
    text = json.dumps(members, separators=(",", ":")).encode()
    return struct.pack(">iI", 4 + len(text) + len(body), len(text)) + text + body


def binary_frame(code: int, header: object, body: bytes = b"") -> bytes:
    command = Command.request(code, header, body)
    command.serialization = ROCKETMQ
    return encode(command)


def measure(name: str, work: Callable[[], object], units: int, rounds: int) -> None:
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        for _ in range(rounds):
            work()
        best = min(best, time.process_time() - before)
    print(f"{name:44} {best / rounds / units * 1e6:6.3f} us")


def split_and_read(chunk: bytes, header_class: type) -> Callable[[], object]:
    split, limit = frames.split_frames, 16 * 1024 * 1024

    def work() -> None:
        commands, _ = split(chunk, limit)
        for command in commands:
            command.read(header_class)

    return work


def measure_frames(rounds: int) -> None:
    kinds = [
        ("send 310, 128 B", 310, SEND, headers.SendMessageRequestHeader, BODY),
        ("pull 11", 11, PULL, headers.PullMessageRequestHeader, b""),
        ("offset update 15", 15, UPDATE, headers.UpdateConsumerOffsetRequestHeader, b""),
    ]
    for make, form in ((java_frame, "JSON"), (binary_frame, "ROCKETMQ")):
        for name, code, header, kind, body in kinds:
            chunk = b"".join(make(code, header, body) for _ in range(CHUNK))
            measure(f"split + read, {form}, {name}", split_and_read(chunk, kind), CHUNK, rounds)


def messages(rounds: int) -> None:
    host = bytes(8)
    properties = (SEND.properties or "").encode()
    size = record.FIXED_SIZE + len(BODY) + 13 + len(properties)
    topic = b"\x0dBenchmarkTest"

    def build() -> None:
        for _ in range(CHUNK):
            record.build_record(size, 2, 0, 7, 4096, 0, 1, host, 2, host, 0, 0, BODY, topic, properties)

    measure("build_record, 128 B", build, CHUNK, rounds)
    batch = record.encode_batch([(0, BODY, SEND.properties or "")] * 32)
    measure("decode_batch, 32 x 128 B", lambda: record.decode_batch(batch), 32, rounds)
    stored = record.build_record(size, 2, 0, 7, 4096, 0, 1, host, 2, host, 0, 0, BODY, topic, properties)
    body = stored * 32
    measure("decode_records, 32 x 128 B", lambda: record.decode_records(body), 32, rounds)


def replies(rounds: int) -> None:
    answers = Answers(bytes(8), region="DefaultRegion", trace_on=True)
    stored = record.Record("BenchmarkTest", 2, BODY)
    for make, form in ((java_frame, "JSON"), (binary_frame, "ROCKETMQ")):
        (request,), _ = frames.split_frames(make(310, SEND, BODY), 1 << 24)
        acks: list[Ack] = [(request, 2, (stored,))] * CHUNK

        def reply(acks: list[Ack] = acks) -> None:
            answers.stored(acks)

        measure(f"answers to sends, {form}", reply, CHUNK, rounds)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3200
    measure_frames(rounds)
    messages(rounds)
    replies(rounds)


if __name__ == "__main__":
    main()
