"""Calls of producers: messages, the ends of transactions, recalls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmq.errors import ResponseError
from rmq.gateway import Sent
from rmq.message import PROPERTY_UNIQUE_KEY
from rmq.protocol.codes import ResponseCode
from rmq.protocol.properties import PROPERTY_SHARDING_KEY
from rmq_grpc import schema
from rmq_grpc.encoding import sent
from rmq_grpc.messages import kind_of, queue_of, to_store, topic_of
from rmq_grpc.statuses import EXPECTED, Refused, conclude, of_error, status

if TYPE_CHECKING:
    from rmq.gateway import TopicAtBroker
    from rmq.message import Message
    from rmq_grpc.calls import Call
    from rmq_grpc.clients import Client
    from rmq_grpc.service import Session

Resolution: Final = schema.enum("TransactionResolution")


def send(session: Session, call: Call, request: Any, client: Client) -> None:
    """Store messages of one topic; each has its entry in the answer."""
    if not request.messages:
        raise Refused("MESSAGE_CORRUPTED", "the request has no message")
    now_ms, peer = session.host.now_ms(), session.peer_address
    made = [to_store(message, now_ms, peer) for message in request.messages]
    if len(made) > 1 and len(names := {message.topic for message in made}) > 1:
        raise Refused("MESSAGE_CORRUPTED", f"the messages are for several topics: {sorted(names)}")

    def go_on(topic: Sequence[TopicAtBroker] | Exception) -> None:
        if isinstance(topic, Exception):
            # The first message may make the topic.
            is_missing = isinstance(topic, ResponseError) and topic.code == ResponseCode.TOPIC_NOT_EXIST
            if not is_missing:
                raise topic
        else:
            _check_types(made[0].topic, topic[0].view.message_type, request.messages)
        _store(session, call, client, made)

    client.gateway.topic(made[0].topic, session.guarded(call, go_on))


def _check_types(name: str, expected: str, messages: Sequence[Any]) -> None:
    """Raise Refused for a message of a type that its topic does not accept."""
    if expected in ("", "MIXED"):
        return
    for message in messages:
        if (kind := kind_of(message)) != expected:
            text = f"topic {name} takes messages of type {expected}, not {kind}"
            raise Refused("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", text)


def _store(session: Session, call: Call, client: Client, made: Sequence[Message]) -> None:
    outcomes: list[Sent | None] = [None] * len(made)

    def done(index: int, outcome: Sent) -> None:
        outcomes[index] = outcome
        if None not in outcomes:
            _answer(session, call, made, outcomes)
            if client.plain is not None and outcome.error is None:
                client.plain.learn(made[0].topic)

    for index, message in enumerate(made):
        group = message.properties.get(PROPERTY_SHARDING_KEY)
        choose = partial(queue_of, group) if group else None
        try:
            client.gateway.send(message, choose, partial(done, index))
        except EXPECTED as error:
            done(index, Sent(error, is_stored=False))


def _answer(session: Session, call: Call, made: Sequence[Message], outcomes: Sequence[Any]) -> None:
    """Answer a send by the outcomes of its messages."""
    for outcome in outcomes:
        if outcome.error is not None or not outcome.is_stored:
            break
    else:
        ids = [message.properties[PROPERTY_UNIQUE_KEY] for message in made]
        call.answer_by(sent(zip(ids, outcomes, strict=True)))
        return
    answer = session.answer_to(call)
    for message, outcome in zip(made, outcomes, strict=True):
        _note(answer.entries.add(), message, outcome)
    conclude(answer)
    call.answer(answer)


def refused(session: Session, call: Call, error: Exception) -> None:
    """Answer a send whose single message is not known to be stored."""
    answer = session.answer_to(call)
    answer.entries.add(status=of_error(error))
    conclude(answer)
    call.answer(answer)


def _note(entry: Any, message: Message, outcome: Sent) -> None:
    """Put the outcome of one message into its entry of the answer."""
    entry.status.CopyFrom(status() if outcome.error is None else of_error(outcome.error))
    if not outcome.is_stored:
        return
    entry.message_id = message.properties[PROPERTY_UNIQUE_KEY]
    entry.offset = outcome.queue_offset
    entry.transaction_id, entry.recall_handle = outcome.transaction_id, outcome.recall_handle


def end_transaction(session: Session, call: Call, request: Any, client: Client) -> None:
    """Commit or roll back a half message."""
    topic = topic_of(request.topic)
    if not request.transaction_id.strip():
        raise Refused("INVALID_TRANSACTION_ID", "the transaction id is empty")
    commits = {Resolution["COMMIT"]: True, Resolution["ROLLBACK"]: False}.get(request.resolution)

    def done(error: Exception | None) -> None:
        call.answer(session.answer_to(call, status() if error is None else of_error(error)))

    client.gateway.end_transaction(topic, request.transaction_id, request.message_id, commits, done)


def recall(session: Session, call: Call, request: Any, client: Client) -> None:
    """Take back a message that waits for its time."""

    def done(outcome: str | Exception) -> None:
        answer = session.answer_to(call)
        if isinstance(outcome, Exception):
            answer.status.CopyFrom(of_error(outcome))
        else:
            answer.status.CopyFrom(status())
            answer.message_id = outcome
        call.answer(answer)

    client.gateway.recall(topic_of(request.topic), request.recall_handle, done)
