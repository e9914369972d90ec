"""The JSON of a heartbeat, read in one pass where it has the form that clients give it.

Any other text goes to the lenient reader of `HeartbeatData`: nulls, numbers as texts, ordinals of enums,
unknown fields, malformed UTF-8. Both readers return the same for a text that both can read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from rmq.protocol.bodies import (
    HEARTBEAT_VALUES,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """An object of a heartbeat."""


class _Subscription(_Part):
    topic: str = ""
    sub_string: str = ""
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[_Int32] = frozenset()
    sub_version: _Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class _Producer(_Part):
    group_name: str = ""


class _Consumer(_Part):
    group_name: str = ""
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[_Subscription] = []
    unit_mode: bool = False


class _Heartbeat(_Part):
    client_id: str = msgspec.field(default="", name="clientID")
    producer_data_set: list[_Producer] = []
    consumer_data_set: list[_Consumer] = []
    heartbeat_fingerprint: _Int32 = 0
    """This field and the next are RocketMQ 5.x's and ignored, as 4.9 ignores them."""
    without_sub: bool = False


_decode: Final[Callable[[bytes], _Heartbeat]] = msgspec.json.Decoder(_Heartbeat).decode
_MISFIT: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_heartbeat(body: bytes) -> HeartbeatData:
    """Read a heartbeat; raises RemoteProtocolError as `HeartbeatData.from_request`."""
    if len(body) > HEARTBEAT_VALUES:  # it may have too many values: they are counted first
        return _read_leniently(body)
    try:
        beat = _decode(body)
    except _MISFIT:
        return _read_leniently(body)
    producers = [ProducerData(producer.group_name) for producer in beat.producer_data_set]
    return HeartbeatData(beat.client_id, producers, [_consumer(one) for one in beat.consumer_data_set])


def _read_leniently(body: bytes) -> HeartbeatData:
    return HeartbeatData.from_request(body, most=HEARTBEAT_VALUES)


def _consumer(data: _Consumer) -> ConsumerData:
    return ConsumerData(
        data.group_name,
        data.consume_type,
        data.message_model,
        data.consume_from_where,
        [
            SubscriptionData(
                one.topic,
                one.sub_string,
                one.tags_set,
                one.code_set,
                one.sub_version,
                one.expression_type,
                one.class_filter_mode,
            )
            for one in data.subscription_data_set
        ],
        data.unit_mode,
    )
