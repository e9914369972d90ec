"""PullRuns: consecutive plain pulls, answered in one pass of the compiled engine.

`read.Reader` and `pull.Pull` define the rules of a pull. A lane of the engine holds the result of
`Reader.admit` for a group, a queue and an expression, with the values on which the result depends; the engine
compares these values at each pull. The settings and the refusals of a group's pulls are not compared: a
change of either closes all lanes. The engine answers pulls that find messages; it stops before any other
pull, and its caller handles the rest of the run as single requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.error_responses import error_response
from rmq.broker.filtering.subscription import is_tag_type
from rmq.errors import ResponseError
from rmq.protocol.codes import PULL_SUBSCRIPTION
from rmq.protocol.command import Command
from rmq.protocol.frames import encode_pull_reply_head
from rmq.protocol.headers import PullMessageRequestHeader
from rmq.remoting.limits import TURN_SECONDS
from rmq.store.reader import FOUND, SCAN_UNITS, SMALL_BYTES, readable_end

if TYPE_CHECKING:
    from types import ModuleType

    from rmq.broker.config import Settings
    from rmq.broker.consume.readers import Readers
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.protocol._engine import PullLanes, PullRun
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store

LANES_MAX: Final = 20_000
TRIED_MAX: Final = 1_000
AGAIN_SECONDS: Final = 1.0
"""Time until a lane that could not be opened is tried again."""


def make_pull_lanes(compiled: ModuleType) -> PullLanes:
    """Lanes of the compiled engine, none of them open."""
    lanes: PullLanes = compiled.PullLanes(_head_parts(), readable_end, SCAN_UNITS, SMALL_BYTES)
    return lanes


def _head_parts() -> tuple[bytes, ...]:
    """The constant parts of an answer's head, around its numbers."""
    suggested, end, following, start, opaque = 1111, 2222, 3333, 4444, 5555
    request = Command(0, opaque)
    left = encode_pull_reply_head(request, 0, FOUND, (suggested, following, start, end), 0)[8:]
    parts = []
    for number in (suggested, end, following, start, opaque):
        part, left = left.split(str(number).encode())
        parts.append(part)
    return (*parts, left)


class PullRuns:
    """Answers runs of pulls. `respond(request, response, connection)` sends the response of a refused commit;
    `clock` is in seconds."""

    def __init__(
        self,
        lanes: PullLanes,
        settings: Settings,
        store: Store,
        tables: Tables,
        readers: Readers,
        *,
        role: Role,
        respond: Callable[[Command, Command, Connection], None],
        clock: Callable[[], float],
    ) -> None:
        self.lanes = lanes
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._stats = tables.stats
        self._reader, self._pull = readers.reader, readers.pull
        self._role = role
        self._respond = respond
        self._clock = clock
        self._refusals = self._reader.refusals
        self._tried: dict[tuple[str, str, int, str | None], float] = {}

    def answer(self, run: PullRun, connection: Connection) -> int:
        """Answer pulls of a run, from the first on, for one turn; return the number of answered pulls."""
        reader, limits = self._reader, self._settings.store
        if reader.refusals != self._refusals:
            self._refusals = reader.refusals
            self.lanes.clear()
        if reader.parked_pulls.is_silent or self._pull.guides(run.language):
            return 0
        tables = self._groups.table, self._topics.table, self._clients.consumer_group, reader.unconfirmed
        most = limits.max_transfer_count_on_message_in_memory, limits.max_transfer_bytes_on_message_in_memory
        done, clock = 0, self._clock
        turn_began = now = clock()
        while done < run.count and not connection.is_busy and now - turn_began <= TURN_SECONDS:
            began = now
            reach = self._role.high_watermark()
            stop, buffers = self._store.answer_pulls(self.lanes, run, done, tables, most, reach)
            if stop == done:
                break
            connection.write(buffers)
            now = clock()
            self._stats.read((now - began) * 1000)
            for group, topic, calls, count, size in self.lanes.take_counts():
                self._stats.get(group, topic, count, size, calls)
            if run.commits:
                self._commit(run, done, stop, connection)
            done = stop
        return done

    def _commit(self, run: PullRun, first: int, stop: int, connection: Connection) -> None:
        """Commit the offsets that came with these pulls."""
        for number, group, topic, queue_id, offset in run.committed(first, stop):
            try:
                self._pull.commit(group, topic, queue_id, offset, connection)
            except Exception as error:
                request = run.commands(number)[0]
                self._respond(request, error_response(request, error), connection)

    def open_lanes(self, connection: Connection) -> None:
        """Open the missing lanes of a connection's pulls, if these pulls are plain."""
        now, tried = self._clock(), self._tried
        for wanted in self.lanes.take_wanted():
            if tried.get(wanted, now) <= now and not self._open(*wanted, connection):
                if len(tried) >= TRIED_MAX:
                    tried.clear()
                tried[wanted] = now + AGAIN_SECONDS

    def _open(
        self, group: str, topic: str, queue_id: int, expression: str | None, connection: Connection
    ) -> bool:
        """Open a lane; False if its pulls are refused, are not plain, or find no queue yet."""
        row, queue = self._topics.table.get(topic), self._store.lane(topic, queue_id)
        if (
            row is None or queue is None or group not in self._groups.table
        ):  # a look at it would make the group
            return False
        flags = 0 if expression is None else PULL_SUBSCRIPTION
        header = PullMessageRequestHeader(group, topic, queue_id, 0, 0, flags, 0, 0, expression)
        try:
            config, plan = self._reader.admit(header, connection)
        except ResponseError:
            return False
        announced, model = None, None
        if expression is None:
            members = self._clients.consumer_group(group)
            announced = None if members is None else members.subscriptions.get(topic)
            if members is None or announced is not plan.subscription:
                return False
            model = members.message_model
        if (
            self._groups.table.get(group) is not config
            or self._topics.table.get(topic) is not row
            or plan.filter is not None
            or plan.matches_record is not None
            or not is_tag_type(plan.subscription.expression_type)
        ):
            return False
        if len(self.lanes) >= LANES_MAX:
            self.lanes.clear()
        codes = None if plan.matches is None else plan.subscription.code_set
        version = plan.subscription.sub_version
        key = topic, queue_id
        self.lanes.add(queue, key, group, config, row, expression, announced, model, version, codes)
        return True
