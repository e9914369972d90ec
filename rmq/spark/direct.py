"""Pulls over a connection of the task, without an event loop: the plain case of `pull`, for two thirds of its
processor time.

A buffer receives the answers of a batch, and the decoder reads the buffer: no byte is copied between the
socket and Arrow. A refusal, missing messages, a lost connection or a slow broker ends this reader. Then
`pull` continues at the same place, and treats the event.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
from attrs import define

from rmq.errors import RmqError
from rmq.message import MessageQueue
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode, frame_size, head_size, read_head
from rmq.remoting.address import split_address
from rmq.spark.formats.records import queue_offsets, record_starts
from rmq.spark.offsets import QueueRange
from rmq.spark.options import ReadOptions

Array: TypeAlias = np.ndarray[Any, Any]
PATIENCE_SECONDS: Final = 2.0
"""Time without a byte of an awaited answer, after which the other reader goes on, which waits longer."""
LEAST_BUFFER: Final = 1 << 20
GROW_AFTER: Final = 16
"""Full answers in a row after which pulls request more."""

log = logging.getLogger(__name__)


class Stride:
    """The number of messages that a pull asks for: as many as the broker gives. An answer may be short
    because a file ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._given = 0
        self._full_answers = 0
        self.messages = most

    def learn(self, asked: int, given: int) -> None:
        """Note an answer."""
        before, self._given = self._given, given
        if given < asked:
            self.messages = max(given, min(before, self.messages), 1)
            self._full_answers = 0
        elif asked >= self.messages:
            self._full_answers += 1
            if self._full_answers >= GROW_AFTER:
                self.messages = min(2 * self.messages, self._most)
                self._full_answers = 0


class NotPlain(Exception):
    """Something that this reader leaves to another one."""


@define(eq=False)
class _Pull:
    """A pull that was sent: messages [at, at + count) of a queue."""

    queue: MessageQueue
    at: int
    count: int
    starts: Array | None = None
    """The places of the records in the buffer, once they are there."""


@contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    """A connection to a broker for the length of the block. Raises OSError."""
    place = split_address(address)
    with socket.create_connection((place.host, place.port), PATIENCE_SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def is_plain(options: ReadOptions) -> bool:
    """True if a read of these options may have connections of its own: without TLS, account and filter."""
    schemed = "://" in options.name_server and not options.name_server.startswith("tcp://")
    return not (schemed or options.tls or options.access_key or options.is_filtered)


def _goes_well(step: Callable[[], None]) -> bool:
    """Take a step; false if something is not plain."""
    try:
        step()
    except (NotPlain, OSError, RmqError) as error:
        log.info("read on by the event loop: %s", error)
        return False
    return True


class DirectReader:
    """The records of ranges, in order, until something is not plain; `left` then has what is left.

    `ask` gives the requests of a queue. The connection must be used by nobody else.
    """

    def __init__(
        self, sock: socket.socket, ask: Callable[[MessageQueue, int, int], Command], options: ReadOptions
    ) -> None:
        self._sock = sock
        self._ask = ask
        self._options = options
        self._rest: deque[QueueRange] = deque()
        self._sent: deque[_Pull] = deque()
        """The pulls whose records were not given, in the order of the ranges."""
        self._awaited: dict[int, _Pull] = {}
        self._stride = Stride(options.pull_batch)
        self._answer_bytes = 0
        """Expected bytes of one answer; 0 before the first."""
        self._rows = 0
        """Records that are in the buffer."""
        self._buffer = np.empty(LEAST_BUFFER, np.uint8)
        self._end = 0
        """The end of the last whole answer in the buffer."""
        self._received = 0

    @property
    def left(self) -> list[QueueRange]:
        """The ranges without the records that were given."""
        sent = [QueueRange(one.queue, one.at, one.at + one.count) for one in self._sent]
        return [*sent, *self._rest]

    def batches(self, piece: Sequence[QueueRange]) -> Iterator[tuple[Array, Array]]:
        """Bytes and the begins of records in them, about `batchRows` or `batchBytes`."""
        self._rest.extend(piece)
        is_plain = True
        while is_plain and (self._rest or self._sent):
            is_plain = _goes_well(self._receive_batch)
            buffer, found = self._buffer, self._taken()
            self._begin_batch()
            # The broker works while these records are decoded.
            is_plain = is_plain and _goes_well(self._send_more)
            for starts in found:
                yield buffer, starts

    def _receive_batch(self) -> None:
        self._send_more()
        while self._awaited:
            self._receive()
            self._send_more()
        if self._received != self._end:
            raise NotPlain("bytes that nobody asked for")

    def _begin_batch(self) -> None:
        """Forget the buffer, and the answers behind one that is missing: they are asked for again."""
        self._rest = deque(self.left)
        self._sent.clear()
        self._buffer = np.empty(max(self._end * 5 // 4, LEAST_BUFFER), np.uint8)
        self._end = self._received = self._rows = 0

    def _has_room(self) -> bool:
        """True if one more answer fits the batch; always for the first."""
        if not self._awaited and not self._rows:
            return True
        coming = sum(one.count for one in self._awaited.values())
        size = self._end + (len(self._awaited) + 1) * self._answer_bytes
        return self._rows + coming < self._options.batch_rows and size <= self._options.batch_bytes

    def _send_more(self) -> None:
        """Keep as many pulls in flight as fit a batch: one until an answer shows its size."""
        most = self._options.pulls_in_flight if self._answer_bytes else 1
        while self._rest and len(self._awaited) < most and self._has_room():
            piece = self._rest.popleft()
            stop = min(piece.start + self._stride.messages, piece.stop)
            if stop < piece.stop:
                self._rest.appendleft(QueueRange(piece.queue, stop, piece.stop))
            if piece.start < stop:
                pull = _Pull(piece.queue, piece.start, stop - piece.start)
                self._sent.append(pull)
                self._send(pull)

    def _send(self, pull: _Pull) -> None:
        request = self._ask(pull.queue, pull.at, pull.count)
        self._awaited[request.opaque] = pull
        self._sock.sendall(encode(request))

    def _receive(self) -> None:
        """Receive an answer, and ask for the messages that a short answer lacks, if the batch has room."""
        begin, end, answer = self._next_answer()
        pull = self._awaited.pop(answer.opaque, None)
        if pull is None or answer.code != ResponseCode.SUCCESS:
            raise NotPlain(f"an answer {answer.code} {answer.remark or ''}")
        self._answer_bytes = max(end - begin, self._answer_bytes * 7 // 8, 1)
        starts = record_starts(self._buffer[begin:end]) + begin
        count = len(starts)
        offsets = queue_offsets(self._buffer, starts)
        if not 0 < count <= pull.count or not np.array_equal(offsets, np.arange(pull.at, pull.at + count)):
            raise NotPlain(f"{pull.queue}: not the messages from {pull.at} on")
        self._stride.learn(pull.count, count)
        if count < pull.count:
            more = _Pull(pull.queue, pull.at + count, pull.count - count)
            self._sent.insert(self._sent.index(pull) + 1, more)
            pull.count = count
            if self._has_room():
                self._send(more)
        pull.starts = starts
        self._rows += count

    def _next_answer(self) -> tuple[int, int, Command]:
        """The begin and the end of the body of the next answer, and its header."""
        at = self._end
        self._receive_to(at + 8)
        prefix = self._buffer[at : at + 8].tobytes()
        end = at + frame_size(prefix, 0)
        begin = at + head_size(prefix)
        if begin > end or end - at > 4 * self._options.batch_bytes + LEAST_BUFFER:
            raise NotPlain("a frame that is too long")
        self._receive_to(end)
        self._end = end
        return begin, end, read_head(self._buffer[at:begin].tobytes())[0]

    def _receive_to(self, end: int) -> None:
        """Have the buffer filled up to `end` at least."""
        if end > len(self._buffer):
            longer = np.empty(max(end, 2 * len(self._buffer)), np.uint8)
            longer[: self._received] = self._buffer[: self._received]
            self._buffer = longer
        view = self._buffer.data
        while self._received < end:
            got = self._sock.recv_into(view[self._received :])
            if not got:
                raise NotPlain("the connection has ended")
            self._received += got

    def _taken(self) -> list[Array]:
        """The records that are next, as begins that ascend."""
        groups: list[list[Array]] = []
        last = 0
        while self._sent and (starts := self._sent[0].starts) is not None:
            self._sent.popleft()
            if not groups or starts[0] < last:
                groups.append([])
            groups[-1].append(starts)
            last = int(starts[-1])
        return [np.concatenate(group) for group in groups]
