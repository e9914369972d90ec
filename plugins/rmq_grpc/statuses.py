"""Statuses of `apache.rocketmq.v2`: the code and the text of each response."""

from __future__ import annotations

from typing import Any, Final

from rmq.errors import AccessDenied, InvalidMessage, InvalidName, RequestTimeout, ResponseError, RmqError
from rmq.protocol.codes import ResponseCode
from rmq_grpc import schema

Status: Final = schema.message("Status")
Code: Final = schema.enum("Code")

_OF_RESPONSE: Final = {
    ResponseCode.SYSTEM_BUSY: "TOO_MANY_REQUESTS",
    ResponseCode.FLUSH_DISK_TIMEOUT: "MASTER_PERSISTENCE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "HA_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "SLAVE_PERSISTENCE_TIMEOUT",
    ResponseCode.MESSAGE_ILLEGAL: "BAD_REQUEST",
    ResponseCode.NO_PERMISSION: "FORBIDDEN",
    ResponseCode.TOPIC_NOT_EXIST: "TOPIC_NOT_FOUND",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "CONSUMER_GROUP_NOT_FOUND",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "ILLEGAL_FILTER_EXPRESSION",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "NOT_IMPLEMENTED",
}


_NO_HANDLE: Final = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)


class Refused(Exception):
    """A refusal of a request with a status: the word of its code, and a readable text."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(f"{word}: {text}")
        self.word = word
        self.text = text


def status(word: str = "OK", text: str = "") -> Any:
    """The Status of a code by its word."""
    return Status(code=Code[word], message=text or word)


def of_error(error: Exception) -> Any:
    """The Status for an error of a request."""
    if isinstance(error, Refused):
        return status(error.word, error.text)
    if isinstance(error, AccessDenied):
        return status("UNAUTHORIZED", error.remark or str(error))
    if isinstance(error, ResponseError):
        try:
            word = _OF_RESPONSE.get(ResponseCode(error.code), "INTERNAL_SERVER_ERROR")
        except ValueError:
            word = "INTERNAL_SERVER_ERROR"
        return status(word, error.remark or str(error))
    if isinstance(error, RequestTimeout):
        return status("PROXY_TIMEOUT", str(error))
    if isinstance(error, (InvalidMessage, InvalidName)):
        return status("BAD_REQUEST", str(error))
    return status("INTERNAL_SERVER_ERROR", f"{type(error).__name__}: {error}")


def of_handle(error: Exception | None) -> Any:
    """The Status of a handle that was acknowledged, extended or forwarded."""
    if error is None:
        return status()
    if isinstance(error, ResponseError) and error.code in _NO_HANDLE:
        return status("INVALID_RECEIPT_HANDLE", error.remark or "the handle is not valid any more")
    return of_error(error)


def conclude(answer: Any) -> None:
    """Set the status of an answer from the statuses of its entries."""
    codes = {entry.status.code for entry in answer.entries}
    if len(codes) > 1:
        answer.status.CopyFrom(status("MULTIPLE_RESULTS"))
    else:
        answer.status.CopyFrom(status() if codes == {Code["OK"]} else answer.entries[0].status)


EXPECTED: Final = (Refused, RmqError)
"""Errors of a request that have a status; any other error is a bug and is logged."""
