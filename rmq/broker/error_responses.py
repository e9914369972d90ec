"""Error responses: codes and remarks of requests that fail or are refused."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rmq.errors import DiskFull, RemoteProtocolError, ResponseError, StoreError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import check_body

if TYPE_CHECKING:
    from collections.abc import Container

    from rmq.plugin import Hooks
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection


SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

log = logging.getLogger("rmq.broker")


Refusal = tuple[int, str]
"""Response code and remark."""


def unavailable(reason: str) -> Refusal:
    """The refusal after which a producer tries another broker."""
    return int(ResponseCode.SERVICE_NOT_AVAILABLE), f"service not available now: {reason}"


def not_written(error: StoreError) -> Refusal:
    """The response to the senders of a failed write."""
    return unavailable(f"the disk is full: {error}" if isinstance(error, DiskFull) else str(error))


def topic_not_saved(error: StoreError) -> Refusal:
    """The response to senders of a stored message in a topic that may be lost at the next start."""
    return SYSTEM_ERROR, f"the message is written, but its topic cannot be saved: {error}"


def check_room(properties: str, most: int, what: str) -> None:
    """Raise ResponseError if a message of a kind has more bytes of properties than `most`."""
    size = len(properties.encode())
    if size > most:
        raise for_code(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: the properties have {size} bytes. "
            f"properties length limit of a {what} {most}B.",
        )


def unsupported(request: Command) -> ResponseError:
    """The response to an unknown request code."""
    return for_code(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")


def error_response(request: Command, error: Exception) -> Command:
    """The response to a failed request. An unexpected error is logged with its traceback."""
    if isinstance(error, ResponseError):
        return request.reply(error.code, error.remark)
    if isinstance(error, StoreError):
        return request.reply(*not_written(error))
    if isinstance(error, RemoteProtocolError):
        return request.reply(SYSTEM_ERROR, str(error))
    log.error("request %r failed: %s", request, error, exc_info=error)
    return request.reply(SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def large_body_refusal(
    head: Command,
    body_bytes: int,
    connection: Connection,
    handled: Container[int],
    message_bytes: int,
    hooks: Hooks,
) -> Command | None:
    """The refusal of a request by its header alone: too long, unknown code, or without admission."""
    try:
        if head.code not in handled:
            raise unsupported(head)
        check_body(head.code, body_bytes, message_bytes)
        hooks.foresee(connection, head)
    except Exception as error:
        return error_response(head, error)
    return None
