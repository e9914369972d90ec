"""Message traces: the history of a message, as text for RocketMQ's own tools.

A trace message is in the trace topic, with the ids and keys of its messages as its keys; its body is a row of
contexts. A context is fields separated by 0x01 and ends with 0x02; there is no escaping. Older clients write
fewer fields. The form is that of 4.9's TraceDataEncoder, oddities included: an absent text is the word null.

`STORE` is an addition of rmq: a broker has stored a message. It has the fields of a sent message; Java's
tools skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from attrs import frozen

from rmq.errors import RemoteProtocolError

FIELD_END: Final = "\x01"
CONTEXT_END: Final = "\x02"


class TraceType(Enum):
    """Kind of an event: sent, stored, about to be consumed, consumed, a transaction ended."""

    PUB = "Pub"
    STORE = "Store"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"


class TraceMessageType(Enum):
    """The kind of a traced message; on the wire its index in this list."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


@frozen
class TraceBean:
    """One message of a context. `keys` are separated by blanks; `store_host` is the broker's `ip:port`."""

    topic: str = ""
    message_id: str = ""
    offset_message_id: str | None = ""
    tags: str | None = ""
    keys: str | None = ""
    store_host: str = ""
    client_host: str = ""
    body_length: int = 0
    retry_times: int = 0
    message_type: TraceMessageType = TraceMessageType.NORMAL
    transaction_id: str | None = None
    transaction_state: str = "UNKNOW"
    from_transaction_check: bool = False


@frozen
class TraceContext:
    """An event of a message or, when consuming, of several messages. Times are in ms. `request_id` joins the
    contexts before and after consuming; `context_code` is the consumer's result."""

    type: TraceType
    beans: tuple[TraceBean, ...]
    timestamp_ms: int = 0
    region_id: str = ""
    group: str = ""
    cost_ms: int = 0
    success: bool = True
    request_id: str = ""
    context_code: int = 0


def encode(context: TraceContext) -> str:
    """The text of a context; a context of several messages gives a row for each."""
    return _ENCODERS[context.type](context)


def index_keys(context: TraceContext) -> list[str]:
    """The keys under which the trace message is found: ids and keys of the messages, each once."""
    found: dict[str, None] = {}
    for bean in context.beans:
        found |= dict.fromkeys(f"{bean.message_id} {bean.keys or ''}".split())
    return list(found)


def decode(text: str) -> list[TraceContext]:
    """The contexts of a trace message's body; types that are not known are left out.

    Raises RemoteProtocolError for a row that is too short or has no number where one must be.
    """
    contexts = []
    for row in text.split(CONTEXT_END):
        fields = row.split(FIELD_END)
        decoder = _DECODERS.get(fields[0])
        if decoder is None:
            continue
        try:
            contexts.append(decoder(fields))
        except (IndexError, ValueError) as error:
            raise RemoteProtocolError(f"a trace cannot be read ({error}): {row[:200]!r}") from None
    return contexts


def _row(*fields: str | int | bool | None) -> str:
    return FIELD_END.join(map(_text, fields)) + CONTEXT_END


def _text(value: str | int | bool | None) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encode_pub(context: TraceContext) -> str:
    bean = context.beans[0]
    return _row(
        context.type.value,
        context.timestamp_ms,
        context.region_id,
        context.group,
        bean.topic,
        bean.message_id,
        bean.tags,
        bean.keys,
        bean.store_host,
        bean.body_length,
        context.cost_ms,
        bean.message_type.value,
        bean.offset_message_id,
        context.success,
    )


def _encode_sub_before(context: TraceContext) -> str:
    return "".join(
        _row(
            context.type.value,
            context.timestamp_ms,
            context.region_id,
            context.group,
            context.request_id,
            bean.message_id,
            bean.retry_times,
            bean.keys or None,  # Java cannot read a row whose last field is empty
        )
        for bean in context.beans
    )


def _encode_sub_after(context: TraceContext) -> str:
    return "".join(
        _row(
            context.type.value,
            context.request_id,
            bean.message_id,
            context.cost_ms,
            context.success,
            bean.keys,
            context.context_code,
            context.timestamp_ms,
            context.group,
        )
        for bean in context.beans
    )


def _encode_end_transaction(context: TraceContext) -> str:
    bean = context.beans[0]
    return _row(
        context.type.value,
        context.timestamp_ms,
        context.region_id,
        context.group,
        bean.topic,
        bean.message_id,
        bean.tags,
        bean.keys,
        bean.store_host,
        bean.message_type.value,
        bean.transaction_id,
        bean.transaction_state,
        bean.from_transaction_check,
    )


def _decode_pub(fields: Sequence[str]) -> TraceContext:
    count = len(fields)
    bean = TraceBean(
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        body_length=int(fields[9]),
        message_type=TraceMessageType(int(fields[11])),
        offset_message_id=fields[12] if count > 13 else "",
        client_host=fields[14] if count > 14 else "",
    )
    success = fields[13 if count > 13 else 12] == "true" if count > 12 else True
    return TraceContext(
        TraceType(fields[0]), (bean,), int(fields[1]), fields[2], fields[3], int(fields[10]), success
    )


def _decode_sub_before(fields: Sequence[str]) -> TraceContext:
    bean = TraceBean(message_id=fields[5], retry_times=int(fields[6]), keys=fields[7])
    return TraceContext(
        TraceType.SUB_BEFORE, (bean,), int(fields[1]), fields[2], fields[3], request_id=fields[4]
    )


def _decode_sub_after(fields: Sequence[str]) -> TraceContext:
    count = len(fields)
    return TraceContext(
        TraceType.SUB_AFTER,
        (TraceBean(message_id=fields[2], keys=fields[5]),),
        timestamp_ms=int(fields[7]) if count > 8 else 0,
        group=fields[8] if count > 8 else "",
        cost_ms=int(fields[3]),
        success=fields[4] == "true",
        request_id=fields[1],
        context_code=int(fields[6]) if count > 6 else 0,
    )


def _decode_end_transaction(fields: Sequence[str]) -> TraceContext:
    bean = TraceBean(
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        message_type=TraceMessageType(int(fields[9])),
        transaction_id=fields[10],
        transaction_state=fields[11],
        from_transaction_check=fields[12] == "true",
    )
    return TraceContext(TraceType.END_TRANSACTION, (bean,), int(fields[1]), fields[2], fields[3])


_ENCODERS: Final[dict[TraceType, Callable[[TraceContext], str]]] = {
    TraceType.PUB: _encode_pub,
    TraceType.STORE: _encode_pub,
    TraceType.SUB_BEFORE: _encode_sub_before,
    TraceType.SUB_AFTER: _encode_sub_after,
    TraceType.END_TRANSACTION: _encode_end_transaction,
}
_DECODERS: Final[dict[str, Callable[[Sequence[str]], TraceContext]]] = {
    TraceType.PUB.value: _decode_pub,
    TraceType.STORE.value: _decode_pub,
    TraceType.SUB_BEFORE.value: _decode_sub_before,
    TraceType.SUB_AFTER.value: _decode_sub_after,
    TraceType.END_TRANSACTION.value: _decode_end_transaction,
}
