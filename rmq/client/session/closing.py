"""The end of a client's producers and consumers: none is left open because another one fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rmq.remoting.loop import AsyncResource

log = logging.getLogger("rmq.client.closing")


async def close_all(opened: Iterable[AsyncResource], error: BaseException | None) -> None:
    """Close objects one after another. `error` is the error of the block that ends, if any.

    Raises the first failure when all are closed; further failures, and all of a block that has an error, are
    logged. Cancelled: all are closed all the same.
    """
    failure: BaseException | None = None
    for one in opened:
        try:
            await one.aclose()
        except BaseException as raised:
            is_first = failure is None and error is None
            if isinstance(raised, Exception) and not is_first:
                log.error("%r failed while it was closed", one, exc_info=raised)
            else:
                failure = raised
    if failure is not None:
        raise failure
