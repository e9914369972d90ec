"""How long the body of each request may be: reading one costs more than its bytes, above all in JSON.

RocketMQ takes any body up to a frame of 16 MiB. A heartbeat of 15 MB stopped everybody for 8 s and needed
1.2 GB here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq.errors import for_code
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import MAX_FRAME, SEND_V2_CODES

KIB: Final = 1024
OTHERS_BYTES: Final = 256 * KIB
"""Of requests that are not named here. 3,000 queues of a lock, 1,000 topics of a subscription."""
SURE_BYTES: Final = 64 * KIB
"""Nobody need ask for a body up to this."""

BODY_BYTES: Final[Mapping[int, int]] = {
    RequestCode.HEART_BEAT: 512 * KIB,
    RequestCode.REGISTER_BROKER: MAX_FRAME,  # all topics of a broker
}
MESSAGES: Final = SEND_V2_CODES | {RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE}
_REMARK_ROOM: Final = 64 * KIB
"""A message that is hardly too long gets the answer that names all its sizes."""


def body_limit(code: int, message_bytes: int) -> int:
    """Bytes of the longest body of a request; `message_bytes` is the longest message (maxMessageSize)."""
    if code in MESSAGES:
        return message_bytes + _REMARK_ROOM
    return BODY_BYTES.get(code, OTHERS_BYTES)


def check_body(code: int, size: int, message_bytes: int) -> None:
    """Raises ResponseError for a body that is too long: MESSAGE_ILLEGAL for messages, else SYSTEM_ERROR."""
    limit = body_limit(code, message_bytes)
    if size > limit:
        refusal = ResponseCode.MESSAGE_ILLEGAL if code in MESSAGES else ResponseCode.SYSTEM_ERROR
        raise for_code(refusal, f"the body of request {code} has {size} bytes, {limit} are the most")
