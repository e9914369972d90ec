"""Replica state: the identity of a broker's log, and on a slave the state of the copying.

`config/replication.json` belongs to rmq; RocketMQ ignores the file. A log gets an id when the first slave of
rmq connects; slaves inherit the id with the log.

With the log a master sends its slaves the progress of delayed messages, any-time messages and transactions,
behind the records to which the progress applies. So a slave that becomes master delivers every due message
from its end of the log, neither twice nor never. RocketMQ's slaves copy such offsets separately, so that
their offsets may be ahead of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.replication.sessions import MasterLog
from rmq.errors import RemoteProtocolError, StoreError
from rmq.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from rmq.protocol import json
from rmq.protocol.codes import RequestCode
from rmq.store.config import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from rmq.broker.role import Role
    from rmq.protocol.auth.server_auth import ServerAuth
    from rmq.protocol.command import Command
    from rmq.store.store import Store

    Handler = Callable[[Command, Any, int], Command | None]
    from rmq.broker.delay.delay_levels import Schedule
    from rmq.broker.delay.timers import Timers
    from rmq.broker.tables.offsets import Offsets


LOG_ID_FIELD: Final = "rmqLogId"
"""Header field of the answers that slaves copy: whose tables they are. RocketMQ does not look at it."""
SLAVE_FIELD: Final = "rmqSlave"
"""Header field of a slave's requests for tables: its broker id, and its end of the link on which it copies
the log, where nothing says whose it is. RocketMQ does not look at it."""
SLAVES_KNOWN: Final = 64
FILE: Final = "replication"
TABLE_CODES: Final = frozenset(
    (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
    )
)
"""The requests for what a slave copies beside the log."""


SLAVE_CODES: Final = TABLE_CODES | {RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.VIEW_MESSAGE_BY_ID}
"""The requests of a slave to its master."""


def of_our_slave(auth: ServerAuth | None, request: Command) -> bool:
    """True if a server of this cluster requests a table that slaves copy; such a request needs no account."""
    return auth is not None and request.code in SLAVE_CODES and auth.accepts(request)


class ReplicaState:
    """The state of `store`'s log. `address` is where this broker answers requests; `chance` makes ids.

    `log_id` is empty for a log without an id. `leader` is the id of the master that wrote the log last, made
    when that broker became master; `is_leader`: this broker is that master. `acknowledged`, on a slave: the
    offset up to which that master may have acknowledged messages, None when that may be all of our log.
    `is_following`: this slave has a link to its master. `stopped`: why it has no link, and why an operator
    must act.
    """

    def __init__(
        self,
        store: Store,
        *,
        address: str,
        chance: Random,
        take_progress: Callable[[Mapping[str, Any]], None],
        role: Role,
    ) -> None:
        self.log_id = ""
        self.leader = ""
        self.is_leader = False
        self.acknowledged: int | None = None
        self.copies = False
        """True if this broker was a slave when it ran last, of any master."""
        self._is_changed = False
        self._confirmed = 0  # as it was saved, or known before the log was set aside
        self.is_following = False
        self.slave_ids: dict[str, str] = {}
        """A master's: the broker ids of slaves of ours by their ends of the links."""
        self.stopped = ""
        self._role = role
        self._take_progress = take_progress
        self._store = store
        self._address = address
        self._chance = chance

    def load(self, data: bytes | None) -> None:
        """Take the text of replication.json, None when there is none. Raises RemoteProtocolError."""
        if data is None:
            return
        table = json.loads(data)
        try:
            self.log_id, self.leader = str(table["logId"]), str(table["leader"])
            self.is_leader = bool(table["leads"])
            known = table["acknowledged"]
            self.acknowledged = None if known is None else int(known)
            self.copies = bool(table.get("copies", False))
            self._confirmed = int(table.get("confirmed", 0))
        except (TypeError, KeyError, ValueError) as error:
            raise RemoteProtocolError(f"replication.json cannot be read: {error!r}") from None

    def to_json(self) -> bytes:
        """The text of replication.json."""
        self._is_changed, self._confirmed = False, self.high_watermark
        return json.dumps(
            {
                "logId": self.log_id,
                "leader": self.leader,
                "leads": self.is_leader,
                "acknowledged": self.acknowledged,
                "copies": self.copies,
                "confirmed": self._confirmed,
            }
        )

    @property
    def is_changed(self) -> bool:
        """True if the text has changed since it was made last."""
        return self._is_changed or self.high_watermark != self._confirmed

    @property
    def high_watermark(self) -> int:
        """In a set with controllers: the last high watermark that this replica knew, now or before its start.
        No later master lacks the log up to there, unless messages were lost."""
        return max(self._confirmed, self._role.known_high_watermark())

    def lower_high_watermark(self, end: int) -> None:
        """Our log ends at `end` now, after a cut or after the rest was set aside."""
        self._confirmed, self._is_changed = min(self._confirmed, end), True
        self._role.cut(end)

    def follows(self, *, is_following: bool) -> None:
        """A slave's link to its master is up, or has ended."""
        self.is_following = is_following
        if is_following:
            self.stopped = ""

    def stop(self, reason: str) -> None:
        """A slave follows its master no more, for this reason."""
        self.stopped = reason

    def save(self) -> None:
        """Save now. Raises StoreError."""
        self._store.save_config(FILE, self.to_json())

    def rows(self) -> dict[str, str]:
        """Rows of the runtime metrics."""
        rows = {}
        if self._store.config.broker_role is BrokerRole.SLAVE:
            state = "following" if self.is_following else "not connected"
            rows["replication"] = f"stopped: {self.stopped}" if self.stopped else state
        if self._store.disk.exists(self._store.aside):
            rows["logAside"] = self._store.aside
        return rows | self._role.rows()

    @property
    def stays(self) -> bool:
        """True if the broker ends only to begin again in another role of its controlled set."""
        return self._role.stays

    # ---- a slave ----

    @property
    def flushes_copies(self) -> bool:
        """True if this slave reports only the part of its log that is on the disk."""
        config = self._store.config
        return config.broker_role is BrokerRole.SLAVE and config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def flush_awaited(self) -> int:
        """The physical offset of the sync that a report waits for; -1 when none waits."""
        return self._store.max_physical_offset if self.flushes_copies else -1

    def kept(self, master: MasterLog, reported: int) -> int:
        """The offset up to which messages of our log may have been acknowledged, if `master` is the master
        that we followed; `reported` is the end of the log in our last report.

        Only the master that told us its safe offset can be relied on to have all messages that it
        acknowledged.
        """
        known = self.acknowledged if self.leader == master.leader and not self.is_leader else None
        return reported if known is None else min(known, reported)

    def follow(self, master: MasterLog) -> None:
        """From now on this log is a copy of `master`'s log, equal up to our end. Raises StoreError when
        replication.json cannot be written."""
        reach = self._store.max_physical_offset
        if master.safe is None:
            self.acknowledged = None
        else:
            # Not less than before when the master is the same, and not more than we have. Of another master
            # all that we have may have been acknowledged: `kept` is then `reach`.
            self.acknowledged = min(max(self.kept(master, reach), master.safe), reach)
        self.log_id = master.log_id or self.log_id
        self.leader, self.is_leader = master.leader, False
        self.save()

    def take_note(self, note: Mapping[str, Any]) -> None:
        """Take a note of the master about the log, as far as we have the log. Raises RemoteProtocolError."""
        progress = note.get("progress")
        if isinstance(progress, Mapping) and progress:
            self._take_progress(progress)
        confirmed = note.get("confirmed")
        if isinstance(confirmed, int):
            self._role.take_high_watermark(min(confirmed, self._store.max_physical_offset))
        safe = note.get("safe")
        if isinstance(safe, int) and self.acknowledged is not None:
            safe = min(safe, self._store.max_physical_offset)
            if safe > self.acknowledged:
                self.acknowledged, self._is_changed = safe, True

    def begin(self) -> None:
        """Begin in the role of the settings: as a slave, or as a master, which may lack messages of the
        previous master. Raises StoreError."""
        is_slave = self._store.config.broker_role is BrokerRole.SLAVE
        if not is_slave and (self.copies or (self.log_id and not self.is_leader)):
            self._store.may_have_lost()
        if self.copies != is_slave:
            self.copies, self._is_changed = is_slave, True
        if not is_slave:
            self.lead()

    # ---- a master ----

    def lead(self) -> None:
        """Become master: from now on any part of the log may be acknowledged. Raises StoreError."""
        # A new id whenever a broker becomes master: what a slave knows of an earlier master, up to where that
        # one had answered producers, says nothing of what this one answers.
        if self.log_id and not self.is_leader:
            self.leader, self.is_leader, self.acknowledged = self._new_id(), True, None
            self.save()

    def greeting(self) -> MasterLog:
        """The greeting to a slave of rmq. Gives the log its id if it has none. Raises StoreError."""
        store = self._store
        if not self.log_id:
            self.log_id = self._new_id()
            try:
                self.lead()
            except StoreError:
                self.log_id, self.is_leader = "", False  # peers must find the id again after a restart
                raise
        return MasterLog(
            self.log_id,
            store.min_physical_offset,
            store.max_physical_offset,
            store.config.mapped_file_size_commit_log,
            self.ack_limit(),
            self._address,
            self.leader,
            *self._role.led(),
            self._role.is_in_set,
            self._role.is_in_set,
        )

    def _new_id(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def ack_limit(self) -> int | None:
        """The physical offset up to which messages may have been acknowledged; None: the end of the log."""
        on_disk = self._store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        return self._store.flushed_offset if on_disk else None

    def signed(self, handler: Handler) -> Handler:
        """Wrap the handler of a request for a table, so that responses also name the log's id."""

        def answer(request: Command, connection: Any, now: int) -> Command | None:
            response = handler(request, connection, now)
            self._know(request.ext.get(SLAVE_FIELD, ""))
            if response is None or not self.log_id:
                return response
            return response.with_ext({**response.ext, LOG_ID_FIELD: self.log_id})

        return answer

    def _know(self, slave: str) -> None:
        broker_id, _, address = slave.partition(" ")
        if broker_id.isdecimal() and address:
            self.slave_ids.pop(address, None)
            self.slave_ids[address] = broker_id
            if len(self.slave_ids) > SLAVES_KNOWN:
                del self.slave_ids[next(iter(self.slave_ids))]


def slave_names(peers: Iterable[str], ids: Mapping[str, str]) -> dict[str, str]:
    """Names of slaves by their ends of the links: the broker id of a slave of rmq, the host of any other
    slave, with `#2` added to a repeated name. A name stays the same when the slave links again."""
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    for peer in peers:
        name = ids.get(peer) or peer.rpartition(":")[0]
        taken[name] = count = taken.get(name, 0) + 1
        names[peer] = name if count == 1 else f"{name}#{count}"
    return names


_TRANSACTION_TOPICS: Final = (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)


class DeliveryProgress:
    """Progress of the delivery of delayed messages, any-time messages and transactions: read from a master's
    parts, and handed to a slave's."""

    def __init__(self, schedule: Schedule, timers: Timers, offsets: Offsets) -> None:
        self._schedule = schedule
        self._timers = timers
        self._offsets = offsets
        self._transactions: dict[str, int] = {}  # a slave's: as told last

    def now(self) -> dict[str, Any]:
        """The progress that belongs to the log up to its present end."""
        state: dict[str, Any] = {"delay": {str(level): at for level, at in self._schedule.progress.items()}}
        if timers := self._timers.progress():
            state["timer"] = timers
        state["transactions"] = {
            topic: max(0, self._offsets.get(TRANSACTION_GROUP, topic, 0)) for topic in _TRANSACTION_TOPICS
        }
        return state

    def take(self, state: Mapping[str, Any]) -> None:
        """A slave's: take the progress of the master. Raises RemoteProtocolError."""
        try:
            delay = {int(level): int(offset) for level, offset in state.get("delay", {}).items()}
            timer = {str(name): int(value) for name, value in state.get("timer", {}).items()}
            transactions = {str(topic): int(at) for topic, at in state.get("transactions", {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the master's progress cannot be read: {error!r}") from None
        self._schedule.follow(delay)
        self._timers.follow(timer)  # empty: no progress, even after deliveries into our own log
        self._transactions = {topic: at for topic, at in transactions.items() if topic in _TRANSACTION_TOPICS}
        self.keep()

    def keep(self) -> None:
        """A slave's: restore the progress that came with the log. The copied table of offsets may be farther
        than our log."""
        for topic, offset in self._transactions.items():
            if max(0, self._offsets.get(TRANSACTION_GROUP, topic, 0)) != offset:
                self._offsets.put(TRANSACTION_GROUP, topic, {0: offset})
