"""MessageTrace: a row for every message sent or consumed, in RocketMQ's form.

The rows go to the trace topic, many in a message, where RocketMQ's own tools find them by the message's id
and keys (`mqadmin queryMsgTraceById`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from attrs import evolve, frozen

from rmq.client.produce.outgoing import pack
from rmq.client.produce.sender import Sender
from rmq.client.session.observer import Observer
from rmq.client.session.results import SendResult
from rmq.errors import RmqError
from rmq.message import (
    KEY_SEPARATOR,
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    TRACE_TOPIC,
    Message,
    StoredMessage,
    validate_topic,
    without_namespace,
)
from rmq.protocol.trace import TraceBean, TraceContext, TraceMessageType, TraceType, encode, index_keys

if TYPE_CHECKING:
    from rmq.client.session.session import Session

log = logging.getLogger("rmq.client.trace")

GROUP: Final = "_INNER_TRACE_PRODUCER"
WAITING_MAX: Final = 2_048
"""Rows that may wait; further ones are dropped and counted."""
ROWS_OF_A_MESSAGE: Final = 100
PAUSE_SECONDS: Final = 0.5
FAILED: Final = 2
"""RocketMQ's name for a handler that has raised."""
_STATES: Final = {0: "UNKNOW", 8: "COMMIT_MESSAGE", 12: "ROLLBACK_MESSAGE"}


@frozen
class _Began:
    context: TraceContext
    at: float


class MessageTrace(Observer):
    """Traces to `topic`; for one client. `dropped` counts rows that were too many or could not be sent."""

    def __init__(self, topic: str = TRACE_TOPIC) -> None:
        """Raises InvalidName, InvalidType."""
        self.topic = validate_topic(topic)
        self.dropped = 0
        self._rows: deque[TraceContext] = deque()
        self._session: Session | None = None
        self._sending = anyio.Lock()

    # --- sending rows ---

    def attach(self, session: Session) -> None:
        self._session = session

    async def run(self) -> None:
        """Send the gathered rows, twice a second. Cancelled: the rest is kept for `flush`."""
        while True:
            await anyio.sleep(PAUSE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Send the gathered rows now. Cancelled: rows in flight may be lost."""
        if self._session is None:
            return
        async with self._sending:
            session = self._session
            sender = Sender(session, GROUP)
            while self._rows:
                rows = [self._rows.popleft() for _ in range(min(ROWS_OF_A_MESSAGE, len(self._rows)))]
                keys = dict.fromkeys(key for row in rows for key in index_keys(row))
                body = "".join(map(encode, rows)).encode()
                message = Message(self.topic, body, keys=list(keys))
                try:  # not observed: traces are not traced
                    await sender.send(pack(message, session.unique_ids.next(), session.config))
                except RmqError as error:
                    self.dropped += len(rows)
                    log.warning("lost %d trace rows: %s", len(rows), error)

    def _add(self, context: TraceContext) -> None:
        if len(self._rows) >= WAITING_MAX:
            self.dropped += 1
        else:
            self._rows.append(context)

    # --- observing ---

    def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> _Began | None:
        session = self._session
        if session is None or message.topic == self.topic:
            return None
        kind = TraceMessageType.NORMAL
        if PROPERTY_TRANSACTION_PREPARED in extra:
            kind = TraceMessageType.TRANSACTION_HALF
        elif message.is_delayed:
            kind = TraceMessageType.DELAY
        bean = TraceBean(
            message.topic,
            tags=message.tags,
            keys=KEY_SEPARATOR.join(message.keys) or None,
            body_length=len(message.body),
            message_type=kind,
        )
        context = TraceContext(TraceType.PUB, (bean,), session.now_ms(), group=self._short(group))
        return _Began(context, session.now())

    def sent(self, token: _Began | None, result: SendResult | None, error: BaseException | None) -> None:
        session = self._session
        if token is None or session is None or result is None:
            return  # as with RocketMQ, a message that was not stored leaves no trace
        bean = evolve(
            token.context.beans[0],
            message_id=result.message_id,
            offset_message_id=result.offset_message_id,
            store_host=session.routes.master(result.message_queue.broker_name) or "",
        )
        self._add(
            evolve(
                token.context,
                beans=(bean,),
                region_id=result.region,
                cost_ms=int((session.now() - token.at) * 1000),
                success=result.status == "SEND_OK",
            )
        )

    def ended(
        self, group: str, result: SendResult, message: Message, decision: int, *, checked: bool
    ) -> None:
        session = self._session
        if session is None:
            return
        bean = TraceBean(
            message.topic,
            result.message_id,
            tags=message.tags,
            keys=KEY_SEPARATOR.join(message.keys) or None,
            store_host=session.routes.master(result.message_queue.broker_name) or "",
            message_type=TraceMessageType.TRANSACTION_COMMIT,
            transaction_id=result.transaction_id,
            transaction_state=_STATES[decision],
            from_transaction_check=checked,
        )
        self._add(
            TraceContext(
                TraceType.END_TRANSACTION, (bean,), session.now_ms(), result.region, self._short(group)
            )
        )

    def consuming(self, group: str, messages: Sequence[StoredMessage]) -> _Began | None:
        session = self._session
        traced = [message for message in messages if self._is_traced(message)]
        if session is None or not traced:
            return None
        beans = tuple(
            TraceBean(
                message.topic,
                message.message_id,
                keys=KEY_SEPARATOR.join(message.keys),
                retry_times=message.reconsume_times,
            )
            for message in traced
        )
        region = traced[0].properties.get(PROPERTY_MSG_REGION, "")
        context = TraceContext(
            TraceType.SUB_BEFORE,
            beans,
            session.now_ms(),
            region,
            self._short(group),
            request_id=session.unique_ids.next(),
        )
        self._add(context)
        return _Began(context, session.now())

    def consumed(self, token: _Began | None, error: BaseException | None) -> None:
        session = self._session
        if token is None or session is None:
            return
        cost_ms = int((session.now() - token.at) * 1000) // len(token.context.beans)
        self._add(
            evolve(
                token.context,
                type=TraceType.SUB_AFTER,
                timestamp_ms=session.now_ms(),
                cost_ms=cost_ms,
                success=error is None,
                context_code=FAILED if error is not None else 0,
            )
        )

    def _is_traced(self, message: StoredMessage) -> bool:
        return message.topic != self.topic and message.properties.get(PROPERTY_TRACE_SWITCH) != "false"

    def _short(self, group: str) -> str:
        return (
            without_namespace(self._session.config.namespace, group) if self._session is not None else group
        )
