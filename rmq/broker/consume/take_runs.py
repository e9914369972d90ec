"""TakeRuns: consecutive plain pops and acknowledgements of batches, with the compiled engine.

`per_message` defines the rules. A lane of the engine stands for a header that a consumer repeats, with the
facts on which its pop is plain: no filter, no order. The settings are not compared: a change of them closes
all lanes. A plain pop gets new messages of a single queue, as many as it may get. Any other pop, and an
acknowledgement of messages without their lease, is left to the handlers in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.consume.per_message.handles import lease_length
from rmq.broker.consume.per_message.queue_delivery import Batch
from rmq.errors import RemoteProtocolError, ResponseError
from rmq.protocol.codes import BATCH_ACK_MESSAGE, POP_MESSAGE
from rmq.protocol.command import Command
from rmq.protocol.frames import encode_pop_reply_head
from rmq.protocol.header_json import read_json
from rmq.protocol.pop import read_acks
from rmq.remoting.limits import TURN_SECONDS
from rmq.store.reader import SMALL_BYTES

if TYPE_CHECKING:
    from types import ModuleType

    from attrs import define

    from rmq.broker.config import Settings
    from rmq.broker.consume.per_message.queue_delivery import TopicDelivery
    from rmq.broker.consume.readers import Readers
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.doors import TakeRequest
    from rmq.protocol._engine import TakeLanes, TakeRun
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store
else:
    from rmq.lazy_attrs import define

ACKS: Final = "acknowledgements"
"""The lane of all headers of acknowledgements."""
LANES_MAX: Final = 5_000
TRIED_MAX: Final = 1_000
AGAIN_SECONDS: Final = 1.0
"""Time until a lane that could not be opened is tried again."""


@define(eq=False)
class TakeLane:
    """A pop that a consumer repeats, and the rows on which it is plain."""

    key: bytes
    take: TakeRequest
    topic: TopicDelivery
    group_row: SubscriptionGroupConfig
    topic_row: TopicConfig


def make_take_lanes(compiled: ModuleType) -> TakeLanes:
    """Lanes of the compiled engine, none of them open."""
    lanes: TakeLanes = compiled.TakeLanes(_head_parts(), SMALL_BYTES)
    return lanes


def _head_parts() -> tuple[bytes, ...]:
    """The constant parts of an answer's head, around its numbers."""
    numbers = taken, lasts, queue_id, start, again, offset, opaque = 1111, 2222, 3333, 4444, 5555, 6666, 7777
    texts = f"0 {queue_id} {start}", f"0 {again} {offset}"
    left = encode_pop_reply_head(opaque, (taken, lasts), *texts, "", 0)[8:]
    parts = []
    for number in numbers:
        part, left = left.split(str(number).encode())
        parts.append(part)
    return (*parts, left)


class TakeRuns:
    """Answers runs of takes. `clock` is in seconds, `now_ms` is the wall time."""

    def __init__(
        self,
        lanes: TakeLanes,
        settings: Settings,
        store: Store,
        tables: Tables,
        readers: Readers,
        *,
        role: Role,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.lanes = lanes
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._reader, self._deliveries, self._pops = readers.reader, readers.deliveries, readers.pop_requests
        self._role = role
        self._clock = clock
        self._now_ms = now_ms
        self._tried: dict[bytes, float] = {}

    def answer(self, run: TakeRun, connection: Connection) -> int:
        """Answer requests of a run, from the first on, for one turn; return how many. Acknowledgements are
        answered after the commit that follows."""
        if run.generation != self.lanes.generation:  # all lanes were closed since the bytes came
            return 0
        done = 0
        began = now = self._clock()
        for lane, opaque, body in run.rows:
            if done and (now := self._clock()) - began > TURN_SECONDS:
                break
            try:
                if lane is ACKS:
                    is_done = self._pops.acknowledge_leases(opaque, connection, read_acks(body))
                else:
                    is_done = self._take(lane, opaque, connection, now)
            except (ResponseError, RemoteProtocolError):  # the slower path raises the same, and answers it
                break
            if not is_done:
                break
            done += 1
        return done

    def _take(self, lane: TakeLane, opaque: int, connection: Connection, now: float) -> bool:
        """Answer a pop; False without any effect if the slower path must do it."""
        deliveries, take, topic = self._deliveries, lane.take, lane.topic
        if (
            self._groups.table.get(topic.group) is not lane.group_row
            or self._topics.table.get(topic.topic) is not lane.topic_row
            or not topic.is_refusing_pulls
            or deliveries.topic_of(topic.group, topic.topic) is not topic
        ):
            self.lanes.remove(lane.key)
            return False
        reach = self._role.high_watermark()
        if (
            connection.is_busy
            or self._role.refuses_locks()
            or self._role.refusal()
            or deliveries.polls.is_silent
            or (reach is not None and reach < self._store.max_physical_offset)
        ):
            return False
        queue_id, count = take.queue_id, lane.topic_row.read_queue_nums
        if queue_id < 0 < count:
            queue_id = (topic.turn + 1) % count
        queue = topic.queues.get(queue_id)
        if queue is None or not queue.has_new_only:
            return False
        most = min(take.max_msg_nums, self._settings.store.max_transfer_count_on_message_in_memory)
        if deliveries.room(topic, connection) <= most:
            return False
        now_ms = self._now_ms()
        taken_ms = max(now_ms, topic.taken_ms)
        lasts_ms = lease_length(taken_ms, now_ms, take.invisible_ms)
        start, key = queue.cursor, (topic.topic, queue.queue_id)
        try:
            found = self._store.answer_take(self.lanes, key, start, most, (taken_ms, lasts_ms, opaque))
        except MemoryError:
            raise
        except Exception:  # the slower path meets the same error, and answers it
            return False
        if found is None:
            return False
        if take.queue_id < 0:
            topic.turn = queue_id
        topic.used_at, topic.has_more, topic.is_at_limit = now, False, False
        size, buffers = found
        until = now + take.invisible_ms / 1000
        batch = Batch(queue, start, (1 << most) - 1, 1, taken_ms, until, connection, start)
        queue.cursor = start + most
        deliveries.leases.took_new(batch, most)
        self._reader.handed_out(take, most, size, connection)
        connection.write(buffers)
        return True

    def open_lanes(self, connection: Connection) -> None:
        """Open lanes for headers without one, if these requests are plain."""
        now, tried = self._clock(), self._tried
        for key in self.lanes.take_wanted():
            if tried.get(key, now) <= now and not self._open(key, connection):
                if len(tried) >= TRIED_MAX:
                    tried.clear()
                tried[key] = now + AGAIN_SECONDS

    def _open(self, key: bytes, connection: Connection) -> bool:
        """Open a lane; False if its requests are refused, or are not plain."""
        if len(self.lanes) >= LANES_MAX:
            self.lanes.clear()
        try:
            request = read_json(key.replace(b'"opaque":0', b'"opaque":7'))
            if request.opaque != 7 or request.flag:
                return False
            if request.code == BATCH_ACK_MESSAGE:
                self.lanes.add(key, ACKS)
                return True
            if request.code != POP_MESSAGE:  # of a header with two codes the last one counts
                return False
            lane = self._lane_of(key, request, connection)
        except (RemoteProtocolError, ResponseError):
            return False
        if lane is None:
            return False
        self.lanes.add(key, lane)
        return True

    def _lane_of(self, key: bytes, request: Command, connection: Connection) -> TakeLane | None:
        """The lane of a pop; None if it is not plain. Raises ResponseError, RemoteProtocolError."""
        take, _ = self._pops.read_pop(request)
        if take.consumer_group not in self._groups.table:  # a look at it would make the group
            return None
        plan = self._reader.admit_take(take, connection)
        topic = self._deliveries.topic_of(take.consumer_group, take.topic)
        is_ordered = take.in_order or self._deliveries.is_ordered(take.consumer_group)
        is_filtered = plan.matches is not None or plan.matches_record is not None
        group_row, topic_row = self._groups.table.get(take.consumer_group), self._topics.get(take.topic)
        if topic is None or is_ordered or is_filtered or group_row is None or topic_row is None:
            return None
        return TakeLane(key, take, topic, group_row, topic_row)
