"""RECALL_MESSAGE: taking back a message that waits for its time, by the handle that its producer has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq.broker.tables.topics import unknown_topic
from rmq.errors import RemoteProtocolError, ResponseError, for_code
from rmq.plugin import account_of
from rmq.protocol.codes import ILLEGAL_OPERATION, RECALL_MESSAGE, ResponseCode
from rmq.protocol.headers import RecallHandle, RecallMessageRequestHeader

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.delay.timers import Timers
    from rmq.broker.tables.topics import Topics
    from rmq.plugin import Peer
    from rmq.protocol.command import Command
    from rmq.protocol.record import Record
    from rmq.remoting.connection import Connection

log = logging.getLogger("rmq.broker")

Put = Callable[["Command", "Record", dict[str, str]], None]


class Recall:
    """Handles RECALL_MESSAGE (370) of 5.x.

    `put(request, record, header)` stores a record and acknowledges the request with these header fields.
    `may_act_for(peer, account)`: whether a peer may recall the messages of an account.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        timers: Timers,
        topics: Topics,
        store_host: bytes,
        put: Put,
        may_act_for: Callable[[Peer, str], bool],
    ) -> None:
        self._settings = settings
        self._timers = timers
        self._topics = topics
        self._store_host = store_host
        self._put = put
        self._may_act_for = may_act_for

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """Request codes and their handlers."""
        return {RECALL_MESSAGE: self._on_recall}

    def _on_recall(self, request: Command, connection: Connection, now: int) -> None:
        record, unique_key = self.record_of(request.read(RecallMessageRequestHeader), connection, now)
        self._put(request, record, {"msgId": unique_key})

    def record_of(self, header: RecallMessageRequestHeader, peer: Peer, now: int) -> tuple[Record, str]:
        """The record that takes a message back, and the unique key of that message. Raises ResponseError."""
        if self._topics.get(header.topic) is None:
            raise unknown_topic(header.topic)
        handle = self._handle(header)
        owner = self._timers.owner(handle)
        if owner and not self._may_act_for(peer, owner):
            mine = account_of(peer)
            log.warning("account %s may not recall %s of account %s", mine or "-", handle.unique_key, owner)
            remark = f"the message {handle.unique_key} is another account's: only its owner may recall it"
            raise for_code(ResponseCode.NO_PERMISSION, remark)
        account = owner or account_of(peer)
        maker = self._settings.holders_of(peer)
        return self._timers.recall(handle, self._store_host, now, account, maker), handle.unique_key

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except RemoteProtocolError as error:
            raise _refused(str(error)) from None
        if handle.topic != header.topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != self._settings.broker.broker_name:
            raise _refused(
                f"recall failed, the message is at broker {handle.broker_name}, this is "
                f"{self._settings.broker.broker_name}"
            )
        return handle


def _refused(remark: str) -> ResponseError:
    return for_code(ILLEGAL_OPERATION, remark)
