"""Producer: plain, ordered, one-way and asynchronous sends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rmq import message as client
from rmq.client import blocking
from rmq.compat.rocketmq.exceptions import (
    ProducerException,
    ProducerSendAsyncFailed,
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    RocketMQException,
)
from rmq.compat.rocketmq.messages import Message, ReceivedMessage, check_message
from rmq.compat.rocketmq.opening import Opened, log
from rmq.compat.rocketmq.values import SendResult, Text, failing, number, result_of, text
from rmq.errors import ResponseError, RmqError
from rmq.message import PROPERTY_UNIQUE_KEY, MessageQueue, with_properties

WAITS: Final = 5
"""Factor of its timeout for which a send waits for a broker or a route: the old client's number of
attempts."""
ASYNC_THREADS: Final = 16
ASYNC_SENDS: Final = 1_000
"""Asynchronous sends that may be in flight; the next `send_async` waits for one of them."""
MOST_MS: Final = 2**31 - 1

QueueSelector = Callable[[int, ReceivedMessage, Any], int]
"""Function of the number of queues, the message and the argument: the number of a queue."""


def hashing_queue_selector(mq_size: int, msg: ReceivedMessage, arg: int) -> int:
    """The queue of `arg` modulo the number of queues."""
    return int(arg) % mq_size


class Producer(Opened):
    """Sends messages. All methods may be called from any thread; a callback of `send_async` runs in a thread
    of the producer's."""

    _kind = "producer"
    _start_failed = ProducerStartFailed

    def __init__(
        self,
        group_id: Text,
        orderly: bool = False,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id)
        self._sending: dict[str, int] = {"send_timeout_ms": 3_000}
        self._producer: blocking.Producer | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(ASYNC_SENDS)
        if timeout is not None:
            self.set_timeout(timeout)
        if compress_level is not None:
            self.set_compress_level(compress_level)
        if max_message_size is not None:
            self.set_max_message_size(max_message_size)

    # --- settings ---

    def set_timeout(self, timeout: int) -> None:
        """Set the time for one send and its retries, in ms. A send waits for up to five times as long for a
        broker or a route that is missing."""
        self._check_unstarted("set_timeout")
        self._sending["send_timeout_ms"] = number("timeout", timeout, 1, MOST_MS)

    def set_compress_level(self, level: int) -> None:
        """Set the level of zlib for bodies of 4 KiB or more: 0 to 9, -1 for the default (5)."""
        self._check_unstarted("set_compress_level")
        self._sending["compress_level"] = number("compress_level", level, -1, 9) if level != -1 else 5

    def set_max_message_size(self, max_size: int) -> None:
        """Set the length of the longest body that is sent, in bytes; the default is 4 MiB."""
        self._check_unstarted("set_max_message_size")
        self._sending["max_message_size"] = number("max_message_size", max_size, 1, MOST_MS)

    def _settings(self) -> dict[str, Any]:
        return {**self._sending, "send_queue_ms": WAITS * self._sending["send_timeout_ms"]}

    # --- start and end ---

    def _begin(self, client: blocking.Client) -> None:
        self._producer = self._made(client).open()
        self._threads = ThreadPoolExecutor(ASYNC_THREADS, "rmq-compat-send")

    def _made(self, client: blocking.Client) -> blocking.Producer:
        return client.producer(self._group)

    def _end(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _forked(self) -> None:
        super()._forked()
        self._producer = self._threads = None
        self._room = threading.BoundedSemaphore(ASYNC_SENDS)

    def _open(self, kind: type[RocketMQException]) -> blocking.Producer:
        self._check_started(kind)
        producer = self._producer
        if producer is None:  # another thread has ended it in between
            raise self._has_ended(kind)
        return producer

    def _has_ended(self, kind: type[RocketMQException]) -> RocketMQException:
        return kind(f"the {self._kind} of {self._group} has ended: call start() again")

    # --- sends ---

    def send_sync(self, msg: Message) -> SendResult:
        """Send a message and return when a broker has stored it. Raises ProducerSendSyncFailed, TypeError."""
        check_message(msg)
        with failing(ProducerSendSyncFailed):
            return result_of(self._open(ProducerSendSyncFailed).send(msg.packed()))

    def send_batch(self, msgs: Sequence[Message]) -> SendResult:
        """Send several messages of one topic together; the ids are joined by commas, the offset is the first
        message's. Raises ProducerSendSyncFailed, TypeError."""
        packed = [check_message(msg) for msg in msgs]
        with failing(ProducerSendSyncFailed):
            producer = self._open(ProducerSendSyncFailed)
            return result_of(producer.send_batch([msg.packed() for msg in packed]))

    def send_oneway(self, msg: Message) -> None:
        """Fire and forget. Raises ProducerSendOnewayFailed when the message could not be handed to a
        connection, TypeError."""
        check_message(msg)
        with failing(ProducerSendOnewayFailed):
            self._open(ProducerSendOnewayFailed).send_oneway(msg.packed())

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: Text) -> SendResult:
        """Send to the queue of a key: messages of equal keys keep their order. The queue is the one that a
        Java producer takes. Raises ProducerSendOrderlyFailed, TypeError."""
        key = text("sharding_key", sharding_key)
        check_message(msg)
        with failing(ProducerSendOrderlyFailed):
            return result_of(self._open(ProducerSendOrderlyFailed).send(msg.packed(), sharding_key=key))

    def send_orderly(
        self,
        msg: Message,
        arg: Any,
        retry_times: int = 3,
        queue_selector: QueueSelector = hashing_queue_selector,
    ) -> SendResult:
        """Send to the queue that `queue_selector(number of queues, message, arg)` chooses. A failed send is
        repeated `retry_times` times at that queue. Raises ProducerSendOrderlyFailed, TypeError."""
        number("retry_times", retry_times, 0, 100)
        check_message(msg)
        with failing(ProducerSendOrderlyFailed):
            producer = self._open(ProducerSendOrderlyFailed)
            queue = _chosen(producer, msg, arg, queue_selector)
            for _ in range(retry_times):
                try:
                    return result_of(producer.send(msg.packed(), queue=queue))
                except RmqError as error:
                    log.info("a send to %s failed and is retried: %s", queue, error)
            return result_of(producer.send(msg.packed(), queue=queue))

    def send_oneway_orderly(
        self, msg: Message, arg: Any, queue_selector: QueueSelector = hashing_queue_selector
    ) -> None:
        """Fire and forget, to the queue that `queue_selector` chooses. Raises ProducerSendOnewayFailed,
        TypeError."""
        check_message(msg)
        with failing(ProducerSendOnewayFailed):
            producer = self._open(ProducerSendOnewayFailed)
            producer.send_oneway(msg.packed(), queue=_chosen(producer, msg, arg, queue_selector))

    def send_async(
        self,
        msg: Message,
        success_callback: Callable[[SendResult], object] | None,
        exception_callback: Callable[[ProducerSendAsyncFailed], object] | None,
    ) -> None:
        """Begin a send; one of the callbacks is called in a thread of the producer's. Without an exception
        callback a failure is logged. Waits while 1,000 sends are in flight; `shutdown` waits for all. Raises
        ProducerException before start and after shutdown, TypeError."""
        check_message(msg)
        packed_error: RmqError | None = None
        try:
            packed = msg.packed()
        except RmqError as error:
            packed_error = error
        producer = self._open(ProducerException)
        self._room.acquire()
        room = self._room

        def send() -> None:
            result: SendResult | None = None
            failure: RmqError | None = None
            try:
                try:
                    if packed_error is not None:
                        raise packed_error
                    result = result_of(producer.send(packed))
                except RmqError as error:
                    failure = error
                finally:
                    room.release()  # before the callback, which may begin the next send and wait for room
                if failure is not None:
                    _report_failure(failure, exception_callback)
                elif result is not None and success_callback is not None:
                    success_callback(result)
            except Exception:
                log.exception("a callback of send_async failed")

        threads = self._threads  # without the lock, which `shutdown` has while it waits for callbacks
        try:
            if threads is None:
                raise RuntimeError("shut down in between")
            threads.submit(send)
        except RuntimeError as error:
            room.release()
            raise self._has_ended(ProducerException) from error
        except BaseException:
            room.release()
            raise


def _report_failure(error: RmqError, callback: Callable[[ProducerSendAsyncFailed], object] | None) -> None:
    code = int(error.code) if isinstance(error, ResponseError) else -1
    failure = ProducerSendAsyncFailed(str(error), code, type=type(error).__name__)
    failure.__cause__ = error
    if callback is None:
        log.error("an asynchronous send failed: %s", failure)
    else:
        callback(failure)


def _chosen(producer: blocking.Producer, msg: Message, arg: Any, selector: QueueSelector) -> MessageQueue:
    """The queue that a selector chooses. Raises NoRoute, ProducerException."""
    packed = msg.packed()
    queues = producer.queues(packed.topic)
    index = selector(len(queues), _unsent(packed), arg)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(queues):
        raise ProducerSendOrderlyFailed(
            f"the queue selector returned {index!r:.100} for topic {packed.topic}: expected an int from 0 to"
            f" {len(queues) - 1}"
        )
    return queues[index]


def _unsent(packed: client.Message) -> ReceivedMessage:
    """A message that is not sent yet, in the form for callbacks."""
    properties = with_properties(packed, {PROPERTY_UNIQUE_KEY: "-"})  # the id comes with the send
    return ReceivedMessage(client.StoredMessage(packed.topic, -1, -1, -1, 0, packed.body, properties))
