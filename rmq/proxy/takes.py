"""Takes: the requests of per-message delivery to the brokers of a cluster, with handles as texts.

A handle is RocketMQ's text, with the place of the message in the log as its ninth word, so that a message can
be made a dead letter by its handle. RocketMQ's brokers from 5.0 on understand all of it; those of 4.x refuse
the first request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
from attrs import evolve

from rmq.client.reading.pops import Pops
from rmq.doors import TakenMessage
from rmq.errors import NETWORK_ERRORS, NoRoute, RemoteProtocolError, ResponseError, RmqError, for_code
from rmq.gateway import PLAIN_BYTES, plain_records, readable
from rmq.message import StoredMessage
from rmq.protocol import codes
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, ViewMessageRequestHeader, encode
from rmq.protocol.pop import (
    HANDLE,
    NACK_KIND,
    UNSEEN,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    bits_of,
    parse_start_offsets,
    real_topic,
)
from rmq.protocol.record import decode_record, part

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.client.session.session import Session
    from rmq.doors import TakeRequest
else:
    from rmq.lazy_attrs import frozen

log = logging.getLogger("rmq.proxy")

UNREACHED: Final = (NoRoute, *NETWORK_ERRORS)
"""Errors of a request that its broker has not answered."""


@frozen
class Handle:
    """The parts of a handle's text."""

    start: int
    taken_ms: int
    invisible_ms: int
    revive: int
    kind: str
    broker: str
    queue_id: int
    offset: int
    position: int

    def __str__(self) -> str:
        words = self.start, self.taken_ms, self.invisible_ms, self.revive, self.kind, self.broker
        return " ".join(map(str, (*words, self.queue_id, self.offset, self.position)))


def parse_handle(text: str) -> Handle:
    """Read a handle. Raises ResponseError(MESSAGE_ILLEGAL) for any other text."""
    words = text.split(" ")
    try:
        if len(words) not in (8, 9) or len(text) > 1_000:
            raise ValueError
        start, taken, invisible, revive = map(int, words[:4])
        queue_id, offset = int(words[6]), int(words[7])
        position = int(words[8]) if len(words) == 9 else -1
        largest = max(start, taken, invisible, revive, queue_id, offset, position)
        if min(start, taken, invisible, offset) < 0 or largest >= 1 << 62:
            raise ValueError
    except ValueError:
        raise for_code(ResponseCode.MESSAGE_ILLEGAL, f"{text[:100]!r} is not a receipt handle") from None
    return Handle(start, taken, invisible, revive, words[4], words[5], queue_id, offset, position)


def broker_of(text: str) -> str:
    """The broker in a handle; empty for any other text."""
    words = text.split(" ", 6)
    return words[5] if len(words) == 7 else ""


@contextmanager
def renewing_route(session: Session, topic: str) -> Iterator[None]:
    """Query the route of a topic soon when the block fails in a way that shows a broker that has stopped or
    is no master any more."""
    try:
        yield
    except UNREACHED:
        session.refresh_soon(topic)
        raise
    except ResponseError as error:
        if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            session.refresh_soon(topic)
        raise


class Takes:
    """The requests. All raise ResponseError for a refusal, NoRoute for a broker without a known master, and
    network errors. Cancelled: the broker may have acted on the request.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pops = Pops(session)

    def _master(self, broker: str) -> str:
        address = self._session.routes.master(broker)
        if address is None:
            detail = f"no master of broker {broker} is known"
            raise NoRoute("", self._session.name_servers.addresses, detail)
        return address

    async def _done(self, broker: str, topic: str, request: Command) -> Command:
        session = self._session
        with renewing_route(session, topic):
            response = await session.pool.call(self._master(broker), request, session.brokers.timeout)
            if response.code != ResponseCode.SUCCESS:
                raise for_code(response.code, response.remark, broker)
        return response

    # ---- take ----

    async def take(
        self, broker: str, request: TakeRequest, in_order: bool, seconds: float
    ) -> list[TakenMessage]:
        """Take messages of a topic at a broker, waiting up to `seconds`. Messages that are too many at once
        when they are decompressed are given back."""
        header = PopMessageRequestHeader(
            request.consumer_group,
            request.topic,
            request.queue_id,
            request.max_msg_nums,
            request.invisible_ms,
            round(seconds * 1000),
            self._session.now_ms(),
            0 if request.from_first else 1,
            request.expression_type or "TAG",
            request.subscription or "*",
            in_order or None,
        )
        with renewing_route(self._session, request.topic):
            response = await self._pops.pop(broker, self._master(broker), header, seconds)
        if response is None:
            return []
        messages, left = _messages_of(response, broker, request.topic)
        for handle in left:
            try:
                await self.nack(request.consumer_group, request.topic, handle, counts=False)
            except (ResponseError, *UNREACHED):  # the others come again, too, when their leases end
                break
        return messages

    # ---- acknowledge ----

    async def acknowledge(self, group: str, topic: str, handles: Sequence[str]) -> list[RmqError | None]:
        """Acknowledge messages: the outcome of each handle. Each broker gets one request, and if that fails a
        request for each handle, as a second acknowledgement is a success. Raises nothing."""
        outcomes: list[RmqError | None] = [None] * len(handles)
        by_broker: dict[str, list[tuple[int, Handle]]] = {}
        for at, text in enumerate(handles):
            try:
                handle = parse_handle(text)
            except ResponseError as error:
                outcomes[at] = error
            else:
                by_broker.setdefault(handle.broker, []).append((at, handle))
        if len(by_broker) == 1:
            ((broker, some),) = by_broker.items()
            await self._ack_at(broker, group, topic, some, outcomes)
        elif by_broker:  # a broker that hangs holds up no acknowledgement at another
            async with anyio.create_task_group() as tasks:
                for broker, some in by_broker.items():
                    tasks.start_soon(self._ack_at, broker, group, topic, some, outcomes)
        return outcomes

    async def _ack_at(
        self,
        broker: str,
        group: str,
        topic: str,
        some: Sequence[tuple[int, Handle]],
        outcomes: list[RmqError | None],
    ) -> None:
        """Acknowledge messages of a broker. After a request without an answer the other messages have its
        error."""
        if len(some) > 1 and await self._ack_batch(broker, group, topic, [one for _, one in some]):
            return
        silence: RmqError | None = None
        for at, handle in some:
            if silence is None:
                outcomes[at] = await self._outcome(partial(self._ack, group, topic, handle))
                silence = outcomes[at] if isinstance(outcomes[at], UNREACHED) else None
            else:
                outcomes[at] = silence

    async def _ack_batch(self, broker: str, group: str, topic: str, handles: Sequence[Handle]) -> bool:
        """Acknowledge by a single request; return whether all handles succeeded."""
        takes: dict[tuple[int, int, int, int, str, int], list[int]] = {}
        for one in handles:
            key = one.queue_id, one.start, one.taken_ms, one.invisible_ms, one.kind, one.revive
            takes.setdefault(key, []).append(one.offset)
        acks = []
        for (queue_id, start, taken, invisible, kind, revive), offsets in takes.items():
            first = min(start, min(offsets))
            if max(offsets) - first > POP_SPAN:
                return False
            bits, times = bits_of(first, offsets), (taken, invisible)
            acks.append(BatchAck(group, topic, kind, first, queue_id, revive, *times, bits))
        body = BatchAckMessageRequestBody(broker, acks).to_json()
        try:
            await self._done(broker, topic, Command.request(codes.BATCH_ACK_MESSAGE, None, body))
        except (ResponseError, RemoteProtocolError, *UNREACHED):
            return False
        return True

    async def _ack(self, group: str, topic: str, handle: Handle) -> None:
        where = real_topic(topic, group, handle.kind)
        header = AckMessageRequestHeader(group, where, handle.queue_id, str(handle), handle.offset)
        await self._done(handle.broker, topic, Command.request(codes.ACK_MESSAGE, header))

    @staticmethod
    async def _outcome(work: Callable[[], Awaitable[None]]) -> RmqError | None:
        try:
            await work()
        except RmqError as error:
            return error
        return None

    # ---- extend, give back, dead letters ----

    async def extend(self, group: str, topic: str, text: str, invisible_ms: int) -> str:
        """Redeliver a message `invisible_ms` after now; returns the new handle."""
        handle = parse_handle(text)
        response = await self._change(group, topic, handle, invisible_ms, {})
        fields = response.read(ChangeInvisibleTimeResponseHeader)
        return str(
            evolve(
                handle,
                start=handle.offset,
                taken_ms=fields.pop_time,
                invisible_ms=fields.invisible_time,
                revive=fields.revive_qid,
            )
        )

    async def nack(self, group: str, topic: str, text: str, *, counts: bool) -> None:
        """Redeliver a message at once; `counts`: the attempt has failed."""
        more = {NACK_KIND: "true" if counts else UNSEEN}
        await self._change(group, topic, parse_handle(text), 0, more)

    async def _change(self, group: str, topic: str, handle: Handle, ms: int, more: dict[str, str]) -> Command:
        where = real_topic(topic, group, handle.kind)
        header = ChangeInvisibleTimeRequestHeader(
            group, where, handle.queue_id, str(handle), handle.offset, ms
        )
        request = Command.request(codes.CHANGE_MESSAGE_INVISIBLETIME, encode(header) | more)
        return await self._done(handle.broker, topic, request)

    async def _check_place(self, handle: Handle, *topics: str) -> None:
        """Check that the place in a handle is that of a message of one of these topics: the broker copies
        what lies there, and a client can write any number into its handle."""
        request = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(handle.position))
        response = await self._done(handle.broker, topics[0], request)
        if decode_record(response.body, decompressed=False, check_crc=False).topic not in topics:
            remark = f"the handle names a message at {handle.position}, which is not of topic {topics[0]}"
            raise for_code(ResponseCode.MESSAGE_ILLEGAL, remark)

    async def dead_letter(self, group: str, topic: str, text: str) -> RmqError | None:
        """Send a message to the dead letters of a group, then acknowledge it: when the acknowledgement fails,
        the message is redelivered. Returns the outcome."""

        async def work() -> None:
            handle = parse_handle(text)
            if handle.position < 0:
                raise for_code(ResponseCode.MESSAGE_ILLEGAL, "the handle names no place of a message")
            origin = real_topic(topic, group, handle.kind)
            await self._check_place(handle, topic, origin)
            header = ConsumerSendMsgBackRequestHeader(
                handle.position, group, -1, None, origin, False, 0, handle.broker
            )
            request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await self._done(handle.broker, topic, request)
            await self._ack(group, topic, handle)

        return await self._outcome(work)


_NUMBERS: Final = part("queue_id", "reconsume_times", "body_size")
"""Its size is the place of the body."""
POP_SPAN: Final = 100_000
"""Largest distance of offsets in the bits of one acknowledgement."""


def _messages_of(response: Command, broker: str, topic: str) -> tuple[list[TakenMessage], list[str]]:
    """The messages of a pop's answer, and the handles of the messages that are too many at once. Unreadable
    messages are left out: they come again when their leases end. Raises RemoteProtocolError."""
    fields = response.read(PopMessageResponseHeader)
    starts = parse_start_offsets(fields.start_offset_info)
    taken: list[TakenMessage] = []
    left: list[str] = []
    lease = f"{fields.pop_time} {fields.invisible_time} {fields.revive_qid} 0 {broker}"
    plain, end = _plain_of(response.body, topic)
    room = PLAIN_BYTES
    for at, offset, position, size in plain:
        room -= size
        queue_id, times, _ = _NUMBERS.unpack_from(response.body, at)
        text = f"{starts.get(queue_id, offset)} {lease} {queue_id} {offset} {position}"
        taken.append(TakenMessage(None, text, times + 1, response.body, at))
    messages, others = readable(memoryview(response.body)[end:], log, room)
    for at, message in enumerate(messages + others):
        queue_id, offset = message.queue_id, message.queue_offset
        handle = _named(message) or Handle(
            starts.get(queue_id, offset),
            fields.pop_time,
            fields.invisible_time,
            fields.revive_qid,
            "0",
            broker,
            queue_id,
            offset,
            message.physical_offset,
        )
        message.topic, message.broker_name = topic, broker
        if at < len(messages):
            taken.append(TakenMessage(message, str(handle), message.reconsume_times + 1))
        else:
            left.append(str(handle))
    return taken, left


def _plain_of(records: bytes, topic: str) -> tuple[Sequence[tuple[int, int, int, int]], int]:
    """The same as `plain_records`, if all of these are of a topic, and no record has a handle from a RocketMQ
    broker."""
    if HANDLE.encode() in records:
        return [], 0
    plain, end = plain_records(records, PLAIN_BYTES)
    name = bytes((len(topic.encode()),)) + topic.encode()
    if not all(records.startswith(name, at + _NUMBERS.size + size) for at, _, _, size in plain):
        return [], 0
    return plain, end


def _named(message: StoredMessage) -> Handle | None:
    """The handle in a message from a RocketMQ broker. None when the property is not this delivery's handle:
    the message may have been copied with it."""
    text = message.properties.get(HANDLE)
    if text is None:
        return None
    try:
        handle = parse_handle(text)
    except ResponseError:
        return None
    if handle.offset != message.queue_offset:
        return None
    return evolve(handle, position=message.physical_offset)
