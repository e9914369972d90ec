"""Producer: sends messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import anyio
from attrs import evolve

from rmq.client.produce.accumulator import Accumulator
from rmq.client.produce.idempotent import IdempotentSender
from rmq.client.produce.outgoing import (
    Outgoing,
    asker_waits_until,
    check_topic,
    each,
    joined,
    pack,
    pack_batch,
    reply_to,
    request_properties,
)
from rmq.client.produce.pipeline import OnResult, Pipeline
from rmq.client.produce.sender import Sender
from rmq.client.session.observer import Observer
from rmq.client.session.results import SendResult
from rmq.client.session.session import Session
from rmq.errors import (
    AskerGone,
    ConfigError,
    LocalProtocolError,
    RemoteProtocolError,
    ReplyTimeout,
    RmqError,
    check_number,
    check_type,
    for_code,
    not_open,
)
from rmq.message import (
    PROPERTY_CORRELATION_ID,
    Message,
    MessageQueue,
    StoredMessage,
    validate_group,
    validate_topic,
    with_namespace,
)
from rmq.protocol.codes import RECALL_MESSAGE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import RecallHandle, RecallMessageRequestHeader, RecallMessageResponseHeader
from rmq.remoting.loop import AsyncResource, TaskGroupScope, Wakeup

log = logging.getLogger("rmq.client.producer")


class Producer(AsyncResource):
    """Sends messages: `async with client.producer("orders-producer") as producer`.

    Any number of tasks may send at once over the same producer, to have many messages in flight. Leaving the
    block waits for the sends that other tasks have begun, at most `shutdown_timeout_ms`.
    """

    def __init__(
        self, session: Session, group: str, *, auto_batch: bool = False, idempotent: bool = False
    ) -> None:
        self._session = session
        self.group = validate_group(group)
        self._sender = IdempotentSender(session, group) if idempotent else Sender(session, group)
        # Compressed messages are never in a batch, and only batches are numbered.
        self._packing = evolve(session.config, compress_over=0) if idempotent else session.config
        tasks = session.tasks if auto_batch else None
        self._accumulator = None if tasks is None else Accumulator(self._sender, tasks)
        self._unfinished = 0  # sends, and transactions between half message and decision
        self._idle = Wakeup()
        self._is_open = False
        self._scope = TaskGroupScope()

    async def __aenter__(self) -> Producer:
        """Register the producer. Raises ConfigError when this client has a producer of that group already."""
        if self.group in self._session.producers:
            raise ConfigError("group", self.group, "a group that has no producer in this client yet")
        self._session.arrive()
        self._session.producers[self.group] = self
        self._is_open = True
        self._session.heartbeat_soon()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        session = self._session
        try:
            with anyio.move_on_after(session.config.shutdown_timeout_ms / 1000, shield=True):
                while self._unfinished:
                    await self._idle.wait()
                await session.leave(producer=self.group)
        finally:
            session.producers.pop(self.group, None)
            session.depart()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return when a broker has stored it.

        By default queues are taken in turn, and a failure of a broker is retried at another broker, up to
        `retry_times`, within `send_timeout_ms` of time in flight; a message may be stored twice when a
        response was lost. With `queue`, or with `sharding_key` (equal keys go to the same queue, as with a
        Java producer), it is written once; both together are refused.

        While nothing of the message can be stored the send waits, up to `send_queue_ms`: for a broker that
        cannot be reached, for a master, and for room when `send_window` other sends to the broker are in
        flight. So any number of sends may be begun at once. For the first route of a topic, when no name
        server knows it or none can be reached, the send waits only for `send_timeout_ms`.

        `timeout` bounds this send, in seconds: waiting, all attempts and their responses together, in place
        of `send_timeout_ms` and `send_queue_ms`. While another broker can take the message, a broker that
        does not answer gets half of the remaining time. With `auto_batch` such a send goes alone.

        Raises InvalidName, InvalidMessage, InvalidType and ConfigError before anything is sent; NoRoute; the
        ResponseError that no other broker would change, such as NoPermission from all brokers; SendFailed
        when all attempts failed, but with `queue` or `sharding_key` the last error itself. Cancelled: the
        message may or may not be stored.
        """
        if self._session.observers:
            return await self._observed(message, queue, sharding_key, {}, 0, timeout)
        outgoing = pack(message, self._session.unique_ids.next(), self._packing)
        self._check_open()
        self._unfinished += 1
        try:
            accumulator = self._accumulator
            if accumulator is not None and timeout is None and accumulator.takes(message, outgoing):
                return await accumulator.send(message, outgoing, queue, sharding_key)
            return await self._sender.send(outgoing, queue, sharding_key, timeout)
        finally:
            self._end()

    async def _observed(
        self,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        extra: dict[str, str],
        sys_flag: int,
        timeout: float | None = None,
    ) -> SendResult:
        """Send, and call the observers. `extra` are properties of RocketMQ's own: such a message goes
        alone."""
        session = self._session
        accumulator = None if extra or timeout is not None else self._accumulator
        tokens = self._announce(message, extra)
        result: SendResult | None = None
        failure: BaseException | None = None
        try:
            outgoing = pack(message, session.unique_ids.next(), self._packing, extra=extra, sys_flag=sys_flag)
            if accumulator is not None and accumulator.takes(message, outgoing):
                self._check_open()
                self._unfinished += 1
                try:
                    result = await accumulator.send(message, outgoing, queue, key)
                finally:
                    self._end()
            else:
                result = await self.send_packed(outgoing, queue=queue, sharding_key=key, timeout=timeout)
            return result
        except BaseException as error:
            failure = error
            raise
        finally:
            self._report(tokens, result, failure)

    def _announce(self, message: Message, extra: dict[str, str]) -> list[tuple[Observer, Any]]:
        """Call the observers' hook for a message that is about to be sent."""
        return self._session.observers.begin(lambda observer: observer.sending(self.group, message, extra))

    def _report(
        self,
        tokens: list[tuple[Observer, Any]],
        result: SendResult | None,
        failure: BaseException | None,
    ) -> None:
        self._session.observers.end(tokens, lambda observer, token: observer.sent(token, result, failure))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send several messages of a topic, in as few requests as `max_message_size` allows, 1,000 in each at
        most: the messages of a request are all stored in the same queue, or none.

        They have the same `wait_store` and no delay. Otherwise as `send`, with `timeout` for each request;
        the result has the ids of all messages, and `parts` for several requests. After a failed request, the
        error's notes have the number of stored messages; the rest is not sent. Cancelled: the messages of the
        request in flight are all stored or none; earlier requests are stored, and later ones are not sent.
        """
        check_type("messages", messages, Sequence, "a list of rmq.Message")
        if not self._session.observers:
            return await self._send_parts(messages, None, queue, sharding_key, timeout)
        extras: list[dict[str, str]] = [{} for _ in messages]
        tokens = [self._announce(message, extra) for message, extra in zip(messages, extras, strict=True)]
        results: Sequence[SendResult | None] = [None] * len(messages)
        failure: BaseException | None = None
        try:
            result = await self._send_parts(messages, extras, queue, sharding_key, timeout)
            results = list(each(result))
            return result
        except BaseException as error:
            failure = error
            raise
        finally:
            for mine, one in zip(tokens, results, strict=True):
                self._report(mine, one, failure)

    async def _send_parts(
        self,
        messages: Sequence[Message],
        extras: Sequence[Mapping[str, str]] | None,
        queue: MessageQueue | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        ids = [self._session.unique_ids.next() for _ in messages]
        results: list[SendResult] = []
        for outgoing in pack_batch(messages, ids, self._packing, extras):
            try:
                results.append(
                    await self.send_packed(outgoing, queue=queue, sharding_key=sharding_key, timeout=timeout)
                )
            except RmqError as error:
                if results:
                    stored = sum(len(result.message_ids) for result in results)
                    error.add_note(f"the first {stored} of {len(messages)} messages are stored")
                raise
        return results[0] if len(results) == 1 else joined(results)

    def pipeline(self, window: int = 1000, *, on_result: OnResult | None = None) -> Pipeline:
        """A block for many messages without a wait for each result: `async with producer.pipeline() as
        pipeline`, and in it `await pipeline.send(message)`, which waits only while `window` messages have no
        result yet. They go in batches, where possible. `on_result(message, result)` gets the result of each,
        a SendResult or the error; without it the first error is raised from the block. See `Pipeline`. Raises
        InvalidType, ConfigError."""
        return Pipeline(
            self._session, self._sender, self.group, window, on_result, self._begin_request, self._end
        )

    async def send_packed(
        self,
        outgoing: Outgoing,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message packed by other code, or the body of a batch made of columns. Its form is not
        checked again, and observers do not see it. Otherwise as `send`. Cancelled: the message may or may not
        be stored."""
        self._check_open()
        self._unfinished += 1
        try:
            return await self._sender.send(outgoing, queue, sharding_key, timeout)
        finally:
            self._end()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that a topic's messages are spread over, in the order on which sharding keys rest.

        Raises NoRoute. Cancelled: nothing changes.
        """
        self._check_open()
        full = with_namespace(self._session.config.namespace, validate_topic(topic))
        return (await self._sender.rotation(full, self._sender.timeout)).route.publish_queues

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Fire and forget: the client does not learn whether the broker stored the message.

        Returns when the message is handed to the connection, which may take time while the broker does not
        read. Raises InvalidName, InvalidMessage, InvalidType, ConfigError, NoRoute, ConnectFailed. Cancelled:
        the message may or may not be sent.
        """
        session = self._session
        extra: dict[str, str] = {}
        tokens = self._announce(message, extra) if session.observers else []
        failure: BaseException | None = None
        try:
            outgoing = pack(message, session.unique_ids.next(), session.config, extra=extra)
            self._check_open()
            await self._sender.send_oneway(outgoing, queue, sharding_key)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._report(tokens, None, failure)

    async def recall(self, handle: str | None) -> str:
        """Recall a message that waits for its delivery time, by the `recall_handle` of its result; return its
        id. Raises LocalProtocolError for an invalid handle, and for None, the handle of a message without a
        delay; NoRoute; ResponseError when it is too late. Cancelled: the message may or may not be
        recalled."""
        self._check_open()
        if handle is None:
            raise LocalProtocolError(
                "this send has no recall handle: the message is not delayed, or the broker cannot recall"
            )
        check_type("handle", handle, str, "the recall_handle of a SendResult")
        try:
            place = RecallHandle.parse(handle)
        except RemoteProtocolError:
            raise LocalProtocolError(f"{handle[:80]!r} is not the recall handle of a send") from None
        brokers = self._session.brokers
        await self._session.rotation(place.topic, brokers.timeout)
        address = brokers.master(MessageQueue(place.topic, place.broker_name, 0))
        header = RecallMessageRequestHeader(place.topic, handle, self.group)
        request = Command.request(RECALL_MESSAGE, header)
        response = await self._session.pool.call(address, request, brokers.timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        return response.read(RecallMessageResponseHeader).msg_id

    # --- request and reply ---

    async def request(
        self,
        message: Message,
        timeout: float = 3.0,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> StoredMessage:
        """Send a message and return its consumer's reply, within `timeout` seconds.

        Raises as `send`, and ReplyTimeout when no reply came. Cancelled: a reply is dropped.
        """
        self._check_open()
        session = self._session
        check_type("message", message, Message, "an rmq.Message")
        check_number("timeout", timeout, 0, whole=False)
        check_topic(message.topic)
        extra, unique_id = request_properties(session.client_id, timeout), ""
        with (
            session.pending_requests.expected(extra[PROPERTY_CORRELATION_ID]) as waiter,
            anyio.move_on_after(timeout),
        ):
            await self._register_at_brokers(with_namespace(session.config.namespace, message.topic), timeout)
            unique_id = (await self._observed(message, queue, sharding_key, extra, 0)).message_id
            reply: StoredMessage = await waiter.wait()
            return reply
        raise ReplyTimeout(unique_id, message.topic, RequestCode.SEND_MESSAGE_V2, timeout)

    async def reply(self, message: StoredMessage, body: bytes) -> SendResult:
        """Answer a message that `request` sent, also of a Java producer.

        Raises InvalidMessage for a message that is no request, AskerGone when its sender has disconnected or
        no longer waits; a handler that raises this error does not get the request again. Cancelled: the reply
        may or may not have been sent.
        """
        session = self._session
        check_type("message", message, StoredMessage, "the request message, as delivered")
        session.begin_replying()
        outgoing, queue = reply_to(message, body, session.unique_ids.next(), session.config)
        until = asker_waits_until(message)
        if until is not None and until <= session.now_ms():
            raise AskerGone(remark=f"request {message.message_id} is past its time to live")
        if session.routes.master(queue.broker_name) is None:
            full = with_namespace(session.config.namespace, message.topic)
            await self._sender.rotation(full, session.brokers.timeout)
        return await self.send_packed(outgoing, queue=queue)

    async def _register_at_brokers(self, topic: str, timeout: float) -> None:
        """Announce the group to all brokers of a topic: they push replies over the connection of the
        heartbeat."""
        rotation = await self._sender.rotation(topic, timeout)
        await self._session.announce_producer(self.group, rotation.route.brokers)

    # --- work that leaving the block waits for ---

    def _begin(self) -> None:
        """Note the begin of work that leaving the block waits for."""
        self._unfinished += 1

    def _begin_request(self) -> None:
        self._check_open()
        self._begin()

    def _end(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._idle.set()

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_open(f"producer of {self.group}", "send")
