"""Writing rows to topics: at least once, each row with a key that stays the same when its task runs again.

The key is a property of the message (`rmqSparkKey`) and makes its unique id (`msgId`), so readers can drop
what was written twice: `without_duplicates`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import anyio
import pyarrow as pa
from attrs import define, field, frozen
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Row, StructType

from rmq.client.outgoing import BATCH, Outgoing
from rmq.client.producer import Producer
from rmq.client.routes import select_by_key
from rmq.errors import NETWORK_ERRORS, ConfigError, SendFailed, ServiceNotAvailable, SystemBusy
from rmq.message import MessageQueue, validate_topic
from rmq.spark.cluster import Loop, client_of
from rmq.spark.encoding import (
    ColumnKeys,
    Keys,
    RowKeys,
    bodies,
    check_write_columns,
    chunks,
    encode,
    groups,
    keyed,
    keyed_schema,
    property_texts,
)
from rmq.spark.options import MIB, WriteOptions, write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BYTES_AT_ONCE: Final = 16 * MIB
"""An Arrow batch with more is written in parts."""
PAUSE_SECONDS: Final = 0.2

log = logging.getLogger(__name__)


@frozen
class Sent(WriterCommitMessage):
    """What a task has written; `late` counts requests whose flush or copy was not confirmed in time."""

    rows: int
    requests: int
    late: int


def batch_sink(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchSink:
    """The writer of `frame.write`. Raises ConfigError, also for the mode overwrite."""
    if overwrite:
        raise ConfigError("mode", "overwrite", "append: messages cannot be overwritten")
    return BatchSink(write_options(options), schema)


def stream_sink(options: Mapping[str, str], schema: StructType) -> StreamSink:
    """The writer of `frame.writeStream`. Raises ConfigError."""
    return StreamSink(write_options(options), schema)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriter

    GIVES_ARROW: bool = True
    """Whether a stream's writer gets batches: from Spark 4.1 on."""
except ImportError:
    StreamWriter = DataSourceStreamWriter  # type: ignore[misc, assignment]
    GIVES_ARROW = False
ROWS_OF_A_BATCH: Final = 10_000


class BatchSink(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write_columns(keyed_schema(schema, options.dedupe_key), options.topic)
        self._options = options
        self._run_id = options.run_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, iterator, f"{self._run_id}/0/{_partition()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(messages)


class StreamSink(StreamWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write_columns(keyed_schema(schema, options.dedupe_key), options.topic)
        self._options = options
        self._rows = None if GIVES_ARROW else to_arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        batches = iterator if self._rows is None else batches_of(iterator, self._rows)
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        run_id = self._options.run_id or context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return write_rows(self._options, batches, f"{run_id}/{batch_id}/{_partition()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _tell(messages)


def batches_of(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows, as Spark 4.0 gives a stream's writer, as batches."""
    while some := list(islice(rows, ROWS_OF_A_BATCH)):
        cells = [{name: _value(row[name]) for name in schema.names} for row in some]
        yield pa.RecordBatch.from_pylist(cells, schema)


def _value(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _tell(messages: Sequence[WriterCommitMessage | None]) -> None:
    sent = [message for message in messages if isinstance(message, Sent)]
    log.info("%d rows written in %d requests", sum(m.rows for m in sent), sum(m.requests for m in sent))
    if late := sum(message.late for message in sent):
        log.warning("%d requests are stored, but not flushed or copied to a slave in time", late)


def without_duplicates(frame: DataFrame) -> DataFrame:
    """Rows that a sink has written twice, once: those of equal `msgId`, where a sink has made it; other
    messages stay as they are. In a stream all keys are kept as state: use a watermark and
    `dropDuplicatesWithinWatermark(["msgId"])` there."""
    return frame.dropDuplicates(["msgId"])


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch], prefix: str) -> Sent:
    """Send all rows and return when the brokers have acknowledged each. `prefix` is that of the rows' keys.

    Raises MessageIllegal for a row that is no message, and the client's errors; then some rows may be
    stored."""
    with Loop() as loop:
        client = client_of(options, send_timeout_ms=options.send_timeout_ms, retry_times=options.retries)
        sender = Sender(loop, loop.enter(loop.enter(client).producer(options.producer_group)), options)
        rows = 0
        for part in _paced(chain.from_iterable(map(_slices, batches)), options.rate):
            part = keyed(part, options.dedupe_key)
            has_keys = "rowKey" in part.schema.names
            sender.send(part, ColumnKeys(part) if has_keys else RowKeys(prefix, rows, len(part)))
            rows += len(part)
        sender.finish()
        return Sent(rows, sender.requests, sender.late)


def _paced(parts: Iterable[pa.RecordBatch], rate: int) -> Iterator[pa.RecordBatch]:
    if not rate:
        yield from parts
        return
    pace = Pace(rate)
    for part in parts:
        for at in range(0, len(part), pace.step):
            one = part.slice(at, pace.step)
            pace.wait(len(one))
            yield one


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(len(batch) * BYTES_AT_ONCE // max(batch.nbytes, 1), 1)
    for at in range(0, len(batch), step):
        yield batch.slice(at, step)


class Sender:
    """Sends rows over one producer, some requests at once, but one at a time to a queue that rows choose."""

    def __init__(self, loop: Loop, producer: Producer, options: WriteOptions) -> None:
        self._loop = loop
        self._producer = producer
        self._options = options
        self._pending: deque[Future[None]] = deque()
        self._last: dict[MessageQueue, Future[None]] = {}
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self.requests = 0
        self.late = 0

    def send(self, batch: pa.RecordBatch, keys: Keys) -> None:
        """Have rows sent; returns when all but `sendsInFlight` requests are acknowledged."""
        body, properties = bodies(batch), property_texts(batch, keys)
        ids = keys.unique_ids()
        names = [name for name in _CHOICE if name in batch.schema.names]
        if not names:
            self._send_batches(self._options.topic, None, body, properties, ids)
            return
        for values, members in groups([batch.column(name) for name in names], len(batch)):
            choice = dict(zip(names, values, strict=True))
            taken = (body, properties, ids)
            if len(members) < len(batch):
                taken = tuple(array.take(members) for array in taken)
            topic = choice.get("topic") or self._options.topic
            queue = self._queue(topic, choice)
            if (choice.get("delayLevel") or 0) > 0 or topic.startswith("%RETRY%"):
                self._send_single(topic, queue, *taken)
            else:
                self._send_batches(topic, queue, *taken)

    def finish(self) -> None:
        """Return when all requests are acknowledged."""
        while self._pending:
            self._pending.popleft().result()

    def _queue(self, topic: str, choice: dict[str, Any]) -> MessageQueue | None:
        if not topic:
            raise ConfigError("topic", "", "an option topic for rows whose column topic is empty")
        validate_topic(topic)
        if choice.get("queueId") is not None and choice.get("brokerName"):
            return MessageQueue(topic, choice["brokerName"], choice["queueId"])
        if not choice.get("shardingKey"):
            return None
        if topic not in self._queues:
            self._queues[topic] = self._loop.call(self._producer.queues, topic)
        return select_by_key(self._queues[topic], choice["shardingKey"])

    def _send_batches(
        self, topic: str, queue: MessageQueue | None, body: pa.Array, properties: pa.Array, ids: pa.Array
    ) -> None:
        for first, _, data in chunks(encode(body, properties), self._options.send_batch_bytes):
            unique_id = ids[first].as_py()
            outgoing = Outgoing(
                topic, data.to_pybytes(), 0, 0, "WAIT\x01true", unique_id, is_batch=True, code=BATCH
            )
            self._start(outgoing, queue)

    def _send_single(
        self, topic: str, queue: MessageQueue | None, body: pa.Array, properties: pa.Array, ids: pa.Array
    ) -> None:
        for one, text, unique_id in zip(body, properties, ids, strict=True):
            self._start(Outgoing(topic, one.as_py(), 0, 0, text.as_py(), unique_id.as_py()), queue)

    def _start(self, outgoing: Outgoing, queue: MessageQueue | None) -> None:
        while len(self._pending) >= self._options.sends_in_flight:
            self._pending.popleft().result()
        if queue is not None and queue in self._last:
            self._last[queue].result()
        future = self._loop.portal.start_task_soon(self._deliver, outgoing, queue)
        self._pending.append(future)
        if queue is not None:
            self._last[queue] = future
        self.requests += 1

    # --- in the loop ---

    async def _deliver(self, outgoing: Outgoing, queue: MessageQueue | None) -> None:
        result = await self._producer.send_packed(outgoing, queue=queue) if queue is None else None
        left = self._options.retries
        while result is None:
            try:
                result = await self._producer.send_packed(outgoing, queue=queue)
            except (*NETWORK_ERRORS, SystemBusy, ServiceNotAvailable):
                if not left:
                    raise
                left -= 1
                await anyio.sleep(PAUSE_SECONDS)
        if result.status != "SEND_OK":
            if self._options.require_send_ok:
                raise SendFailed([(result.message_queue.broker_name, Exception(result.status), 0.0)])
            self.late += 1


_CHOICE: Final = ("topic", "queueId", "brokerName", "shardingKey", "delayLevel")
"""Columns that say where and how a row is sent."""


# --- so many messages a second ---

SLICES_A_SECOND: Final = 10
LATE_SECONDS: Final = 1.0
"""What was missed for longer is not made up for."""


@define
class Pace:
    """Lets `rate` a second through: `wait(count)` returns when the next `count` may go."""

    rate: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next_at: float | None = field(default=None, init=False)

    @property
    def step(self) -> int:
        """How many to let through at once."""
        return max(self.rate // SLICES_A_SECOND, 1)

    def wait(self, count: int) -> None:
        """Return when they may go."""
        now = self.clock()
        next_at = now if self._next_at is None else max(self._next_at, now - LATE_SECONDS)
        if next_at > now:
            self.sleep(next_at - now)
        self._next_at = next_at + count / self.rate
