"""Conditions: the names of errors in AMQP, and the names for refusals of the broker."""

from __future__ import annotations

from typing import Final

from rmq.errors import AccessDenied, InvalidMessage, InvalidName, ResponseError, RmqError
from rmq.protocol.codes import ResponseCode
from rmq_amqp.values import Malformed

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
LOCKED: Final = "amqp:resource-locked"
DELETED: Final = "amqp:resource-deleted"
FRAME_TOO_SMALL: Final = "amqp:frame-size-too-small"
FORCED: Final = "amqp:connection:forced"
REDIRECT: Final = "amqp:connection:redirect"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
TOO_LONG: Final = "amqp:link:message-size-exceeded"
LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
TX_UNKNOWN: Final = "amqp:transaction:unknown-id"
TX_ROLLBACK: Final = "amqp:transaction:rollback"

_OF_RESPONSE: Final = {
    ResponseCode.SYSTEM_BUSY: RESOURCE_LIMIT,
    ResponseCode.MESSAGE_ILLEGAL: PRECONDITION_FAILED,
    ResponseCode.NO_PERMISSION: UNAUTHORIZED,
    ResponseCode.TOPIC_NOT_EXIST: NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: INVALID_FIELD,
    ResponseCode.SERVICE_NOT_AVAILABLE: FORCED,
}


class Refused(Exception):
    """A refusal with a condition and a readable description."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(f"{condition}: {text}")
        self.condition = condition
        self.text = text


EXPECTED: Final = (Refused, RmqError, Malformed, UnicodeDecodeError)
"""Errors that have a condition; any other error is a bug and is logged."""


def of_error(error: Exception) -> tuple[str, str]:
    """The condition and the description of an error."""
    if isinstance(error, Refused):
        return error.condition, error.text
    if isinstance(error, Malformed):
        return DECODE_ERROR, str(error)
    if isinstance(error, UnicodeDecodeError):
        return DECODE_ERROR, f"a text is not UTF-8: {error}"
    if isinstance(error, AccessDenied):
        return UNAUTHORIZED, error.remark or str(error)
    if isinstance(error, ResponseError):
        try:
            condition = _OF_RESPONSE.get(ResponseCode(error.code), INTERNAL_ERROR)
        except ValueError:
            condition = INTERNAL_ERROR
        return condition, error.remark or str(error)
    if isinstance(error, (InvalidMessage, InvalidName)):
        return INVALID_FIELD, str(error)
    return INTERNAL_ERROR, f"{type(error).__name__}: {error}"
