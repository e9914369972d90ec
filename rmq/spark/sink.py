"""Writing rows to topics: each row with a key that stays the same when its task runs again.

Brokers with support (see rmq.spark.idempotent) store each row once. Other brokers store it at least once: the
key is a property of the message (`rmqSparkKey`) and makes its unique id (`msgId`), so readers can drop
duplicates: `without_duplicates`.
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
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, evolve, field, frozen
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Row, StructType

from rmq.client.produce.outgoing import BATCH, Outgoing
from rmq.client.produce.producer import Producer
from rmq.client.session.results import SendResult
from rmq.client.session.routes import select_by_key
from rmq.errors import (
    NETWORK_ERRORS,
    AccessDenied,
    ConfigError,
    MessageIllegal,
    NoRoute,
    RequestCodeNotSupported,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
)
from rmq.message import MessageQueue, dlq_topic, validate_topic
from rmq.protocol.codes import IDEMPOTENT_SEND
from rmq.protocol.headers import PRODUCER_ID, SEQUENCE
from rmq.spark.cluster import Loop, brokers_away, client_of
from rmq.spark.formats.bad_rows import BadRow, described, letters, reasons
from rmq.spark.formats.encoding import (
    ColumnKeys,
    Keys,
    RowKeys,
    RowRefused,
    bodies,
    check_write_columns,
    chunks,
    encode,
    groups,
    keyed,
    keyed_schema,
    property_texts,
)
from rmq.spark.idempotent import (
    BrokerPartitioner,
    Line,
    MicroBatch,
    label_of,
    note_write,
    notes_folder,
    producer_id,
    read_notes,
)
from rmq.spark.options import MIB, WriteOptions, write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BYTES_AT_ONCE: Final = 16 * MIB
"""Bytes of an Arrow batch above which it is written in parts."""
PAUSE_SECONDS: Final = 0.2
OTHER_ROW: Final = "has sent another as number"
"""Words in the refusal of a broker that has another row of that number; any other refusal is about the
message."""
STAMP_BYTES: Final = 1024
"""Bytes that a broker adds to an idempotent batch."""

log = logging.getLogger(__name__)


@frozen
class Sent(WriterCommitMessage):
    """Result of a task; `late` counts requests whose flush or copy was not confirmed in time, `plain` the
    requests that a repetition would store again, `bad` the rows that were not messages. `batch` is that of
    the streaming query, if any."""

    rows: int
    requests: int
    late: int
    plain: int = 0
    bad: int = 0
    batch: MicroBatch | None = None


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
    """True if a stream's writer gets batches: from Spark 4.1 on."""
except ImportError:
    StreamWriter = DataSourceStreamWriter  # type: ignore[misc, assignment]
    GIVES_ARROW = False
ROWS_OF_A_BATCH: Final = 10_000


class BatchSink(DataSourceArrowWriter):
    """Writes a batch; inside of foreachBatch each row once, by the ids of the query and the batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._run_id = options.run_id or uuid.uuid4().hex
        self._has_keys = "rowKey" in keyed_schema(schema, options.dedupe_key).fieldNames()
        self._label = label_of(options.topic, options.write_name, schema.json())
        self._notes = read_notes(notes_folder())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch = MicroBatch.of(context.getLocalProperty) if context is not None else None
        if batch is None:
            if self._options.exactly_once == "true":
                if self._has_keys:
                    raise ConfigError("exactlyOnce", "true", _KEYED)
                if not self._options.run_id and context is not None and is_over_connect(context):
                    raise ConfigError("exactlyOnce", "true", _OVER_CONNECT)
            return write_rows(self._options, iterator, f"{self._run_id}/0/{_partition()}")
        number = self._notes.get(batch.attempt, {}).get(self._label, 0)
        prefix = f"{self._options.run_id or batch.query}/{batch.batch}-{self._label}-{number}/{_partition()}"
        sent = write_rows(self._options, iterator, prefix, all_numbered=not self._options.run_id)
        return evolve(sent, batch=batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        batches = {sent.batch for sent in messages if isinstance(sent, Sent) and sent.batch is not None}
        for batch in batches:
            note_write(notes_folder(), batch, self._label)
        _log_written(messages)


_KEYED: Final = "auto or false: rows of a batch with keys of their own or delays are written at least once"
_OVER_CONNECT: Final = (
    "a runId beside it: over Spark Connect a write inside of foreachBatch does not learn its query and batch,"
    ' so give it runId=f"NAME-{batch_id}"; with auto a batch that comes again is stored again'
)


def is_over_connect(context: TaskContext) -> bool:
    """True if a client of Spark Connect started the task: its server tags each job so."""
    return "SparkConnect_" in (context.getLocalProperty("spark.job.tags") or "")


class StreamSink(StreamWriter):
    """Writes the batches of a stream."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._rows = None if GIVES_ARROW else to_arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        batches = iterator if self._rows is None else batches_of(iterator, self._rows)
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        run_id = self._options.run_id or context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        prefix = f"{run_id}/{batch_id}/{_partition()}"
        return write_rows(self._options, batches, prefix, all_numbered=not self._options.run_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_written(messages)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises ConfigError for columns that cannot be written, or do not fit the options."""
    names = check_write_columns(keyed_schema(schema, options.dedupe_key), options.topic)
    if options.exactly_once == "true" and "delayLevel" in names:
        raise ConfigError("exactlyOnce", "true", _KEYED)


def batches_of(rows: Iterator[Row], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows, in the form in which Spark 4.0 gives them to a stream's writer, as batches."""
    while some := list(islice(rows, ROWS_OF_A_BATCH)):
        cells = [{name: _value(row[name]) for name in schema.names} for row in some]
        yield pa.RecordBatch.from_pylist(cells, schema)


def _value(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _log_written(messages: Sequence[WriterCommitMessage | None]) -> None:
    sent = [message for message in messages if isinstance(message, Sent)]
    log.info("%d rows written in %d requests", sum(m.rows for m in sent), sum(m.requests for m in sent))
    if bad := sum(message.bad for message in sent):
        log.warning("%d rows could not be messages and were left out (onBadRow)", bad)
    if plain := sum(message.plain for message in sent):
        log.info("%d of the requests would be stored again if their tasks ran again", plain)
    if late := sum(message.late for message in sent):
        log.warning("%d requests are stored, but not flushed or copied to a slave in time", late)


def without_duplicates(frame: DataFrame) -> DataFrame:
    """Rows of a sink without duplicates: a single row for equal `msgId` made by a sink; all other messages
    stay unchanged. In a stream all keys are kept as state: use a watermark and
    `dropDuplicatesWithinWatermark(["msgId"])` instead."""
    return frame.dropDuplicates(["msgId"])


def write_rows(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], prefix: str, *, all_numbered: bool = False
) -> Sent:
    """Send all rows and return when the brokers have acknowledged each. `prefix` is that of the rows' keys.
    With `all_numbered` brokers store also rows with keys of their own once, by their numbers: such rows come
    in the same order when the task runs again.

    Raises MessageIllegal for a row that is no message, and the client's errors; some rows may be stored in
    that case.
    """
    with Loop() as loop:
        client = client_of(options, send_timeout_ms=options.send_timeout_ms, retry_times=options.retries)
        producer = loop.enter(loop.enter(client).producer(options.producer_group))
        sender = Sender(loop, producer, options)
        rows = bad = 0
        for part in _paced(chain.from_iterable(map(_slices, batches)), options.rate):
            part = keyed(part, options.dedupe_key)
            if options.on_bad_row != "fail":
                part, dropped = _without_bad(part, options, f"{prefix}/{rows + bad}")
                if dropped is not None and options.on_bad_row == "dlq":
                    sender.send(dropped, RowKeys(f"{prefix}-bad", bad, len(dropped)), f"{prefix}-bad")
                bad += 0 if dropped is None else len(dropped)
            if not len(part):
                continue
            has_keys = "rowKey" in part.schema.names
            keys = ColumnKeys(part) if has_keys else RowKeys(prefix, rows, len(part))
            try:
                sender.send(part, keys, prefix if all_numbered or not has_keys else "")
            except RowRefused as error:
                raise _named(error, part, options, f"{prefix}/{rows}") from None
            rows += len(part)
        sender.finish()
        return Sent(rows, sender.requests, sender.late, sender.plain, bad)


BAD_SHOWN: Final = 5


def _without_bad(
    part: pa.RecordBatch, options: WriteOptions, place: str
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows that can be messages, and letters of the other rows, if there are any."""
    found = reasons(part, options.topic, options.max_message_bytes)
    bad = _described(part, found, options, place)
    if not bad:
        return part, None
    for one in bad[:BAD_SHOWN]:
        log.warning("a row is left out (onBadRow=%s): %s", options.on_bad_row, one)
    is_bad = pa.array([reason is not None for reason in found])
    to = dlq_topic(options.dead_letter_group or options.producer_group)
    return part.filter(pc.invert(is_bad)), letters(part.filter(is_bad), bad, to, options.max_message_bytes)


def _described(
    part: pa.RecordBatch, found: Sequence[str | None], options: WriteOptions, place: str
) -> list[BadRow]:
    return [
        described(part, at, reason, options.topic, f"{place}+{at}")
        for at, reason in enumerate(found)
        if reason is not None
    ]


def _named(error: RowRefused, part: pa.RecordBatch, options: WriteOptions, place: str) -> MessageIllegal:
    """The error with the topic and key of the first bad row."""
    found = reasons(part, options.topic, options.max_message_bytes)
    bad = _described(part, found, options, place)
    if not bad:
        return error
    more = f", and {len(bad) - 1} more rows" if len(bad) > 1 else ""
    return MessageIllegal(
        remark=f"a row cannot be a message: {bad[0]}{more}; onBadRow=skip or onBadRow=dlq writes the others"
    )


def _paced(parts: Iterable[pa.RecordBatch], rate: int) -> Iterator[pa.RecordBatch]:
    if not rate:
        yield from parts
        return
    pace = RateLimiter(rate)
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
        self._lines: dict[tuple[str, MessageQueue | None], Line] = {}
        self._homes: dict[str, BrokerPartitioner] = {}
        self._is_able: dict[str, bool] = {}
        self.requests = 0
        self.late = 0
        self.plain = 0

    def send(self, batch: pa.RecordBatch, keys: Keys, numbered_by: str) -> None:
        """Send rows; returns when all but `sendsInFlight` requests are acknowledged. Brokers store rows once
        by the producer `numbered_by`; empty: at least once."""
        body, properties = bodies(batch, self._options.max_message_bytes), property_texts(batch, keys)
        ids = keys.unique_ids()
        names = [name for name in _CHOICE if name in batch.schema.names]
        if not names:
            self._send_batches(self._options.topic, None, body, properties, ids, numbered_by)
            return
        ways: dict[tuple[str, MessageQueue | None, bool], list[Any]] = {}
        for values, members in groups([batch.column(name) for name in names], len(batch)):
            choice = dict(zip(names, values, strict=True))
            topic = choice.get("topic") or self._options.topic
            is_single = (choice.get("delayLevel") or 0) > 0 or topic.startswith("%RETRY%")
            ways.setdefault((topic, self._queue(topic, choice), is_single), []).append(members)
        for (topic, queue, is_single), found in ways.items():
            taken = (body, properties, ids)
            if len(ways) > 1:  # in their order, by which rows are numbered
                members = np.sort(np.concatenate(found))
                taken = tuple(array.take(members) for array in taken)
            if is_single:
                self._send_single(topic, queue, *taken)
            else:
                self._send_batches(topic, queue, *taken, numbered_by)

    def finish(self) -> None:
        """Wait until all requests are acknowledged."""
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
        self,
        topic: str,
        queue: MessageQueue | None,
        body: pa.Array,
        properties: pa.Array,
        ids: pa.Array,
        numbered_by: str,
    ) -> None:
        if numbered_by and self._options.exactly_once != "false":
            self._send_numbered(topic, queue, body, properties, ids, numbered_by)
            return
        for first, _, data in chunks(encode(body, properties), self._options.send_batch_bytes):
            self._start(_batch(topic, data, ids[first].as_py()), queue)

    def _send_numbered(
        self,
        topic: str,
        queue: MessageQueue | None,
        body: pa.Array,
        properties: pa.Array,
        ids: pa.Array,
        prefix: str,
    ) -> None:
        line = self._lines.get((topic, queue))
        if line is None:
            line = self._lines[topic, queue] = Line(producer_id(prefix, queue))
        most = min(self._options.send_batch_bytes, 4 * MIB - STAMP_BYTES)
        for number, start, end in line.blocks(len(body)):
            for first, _, data in chunks(encode(body[start:end], properties[start:end]), most):
                outgoing = _batch(topic, data, ids[start + first].as_py())
                outgoing.code = IDEMPOTENT_SEND
                outgoing.more = {PRODUCER_ID: line.producer, SEQUENCE: str(number + first)}
                home = queue or self._homes_of(topic).queue(line.producer, number)
                self._start_once(outgoing, queue, home)

    def _homes_of(self, topic: str) -> BrokerPartitioner:
        if topic not in self._homes:
            self._homes[topic] = BrokerPartitioner(self._loop.call(self._find_homes, topic))
        return self._homes[topic]

    def _send_single(
        self, topic: str, queue: MessageQueue | None, body: pa.Array, properties: pa.Array, ids: pa.Array
    ) -> None:
        for one, text, unique_id in zip(body, properties, ids, strict=True):
            self._start(Outgoing(topic, one.as_py(), 0, 0, text.as_py(), unique_id.as_py()), queue)

    def _start(self, outgoing: Outgoing, queue: MessageQueue | None) -> None:
        self._wait_for_room(queue)
        self._started(self._loop.portal.start_task_soon(self._deliver, outgoing, queue), queue)

    def _start_once(self, outgoing: Outgoing, queue: MessageQueue | None, home: MessageQueue) -> None:
        self._wait_for_room(queue)
        self._started(self._loop.portal.start_task_soon(self._deliver_once, outgoing, queue, home), queue)

    def _wait_for_room(self, queue: MessageQueue | None) -> None:
        while len(self._pending) >= self._options.sends_in_flight:
            self._pending.popleft().result()
        if queue is not None and queue in self._last:
            self._last[queue].result()

    def _started(self, future: Future[None], queue: MessageQueue | None) -> None:
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
        self._note(result)

    def _note(self, result: SendResult) -> None:
        if result.status != "SEND_OK":
            if self._options.require_send_ok:
                raise SendFailed([(result.message_queue.broker_name, Exception(result.status), 0.0)])
            self.late += 1

    async def _deliver_once(self, outgoing: Outgoing, queue: MessageQueue | None, home: MessageQueue) -> None:
        """Send to `home` or, if it cannot store rows once, to `queue` or any other. The call waits for
        `home`, since only this broker knows whether it has these rows."""
        deadline = anyio.current_time() + self._patience
        broker, required = home.broker_name, self._options.exactly_once == "true"
        while self._is_able.get(broker, True):
            try:
                self._note(await self._producer.send_packed(outgoing, queue=home))
                self._is_able[broker] = True
                return
            except (*NETWORK_ERRORS, NoRoute, SendFailed, SystemBusy, ServiceNotAvailable):
                if anyio.current_time() >= deadline:
                    raise
                if queue is None and not self._is_waited_for(home):
                    break
                await anyio.sleep(PAUSE_SECONDS)
            except (RequestCodeNotSupported, AccessDenied):
                if required:
                    raise
                self._is_able[broker] = False
            except MessageIllegal as error:
                if required or OTHER_ROW not in str(error):
                    raise
                log.warning(
                    "rows may be there twice: they differ from those of an earlier attempt: %s", error
                )
                break
        self.plain += 1
        await self._deliver(evolve(outgoing, code=BATCH, more=None), queue)

    def _is_waited_for(self, home: MessageQueue) -> bool:
        """True if rows wait for their broker although other brokers could take them: if it has taken some
        rows, or was named. A broker that may be RocketMQ's own is not waited for."""
        named = bool(self._options.required_brokers)
        return named or home.broker_name in self._is_able or self._homes[home.topic].are_of_one_broker

    @property
    def _patience(self) -> float:
        return self._options.send_timeout_ms / 1000 * (self._options.retries + 1)

    async def _find_homes(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on the required brokers, or on all. Raises BrokersAway, NoRoute."""
        required = self._options.required_brokers
        deadline = anyio.current_time() + self._patience
        while True:
            try:
                found = await self._producer.queues(topic)
                away = required.difference(queue.broker_name for queue in found)
                if not away:
                    return [queue for queue in found if not required or queue.broker_name in required]
                if anyio.current_time() >= deadline:
                    raise brokers_away(away)
            except NoRoute as error:
                if error.refused or not required or anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(PAUSE_SECONDS)


def _batch(topic: str, data: pa.Buffer, unique_id: str) -> Outgoing:
    return Outgoing(topic, data.to_pybytes(), 0, 0, "WAIT\x01true", unique_id, is_batch=True, code=BATCH)


_CHOICE: Final = ("topic", "queueId", "brokerName", "shardingKey", "delayLevel")
"""Columns for the target and the way of a row's send."""


# --- limit of messages a second ---

SLICES_A_SECOND: Final = 10
LATE_SECONDS: Final = 1.0
"""Seconds of missed messages that are made up for, at most."""


@define
class RateLimiter:
    """Lets `rate` a second through: `wait(count)` returns when the next `count` may go."""

    rate: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next_at: float | None = field(default=None, init=False)

    @property
    def step(self) -> int:
        """The number of messages to let through at once."""
        return max(self.rate // SLICES_A_SECOND, 1)

    def wait(self, count: int) -> None:
        """Wait until `count` messages may be sent."""
        now = self.clock()
        next_at = now if self._next_at is None else max(self._next_at, now - LATE_SECONDS)
        if next_at > now:
            self.sleep(next_at - now)
        self._next_at = next_at + count / self.rate
