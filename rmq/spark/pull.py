"""Reading ranges of a broker's queues as Arrow batches, by pulls whose records are decoded many at once.

The ranges are cut into slices. A broker limits a response (32 messages or 256 KiB by default), so some slices
are pulled at the same time over a single connection, as long as the pulled and untaken bytes are within a
budget. The output is in the ranges' order, without gaps except filtered messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from anyio.abc import TaskGroup
from attrs import define, field

from rmq.client.consume.pull import RawPull
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.errors import NETWORK_ERRORS, CorruptRecord, NoRoute, RmqError, ServiceNotAvailable, SystemBusy
from rmq.message import MessageQueue
from rmq.protocol.auth.signature import Credentials
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_record
from rmq.remoting.loop import unwrap_groups
from rmq.spark.cluster import Loop, client_of, masters_away
from rmq.spark.direct import DirectReader, NotPlain, Stride, connected, is_plain
from rmq.spark.formats.records import Data, decode_batch, each_fitting, queue_offsets, record_starts
from rmq.spark.formats.schema import arrow_schema
from rmq.spark.offsets import QueueRange, lost
from rmq.spark.options import ReadOptions
from rmq.spark.runtime import prepare_worker

REMOVING = "MESSAGE_WAS_REMOVING"
PASSING = (*NETWORK_ERRORS, NoRoute, SystemBusy, ServiceNotAvailable)
"""Errors that may be temporary. NoRoute: name servers forget a broker when it stops."""
PAUSE_SECONDS = 0.05
FILTERED_SLICE = 8
"""Factor for the length of slices with a filter: a filtered pull may look at many messages and return few."""
BUDGET_BATCHES = 4
"""Arrow batches whose bytes may be pulled ahead, or be in flight."""
_CLIENTS_MAX = 4

log = logging.getLogger(__name__)


_clients: dict[tuple[ReadOptions, Credentials | None], tuple[Loop, PullConsumer]] = {}
"""Consumers that this process, a worker of Spark, keeps open for its next tasks. Another secret in a file
makes another client."""


def read_ranges(
    options: ReadOptions, piece: Sequence[QueueRange], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of ranges of a broker, in order, as batches of this schema.

    Raises DataLoss for lost messages (unless they are to be skipped), and the client's errors when the broker
    cannot be reached for `pullTimeoutMs`.
    """
    hidden = bool(options.tags) and "tags" not in schema.names
    decoded = schema.append(arrow_schema(["tags"])[0]) if hidden else schema
    tags = pa.array(sorted(options.tags)) if options.tags else None
    is_worker = prepare_worker()
    with _consumer(options, is_kept=is_worker) as (loop, consumer):
        for data, starts in _records(loop, consumer, piece, options):
            for batch in _decoded(data, starts, options, decoded, piece[0].queue.broker_name):
                if tags is not None:
                    batch = batch.filter(pc.is_in(batch.column("tags"), value_set=tags))
                yield batch.select(schema.names) if hidden else batch


def _records(
    loop: Loop, consumer: PullConsumer, piece: Sequence[QueueRange], options: ReadOptions
) -> Iterator[tuple[Data, Any]]:
    """The records of the ranges, and their begins: those that are plain to read first."""
    left = piece
    if is_plain(options):
        left = yield from _direct(loop, consumer, piece, options)
    if left:
        with loop.portal.wrap_async_context_manager(RangeReader(consumer, left, options)) as reader:
            while (records := loop.call(reader.next)) is not None:
                yield records


def _direct(
    loop: Loop, consumer: PullConsumer, piece: Sequence[QueueRange], options: ReadOptions
) -> Generator[tuple[Data, Any], None, Sequence[QueueRange]]:
    """The records that are read without the event loop; returns the ranges that are left."""
    requests: dict[MessageQueue, Callable[[int, int], Command]] = {}

    def request(queue: MessageQueue, offset: int, count: int) -> Command:
        if queue not in requests:
            there, requests[queue] = loop.call(consumer.raw_requests, queue)
            if there != address:
                raise NotPlain(f"{queue} is read from {there}")
        return requests[queue](offset, count)

    reader: DirectReader | None = None
    try:
        queue = piece[0].queue
        address, requests[queue] = loop.call(consumer.raw_requests, queue)
        if address != consumer.master(queue):
            return piece
        with connected(address) as sock:
            reader = DirectReader(sock, request, options)
            yield from reader.batches(piece)
            return reader.left
    except (OSError, RmqError) as error:
        if reader is not None:
            raise
        log.info("no connection of the task's own: %s", error)
        return piece


@contextmanager
def _consumer(options: ReadOptions, *, is_kept: bool) -> Iterator[tuple[Loop, PullConsumer]]:
    """A consumer and its loop; `is_kept` for the next block, unless this block ends in an error."""
    key = options, options.credentials()
    opened = _clients.pop(key, None) if is_kept else None
    if opened is None:
        loop = Loop().__enter__()
        try:
            opened = loop, loop.enter(loop.enter(client_of(options)).pull_consumer(options.group))
        except BaseException:
            loop.__exit__(None, None, None)
            raise
    is_good = False
    try:
        yield opened
        is_good = True
    except GeneratorExit:  # no task wants more
        is_good = True
        raise
    finally:
        if is_kept and is_good:
            _clients[key] = opened
            if len(_clients) > _CLIENTS_MAX:
                _clients.pop(next(iter(_clients)))[0].__exit__(None, None, None)
        else:
            opened[0].__exit__(None, None, None)


def _decoded(
    data: Data, starts: Any, options: ReadOptions, schema: pa.Schema, broker_name: str
) -> Iterator[pa.RecordBatch]:
    def take(some: Any) -> tuple[pa.RecordBatch, int]:
        try:
            batch = decode_batch(
                data,
                some,
                schema,
                broker_name=broker_name,
                decompress=options.decompress,
                on_bad_body=options.on_corrupt,
                most=options.batch_bytes,
            )
        except CorruptRecord as error:
            raise _placed(error, data, broker_name) from None
        return batch, batch.num_rows

    return each_fitting(starts, take)


def _placed(error: CorruptRecord, data: Data, broker_name: str) -> CorruptRecord:
    """The error with the place of the message for the user, and the remedy."""
    try:
        message = decode_record(bytes(data), error.offset, check_crc=False, decompressed=False)
    except CorruptRecord:
        return error  # it is not the body
    where = f"topic {message.topic}, queue {message.queue_id} of {broker_name}"
    advice = "read on with option onCorrupt=null or onCorrupt=raw"
    return CorruptRecord(where, message.queue_offset, f"{error.reason}; {advice}")


@define(eq=False)
class _Slice:
    """A part of a range, with the pulled bytes that are not taken yet."""

    queue: MessageQueue
    start: int
    stop: int
    parts: list[bytes | memoryview] = field(factory=list)
    starts: list[Any] = field(factory=list)
    """The begins of the records in each part."""
    size: int = 0
    error: Exception | None = None
    is_done: bool = False


class RangeReader:
    """Pulls ranges ahead of the caller: `async with RangeReader(...) as reader`.

    The first slice may always be pulled, until it has a batch; all other slices while everything pulled and
    untaken, including the possible result of pulls under way, is within the budget.
    """

    def __init__(self, consumer: PullConsumer, piece: Sequence[QueueRange], options: ReadOptions) -> None:
        self._consumer = consumer
        self._rest = deque(piece)
        self._options = options
        self._budget = BUDGET_BATCHES * options.batch_bytes
        self._held = 0
        """Bytes that are pulled and not taken."""
        self._coming = 0
        """Expected bytes of pulls in flight."""
        self._answer_bytes = 0
        """Expected bytes of one pull; 0 before the first answer."""
        self._changed = anyio.Event()
        self._filtered = options.is_filtered
        self._stride = Stride(options.pull_batch)
        self._slices: deque[_Slice] = deque()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        with unwrap_groups():
            await self._tasks.__aexit__(None, None, None)

    async def next(self) -> tuple[bytes, np.ndarray[Any, Any]] | None:
        """The next records, back to back, and their begins: about `batchRows` or `batchBytes` of them; None
        at the end.

        Raises the error of a pull at the place of its records.
        """
        options = self._options
        parts: list[bytes | memoryview] = []
        starts: list[Any] = []
        rows = size = 0
        while rows < options.batch_rows and size < options.batch_bytes:
            self._fill()
            if not self._slices:
                break
            first = self._slices[0]
            while not first.parts and not first.is_done:
                await self._changed.wait()
            if first.error is not None:
                raise first.error
            for part, begins in zip(first.parts, first.starts, strict=True):
                parts.append(part)
                starts.append(begins + size)
                size += len(part)
                rows += len(begins)
            self._held -= first.size
            first.parts, first.starts, first.size = [], [], 0
            if first.is_done:
                self._slices.popleft()
            self._wake()
        return (b"".join(parts), np.concatenate(starts)) if parts else None

    def _fill(self) -> None:
        """Keep as many slices in flight as allowed: one until an answer shows its size."""
        length = self._stride.messages * (FILTERED_SLICE if self._filtered else 1)
        most = self._options.pulls_in_flight if self._answer_bytes else 1
        while self._rest and len(self._slices) < most:
            piece = self._rest.popleft()
            one = _Slice(piece.queue, piece.start, min(piece.start + length, piece.stop))
            self._requeue(piece.queue, one.stop, piece.stop)
            if one.start < one.stop:
                self._slices.append(one)
                self._tasks.start_soon(self._pull_slice, one)

    def _requeue(self, queue: MessageQueue, start: int, stop: int) -> None:
        if start < stop:
            self._rest.appendleft(QueueRange(queue, start, stop))

    async def _pull_slice(self, one: _Slice) -> None:
        try:
            at = one.start
            while at < one.stop:
                while not self._has_room(one):
                    await self._changed.wait()
                expected = self._answer_bytes
                self._coming += expected
                try:
                    at = await self._advance(one, at)
                finally:
                    self._coming -= expected
                if not self._filtered and one is self._slices[-1] and one.stop - at > self._stride.messages:
                    self._requeue(one.queue, at, one.stop)  # to be pulled in parallel
                    one.stop = at
                self._wake()
        except Exception as error:  # for the task that takes the slice
            one.error = error
        finally:
            one.is_done = True
            self._wake()

    def _has_room(self, one: _Slice) -> bool:
        if one is self._slices[0]:
            return one.size < self._options.batch_bytes
        return self._held + self._coming + self._answer_bytes <= self._budget

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _advance(self, one: _Slice, at: int) -> int:
        """Make one pull; return the offset at which the slice continues."""
        asked = min(one.stop - at, self._options.pull_batch)
        answer = await self._pull(one.queue, at, asked)
        self._answer_bytes = max(len(answer.body), self._answer_bytes * 7 // 8, 1)
        if answer.code == ResponseCode.SUCCESS:
            return self._take(one, at, asked, answer)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.status != REMOVING:
            if self._filtered and answer.next_offset > at:
                return self._passed_over(one, at, min(answer.next_offset, one.stop), answer)
            if answer.next_offset == at:
                await anyio.sleep(PAUSE_SECONDS)
                return at
        ahead = answer.next_offset if answer.code != ResponseCode.PULL_NOT_FOUND else 0
        return self._missing(one, at, min(ahead, one.stop) if ahead > at else one.stop, answer)

    async def _pull(self, queue: MessageQueue, at: int, count: int) -> RawPull:
        """Pull, repeatedly while the broker is away or too busy."""
        deadline = anyio.current_time() + self._options.pull_timeout_ms / 1000
        while True:
            try:
                answer = await self._consumer.pull_raw(
                    queue, at, max_messages=count, expression=self._options.expression
                )
                by_slave = answer.address != self._consumer.master(queue)
                if answer.code == ResponseCode.SUCCESS or answer.max_offset > at or not by_slave:
                    return answer
                if anyio.current_time() >= deadline:
                    raise masters_away([queue.broker_name])
            except PASSING as error:
                is_refused = isinstance(error, NoRoute) and error.refused
                if is_refused or anyio.current_time() >= deadline:
                    raise
                log.info("pull from %s at %d: %s", queue, at, error)
            await anyio.sleep(PAUSE_SECONDS)

    def _take(self, one: _Slice, at: int, asked: int, answer: RawPull) -> int:
        """Keep the records of an answer that belong to the slice; return the offset at which it continues."""
        body = answer.body
        starts = record_starts(body)
        offsets = queue_offsets(body, starts)
        low, high = np.searchsorted(offsets, (at, one.stop))
        begin = int(starts[low]) if low < len(starts) else len(body)
        end = int(starts[high]) if high < len(starts) else len(body)
        if end > begin:
            one.parts.append(body if end - begin == len(body) else memoryview(body)[begin:end])
            one.starts.append(starts[low:high] - begin)
            one.size += end - begin
            self._held += end - begin
        if self._filtered:
            return self._passed_over(one, at, min(max(answer.next_offset, at + 1), one.stop), answer)
        mine = offsets[low:high]
        self._stride.learn(asked, len(mine))
        expected = np.arange(at, at + len(mine))
        if len(mine) and np.array_equal(mine, expected):
            return at + len(mine)
        return self._missing_between(one, at, mine, answer)

    def _missing_between(self, one: _Slice, at: int, offsets: Any, answer: RawPull) -> int:
        if not len(offsets):
            return self._missing(one, at, one.stop, answer)
        first = int(np.argmax(offsets != np.arange(at, at + len(offsets))))
        self._missing(one, at + first, int(offsets[first]), answer)
        return int(offsets[-1]) + 1

    def _passed_over(self, one: _Slice, at: int, ahead: int, answer: RawPull) -> int:
        """Note messages that a filter left out; messages below the queue's oldest offset may have been
        wanted."""
        if answer.min_offset > at:
            self._missing(one, at, min(answer.min_offset, ahead), answer)
        return ahead

    def _missing(self, one: _Slice, at: int, ahead: int, answer: RawPull) -> int:
        """Check the missing messages of [at, ahead). Raises DataLoss unless losses are to be skipped."""
        queue = one.queue
        loss = (
            f"{queue.topic} on {queue.broker_name} queue {queue.queue_id}: of messages {at} to {ahead - 1}"
            f" some are gone ({answer.status or answer.code}), the broker has {answer.min_offset} to"
            f" {answer.max_offset - 1}"
        )
        if self._options.fail_on_data_loss:
            raise lost([loss])
        log.warning("skipped, since failOnDataLoss is false: %s", loss)
        return ahead
