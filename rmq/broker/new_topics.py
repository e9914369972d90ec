"""Topics that a send has made: their first senders are answered when topics.json has them.

Else a broker that is killed would keep acknowledged messages in topics that it does not know. Saving takes
several syncs, so it is done beside the loop; who sends to other topics is not held up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field

from rmq.broker.refusals import not_written
from rmq.broker.tables import drain
from rmq.errors import StoreError
from rmq.message import dlq_topic, retry_topic
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.store.store import Batch

if TYPE_CHECKING:
    from rmq.broker.acks import Ack
    from rmq.broker.parking import Parking
    from rmq.broker.tables import TableFiles
    from rmq.broker.topics import Topics
    from rmq.broker.waits import Waits
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection

NAME = "topics"


@define(eq=False)
class Senders:
    """Those of one chunk who get an answer: they wait for the disk and slaves, or do not, or sent back."""

    connection: Connection
    waiting: list[Ack] = field(factory=list)
    at_once: list[Ack] = field(factory=list)
    returned: list[Command] = field(factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.at_once) + len(self.returned)


class NewTopics:
    """Holds the first senders to new topics. `wanted()` is called when topics are to be saved; it saves them
    itself unless a service puts something there that does so beside its loop.
    """

    def __init__(self, topics: Topics, files: TableFiles, parking: Parking, waits: Waits) -> None:
        self.wanted: Callable[[], None] = self.save_now
        self.answered: Callable[[], None] = lambda: None
        self._topics = topics
        self._files = files
        self._parking = parking
        self._waits = waits
        self._held: list[Senders] = []

    def answer(self, senders: Senders) -> None:
        """These messages are written: answer their senders, now or when their topics are saved."""
        if self._topics.unsaved:
            senders = self._hold(senders)
        self._answer(senders)

    def save_now(self) -> None:
        """Save the topics here, whoever waits meanwhile."""
        made = self._topics.made
        try:
            drain(self._files.saving(NAME))()
        except StoreError as error:
            self.not_saved(error)
        else:
            self._topics.saved(made)
            self.saved()

    def saved(self) -> None:
        """Topics have been saved: answer those who waited for that."""
        held, self._held, self._waits.for_topics = self._held, [], 0
        for senders in held:
            self.answer(senders)
        if held:
            self.answered()

    def not_saved(self, error: StoreError) -> None:
        """Topics cannot be saved: nobody who waited for that is told success."""
        held, self._held, self._waits.for_topics = self._held, [], 0
        code, remark = not_written(error)
        for senders in held:
            requests = [request for request, _, _ in senders.waiting + senders.at_once]
            for request in requests + senders.returned:
                senders.connection.reply(request.reply(code, remark))

    def _hold(self, senders: Senders) -> Senders:
        """Keep those who wait for a topic; returns the others."""
        held, free = Senders(senders.connection), Senders(senders.connection)
        for ack in senders.waiting:
            (held if self._is_new(ack) else free).waiting.append(ack)
        for ack in senders.at_once:
            (held if self._is_new(ack) else free).at_once.append(ack)
        for request in senders.returned:
            (held if self._is_returned_to_new(request) else free).returned.append(request)
        if held:
            self._held.append(held)
            self._waits.for_topics += len(held)
        return free

    def _is_new(self, ack: Ack) -> bool:
        """Whether one of the topics of a send is not saved: the one it was sent to, or where it lies."""
        request, _, records = ack
        unsaved = self._topics.unsaved
        if not isinstance(records, Batch) and any(record.topic in unsaved for record in records):
            return True
        named = getattr(request.header, "topic", None) or request.ext.get("topic") or request.ext.get("b")
        return named is None or named in unsaved

    def _is_returned_to_new(self, request: Command) -> bool:
        group = request.read(ConsumerSendMsgBackRequestHeader).group
        return retry_topic(group) in self._topics.unsaved or dlq_topic(group) in self._topics.unsaved

    def _answer(self, senders: Senders) -> None:
        self._parking.answer(senders.connection, senders.waiting, senders.at_once)
        for request in senders.returned:
            senders.connection.reply(request.reply())
