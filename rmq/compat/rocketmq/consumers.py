"""PushConsumer, which calls back with each message, and PullConsumer of 0.4, which reads by offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from rmq.client import blocking
from rmq.client.consume.retry import Retry
from rmq.compat.rocketmq.exceptions import (
    PullConsumerFetchMessageFailed,
    PullConsumerFetchMQFailed,
    PullConsumerStartFailed,
    PushConsumerStartFailed,
    RocketMQException,
)
from rmq.compat.rocketmq.messages import ReceivedMessage
from rmq.compat.rocketmq.opening import Opened, log
from rmq.compat.rocketmq.values import ConsumeStatus, MessageModel, Text, failing, number, text
from rmq.message import MessageQueue, StoredMessage

MOST_THREADS: Final = 1_000

Callback = Callable[[ReceivedMessage], ConsumeStatus | int | None]


class PushConsumer(Opened):
    """A member of a consumer group that calls a function with each message, in threads of its own."""

    _kind = "push consumer"
    _start_failed = PushConsumerStartFailed

    def __init__(
        self,
        group_id: Text,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
    ) -> None:
        super().__init__(group_id)
        self._orderly = orderly
        self._model = MessageModel(message_model)
        self._callbacks: dict[str, Callback] = {}
        self._expressions: dict[str, str] = {}
        self._thread_count = 20
        self._consumer: blocking.Consumer | None = None
        self._runner: threading.Thread | None = None
        self._handling: set[int] = set()  # threads that run a callback
        self._warned = False

    # --- settings ---

    def set_message_model(self, model: MessageModel) -> None:
        """Set whether members share the messages (CLUSTERING) or each gets all (BROADCASTING)."""
        self._check_unstarted("set_message_model")
        try:
            self._model = MessageModel(model)
        except ValueError as error:
            raise RocketMQException(f"model = {model!r:.100}: expected a MessageModel") from error

    def set_thread_count(self, thread_count: int) -> None:
        """Set the number of callbacks that may run at a time; the default is 20."""
        self._check_unstarted("set_thread_count")
        self._thread_count = number("thread_count", thread_count, 1, MOST_THREADS)

    def set_message_batch_max_size(self, max_size: int) -> None:
        """Check the size, without further effect: a callback gets one message at a time."""
        self._check_unstarted("set_message_batch_max_size")
        number("max_size", max_size, 1, 1024)

    def set_instance_name(self, name: Text) -> None:
        """Set the second half of the client's id, which is ``address@name``: no two consumers of a group on
        this machine may have the same name. Without a name the id is unique."""
        self._check_unstarted("set_instance_name")
        self._instance_name = text("name", name)

    def subscribe(self, topic: Text, callback: Callback, expression: Text = "*") -> None:
        """Call `callback` with the matching messages of `topic`: ``"*"`` is all, ``"a || b"`` tags.

        A second call for the topic replaces the first. The callback returns CONSUME_SUCCESS; None counts as
        this, with one warning. After RECONSUME_LATER, an exception, or any other result the message is
        redelivered.
        """
        self._check_unstarted("subscribe")
        if not callable(callback):
            raise TypeError(f"callback = {callback!r:.100}: expected a function of a message")
        name = text("topic", topic)
        self._expressions[name] = text("expression", expression)
        self._callbacks[name] = callback

    # --- start and end ---

    def _check_start(self) -> None:
        if not self._callbacks:
            raise PushConsumerStartFailed(
                f"the push consumer of {self._group} has no subscription: call subscribe before start()"
            )

    def _begin(self, client: blocking.Client) -> None:
        consumer = client.consumer(
            self._group,
            self._expressions,
            ordered=bool(self._orderly),
            broadcasting=self._model is MessageModel.BROADCASTING,
        ).open()
        runner = threading.Thread(target=self._run, args=(consumer,), name="rmq-compat-push", daemon=True)
        runner.start()
        self._consumer, self._runner = consumer, runner

    def _run(self, consumer: blocking.Consumer) -> None:
        try:
            consumer.run(self._handle, concurrency=self._thread_count)
        except Exception:
            log.exception("the push consumer of %s has stopped and receives no more messages", self._group)

    def _handle(self, message: StoredMessage) -> None:
        thread = threading.get_ident()
        self._handling.add(thread)
        try:
            result = self._callbacks[message.topic](ReceivedMessage(message))
        finally:
            self._handling.discard(thread)
        if result is None:
            if not self._warned:
                self._warned = True
                log.warning(
                    "the callback of %s returned None, treated as CONSUME_SUCCESS; return a ConsumeStatus",
                    message.topic,
                )
            return
        try:
            status = ConsumeStatus(result)
        except ValueError:
            raise ValueError(
                f"the callback of {message.topic} returned {result!r:.100}: expected a ConsumeStatus; the"
                " message is redelivered"
            ) from None
        if status is ConsumeStatus.RECONSUME_LATER:
            raise Retry("the callback returned RECONSUME_LATER")

    def shutdown(self) -> None:
        """Stop the consumer: running callbacks get up to 20 s to end, offsets are committed. Called by a
        callback, the function returns at once, and the consumer ends when that callback has returned."""
        if threading.get_ident() in self._handling:
            threading.Thread(target=super().shutdown, name="rmq-compat-shutdown").start()
            return
        super().shutdown()

    def _end(self) -> None:
        consumer, self._consumer = self._consumer, None
        runner, self._runner = self._runner, None
        if consumer is None:
            return
        consumer.drain()
        consumer.close()
        if runner is not None:
            runner.join()

    def _forked(self) -> None:
        super()._forked()
        self._was_forked = False  # the parent continues to consume
        self._consumer = self._runner = None
        self._handling = set()


class PullConsumer(Opened):
    """Reads the messages of a topic, queue by queue, as 0.4 did. Positions are kept in this object only, and
    begin at the oldest message."""

    _kind = "pull consumer"
    _start_failed = PullConsumerStartFailed

    def __init__(self, group_id: Text) -> None:
        super().__init__(group_id)
        self._puller: blocking.PullConsumer | None = None
        self.offset_table: dict[MessageQueue, int] = {}

    def _begin(self, client: blocking.Client) -> None:
        self._puller = client.pull_consumer(self._group).open()

    def _end(self) -> None:
        puller, self._puller = self._puller, None
        if puller is not None:
            puller.close()

    def _forked(self) -> None:
        super()._forked()
        self._puller = None

    def get_message_queue_offset(self, mq: MessageQueue) -> int:
        """The offset of the next pull of a queue; 0 before the first."""
        return self.offset_table.get(mq, 0)

    def set_message_queue_offset(self, mq: MessageQueue, offset: int) -> None:
        """Set the offset of the next pull of a queue."""
        self.offset_table[mq] = number("offset", offset, 0, 2**63 - 1)

    def pull(self, topic: Text, expression: Text = "*", max_num: int = 32) -> Iterator[ReceivedMessage]:
        """All present messages of the topic that were not pulled before, queue by queue, `max_num` in a
        request. Raises PullConsumerFetchMQFailed, PullConsumerFetchMessageFailed."""
        name, subscribed = text("topic", topic), text("expression", expression)
        number("max_num", max_num, 1, 1024)
        self._check_started(PullConsumerFetchMQFailed)
        puller = self._puller
        if puller is None:
            raise PullConsumerFetchMQFailed(
                f"the pull consumer of {self._group} has ended: call start() again"
            )
        with failing(PullConsumerFetchMQFailed):
            queues = puller.message_queues(name)
        for queue in queues:
            yield from self._pull_queue(puller, queue, {"expression": subscribed, "max_messages": max_num})

    def _pull_queue(
        self, puller: blocking.PullConsumer, queue: MessageQueue, options: dict[str, Any]
    ) -> Iterator[ReceivedMessage]:
        while True:
            with failing(PullConsumerFetchMessageFailed):
                found = puller.pull(queue, self.get_message_queue_offset(queue), **options)
            self.set_message_queue_offset(queue, found.next_offset)
            if not found.messages:
                return
            for message in found.messages:
                yield ReceivedMessage(message)
