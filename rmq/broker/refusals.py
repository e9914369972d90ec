"""The answers to requests that failed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rmq.broker.flow_control import not_written
from rmq.errors import RemoteProtocolError, ResponseError, StoreError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import check_body

if TYPE_CHECKING:
    from collections.abc import Container

    from rmq.plugin import Hooks
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

log = logging.getLogger("rmq.broker")


def unsupported(request: Command) -> ResponseError:
    """The answer to a code that nobody handles."""
    return for_code(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")


def error_response(request: Command, error: Exception) -> Command:
    """The answer to a request that failed. What nobody expected is logged with its traceback."""
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
    """The refusal of a request of which only the header is here: too long, not handled, from nobody."""
    try:
        if head.code not in handled:
            raise unsupported(head)
        check_body(head.code, body_bytes, message_bytes)
        hooks.foresee(connection, head)
    except Exception as error:
        return error_response(head, error)
    return None
