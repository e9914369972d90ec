"""ClientEndpoint: a client's answers to requests of brokers. Sync; longer work is left to the consumer."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Protocol, runtime_checkable

import anyio

from rmq.client.session.session import Member, Session
from rmq.errors import RemoteProtocolError
from rmq.message import PROPERTY_PRODUCER_GROUP, StoredMessage
from rmq.protocol import engine
from rmq.protocol.bodies import GetConsumerStatusBody, ResetOffsetBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import JSON, Command
from rmq.protocol.header_binary import OTHER
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    ResetOffsetRequestHeader,
)
from rmq.protocol.record import decode_record
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint

# The stacks of every task and thread of this process, as text for an administrator (jstack in RocketMQ).

_NAME_WIDTH: Final = 40
_OWN = ("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom")


def stacks() -> str:
    """The stacks of all tasks of the running event loop and of all threads, innermost calls first."""
    parts = [
        _block(f"{task.name}", f"TASK: {task.id}", _frames(task.coro)) for task in anyio.get_running_tasks()
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        calls = [(one, line) for one, line in traceback.walk_stack(frame)]
        parts.append(_block(names.get(ident, "thread"), f"TID: {ident}", calls))
    return "\n".join(parts)


def _block(name: str, what: str, calls: list[tuple[FrameType, int]]) -> str:
    head = f"{name[:_NAME_WIDTH]:<{_NAME_WIDTH}}"
    lines = [what]
    for frame, line in calls:
        code = frame.f_code
        lines.append(f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname} ({code.co_filename}:{line})")
    return "".join(f"{head}{line}\n" for line in lines)


def _frames(coroutine: Any) -> list[tuple[FrameType, int]]:
    """The frames of a suspended coroutine, innermost first."""
    return list(_walk(coroutine))[::-1]


def _walk(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    while awaited is not None:
        for frame_name, next_name in _OWN:
            frame = getattr(awaited, frame_name, None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaited = getattr(awaited, next_name)
                break
        else:
            return


log = logging.getLogger("rmq.client.client_endpoint")

_Answer = Callable[[Command, Connection], Command | None]


@runtime_checkable
class Checker(Protocol):
    """A producer that knows the end of its half messages."""

    def check(self, message: StoredMessage, header: CheckTransactionStateRequestHeader, address: str) -> None:
        """Find the end of a half message, and send it to the broker at `address`."""


class ClientEndpoint(Endpoint):
    """The endpoint of a client's connections."""

    def __init__(self, session: Session) -> None:
        self._session = session
        if engine.compiled is not None:
            self.lanes = engine.compiled.AnswerReader(Command, OTHER, JSON)
        self._answers: dict[int, _Answer] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take_reply,
        }

    def handle(self, requests: list[Command], connection: Connection) -> None:
        """Answer a broker's requests. A request that cannot be read, or whose handling fails, is answered
        with SYSTEM_ERROR and does not end the connection."""
        for request in requests:
            answer = self._answers.get(request.code, _not_supported)
            try:
                response = answer(request, connection)
            except RemoteProtocolError as error:
                log.warning("%s: request %d cannot be read: %s", connection.peer_address, request.code, error)
                response = request.reply(ResponseCode.SYSTEM_ERROR, str(error))
            except Exception as error:
                where = f"{connection.peer_address}: request {request.code}"
                log.error("%s failed: %s (a fault of the client)", where, error, exc_info=True)
                response = request.reply(ResponseCode.SYSTEM_ERROR, f"the client failed: {error!r}")
            if response is not None and not request.is_oneway:
                connection.reply(response)

    def on_close(self, connection: Connection) -> None:
        """Register again over a new connection: brokers forget a client whose connection ends."""
        self._session.heartbeat_soon()

    def _member(self, group: str) -> Member | None:
        return self._session.members.get(group)

    def _members_changed(self, request: Command, connection: Connection) -> None:
        group = request.read(NotifyConsumerIdsChangedRequestHeader).consumer_group
        log.info("%s: the members of %s have changed", connection.peer_address, group)
        if (member := self._member(group)) is not None:
            member.rebalance_soon()

    def _running_info(self, request: Command, connection: Connection) -> Command | None:
        header = request.read(GetConsumerRunningInfoRequestHeader)
        if (member := self._member(header.consumer_group)) is None:
            return _no_member(request, header.consumer_group)
        info = member.running_info()
        if header.jstack_enable:
            info.jstack = stacks()
        return request.reply(body=info.to_json())

    def _status(self, request: Command, connection: Connection) -> Command:
        header = request.read(GetConsumerStatusRequestHeader)
        if (member := self._member(header.group)) is None:
            return _no_member(request, header.group)
        table = member.running_info().mq_table
        offsets = {queue: info.commit_offset for queue, info in table.items() if queue.topic == header.topic}
        return request.reply(body=GetConsumerStatusBody(message_queue_table=offsets).to_json())

    def _reset_offsets(self, request: Command, connection: Connection) -> None:
        header = request.read(ResetOffsetRequestHeader)
        offsets = ResetOffsetBody.from_json(request.body).offset_table if request.body else {}
        log.warning("%s resets the offsets of %s in %s", connection.peer_address, header.group, header.topic)
        if (member := self._member(header.group)) is not None:
            member.reset_offsets(header.topic, offsets)

    def _consume_directly(self, request: Command, connection: Connection) -> Command | None:
        group = request.read(ConsumeMessageDirectlyResultRequestHeader).consumer_group
        if (member := self._member(group)) is None:
            return _no_member(request, group)
        return member.consume_directly(request, connection)

    def _check_transaction(self, request: Command, connection: Connection) -> None:
        header = request.read(CheckTransactionStateRequestHeader)
        message = decode_record(request.body, body_max=self._session.config.max_body_size)
        group = message.properties.get(PROPERTY_PRODUCER_GROUP, "")
        producer = self._session.producers.get(group)
        if not isinstance(producer, Checker):
            log.warning(
                "%s: check-back for producer group %s, which has no transactional producer in this client",
                connection,
                group,
            )
            return
        producer.check(message, header, connection.peer_address)

    def _take_reply(self, request: Command, connection: Connection) -> Command:
        session = self._session
        most = session.config.max_body_size
        session.pending_requests.on_reply(request, connection.peer_address, session.now_ms(), most)
        return request.reply()


def _not_supported(request: Command, connection: Connection) -> Command:
    remark = f"this client does not know request {request.code}"
    return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


def _no_member(request: Command, group: str) -> Command:
    return request.reply(ResponseCode.SYSTEM_ERROR, f"no consumer of group {group} is in this client")
