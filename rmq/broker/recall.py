"""The recall of a message that waits for its delivery time, by the handle that its producer was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq.broker.topics import unknown_topic
from rmq.errors import RemoteProtocolError, ResponseError, for_code
from rmq.protocol.codes import ILLEGAL_OPERATION, RECALL_MESSAGE
from rmq.protocol.headers import RecallHandle, RecallMessageRequestHeader
from rmq.protocol.record import Record

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.broker.timer import Timers
    from rmq.broker.topics import Topics
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

Put = Callable[["Command", Record, dict[str, str]], None]


class Recall:
    """Handles RECALL_MESSAGE (370) of 5.x.

    `put(request, record, header)` stores a record and acknowledges the request with these header fields.
    """

    def __init__(
        self, config: BrokerConfig, *, timers: Timers, topics: Topics, store_host: bytes, put: Put
    ) -> None:
        self.config = config
        self._timers = timers
        self._topics = topics
        self._store_host = store_host
        self._put = put

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """What this part answers."""
        return {RECALL_MESSAGE: self._on_recall}

    def _on_recall(self, request: Command, connection: Connection, now: int) -> None:
        header = request.read(RecallMessageRequestHeader)
        if self._topics.get(header.topic) is None:
            raise unknown_topic(header.topic)
        handle = self._handle(header)
        record = self._timers.recall(handle, self._store_host, now)
        self._put(request, record, {"msgId": handle.unique_key})

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except RemoteProtocolError as error:
            raise _refused(str(error)) from None
        if handle.topic != header.topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != self.config.broker_name:
            raise _refused(
                f"recall failed, the message is at broker {handle.broker_name}, this is "
                f"{self.config.broker_name}"
            )
        return handle


def _refused(remark: str) -> ResponseError:
    return for_code(ILLEGAL_OPERATION, remark)
