"""PULL_MESSAGE: the wire's shell over `read.Reader`, which holds the rules of reading.

A pull that finds nothing and may wait becomes a row of `ParkedPulls`. In a set with controllers the answer
names the preferred replica, for clients that read from replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.long_polling import ParkedPull
from rmq.broker.consume.read import MOVED, NOT_FOUND, RETRY, SUCCESS
from rmq.errors import ResponseError
from rmq.protocol.codes import LITE_PULL_MESSAGE, MASTER_ID, PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode
from rmq.protocol.frames import encode_pull_reply_head
from rmq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.consume.long_polling import Found, ParkedRead
    from rmq.broker.consume.read import Reader
    from rmq.broker.role import ReadPreference
    from rmq.broker.state import Tables
    from rmq.protocol.bodies import SubscriptionGroupConfig
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.reader import GetResult


ELSEWHERE_MS: Final = 1_000
"""Longest wait of a pull at a replica that is not its preferred replica."""


class Pull:
    """Handles PULL_MESSAGE, and LITE_PULL_MESSAGE, its name for the lite pull consumers of RocketMQ 5."""

    def __init__(self, settings: Settings, tables: Tables, reader: Reader, *, place: ReadPreference) -> None:
        """`place` says which replica clients pull from."""
        self._settings = settings
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._stats = tables.stats
        self._reader = reader
        self._held_pulls = reader.parked_pulls
        self._place = place
        self._on_waiting: Callable[[ParkedPull], None] | None = None
        """Gets the pulls that wait at this replica, if they should."""

    def handlers(self) -> dict[int, Callable[[Command, Connection, int], Command | None]]:
        """Request codes and their handlers."""
        return {RequestCode.PULL_MESSAGE: self.pull, LITE_PULL_MESSAGE: self.pull}

    def guides(self, language: str) -> bool:
        """True if clients of this language get a preferred replica."""
        return self._place.applies_to(language)

    def preferred(self, queue_id: int) -> int:
        """The broker from which a guided client should pull this queue."""
        return self._place.preferred(queue_id)

    def waiting(self) -> list[ParkedPull]:
        """Parked pulls of guided clients, if they should wait at this replica."""
        place = self._place
        if not place.is_here():
            return []
        held = self._held_pulls.all_pulls()
        return [one for one in held if isinstance(one, ParkedPull) and place.applies_to(one.request.language)]

    def watch_waiting(self, on_waiting: Callable[[ParkedPull], None] | None) -> None:
        """Call `on_waiting` with each pull that a guided client parks at this replica; None: stop the
        calls."""
        self._on_waiting = on_waiting

    def check_preference(self) -> None:
        """Answer the long polls of this replica that another broker should hold now."""
        place = self._place
        if place.has_left():
            self._held_pulls.finish_where(
                lambda one: isinstance(one, ParkedPull) and place.applies_to(one.request.language)
            )

    def pull(self, request: Command, connection: Connection, now: int) -> Command | None:
        """Read messages for a consumer, now or when they arrive. Raises ResponseError for a refusal."""
        header = request.read(PullMessageRequestHeader)
        reader = self._reader
        group, plan = reader.admit(header, connection)
        if header.topic_created_ms is not None and reader.is_of_another_topic(header):
            self._answer_from_present_topic(request, header, connection)
            return None
        result, code = reader.get(header, header.queue_offset, plan, connection)
        waits = code == NOT_FOUND or self._held_pulls.is_silent
        if waits and header.sys_flag & PULL_SUSPEND:
            self._hold(request, header, connection)
        else:
            self._answer(request, header, connection, group, result, code)
        if header.sys_flag & PULL_COMMIT_OFFSET:
            place = header.consumer_group, header.topic, header.queue_id
            self.commit(*place, header.commit_offset, connection)
        return None

    def commit(self, group: str, topic: str, queue_id: int, offset: int, connection: Connection) -> None:
        """Commit the offset that came with a pull; a slave drops it. Raises as `offsets.commit` does."""
        if self._settings.store.broker_role is not BrokerRole.SLAVE:
            self._offsets.commit(group, topic, queue_id, offset, connection.peer_address, connection)

    # ---- reading and answering ----

    def _hold(self, request: Command, header: PullMessageRequestHeader, connection: Connection) -> None:
        config = self._settings.broker
        wait_ms, most = header.suspend_timeout_millis, config.max_suspend_time_mills
        if not config.long_polling_enable:
            wait_ms = config.short_polling_time_mills
        if not 0 <= wait_ms <= most:
            wait_ms = most if wait_ms > most else 0
        place, is_told = self._place, False
        if place.applies_to(request.language):
            is_told = place.is_here()
            wait_ms = wait_ms if is_told else min(wait_ms, ELSEWHERE_MS)
        request.shrink()  # the sender chooses the size of the rest
        held = ParkedPull(
            connection=connection,
            header=header,
            offset=header.queue_offset,
            deadline=self._held_pulls.clock() + wait_ms / 1000,
            on_result=self._resumed,
            holders=self._settings.holders_of(connection),
            request=request,
        )
        self._reader.hold(held)
        if is_told and self._on_waiting is not None:
            self._on_waiting(held)

    def _answer_from_present_topic(
        self, request: Command, header: PullMessageRequestHeader, connection: Connection
    ) -> None:
        """Answer a pull whose offset belongs to another topic: with the offset to go on at, and the present
        topic's creation. A slave may be behind: it sends the client to the master. What the pull commits is
        dropped."""
        found = self._reader.position_in_present_topic(header)
        is_slave = self._settings.store.broker_role is BrokerRole.SLAVE
        topic = self._topics.get(header.topic)
        created_ms = None if is_slave or topic is None else topic.created_ms
        offsets = found.next_queue_offset, found.min_offset, found.max_offset
        answer = PullMessageResponseHeader(MASTER_ID, *offsets, created_ms)
        self._stats.miss()
        connection.reply(request.reply(RETRY if is_slave else MOVED, found.status, answer))

    def _resumed(self, held: ParkedRead, found: Found | ResponseError) -> None:
        assert isinstance(held, ParkedPull)
        request, connection = held.request, held.connection
        if isinstance(found, ResponseError):
            connection.reply(request.reply(found.code, found.remark))
        else:
            self._answer(request, held.header, connection, *found)

    def _answer(
        self,
        request: Command,
        header: PullMessageRequestHeader,
        connection: Connection,
        group: SubscriptionGroupConfig,
        result: GetResult,
        code: int,
    ) -> None:
        suggested = MASTER_ID
        if self._settings.broker.slave_read_enable:
            suggested = group.which_broker_when_consume_slowly if result.suggests_slave else group.broker_id
        place = self._place
        if place.applies_to(request.language):
            suggested = place.preferred(header.queue_id)
        if code == MOVED:
            code = self._reader.correct(header, result)
        offsets = (suggested, result.next_queue_offset, result.min_offset, result.max_offset)
        size = result.size if code == SUCCESS else 0
        head = encode_pull_reply_head(request, code, result.status, offsets, size)
        if not size:
            self._stats.miss()
            connection.write(head)
            return
        connection.write([head, *result.buffers])
        self._reader.handed_out(header, result.count, result.size, connection)
