"""Results of sends, as producers return them and observers see them."""

from __future__ import annotations

from attrs import define

from rmq.message import (
    MessageQueue,
)


@define
class SendResult:
    """Result of a send: the message is stored.

    `status` is SEND_OK, or names the promise beyond storing that was not kept in time: FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE. `message_id` is the producer's unique id, `offset_message_id`
    names the place; of a batch both are the ids of all its messages, joined by commas, and `queue_offset` is
    the first message's.
    """

    status: str
    message_queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    recall_handle: str | None = None
    """The handle that takes back a message that waits for its delivery time; see `Producer.recall`."""
    parts: tuple[SendResult, ...] = ()
    """Results of the requests of a batch, if there are several. The other fields, except the ids, are the
    first result's."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        """The unique id of each message of a batch."""
        return tuple(self.message_id.split(","))
