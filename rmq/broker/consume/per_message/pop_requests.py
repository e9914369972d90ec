"""POP requests of RocketMQ 5.x: the wire's shell over `Deliveries`.

The answer to a pop names one start for each queue and one time for all; handles are made of these by the
client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.per_message.handles import check_count, handle_text, parse_handle
from rmq.broker.consume.per_message.polls import HeldTake
from rmq.broker.consume.per_message.retry_policy import DELAY_MAX_MS
from rmq.doors import TakeRequest
from rmq.errors import ResponseError, for_code
from rmq.protocol import codes
from rmq.protocol.codes import FLAG_RESPONSE, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode_ack_reply, encode_pop_reply_head
from rmq.protocol.headers import encode as encode_header
from rmq.protocol.pop import (
    BY_POLICY,
    INIT_FROM_FIRST,
    INVISIBLE_MAX_MS,
    NACK_KIND,
    OLDEST_MS,
    TAKEN,
    UNSEEN,
    WAITING,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    mask_of,
    message_offsets,
    read_acks,
    start_offsets,
)

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.config import Settings
    from rmq.broker.consume.per_message.deliveries import Deliveries
    from rmq.broker.consume.per_message.taking import Handed
    from rmq.protocol.pop import AckRow, BatchAck
    from rmq.remoting.connection import Connection
else:
    from rmq.lazy_attrs import define

_POP_FIELDS: Final = (
    *("consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "initMode"),
    *("expType", "exp", "order"),
)
"""The fields of a pop's header that decide about its take; `bornTime` and `attemptId` do not."""
_BORN_DIGITS: Final = 18
"""A longer `bornTime` may not be a number of 64 bits: such a header is read as a whole."""
_POPS_MAX: Final = 1_000
_POP_CHARS: Final = 1_000
"""A pop with a longer header is parsed each time."""


@define(eq=False)
class HeldPop(HeldTake):
    """A pop that waits; the connection breaks when the broker stops."""

    is_answered_at_stop: bool = False


class PopRequests:
    """Handles POP_MESSAGE, ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME, NOTIFICATION and
    POLLING_INFO.
    """

    def __init__(self, settings: Settings, deliveries: Deliveries, now_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._deliveries = deliveries
        self._now_ms = now_ms
        self._pops: dict[tuple[str | None, ...], tuple[TakeRequest, int]] = {}
        """Recent pops by the texts of their headers: a consumer sends the same header all the time."""

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """The handlers of this part, by request code."""
        return {
            codes.POP_MESSAGE: self._on_pop,
            codes.ACK_MESSAGE: self._on_ack,
            codes.BATCH_ACK_MESSAGE: self._on_batch_ack,
            codes.CHANGE_MESSAGE_INVISIBLETIME: self._on_change,
            codes.NOTIFICATION: self._on_notification,
            codes.POLLING_INFO: self._on_polling_info,
        }

    # ---- pop ----

    def _on_pop(self, request: Command, connection: Connection, now: int) -> None:
        texts = tuple(map(request.ext.get, _POP_FIELDS))
        known = self._pops.get(texts)
        born = request.ext.get("bornTime") or ""
        if known is None or not (born.isascii() and born.isdigit() and len(born) <= _BORN_DIGITS):
            known = self.read_pop(request, texts)
        take, poll_ms = known
        if not self._deliveries.polls.is_silent:
            handed = self._deliveries.take(take, connection)
            if handed or poll_ms <= 0:
                self._answer(request, connection, take, handed)
                return
        self._hold(request, connection, take, poll_ms)

    def read_pop(self, request: Command, texts: tuple[str | None, ...] = ()) -> tuple[TakeRequest, int]:
        """The take of a pop, and its longest wait (ms); kept for the same `texts`. Raises ResponseError,
        RemoteProtocolError."""
        header = request.read(PopMessageRequestHeader)
        _check_invisible(header.invisible_time, least=1)
        take = TakeRequest(
            header.consumer_group,
            header.topic,
            header.max_msg_nums,
            header.invisible_time,
            header.queue_id,
            header.exp or "*",
            header.exp_type,
            True if header.order else None,
            header.init_mode == INIT_FROM_FIRST,
        )
        if texts and sum(len(text or "") for text in texts) <= _POP_CHARS:
            if len(self._pops) >= _POPS_MAX:
                self._pops.clear()
            self._pops[texts] = take, header.poll_time
        return take, header.poll_time

    def _hold(self, request: Command, connection: Connection, take: TakeRequest, poll_ms: int) -> None:
        def taken(found: Sequence[Handed] | ResponseError) -> None:
            if isinstance(found, ResponseError):
                connection.reply(request.reply(found.code, found.remark))
            else:
                self._answer(request, connection, take, found)

        seconds = min(poll_ms, self._settings.broker.max_suspend_time_mills) / 1000
        holders = self._settings.holders_of(connection)
        request.shrink()
        held = HeldPop(connection, take, self._deliveries.clock() + seconds, taken, holders)
        try:
            self._deliveries.hold(held)
        except ResponseError as error:
            raise for_code(codes.POLLING_FULL, str(error)) from None

    def _answer(
        self, request: Command, connection: Connection, take: TakeRequest, handed: Sequence[Handed]
    ) -> None:
        if not handed:
            connection.reply(request.reply(codes.POLLING_TIMEOUT, "no message, the poll has ended"))
            return
        first = handed[0]
        if len(handed) == 1:
            starts, offsets = f"0 {first.queue_id} {first.start}", first.text()
            size, buffers = first.size, first.buffers
        else:
            starts, offsets = _offset_texts(handed)
            size = sum(one.size for one in handed)
            buffers = [buffer for one in handed for buffer in one.buffers]
        counts = _order_counts(handed) if take.in_order else ""
        times = first.taken_ms, first.invisible_ms
        head = encode_pop_reply_head(request.opaque, times, starts, offsets, counts, size)
        connection.write([head, *buffers])

    # ---- acknowledge ----

    def _on_ack(self, request: Command, connection: Connection, now: int) -> None:
        header = request.read(AckMessageRequestHeader)
        self._acknowledge(request, connection, header.consumer_group, header.topic, [header.extra_info])

    def _on_batch_ack(self, request: Command, connection: Connection, now: int) -> Command | None:
        acks = read_acks(request.body)
        groups: dict[tuple[str, str], list[str]] = {}
        if self.acknowledge_leases(request.opaque, connection, acks):
            return None
        check_count(sum(max(1, mask_of(ack.b).bit_count()) for ack in acks))
        name = self._settings.broker.broker_name
        for ack in acks:
            handles = groups.setdefault((ack.c, ack.t), [])
            for offset in ack.offsets():
                handles.append(handle_text(ack.so, ack.pt, ack.it, name, ack.q, offset))
        if not groups:
            return request.reply()
        missing = len(groups)
        refusals: list[ResponseError] = []

        def done(outcomes: Sequence[ResponseError | None]) -> None:
            nonlocal missing
            missing -= 1
            refusals.extend(one for one in outcomes if one is not None)
            if not missing:
                connection.reply(_reply(request, refusals))

        for (group, topic), handles in groups.items():
            self._deliveries.acknowledge(group, topic, handles, done)
        return None

    def acknowledge_leases(
        self, opaque: int, connection: Connection, acks: Sequence[AckRow | BatchAck]
    ) -> bool:
        """Acknowledge messages of one group and topic by leases. Return whether that was possible. Raises
        ResponseError, RemoteProtocolError, without any effect."""
        if not acks:
            return False
        group, topic = acks[0].c, acks[0].t
        for ack in acks:
            if ack.c != group or ack.t != topic:
                return False

        def done(error: ResponseError | None) -> None:
            if error is None:
                connection.write(encode_ack_reply(opaque))
            else:
                connection.reply(Command(int(error.code), opaque, FLAG_RESPONSE, remark=error.remark))

        batches = [(ack.q, ack.so, ack.pt, mask_of(ack.b)) for ack in acks]
        return self._deliveries.acknowledge_batches(group, topic, batches, done)

    def _acknowledge(
        self, request: Command, connection: Connection, group: str, topic: str, handles: Sequence[str]
    ) -> None:
        def done(outcomes: Sequence[ResponseError | None]) -> None:
            connection.reply(_reply(request, [one for one in outcomes if one is not None]))

        self._deliveries.acknowledge(group, topic, handles, done)

    # ---- extend, give back ----

    def _on_change(self, request: Command, connection: Connection, now: int) -> Command:
        header = request.read(ChangeInvisibleTimeRequestHeader)
        group, topic, text = header.consumer_group, header.topic, header.extra_info
        delay_ms: int | None = header.invisible_time
        nack = request.ext.get(NACK_KIND)
        if nack == BY_POLICY:
            delay_ms = None
        else:
            most = DELAY_MAX_MS if nack else INVISIBLE_MAX_MS
            _check_invisible(header.invisible_time, least=0, most=most)
        if nack or header.invisible_time == 0:
            counts = nack != UNSEEN
            (outcome,) = self._deliveries.nack(group, topic, [text], delay_ms, counts=counts)
            if outcome is not None:
                raise outcome
            return request.reply(header=ChangeInvisibleTimeResponseHeader(now, header.invisible_time, 0))
        handle = parse_handle(self._deliveries.extend(group, topic, text, header.invisible_time, connection))
        # The client takes the first offset from its old handle, and the times from here.
        return request.reply(
            header=ChangeInvisibleTimeResponseHeader(handle.taken_ms, handle.invisible_ms, 0)
        )

    # ---- polls ----

    def _on_notification(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Answer whether a message is ready, now or soon, and take nothing."""
        header = request.read(NotificationRequestHeader)
        take = TakeRequest(header.consumer_group, header.topic, 0, 0, header.queue_id)
        if self._deliveries.has_messages(take, connection):
            return request.reply(header=NotificationResponseHeader(has_msg=True))
        if header.poll_time <= 0:
            return request.reply(header=NotificationResponseHeader(has_msg=False))

        def respond(found: Sequence[Handed] | ResponseError) -> None:
            has = not isinstance(found, ResponseError) and self._deliveries.has_messages(take, connection)
            connection.reply(request.reply(header=NotificationResponseHeader(has_msg=has)))

        seconds = min(header.poll_time, self._settings.broker.max_suspend_time_mills) / 1000
        holders = self._settings.holders_of(connection)
        held = HeldPop(connection, take, self._deliveries.clock() + seconds, respond, holders, asks_only=True)
        try:
            self._deliveries.hold(held)
        except ResponseError:
            return request.reply(header=NotificationResponseHeader(has_msg=False, polling_full=True))
        return None

    def _on_polling_info(self, request: Command, connection: Connection, now: int) -> Command:
        header = request.read(PollingInfoRequestHeader)
        figures = self._deliveries.figures_of(header.consumer_group)
        figures = [one for one in figures if header.topic in ("", one.topic)]
        respond = PollingInfoResponseHeader(sum(one.polls for one in figures))
        more = {
            TAKEN: str(sum(one.leased for one in figures)),
            WAITING: str(sum(one.waiting for one in figures)),
            OLDEST_MS: str(max((one.oldest_ms for one in figures), default=0)),
        }
        return request.reply(header=encode_header(respond) | more)


def _reply(request: Command, refusals: Sequence[ResponseError]) -> Command:
    return request.reply(refusals[0].code, refusals[0].remark) if refusals else request.reply()


def _offset_texts(handed: Sequence[Handed]) -> tuple[str, str]:
    """The texts of the first offsets of queues, and of all offsets."""
    starts: dict[int, int] = {}
    offsets: dict[int, list[int]] = {}
    for one in handed:
        starts.setdefault(one.queue_id, one.start)
        offsets.setdefault(one.queue_id, []).extend(one.offsets())
    for some in offsets.values():
        some.sort()
    return start_offsets(starts), message_offsets(offsets)


def _order_counts(handed: Sequence[Handed]) -> str:
    """Number of earlier failures of each message of an ordered pop, for the client to count its attempts."""
    return ";".join(
        f"0 qo{one.queue_id}%{offset} {one.attempt - 1}" for one in handed for offset in one.offsets()
    )


def _check_invisible(ms: int, *, least: int, most: int = INVISIBLE_MAX_MS) -> None:
    if not least <= ms <= most:
        raise for_code(
            ResponseCode.SYSTEM_ERROR,
            f"the invisible time {ms} ms is illegal: expected {least} to {most}",
        )
