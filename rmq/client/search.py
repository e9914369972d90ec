"""Search by time: where in a queue a moment is."""

from __future__ import annotations

from typing import Final

from rmq.client.pulling import PullAnswer, PullForm
from rmq.client.session import Session
from rmq.client.subscription import ALL, subscription
from rmq.message import MessageQueue

LOOK_BACK: Final = 16
"""Messages that a search looks at before the one that the broker names."""


async def first_since(session: Session, group: str, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message stored at that time (ms since 1970) or later, or of the queue's end.

    Brokers answer with the message nearest to the time, or any of those stored in that ms: a look at its
    neighbours, pulled by `group`, finds the first. Raises as `PullConsumer.pull`. Cancelled: nothing
    has happened.
    """
    brokers = session.brokers
    if session.routes.reader(queue.broker_name) is None:
        await session.refresh(queue.topic)
    data = subscription(queue.topic, ALL, session.now_ms())
    form = PullForm(group, queue, data, tell_subscription=True, config=session.config)
    at = await brokers.search_offset(queue, timestamp_ms)
    first = max(at - LOOK_BACK, await brokers.min_offset(queue))
    while True:
        answer = await _pull(session, form, first)
        late = [message for message in answer.messages if message.store_timestamp >= timestamp_ms]
        if late and (late[0] is not answer.messages[0] or first <= answer.min_offset):
            return late[0].queue_offset
        if late:
            first = max(first - LOOK_BACK, answer.min_offset)
        elif answer.next_offset <= first:
            return first
        else:
            first = answer.next_offset


async def _pull(session: Session, form: PullForm, queue_offset: int) -> PullAnswer:
    _, address = session.brokers.reader(form.queue)
    request = form.request(queue_offset, 2 * LOOK_BACK, 0, None)
    return form.answer(
        await session.pool.call(address, request, session.brokers.timeout), queue_offset, address
    )
