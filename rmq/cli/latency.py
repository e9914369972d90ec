"""How long sends take: one timed send, and percentiles over many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.client.producer import Producer
    from rmq.message import Message, MessageQueue


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the sorted `values` lie; 0.0 when there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def timed_send(
    producer: Producer, message: Message, queue: MessageQueue | None
) -> tuple[float, RmqError | None]:
    """Sends a message, to `queue` or to the one whose turn it is: the ms that it took, and the error when the
    broker did not take it."""
    began = time.perf_counter()
    try:
        await producer.send(message, queue=queue)
    except RmqError as error:
        return (time.perf_counter() - began) * 1000, error
    return (time.perf_counter() - began) * 1000, None
