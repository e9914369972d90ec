"""Results of sends, as producers return them and observers see them."""

from __future__ import annotations

from attrs import define

from rmq.message import (
    MessageQueue,
)


@define
class SendResult:
    """A message is stored.

    `status` is SEND_OK, or says that a promise beyond storing was not kept in time: FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE. `message_id` is the producer's unique id, `offset_message_id`
    names the place; of a batch both are the ids of all its messages, joined by commas, and `queue_offset`
    is the first one's.
    """

    status: str
    message_queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    recall_handle: str | None = None
    """Takes a message back that waits for its delivery time; see `Producer.recall`."""
    parts: tuple[SendResult, ...] = ()
    """Of a batch that took several requests: their results. The other fields are then the first one's, but
    for the ids."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique id of each message of a batch."""
        return tuple(self.message_id.split(","))
