"""One client of a door's connection, as it stands in the broker's tables.

A DoorClient is there the connection of a held read and of a group's member, and the holder of shares.
RocketMQ's own requests to a client end here: that the members of a group have changed, or that a producer
is asked how a transaction ended, becomes a call of the door, and so do the questions of administrators;
others are answered that a door cannot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from rmq.doors import OpenTransaction, Question, transaction_at
from rmq.errors import (
    AccessDenied,
    ResponseError,
    RmqError,
    StoreError,
    for_code,
)
from rmq.message import (
    PROPERTY_PRODUCER_GROUP,
)
from rmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProducerData,
)
from rmq.protocol.codes import (
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
)
from rmq.protocol.record import decode_readable, decode_records
from rmq.shares import DOOR_CLIENT_BYTES

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.broker import Broker
    from rmq.broker.config import BrokerConfig
    from rmq.doors import OnCheck, OnCommitted, OnQuestion
    from rmq.message import StoredMessage
    from rmq.shares import Holders
else:
    from rmq.lazy_attrs import frozen

HEARTBEAT_SECONDS: Final = 30.0
"""Seconds between two renewals of the memberships of an open connection."""

log = logging.getLogger("rmq.broker")


class Stream(Protocol):
    """The connection of a door, as its DoorPeer uses it."""

    peer_address: str
    local_address: str
    certificate_name: str
    state: dict[str, Any]
    has_proved: bool

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""

    @property
    def is_busy(self) -> bool:
        """True if much waits to be sent."""

    def close(self, reason: str = ...) -> None:
        """End the connection behind the bytes that were written."""

    def finish(self, reason: str) -> None:
        """Same as `close`, after the door's goodbye."""


class DoorClient:
    """A client of a door's connection: its memberships, its account, and the answers that it waits for."""

    def __init__(
        self, broker: Broker, door: str, stream: Stream, connection: DoorClient | None = None
    ) -> None:
        self._broker = broker
        self._door = door
        self._stream = stream
        self.peer_address, self.local_address = stream.peer_address, stream.local_address
        self.state = stream.state if connection is None else dict(stream.state)
        self._connection = connection
        self._others: dict[DoorClient, Holders] = {}  # further clients of the connection
        self._client_id = ""
        self._joined: dict[str, Membership] = {}
        self._producing: dict[str, OnCheck] = {}
        self._asked: dict[int, OnCommitted] = {}
        self._is_ended = False
        if connection is None:
            broker.on_door_open(door)

    def closed(self) -> None:
        """The connection has ended: forget all that is kept for it."""
        for other in list(self._others):
            other.end_client()
        self._asked.clear()
        self._joined.clear()
        self._producing.clear()
        self._broker.on_door_close(self._door, self)

    def another_client(self) -> Self:
        """Same as `rmq.doors.DoorHost.another_client`."""
        first = self._connection or self
        holders = self._broker.settings.holders_of(first)
        shares = self._broker.door_peers.clients
        shares.most = self.config.connection_buffer_bytes // DOOR_CLIENT_BYTES
        if full := shares.full(holders):
            remark = f"of the clients that share connections (connectionBufferBytes) {full}"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        shares.add(holders)
        other = type(self)(self._broker, self._door, self._stream, first)
        first._others[other] = holders
        return other

    def end_client(self) -> None:
        """Same as `rmq.doors.DoorHost.end_client`."""
        first = self._connection
        if first is not None and not self._is_ended:
            self._broker.door_peers.clients.give(first._others.pop(self))
            self._is_ended = True
            self.closed()

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended, or the client on it."""
        return self._is_ended or self._stream.is_closed

    @property
    def is_busy(self) -> bool:
        """True if so much waits to be sent that a read is to take one message only."""
        return self._stream.is_busy

    def reset_on_close(self) -> None:
        """Do nothing: a door's peer sees an orderly end."""

    def finish(self, reason: str) -> None:
        """End the connection, after the door's goodbye."""
        self._stream.finish(reason)

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection."""
        self._stream.close(reason)

    def write(self, frame: object) -> None:
        """Drop a frame of RocketMQ's: the peer speaks another protocol."""

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Take a request of the broker to a client."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            group = command.read(NotifyConsumerIdsChangedRequestHeader).consumer_group
            if group in self._joined:
                self._soon(partial(self._changed, group))
        elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._checked(command)
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self._running_info(command)
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self._consume_directly(command)
        elif not command.is_oneway:
            remark = f"the client uses door {self._door}, which has no such request"
            self._answer(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))

    def _running_info(self, command: Command) -> None:
        """Tell an administrator of a member; its stacks come from the peer."""
        header = command.read(GetConsumerRunningInfoRequestHeader)
        joined = self._joined.get(header.consumer_group)
        if joined is None:
            self._answer(_no_member(command, header.consumer_group))
            return
        data = joined.data
        info = ConsumerRunningInfo(
            properties={
                "PROP_CONSUME_TYPE": data.consume_type or "",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CLIENT_VERSION": "V4_9_7",
                "PROP_CONSUMER_START_TIMESTAMP": str(joined.since_ms),
                "PROP_NAMESERVER_ADDR": "",
            },
            subscription_set=list(data.subscription_data_set),
        )
        if not header.jstack_enable:
            self._answer(command.reply(body=info.to_json()))
            return

        def answer(stacks: object) -> None:
            if isinstance(stacks, RmqError):
                self._answer(_refused(command, stacks))
            else:
                info.jstack = str(stacks)
                self._answer(command.reply(body=info.to_json()))

        self._question(joined, command, Question(answer))

    def _consume_directly(self, command: Command) -> None:
        """Pass a message that an administrator names to a member."""
        header = command.read(ConsumeMessageDirectlyResultRequestHeader)
        joined = self._joined.get(header.consumer_group)
        if joined is None:
            self._answer(_no_member(command, header.consumer_group))
            return
        (message,) = decode_records(command.body)

        def answer(result: object) -> None:
            if isinstance(result, ConsumeMessageDirectlyResult):
                self._answer(command.reply(body=result.to_json()))
            else:
                error = result if isinstance(result, RmqError) else RmqError(str(result))
                self._answer(_refused(command, error))

        self._question(joined, command, Question(answer, message))

    def _question(self, joined: Membership, command: Command, question: Question) -> None:
        if joined.on_question is None:
            remark = f"the client uses door {self._door}, which has no such request"
            self._answer(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        on_question = joined.on_question

        def ask() -> None:
            try:
                on_question(question)
            except RmqError as error:
                question.answer(error)

        self._soon(partial(self._call, ask))

    def _answer(self, response: Command) -> None:
        """Answer a request to the client, which waits in the table of pending requests."""
        self._soon(lambda: self._broker.pending_requests.on_response(response, self))

    def reply(self, response: Command) -> None:
        """Take the answer to a request that was made for the peer."""
        on_done = self._asked.pop(response.opaque, None)
        if on_done is not None:
            error = for_code(response.code, response.remark or "") if response.code else None
            self._call(on_done, error)

    def _changed(self, group: str) -> None:
        joined = self._joined.get(group)
        if joined is not None:
            self._call(joined.on_change, group)

    def _soon(self, call: Callable[[], None]) -> None:
        try:
            self.defer(0.0, call)
        except ResponseError as error:
            log.warning("could not notify %s of door %s: %s", self.peer_address, self._door, error)

    def _call(self, call: Callable[..., None], *given: object) -> None:
        """Call a function of the door; a failure ends the connection."""
        try:
            call(*given)
        except Exception as error:
            log.error("door %s failed with an answer: %s", self._door, error, exc_info=error)
            self.close(f"door {self._door} failed")

    @property
    def config(self) -> BrokerConfig:
        """The broker's configuration."""
        return self._broker.config

    def now_ms(self) -> int:
        """Wall time in ms."""
        return self._broker.now_ms()

    @property
    def has_accounts(self) -> bool:
        """Same as `rmq.doors.DoorHost.has_accounts`."""
        return self._broker.hooks.has_accounts

    def authenticate(self, user: str, secret: str, *, signed: bytes | None = None) -> None:
        """Same as `rmq.doors.DoorHost.authenticate`."""
        self._broker.hooks.authenticate(self, user, secret, signed)
        self._stream.has_proved = True

    def authenticate_certificate(self) -> str:
        """Same as `rmq.doors.DoorHost.authenticate_certificate`."""
        name = self._stream.certificate_name
        if not name:
            raise AccessDenied(remark="the connection has no client certificate with a common name")
        self._broker.hooks.authenticate_certificate(self, name)
        self._stream.has_proved = True
        return name

    def may(self, action: str, name: str) -> bool:
        """Same as `rmq.doors.DoorHost.may`."""
        return self._broker.hooks.may(self, action, name)

    @property
    def holders(self) -> Holders:
        """Same as `rmq.doors.DoorHost.holders`."""
        return self._broker.settings.holders_of(self)

    def leader(self) -> str | None:
        """Same as `rmq.doors.DoorHost.leader`."""
        broker = self._broker
        if not broker.is_slave:
            return None
        return broker.role.master_addresses(broker.registration.master_address, "")[0]

    def _check(self, action: str, name: str) -> None:
        if not self.may(action, name):
            raise AccessDenied(remark=f"no permission to {action}: {name}")
        self._stream.has_proved = True

    def _checked(self, command: Command) -> None:
        """Give a half message without a known end to its producer."""
        header = command.read(CheckTransactionStateRequestHeader)
        for message in decode_readable(command.body, self._cannot_check, len(command.body))[0]:
            on_check = self._producing.get(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
            if on_check is not None:
                name = transaction_at(header.offset_msg_id or "", header.tran_state_table_offset)
                self._soon(partial(self._call, on_check, OpenTransaction(message, name)))

    def _cannot_check(self, message: StoredMessage | None, error: RmqError) -> None:
        log.error(
            "%s of door %s cannot be asked for the end of a message: %s", self.peer_address, self._door, error
        )

    def _ask(self, code: int, header: object, on_done: OnCommitted | None) -> None:
        """Pass a request of the peer to the broker; `on_done` gets the error of its answer."""
        request = Command.request(code, header)
        self._asked[request.opaque] = on_done or _nothing
        handler: Callable[..., Command | None] = self._broker.handlers[code]
        try:
            response = handler(request, self, self.now_ms())
        except ResponseError as error:
            response = request.reply(error.code, error.remark)
        except StoreError as error:
            response = request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if response is not None:
            self.reply(response)

    # ---- memberships ----

    def _be_client(self, client_id: str) -> None:
        """Set the client id of all memberships of the connection."""
        if (self._joined or self._producing) and client_id != self._client_id:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"the connection is client {self._client_id} already, and cannot be {client_id} too",
            )
        if not self._client_id:
            self.defer(HEARTBEAT_SECONDS, self._renew)
        self._client_id = client_id

    def _heartbeat(
        self, client_id: str, groups: Sequence[ConsumerData], producing: Sequence[str] = ()
    ) -> None:
        data = HeartbeatData(client_id, [ProducerData(group) for group in producing], list(groups))
        self._broker.clients.heartbeat(data, self, "OTHER", 0, self.now_ms())

    def _renew(self) -> None:
        """Announce the member: its connection stands."""
        try:
            if self._joined or self._producing:
                groups = [one.data for one in self._joined.values()]
                self._heartbeat(self._client_id, groups, list(self._producing))
        except (ResponseError, StoreError) as error:
            log.warning("%s of door %s: its membership ends: %s", self.peer_address, self._door, error)
            self.close(str(error))
        else:
            self.defer(HEARTBEAT_SECONDS, self._renew)

    def turn(self, work: Callable[[], None]) -> None:
        """Same as `rmq.doors.DoorHost.turn`."""
        if self._broker.door_peers.is_alone(self._connection or self):
            self._broker.steps.turn(work)
        else:
            work()

    def soon(self, call: Callable[[], None]) -> None:
        """Same as `rmq.doors.DoorHost.soon`."""
        self._broker.steps.round_end.add(call, self._call_open)

    def _call_open(self, call: Callable[[], None]) -> None:
        if not self.is_closed:
            self._call(call)

    def defer(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Same as `rmq.doors.DoorHost.defer`."""
        holders = self._broker.settings.holders_of(self)
        return self._broker.deferrals.add(self, holders, seconds, call)


@frozen
class Membership:
    """A membership of a door's client: its data for the broker, and the functions of the door."""

    data: ConsumerData
    on_change: Callable[[str], None]
    on_question: OnQuestion | None
    since_ms: int = 0


def _no_member(command: Command, group: str) -> Command:
    return command.reply(ResponseCode.SYSTEM_ERROR, f"the client is no member of group {group} any more")


def _refused(command: Command, error: RmqError) -> Command:
    code = error.code if isinstance(error, ResponseError) else ResponseCode.SYSTEM_ERROR
    return command.reply(code, str(error))


def _nothing(error: ResponseError | None) -> None:
    pass
