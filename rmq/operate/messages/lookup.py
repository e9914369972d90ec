"""Single messages: found by id, key or place, shown in full, given to a consumer or sent to a topic again."""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from rmq.errors import ConfigError
from rmq.message import RESERVED_PROPERTIES, SYSTEM_TOPICS, Message

if TYPE_CHECKING:
    from rmq.client.admin import Admin, Lookup, MessageTrack
    from rmq.client.client import Client
    from rmq.client.session.results import SendResult
    from rmq.message import StoredMessage
    from rmq.protocol.bodies import ConsumeMessageDirectlyResult

SHOWN_BYTES: Final = 256 << 10
"""Bytes of a body that are shown as text."""
HEX_BYTES: Final = 16 << 10
"""Bytes of a body that are shown as a hex dump, of 78 characters for 16 bytes."""
ROW_BYTES: Final = 16
CONSUMED: Final = ("CR_SUCCESS", "CR_COMMIT")
"""Results of a member that has consumed a message."""


@frozen
class BodyView:
    """A body in readable forms. `text` is None when it is no UTF-8, `json` when it is no JSON.

    Of a long body the forms show the beginning (`is_cut`), and `json` is None.
    """

    size: int
    text: str | None
    json: str | None
    hex: str = field(repr=False)
    is_cut: bool = False


@frozen
class Detail:
    """A message with its state in each group (see `rmq.client.admin.MessageTrack`)."""

    message: StoredMessage
    body: BodyView
    tracks: Sequence[MessageTrack] = ()


def view_body(body: bytes, most: int = SHOWN_BYTES) -> BodyView:
    """A body as text, as indented JSON and as a hex dump, in the forms that it has."""
    part = body[:most]
    text = _as_text(part, is_cut=len(part) < len(body))
    pretty: str | None = None
    if text is not None and len(part) == len(body) and text[:1] in '{["' + "-0123456789tfn":
        pretty = _as_json(body)
    is_cut = len(part) < len(body)
    return BodyView(len(body), text, pretty, hex_dump(body[:HEX_BYTES]), is_cut)


def _as_text(part: bytes, *, is_cut: bool) -> str | None:
    for left_out in range(4 if is_cut else 1):  # the cut may divide a character
        try:
            return part[: len(part) - left_out].decode()
        except UnicodeDecodeError:
            continue
    return None


def _as_json(body: bytes) -> str | None:
    try:
        value: Any = json.loads(body, parse_float=_Number, parse_int=_Number, parse_constant=_refuse)
        return _indented(value, 0)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


class _Number(str):
    """A number in its written form: no digit is lost."""


def _indented(value: Any, depth: int) -> str:
    """A value as JSON, two spaces for each level."""
    outer, inner = "  " * depth, "  " * (depth + 1)
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict) and value:
        rows = ",\n".join(
            f"{inner}{_quoted(key)}: {_indented(item, depth + 1)}" for key, item in value.items()
        )
        return f"{{\n{rows}\n{outer}}}"
    if isinstance(value, list) and value:
        rows = ",\n".join(f"{inner}{_indented(item, depth + 1)}" for item in value)
        return f"[\n{rows}\n{outer}]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hex_dump(data: bytes) -> str:
    """Bytes as lines of offset, 16 bytes in hex, and printable ASCII."""
    lines = []
    for at in range(0, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        words = binascii.hexlify(row, " ").decode()
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {words:<{3 * ROW_BYTES}} {shown}")
    return "\n".join(lines)


async def detail(admin: Admin, message_id: str, topic: str = "", *, tracks: bool = True) -> Detail:
    """Read one message by its offset id, or with `topic` also by its producer's id.

    With `tracks`, each group of the topic is asked for its progress. Raises QueryNotFound, LocalProtocolError
    for a text that is no id.
    """
    message = await admin.view_message(message_id, topic)
    return Detail(message, view_body(message.body), await admin.message_tracks(message) if tracks else ())


async def find(
    admin: Admin,
    topic: str,
    key: str,
    *,
    most: int = 64,
    since_ms: int = 0,
    until_ms: int | None = None,
    now_ms: int,
) -> Lookup:
    """Find messages by a key, or else by their producer's id; at most `most` of each broker.

    Raises NoRoute.
    """
    until = now_ms + 86_400_000 if until_ms is None else until_ms
    found = await admin.query_message(topic, key, max_messages=most, begin=since_ms, end=until)
    return found if found.messages else await admin.query_unique_key(topic, key, begin=since_ms, end=until)


async def give_to_member(
    admin: Admin, group: str, message_id: str, topic: str = "", member: str = ""
) -> ConsumeMessageDirectlyResult:
    """Let a member of a group (by default the first) consume a stored message now; offsets stay.

    Raises ConsumerNotOnline, QueryNotFound, and SystemFailure when the member is not connected to the
    message's broker. `is_consumed` is true if the member accepted it.
    """
    client_id = member or (await admin.consumer_connection(group)).connection_set[0].client_id
    return await admin.consume_directly(group, client_id, message_id, topic)


def is_consumed(result: ConsumeMessageDirectlyResult) -> bool:
    """True if a member consumed the message that it was given."""
    return result.consume_result in CONSUMED


async def send_again(client: Client, message: StoredMessage, topic: str = "") -> SendResult:
    """Send a copy of a stored message to its topic or another one; it gets an id of its own.

    Body, tags, keys, flag and the application's own properties are the same. Raises as `Producer.send`,
    ConfigError for a message of a system topic without another `topic`.
    """
    goal = topic or message.topic
    if goal in SYSTEM_TOPICS:
        raise ConfigError("topic", goal, "a topic of users to send a copy to")
    own = {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_PROPERTIES and not name.startswith(("DLQ_", "TIMER_", "__"))
    }
    copy = Message(
        goal, message.body, tags=message.tags, keys=message.keys, properties=own, flag=message.flag
    )
    async with client.producer("CLIENT_INNER_PRODUCER") as producer:
        return await producer.send(copy)
