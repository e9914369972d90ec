"""Pulls without an event loop: what is given and what is left are the ranges, whatever a broker answers."""

from __future__ import annotations

import pathlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq.message import MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.record import Record, decode_record, encode_record
from rmq.spark import direct, pull
from rmq.spark.direct import DirectReader, NotPlain, Stride, is_plain
from rmq.spark.formats.records import queue_offsets
from rmq.spark.formats.schema import arrow_schema
from rmq.spark.offsets import QueueRange
from rmq.spark.options import ReadOptions, read_options
from rmq.spark.pull import read_ranges
from tests.spark.cluster import Pair, running
from tests.spark.records import V4

Place = tuple[int, int]
PLAIN: Final = ("all", "all", "one less", "one", "later")
OTHER: Final = ("refused", "none", "too many", "a gap", "before", "damaged", "half", "end", "unasked")


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "a", number)


def record(queue_id: int, offset: int) -> bytes:
    body = bytes([offset % 256]) * (offset * 7 % 90)
    return encode_record(Record("T", queue_id, body, "", queue_offset=offset, born_host=V4), V4)


def request(of: MessageQueue, offset: int, count: int) -> Command:
    ext = {"queueId": str(of.queue_id), "queueOffset": str(offset), "maxMsgNums": str(count)}
    return Command.request(RequestCode.PULL_MESSAGE, ext)


class Broker:
    """A broker at the other end of a connection, which answers each pull as it is told, then as told last."""

    def __init__(self, sock: socket.socket, told: Sequence[str]) -> None:
        self._sock = sock
        self._told = [*told]
        self._held: list[bytes] = []
        self.pulls = 0

    def run(self) -> None:
        decoder = Decoder()
        try:
            while data := self._sock.recv(1 << 16):
                for command in decoder.feed(data):
                    self.pulls += 1
                    self._answer(command, self._told.pop(0) if len(self._told) > 1 else self._told[0])
                self._flush()
        except OSError:  # the reader has left, or this broker
            pass

    def _flush(self) -> None:
        for frame in self._held:
            self._sock.sendall(frame)
        self._held.clear()

    def _answer(self, command: Command, how: str) -> None:
        ext = command.ext
        queue_id, at, count = (int(ext[name]) for name in ("queueId", "queueOffset", "maxMsgNums"))
        offsets = list(range(at, at + count))
        match how:
            case "one less":
                offsets = offsets[: max(1, count - 1)]
            case "one":
                offsets = offsets[:1]
            case "none":
                offsets = []
            case "too many":
                offsets.append(at + count)
            case "a gap":
                offsets = [at + 1, *offsets[2:]]
            case "before":
                offsets = [max(at - 1, 0), *offsets]
        body = b"".join(record(queue_id, offset) for offset in offsets)
        if how == "damaged":
            body = body[:-1]
        code = ResponseCode.SYSTEM_ERROR if how == "refused" else ResponseCode.SUCCESS
        header = dict.fromkeys(("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"), "0")
        frame = encode(command.reply(code, header=header, body=b"" if how == "refused" else body))
        if how == "later":
            self._held.append(frame)
            return
        if how == "unasked":
            frame += frame
        self._sock.sendall(frame[: len(frame) // 2] if how == "half" else frame)
        if how in ("half", "end"):
            self._sock.close()
        self._flush()


@contextmanager
def broker(told: Sequence[str]) -> Iterator[tuple[socket.socket, Broker]]:
    """The reader's end of a connection to a broker that answers as it is told."""
    mine, other = socket.socketpair()
    made = Broker(other, told)
    thread = threading.Thread(target=made.run)
    thread.start()
    mine.settimeout(10)
    try:
        with mine, other:
            yield mine, made
            mine.shutdown(socket.SHUT_RDWR)
    finally:
        thread.join(10)


def options(**given: object) -> ReadOptions:
    texts = {"nameServer": "h:1", "topic": "T", **{name: str(value) for name, value in given.items()}}
    return read_options(texts, streaming=False)


def read(reader: DirectReader, piece: Sequence[QueueRange]) -> list[Place]:
    """The queues and offsets that a reader gives."""
    found: list[Place] = []
    for data, starts in reader.batches(piece):
        assert (starts[1:] > starts[:-1]).all()
        places = []
        for start in starts.tolist():
            message = decode_record(data.tobytes(), start)
            assert message.body == bytes([message.queue_offset % 256]) * (message.queue_offset * 7 % 90)
            places.append((message.queue_id, message.queue_offset))
        assert queue_offsets(data, starts).tolist() == [at for _, at in places]
        found += places
    return found


def places(ranges: Sequence[QueueRange]) -> list[Place]:
    return [(one.queue.queue_id, at) for one in ranges for at in range(one.start, one.stop)]


ranges_of = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 120)), min_size=1, max_size=4)


@given(
    st.lists(st.sampled_from(PLAIN), min_size=1, max_size=12),
    ranges_of,
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(1, 100),
    st.sampled_from([1, 3000, 1 << 20]),
)
@example(["later", "one", "all"], [(0, 100)], 10, 8, 100, 1 << 20)
def test_all_is_given_in_order_however_long_and_in_which_order_the_answers_are(
    told: list[str], parts: list[tuple[int, int]], most: int, flying: int, rows: int, size: int
) -> None:
    piece = [QueueRange(queue(number), at, at + count) for number, (at, count) in enumerate(parts)]
    given = options(pullBatch=most, pullsInFlight=flying, batchRows=rows, batchBytes=size)
    with broker(told) as (sock, _):
        reader = DirectReader(sock, request, given)
        assert read(reader, piece) == places(piece)
        assert reader.left == []


@given(
    st.lists(st.sampled_from(PLAIN), max_size=8),
    st.sampled_from(OTHER),
    ranges_of,
    st.integers(2, 30),
    st.integers(1, 8),
)
def test_what_is_left_begins_where_what_is_given_ends(
    told: list[str], how: str, parts: list[tuple[int, int]], most: int, flying: int
) -> None:
    piece = [QueueRange(queue(number), at, at + count) for number, (at, count) in enumerate(parts)]
    with broker([*told, how, "all"]) as (sock, _):
        reader = DirectReader(sock, request, options(pullBatch=most, pullsInFlight=flying, batchRows=40))
        assert read(reader, piece) + places(reader.left) == places(piece)


def test_a_broker_that_is_slow_is_left_to_the_other_reader() -> None:
    with broker(["all", "later"]) as (sock, made):
        made._flush = lambda: None  # type: ignore[method-assign]
        sock.settimeout(0.1)
        reader = DirectReader(sock, request, options(pullBatch=10))
        piece = [QueueRange(queue(0), 0, 100)]
        assert read(reader, piece) == places([QueueRange(queue(0), 0, 10)])
        assert places(reader.left) == places([QueueRange(queue(0), 10, 100)])


def test_few_pulls_are_repeated_for_a_broker_that_gives_fewer_than_asked_for() -> None:
    with broker(["all"]) as (sock, made):
        few = lambda of, offset, count: request(of, offset, min(count, 20))  # noqa: E731
        reader = DirectReader(sock, few, options(pullBatch=100, pullsInFlight=1))
        piece = [QueueRange(queue(0), 0, 2000)]
        assert read(reader, piece) == places(piece)
        assert made.pulls < 120


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_queue_whose_requests_fail_is_left(first: int) -> None:
    def ask(of: MessageQueue, offset: int, count: int) -> Command:
        if of.queue_id >= first:
            raise NotPlain("it has another broker")
        return request(of, offset, count)

    piece = [QueueRange(queue(number), 0, 50) for number in range(4)]
    with broker(["all"]) as (sock, _):
        reader = DirectReader(sock, ask, options(pullBatch=10, pullsInFlight=3, batchRows=50))
        found = read(reader, piece)
        assert found + places(reader.left) == places(piece)
        assert first == 0 or found


def test_a_batch_is_bounded_though_answers_are_short_and_long() -> None:
    with broker(["one"]) as (sock, _):
        reader = DirectReader(sock, request, options(pullBatch=1000, batchBytes=2000))
        piece = [QueueRange(queue(0), 0, 400)]
        sizes = [len(starts) for _, starts in reader.batches(piece)]
        assert sum(sizes) == 400
        assert max(sizes) < 30


def test_a_stride_grows_again_after_full_answers() -> None:
    stride = Stride(100)
    stride.learn(100, 30)
    stride.learn(30, 20)
    assert stride.messages == 30
    for _ in range(2 * direct.GROW_AFTER):
        stride.learn(stride.messages, stride.messages)
    assert stride.messages == 100


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"nameServer": "tcp://h:1"}, True),
        ({"nameServer": "tls://h:1"}, False),
        ({"nameServer": "ws://h:1"}, False),
        ({"tls": True}, False),
        ({"accessKey": "a", "secretKey": "b"}, False),
        ({"filter": "paid"}, False),
        ({"filterSql": "a > 1"}, False),
    ],
)
def test_connections_of_its_own_are_for_plain_reads(given: dict[str, object], expected: bool) -> None:
    assert is_plain(options(**given)) is expected


# --- with a real broker ---


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("direct")) as found:
        found.make_topic("Direct", 2)
        found.send("Direct", 500)
        yield found


def rows(pair: Pair) -> list[Place]:
    given = read_options(pair.options("Direct", pullBatch=32), streaming=False)
    wanted = [QueueRange(MessageQueue("Direct", pair.broker, number), 0, 250) for number in (0, 1)]
    batches = read_ranges(given, wanted, arrow_schema(["queueId", "queueOffset"]))
    return [(row["queueId"], row["queueOffset"]) for batch in batches for row in batch.to_pylist()]


EXPECTED: Final = [(number, at) for number in (0, 1) for at in range(250)]


def test_a_plain_read_needs_no_event_loop(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "RangeReader", None)
    assert rows(pair) == EXPECTED


@pytest.mark.parametrize("pulls", [0, 1, 5])
def test_the_event_loop_goes_on_where_it_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, pulls: int
) -> None:
    sent: list[Command] = []
    plain: Callable[[DirectReader], tuple[int, int, Command]] = DirectReader._next_answer

    def next_answer(self: DirectReader) -> tuple[int, int, Command]:
        if len(sent) == pulls:
            raise direct.NotPlain("as the test wants it")
        begin, end, answer = plain(self)
        sent.append(answer)
        return begin, end, answer

    monkeypatch.setattr(DirectReader, "_next_answer", next_answer)
    assert rows(pair) == EXPECTED
    assert len(sent) == pulls


def test_a_broker_without_a_port_for_it_is_read_by_the_event_loop(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def refused(*_: object) -> socket.socket:
        raise ConnectionRefusedError

    monkeypatch.setattr(direct.socket, "create_connection", refused)
    assert rows(pair) == EXPECTED
