"""Requests that the broker sends to clients, for itself and for administrators.

A request on its way is a row of `Deferred`, under the client's connection. A connection hands over the
responses that none of its own calls waits for; `step` ends the requests that are due. A request of an
administrator to a running consumer is forwarded this way, and the consumer's response goes back to the
administrator at any later time; so does a consumer's reply to the producer that sent the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from attrs import field

from rmq.errors import (
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    RmqError,
    for_code,
)
from rmq.message import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    MessageQueue,
    parse_offset_message_id,
)
from rmq.protocol.auth.signature import unsigned
from rmq.protocol.bodies import GetConsumerStatusBody
from rmq.protocol.codes import FLAG_ONEWAY, SYS_OF_SENDERS, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.fields import REQUEST_VALUES
from rmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rmq.protocol.properties import decode_properties, encode_properties
from rmq.server.deferred import Deferred, Row
from rmq.shares import Holders, HoldersOf, Shares, by_account_and_address

if TYPE_CHECKING:
    from attrs import define, frozen

    from rmq.broker.config import Settings
    from rmq.broker.membership.clients import Clients
    from rmq.broker.membership.members import Member, MemberConnection
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import define, frozen


log = logging.getLogger("rmq.broker")

OnAnswer = Callable[["Command | RmqError"], None]
"""Called once: with the client's response whatever its code, a RequestTimeout, or a ConnectionLost."""

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 64 << 20
"""Requests on their way, and what those who asked for them keep meanwhile."""
ROWS_OF_A_PEER: Final = 2_500
BYTES_OF_A_PEER: Final = 16 << 20
"""The same for one connection that asks. At one that is asked one account or address may have as many wait,
and others beside it."""


@frozen
class Call:
    """A request on its way to a client."""

    code: int
    opaque: int
    on_answer: OnAnswer
    seconds: float
    requester: MemberConnection


class PendingRequests:
    """The requests to clients that have no answer yet, by the client and the number (opaque) of the request.
    `clock` is in seconds; `on_deadline(at)` is called with each new deadline: `step` is to be called by then.
    `holders_of` gives the names under which a request counts as its asker's.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
        holders_of: HoldersOf | None = None,
    ) -> None:
        self.clock = clock
        self._holders_of = holders_of or by_account_and_address()
        self._calls: Deferred[MemberConnection, Call] = Deferred(
            ROWS_MAX, "the requests to clients", bytes_most=BYTES_MAX, on_deadline=on_deadline
        )
        self._rows: dict[tuple[MemberConnection, int], Row[MemberConnection, Call]] = {}
        self._at: dict[MemberConnection, Shares] = {}  # places at each client that is asked
        self._of_asker: dict[MemberConnection, tuple[int, int]] = {}  # rows and bytes

    def __len__(self) -> int:
        return len(self._calls)

    def call(
        self,
        to: MemberConnection,
        command: Command,
        seconds: float,
        on_answer: OnAnswer,
        requester: MemberConnection,
    ) -> None:
        """Send a request to a client for another client; `on_answer` gets the outcome, never before this call
        returns. Until then the bytes of the body count as kept.

        Raises ResponseError when the client has just gone, or when too many requests are on their way, and
        LocalProtocolError for a command that has no frame.
        """
        if to.is_closed:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"the connection to {to.peer_address} has just ended")
        size, holders = len(command.body), self._holders_of(requester)
        self._check_room(to, requester, holders, size)
        to.notify(command)  # first: nothing is to wait for a request that has no frame
        call = Call(command.code, command.opaque, on_answer, seconds, requester)
        deadline = self.clock() + seconds
        row = self._calls.add(to, call, holders=holders, deadline=deadline, size=size)
        self._rows[to, command.opaque] = row
        self._count(row, 1)

    def on_response(self, response: Command, connection: MemberConnection) -> None:
        """A client has answered: give the answer to its asker. A response to no request is dropped."""
        row = self._rows.get((connection, response.opaque))
        if row is not None and self._calls.take(row):
            self._ended(row).on_answer(response)

    def expects(self, response: Command, connection: MemberConnection) -> bool:
        """True if a request waits for this response of a client."""
        return (connection, response.opaque) in self._rows

    def on_close(self, connection: MemberConnection) -> None:
        """A connection has ended: the requests to its client end with ConnectionLost."""
        for row in self._calls.of(connection):
            if self._calls.take(row):
                self._ended(row).on_answer(ConnectionLost(connection.peer_address))

    def step(self, now: float) -> float:
        """End the requests whose deadline has passed; returns the next deadline, infinite when
        nothing waits.
        """
        for row in self._calls.due(now):
            call = self._ended(row)
            call.on_answer(RequestTimeout(row.key.peer_address, call.code, call.seconds))
        return self._calls.deadline

    def _ended(self, row: Row[MemberConnection, Call]) -> Call:
        """Forget a row that was taken; returns its call."""
        self._rows.pop((row.key, row.value.opaque), None)
        self._count(row, -1)
        if not self._calls.count(row.key):
            del self._at[row.key]
        return row.value

    def _count(self, row: Row[MemberConnection, Call], sign: int) -> None:
        self._at.setdefault(row.key, Shares(2 * ROWS_OF_A_PEER)).add(row.holders, sign)
        requester = row.value.requester
        rows, size = self._of_asker.get(requester, (0, 0))
        if rows + sign:
            self._of_asker[requester] = (rows + sign, size + sign * row.size)
        else:
            del self._of_asker[requester]

    def _check_room(
        self, to: MemberConnection, requester: MemberConnection, holders: Holders, size: int
    ) -> None:
        """Raise ResponseError when too much is on its way: in all, at that client, for that connection, or
        for its account or address."""
        asked, bytes_asked = self._of_asker.get(requester, (0, 0))
        if asked >= ROWS_OF_A_PEER or bytes_asked + size > BYTES_OF_A_PEER:
            raise _busy(f"{asked} of {bytes_asked} bytes for {requester.peer_address}")
        if full := self._calls.full(holders, size):
            raise _busy(full)
        if to in self._at and (full := self._at[to].full(holders)):
            raise _busy(f"at {to.peer_address} {full}")


def _busy(what: str) -> ResponseError:
    return for_code(
        ResponseCode.SYSTEM_BUSY,
        f"requests to clients wait for their answers, no more may: {what} (at most {ROWS_MAX} and "
        f"{BYTES_MAX} bytes, {ROWS_OF_A_PEER} and {BYTES_OF_A_PEER} of a connection)",
    )


CALL_SECONDS: Final = 10.0
STATUS_SECONDS: Final = 5.0
"""For each member that is asked for its offsets. Both are RocketMQ's."""

_FAILED: Final = ResponseCode.SYSTEM_ERROR


class ClientRequests:
    """Handles GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY, INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    def __init__(self, settings: Settings, store: Store, clients: Clients, pending: PendingRequests) -> None:
        self._settings = settings
        self._store = store
        self._clients = clients
        self._pending = pending

    def handlers(self) -> dict[int, Callable[[Command, MemberConnection, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._on_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._on_consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._on_status,
        }

    def _on_running_info(self, request: Command, connection: MemberConnection, now: int) -> None:
        header = request.read(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)
        self._forward(request, connection, member, {}, b"")

    def _on_consume(self, request: Command, connection: MemberConnection, now: int) -> None:
        """Pass a stored message to a consumer at once; the consumer's response has the result."""
        header = request.read(ConsumeMessageDirectlyResultRequestHeader)
        member = self._member(header.consumer_group, header.client_id or "")
        record = self._store.confirmed(_physical_offset(header.msg_id or ""))
        if record is None:
            raise for_code(_FAILED, f"can not find message by the id, {header.msg_id}")
        added = {"brokerName": self._settings.broker.broker_name}
        self._forward(request, connection, member, added, bytes(record))

    def _member(self, group: str, client_id: str) -> Member:
        known = self._clients.consumer_group(group)
        found = {} if known is None else known.with_id(client_id)
        if found:
            return found[next(reversed(found))]
        raise for_code(_FAILED, f"The Consumer <{group}> <{client_id}> not online")

    def _forward(
        self,
        request: Command,
        requester: MemberConnection,
        member: Member,
        added: dict[str, str],
        body: bytes,
    ) -> None:
        """RocketMQ passes the header on as it is: with an administrator's signature, which the consumer could
        send to any server as another request."""

        def on_answer(answer: Command | RmqError) -> None:
            if isinstance(answer, RmqError):
                requester.reply(request.reply(_code_of(answer), f"consumer <{member.client_id}>: {answer}"))
            else:
                requester.reply(request.reply(answer.code, answer.remark, answer.ext, answer.body))

        command = Command.request(request.code, unsigned(request.ext) | added, body)
        self._pending.call(member.connection, command, CALL_SECONDS, on_answer, requester)

    # --- the offsets that members have in memory ---

    def _on_status(self, request: Command, connection: MemberConnection, now: int) -> None:
        header = request.read(GetConsumerStatusRequestHeader)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise for_code(_FAILED, f"No Any Consumer online in the consumer group: [{header.group}]")
        client_id = header.client_addr
        members = list((group.with_id(client_id) if client_id else group.members).values())
        question = GetConsumerStatusRequestHeader(header.topic, header.group)
        gathering = Gathering(request, connection, len(members))
        for member in members:
            command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
            on_answer = partial(gathering.add, member.client_id)
            try:
                self._pending.call(member.connection, command, STATUS_SECONDS, on_answer, connection)
            except ResponseError as error:
                on_answer(error)
        if not members:
            gathering.finish()


@define(eq=False)
class Gathering:
    """Answers of several members to one question; a member that does not answer is left out."""

    request: Command
    requester: MemberConnection
    missing: int
    table: dict[str, dict[MessageQueue, int]] = field(factory=dict)

    def add(self, client_id: str, answer: Command | RmqError) -> None:
        """Take a member's response; the last response completes ours."""
        self.missing -= 1
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
            with suppress(RemoteProtocolError):
                status = GetConsumerStatusBody.from_request(answer.body, loose=REQUEST_VALUES)
                self.table[client_id] = status.message_queue_table
        if not self.missing:
            self.finish()

    def finish(self) -> None:
        """Answer the requester with the responses so far."""
        self.requester.reply(self.request.reply(body=GetConsumerStatusBody(self.table).to_json()))


def _physical_offset(message_id: str) -> int:
    try:
        return parse_offset_message_id(message_id)[1]
    except LocalProtocolError:
        raise for_code(_FAILED, f"{message_id!r} is not the id of a stored message") from None


def _code_of(error: RmqError) -> int:
    return ResponseCode.CONSUME_MSG_TIMEOUT if isinstance(error, RequestTimeout) else _FAILED


Handler = Callable[[Command, "Connection", int], Command | None]
Later = Callable[[Handler, Command, "Connection"], None]

PUSH_SECONDS: Final = 10.0
"""Seconds in which an asker must acknowledge the answer."""


class RequestReply:
    """Request and reply: handles SEND_REPLY_MESSAGE (324, 325), by which a consumer answers a producer.

    The property REPLY_TO_CLIENT names the requester. The reply is pushed over the connection on which the
    requester's producers are known; the consumer gets success only once the requester has taken the reply,
    and an error when the requester has gone. The reply is stored in the cluster's reply topic as well, unless
    storeReplyMessageEnable is off. All of this is RocketMQ 4.9's.

    `store(request, connection, now)` puts a message and acknowledges it later. `later(handler, request,
    connection)` runs a handler by itself, after its chunk. `address` is this broker's.
    """

    def __init__(
        self,
        settings: Settings,
        clients: Clients,
        pending: PendingRequests,
        *,
        address: str,
        store: Handler,
        later: Later,
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._pending = pending
        self._address = address
        self._store = store
        self._later = later

    def handlers(self) -> dict[int, Handler]:
        """Request codes and their handlers."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self._on_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._on_reply,
        }

    def _on_reply(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(SendMessageRequestHeader)
        properties = decode_properties(header.properties)
        requester = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if requester is None:
            remark = f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
            self._not_pushed(request, connection, now_ms, remark=remark)
        to = self._clients.producer_connection(requester)
        if to is None or to.is_closed:
            remark = f"push reply message fail, channel of <{requester}> not found."
            if self._clients.is_disputed(requester):
                remark = f"push reply message fail, clients of several accounts have the id <{requester}>."
            self._not_pushed(request, connection, now_ms, remark=remark)
        properties[PROPERTY_PUSH_REPLY_TIME] = str(now_ms)
        pushed = self._pushed(header, encode_properties(properties), connection, now_ms)
        command = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, request.body)

        def on_answer(answer: Command | RmqError) -> None:
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                self._later(self._pushed_well, request, connection)
                return
            log.warning("reply to %s at %s is not taken: %s", requester, to.peer_address, _why(answer))
            remark = f"push reply message to {requester} fail: {_why(answer)}"
            self._later(partial(self._not_pushed, remark=remark), request, connection)

        self._pending.call(to, command, PUSH_SECONDS, on_answer, connection)
        return None

    def _pushed_well(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        if self._settings.broker.store_reply_message_enable:
            return self._store(request, connection, now_ms)
        header = request.read(SendMessageRequestHeader)
        return request.reply(header=SendMessageResponseHeader("0", max(header.queue_id, 0), 0))

    def _not_pushed(self, request: Command, connection: Connection, now_ms: int, *, remark: str) -> NoReturn:
        """Store the reply all the same; then raise the ResponseError for a reply that did not arrive."""
        if self._settings.broker.store_reply_message_enable:
            silent = Command(
                request.code,
                request.opaque,
                request.flag | FLAG_ONEWAY,
                request.ext,
                request.body,
                serialization=request.serialization,
                header=request.header,
            )
            with suppress(ResponseError):
                self._store(silent, connection, now_ms)
        raise for_code(ResponseCode.SYSTEM_ERROR, remark)

    def _pushed(
        self, header: SendMessageRequestHeader, properties: str, connection: Connection, now_ms: int
    ) -> ReplyMessageRequestHeader:
        return ReplyMessageRequestHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag & SYS_OF_SENDERS,
            header.born_timestamp,
            header.flag,
            properties,
            header.reconsume_times,
            header.unit_mode,
            born_host=connection.peer_address,
            store_host=self._address,
            store_timestamp=now_ms,
        )


def _why(answer: Command | RmqError) -> str:
    return str(answer) if isinstance(answer, RmqError) else f"code {answer.code}, {answer.remark}"
