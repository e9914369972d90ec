"""What an administrator asks of a running consumer: the broker passes it on and brings the answer back.

The consumer answers over its own connection, whenever it is ready; until then the request is a row of Relay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field

from rmq.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    RmqError,
    for_code,
)
from rmq.message import MessageQueue, parse_offset_message_id
from rmq.protocol.bodies import GetConsumerStatusBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)

if TYPE_CHECKING:
    from rmq.broker.clients import Clients
    from rmq.broker.config import BrokerConfig
    from rmq.broker.members import Member
    from rmq.broker.relay import Relay
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

CALL_SECONDS: Final = 10.0
STATUS_SECONDS: Final = 5.0
"""For each member that is asked for its offsets. Both are RocketMQ's."""

_FAILED: Final = ResponseCode.SYSTEM_ERROR


class ClientCalls:
    """Handles GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY, INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    def __init__(self, config: BrokerConfig, store: Store, clients: Clients, relay: Relay) -> None:
        self.config = config
        self._store = store
        self._clients = clients
        self._relay = relay

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._on_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._on_consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._on_status,
        }

    def _on_running_info(self, request: Command, connection: Connection, now: int) -> None:
        header = request.read(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)
        self._pass_on(request, connection, member, dict(request.ext), b"")

    def _on_consume(self, request: Command, connection: Connection, now: int) -> None:
        """Have a consumer consume one stored message at once; its answer tells how that went."""
        header = request.read(ConsumeMessageDirectlyResultRequestHeader)
        member = self._member(header.consumer_group, header.client_id or "")
        record = self._store.confirmed(_physical_offset(header.msg_id or ""))
        if record is None:
            raise for_code(_FAILED, f"can not find message by the id, {header.msg_id}")
        ext = {**request.ext, "brokerName": self.config.broker_name}
        self._pass_on(request, connection, member, ext, bytes(record))

    def _member(self, group: str, client_id: str) -> Member:
        known = self._clients.consumer_group(group)
        for member in () if known is None else known.members.values():
            if member.client_id == client_id:
                return member
        raise for_code(_FAILED, f"The Consumer <{group}> <{client_id}> not online")

    def _pass_on(
        self, request: Command, asker: Connection, member: Member, ext: dict[str, str], body: bytes
    ) -> None:
        def answered(answer: Command | RmqError) -> None:
            if isinstance(answer, RmqError):
                asker.reply(request.reply(_code_of(answer), f"consumer <{member.client_id}>: {answer}"))
            else:
                asker.reply(request.reply(answer.code, answer.remark, answer.ext, answer.body))

        command = Command.request(request.code, ext, body)
        self._relay.call(member.connection, command, CALL_SECONDS, answered, asker)

    # --- the offsets that members have in memory ---

    def _on_status(self, request: Command, connection: Connection, now: int) -> None:
        header = request.read(GetConsumerStatusRequestHeader)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise for_code(_FAILED, f"No Any Consumer online in the consumer group: [{header.group}]")
        wanted = header.client_addr
        members = [one for one in group.members.values() if not wanted or one.client_id == wanted]
        question = GetConsumerStatusRequestHeader(header.topic, header.group)
        gathering = Gathering(request, connection, len(members))
        for member in members:
            command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
            answered = partial(gathering.add, member.client_id)
            try:
                self._relay.call(member.connection, command, STATUS_SECONDS, answered, connection)
            except ResponseError as error:
                answered(error)
        if not members:
            gathering.finish()


@define(eq=False)
class Gathering:
    """Answers of several members to one question; a member that does not answer is left out."""

    request: Command
    asker: Connection
    missing: int
    table: dict[str, dict[MessageQueue, int]] = field(factory=dict)

    def add(self, client_id: str, answer: Command | RmqError) -> None:
        """Take one answer; the last of them completes ours."""
        self.missing -= 1
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS and answer.body:
            with suppress(RemoteProtocolError):
                self.table[client_id] = GetConsumerStatusBody.from_json(answer.body).message_queue_table
        if not self.missing:
            self.finish()

    def finish(self) -> None:
        """Answer the asker."""
        self.asker.reply(self.request.reply(body=GetConsumerStatusBody(self.table).to_json()))


def _physical_offset(message_id: str) -> int:
    try:
        return parse_offset_message_id(message_id)[1]
    except LocalProtocolError:
        raise for_code(_FAILED, f"{message_id!r} is not the id of a stored message") from None


def _code_of(error: RmqError) -> int:
    return ResponseCode.CONSUME_MSG_TIMEOUT if isinstance(error, RequestTimeout) else _FAILED
