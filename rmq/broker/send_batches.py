"""Send batches: a broker that takes runs of plain sends and pulls as units, with the compiled engine.

Plainness is decided twice. The engine makes a run of sends that look plain, to queues that have lanes. This
module decides whether runs may be taken as a unit now: not when a plug-in inspects records or each request,
or has doubts about a request, nor while a topic waits to be saved, nor when sends are refused. In these cases
a run is handled as its single commands, so that the rules of sends are in a single place,
`rmq.broker.produce.send`.

When the poller hands over the chunks of several connections in a row, short runs are gathered and written by
a single commit: with a request on each of many connections, most of a message's cost is the cost of its
chunk.

Runs of pulls are made while no plug-in looks at requests; they are answered where they stand in their chunk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.broker import Broker
from rmq.broker.consume.pull_runs import PullRuns, make_pull_lanes
from rmq.broker.consume.take_runs import TakeRuns, make_take_lanes
from rmq.broker.error_responses import not_written
from rmq.broker.produce.append import broker_properties
from rmq.broker.produce.send import SLOW_PATH_PROPERTIES, host_of
from rmq.doors import PUBLISH
from rmq.errors import AccessDenied, ResponseError, StoreError, for_code
from rmq.plugin import PulledEvent
from rmq.protocol import engine
from rmq.protocol.codes import (
    BATCH_ACK_MESSAGE,
    PERM_WRITE,
    POP_MESSAGE,
    SYS_BORNHOST_V6,
    SYS_OF_SENDERS,
    SYS_STOREHOST_V6,
    RequestCode,
)
from rmq.protocol.properties import encode_properties
from rmq.remoting.limits import turn_is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import ModuleType

    from rmq.broker.config import BrokerConfig
    from rmq.gateway import PlainSends
    from rmq.plugin import Hooks, Peer
    from rmq.protocol._engine import CallSends, Lanes, PullRun, SendRun, TakeRun
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
    from rmq.store.store import Arrival, Store

log = logging.getLogger("rmq.broker")

FEW: Final = 8
"""A shorter run that does not come alone is handled with the others: it would cost a write of its own."""
SHORT: Final = 64
"""A longer run is not gathered: its chunk costs little beside its messages."""
GATHERED_BYTES: Final = 256 * 1024
"""So much is gathered, about; then it is written, or the first would wait for the last of a thousand."""
_AROUND: Final = 512
"""About what a message has beside its body."""


def make_broker(
    config: BrokerConfig, store: Store, *, compiled: ModuleType | None = engine.compiled, **given: Any
) -> Broker:
    """A broker with the engine that was chosen; the rest as for `Broker`."""
    if compiled is None:
        return Broker(config, store, **given)
    return CompiledBroker(config, store, compiled, **given)


def _end(connection: Connection, error: Exception) -> None:
    """End a connection as it ends itself after a bug."""
    log.error("closing %s after an unexpected error: %s", connection.peer_address, error, exc_info=error)
    connection.close(f"an unexpected error: {type(error).__name__}: {error}", error)


class DoorSends:
    """The `rmq.gateway.PlainSends` of one client: its messages are stored without an object for each.

    The rules are those of `Append.message`, by which all other messages of a door go: a topic is opened for
    runs after one of its messages went that way. A run that meets anything out of the ordinary is refused as
    a whole, with nothing stored, and its messages go the long way.

    `make_reader(lanes, reserved)` makes the engine's reader, `takes_runs()` is True while runs may be put,
    `open_lanes()` opens the lanes that runs have looked for, `note(arrivals, counts, seconds, began)` does
    the books of a commit, and `check(action, name)` raises AccessDenied.
    """

    def __init__(
        self,
        broker: Broker,
        lanes: Lanes,
        peer: Peer,
        *,
        make_reader: Callable[[Lanes, Collection[str]], CallSends],
        check: Callable[[str, str], None],
        takes_runs: Callable[[], bool],
        open_lanes: Callable[[], None],
        note: Callable[[Sequence[Arrival], list[tuple[str, int, int]], float, float], None],
    ) -> None:
        self._lanes = lanes
        self._broker = broker
        self._make_reader = make_reader
        self._peer = peer
        self._check = check
        self._takes_runs = takes_runs
        self._open_lanes = open_lanes
        self._note = note

    def reader(self, reserved: Collection[str]) -> CallSends:
        """Same as `rmq.gateway.PlainSends.reader`."""
        return self._make_reader(self._lanes, reserved)

    @property
    def turn(self) -> int:
        """Same as `rmq.gateway.PlainSends.turn`."""
        return self._broker.append.turn

    def learn(self, topic: str) -> None:
        """Same as `rmq.gateway.PlainSends.learn`."""
        lanes, target = self._lanes, self._broker.append.targets.get(topic)
        if target is None or target.is_special or not target.write_queues:
            return
        if not lanes.is_open_topic(topic):
            lanes.open_topic(topic, target.write_queues)
        if lanes.wants_more:
            self._open_lanes()

    def store(self, run: SendRun) -> ResponseError | bool:
        """Same as `rmq.gateway.PlainSends.store`."""
        broker, store, lanes = self._broker, self._broker.store, self._lanes
        if not self._may_store(run):
            return False
        clock = broker.work_clock
        began = clock()
        try:
            if not store.put_run(lanes, run, store.store_host):
                return False
        except StoreError:  # each message gets the refusal by itself
            return False
        broker.append.took(run.count)
        counts = lanes.counts()
        written = clock()
        try:
            arrivals = store.commit()
        except StoreError as error:
            for topic, count, size in counts:
                broker.append.count(topic, count, size)
            broker.group_commit.not_written(error)
            return for_code(*not_written(error))
        self._note(arrivals, counts, clock() - written, began)
        return True

    def _may_store(self, run: SendRun) -> bool:
        """True if a message of the run would be stored by the long way, and answered at once."""
        broker, peer, count = self._broker, self._peer, run.count
        if (
            broker.chunk.connection is not None
            or not self._takes_runs()
            or broker.acknowledgement.waits_for_more
            or run.largest > broker.append.body_sure
            or broker.flow.refusal(broker.now_ms()) is not None
            or (broker.hooks.quotas and broker.hooks.quota_of(peer) is not None)
        ):
            return False
        shares = broker.door_peers.sends
        shares.most = broker.config.send_thread_pool_queue_capacity
        # Twice: of messages that come one after the other the last finds less room.
        if shares.full(broker.settings.holders_of(peer), 2 * count):
            return False
        try:
            for topic in run.topics():
                row = broker.topics.table.get(topic)
                if row is None or not row.perm & PERM_WRITE:
                    return False
                self._check(PUBLISH, topic)
        except AccessDenied:
            return False
        return True


class CompiledBroker(Broker):
    """A broker with lanes for plain sends, which it opens where such sends go."""

    lanes: Lanes

    def __init__(self, config: BrokerConfig, store: Store, compiled: ModuleType, **given: Any) -> None:
        host = store.store_host
        self._run_class, self._make_reader = compiled.SendRun, compiled.CallSends
        self._answers: dict[type, Callable[[Any, Connection], int]] = {
            compiled.PullRun: self._answer_pulls,
            compiled.TakeRun: self._answer_takes,
        }
        self._run_classes = {compiled.SendRun, *self._answers}
        host_flag = SYS_STOREHOST_V6 if len(host) == 20 else 0
        self._pull_lanes, self._take_lanes = make_pull_lanes(compiled), make_take_lanes(compiled)
        flags = host_flag, SYS_BORNHOST_V6, SYS_OF_SENDERS
        self.lanes = compiled.Lanes(SLOW_PATH_PROPERTIES, host, *flags, self._pull_lanes, self._take_lanes)
        self._gathers = False
        self._gathered: list[tuple[SendRun, Connection]] = []
        self._gathered_bytes = 0
        self._began = 0.0  # when the runs were put that are committed next
        super().__init__(config, store, **given)
        self._pull_runs = PullRuns(
            self._pull_lanes,
            self.settings,
            store,
            self.tables,
            self.readers,
            role=self.role,
            respond=self._respond,
            clock=self.clock,
        )
        self._take_runs = TakeRuns(
            self._take_lanes,
            self.settings,
            store,
            self.tables,
            self.readers,
            role=self.role,
            clock=self.clock,
            now_ms=self.now_ms,
        )
        self._pull_handler = self.handlers[RequestCode.PULL_MESSAGE]
        self._take_handlers = self.handlers[POP_MESSAGE], self.handlers[BATCH_ACK_MESSAGE]
        self.settings.derive(self._reset_lanes)
        self.door_peers.offer_plain_sends(self._plain_sends)

    def use_plugins(self, hooks: Hooks) -> None:
        """Same as `Broker.use_plugins`."""
        super().use_plugins(hooks)
        self._reset_lanes()

    def _on_topics_change(self) -> None:
        self._reset_lanes()
        super()._on_topics_change()

    def _reset_lanes(self) -> None:
        lanes = self.lanes
        lanes.clear()
        lanes.suffix = encode_properties(broker_properties(self.config)).encode()
        lanes.is_indexed = self.store.config.message_index_enable
        lanes.is_open = not self.hooks.stored and self.hooks.take_runs
        lanes.is_signed = bool(self.hooks.requests)
        is_open = not self.hooks.requests and not self.hooks.quotas
        self._pull_lanes.reset(is_open, self.config.slave_read_enable)
        self._take_lanes.reset(is_open)

    def handle(self, requests: list[Command], connection: Connection) -> int:
        """Same as `Broker.handle`. A run that goes the long way is replaced by its commands in `requests`."""
        if self._gathers:
            if len(requests) == 1 and requests[0].__class__ is self._run_class:
                if self._gather(requests[0], connection):  # type: ignore[arg-type]
                    return 1
            elif self._gathered:
                self._commit_gathered()
        if len(requests) == 1 and requests[0].__class__ is self._run_class and self._takes_runs():
            run: Any = requests[0]
            if self._take(run, connection):  # for a chunk of one send each call is felt
                return 1
        if len(requests) == 1 and (answer := self._answers.get(requests[0].__class__)) is not None:
            reads: Any = requests[0]
            done = answer(reads, connection)
            if done == reads.count:
                return 1
            requests[:] = reads.commands(done)
        if not self._run_classes.isdisjoint(map(type, requests)):
            taken = self._handle_runs(requests, connection)
        else:
            taken = super().handle(requests, connection)
        if self.lanes.wants_more:
            self._open_lanes()
        if self._pull_lanes.wants_more:
            self._pull_runs.open_lanes(connection)
        if self._take_lanes.wants_more:
            self._take_runs.open_lanes(connection)
        return taken

    def _answer_takes(self, run: TakeRun, connection: Connection) -> int:
        """Answer requests of a run, from the first on; return how many were answered. The others go the long
        way."""
        handlers = self.handlers
        if (handlers.get(POP_MESSAGE), handlers.get(BATCH_ACK_MESSAGE)) != self._take_handlers:
            return 0
        self.chunk.begin(connection, self.work_clock())
        try:
            done = self._take_runs.answer(run, connection)
            self.group_commit.commit_pending()
        except BaseException:
            self.group_commit.forget()
            raise
        finally:
            self.chunk.end()
        return done

    def _answer_pulls(self, run: PullRun, connection: Connection) -> int:
        """Same as `_answer_takes`, for a run of pulls."""
        if self.handlers.get(RequestCode.PULL_MESSAGE) is not self._pull_handler:
            return 0
        if not self.hooks.pulled:
            return self._pull_runs.answer(run, connection)
        began = self.work_clock()
        done = self._pull_runs.answer(run, connection)
        for given in run.given(0, done):
            event = PulledEvent(*given, connection, self.work_clock() - began)
            self.hooks.observe(self.hooks.pulled, event)
        return done

    def _handle_runs(self, requests: list[Any], connection: Connection) -> int:
        run_class, classes, clock = self._run_class, self._run_classes, self.work_clock
        if len(requests) > 1 or not self._takes_runs():
            least = FEW if self._takes_runs() else 1 << 60
            flat: list[Any] = []
            for request in requests:
                if request.__class__ is run_class and request.count < least:
                    flat += request.commands()
                else:
                    flat.append(request)
            requests[:] = flat
        began, at, count = clock(), 0, 0
        while at < len(requests):
            request = requests[at]
            if request.__class__ not in classes:
                stop = at + 1
                while stop < len(requests) and requests[stop].__class__ not in classes:
                    stop += 1
                taken = super().handle(requests[at:stop], connection)
                at, count = at + taken, count + taken
                if at < stop:
                    break
            elif request.__class__ is not run_class:
                done = self._answers[request.__class__](request, connection)
                count += done
                if done < request.count:
                    requests[at : at + 1] = request.commands(done)
                    continue
                at += 1
            elif self._takes_runs() and self._take(request, connection):
                at, count = at + 1, count + request.count
            else:
                requests[at : at + 1] = request.commands()
                continue
            if at < len(requests) and turn_is_over(clock() - began, count):
                break
        return at

    # ---- a round of several connections ----

    def begin_round(self) -> None:
        """Same as `Endpoint.begin_round`: short runs are gathered."""
        self._gathers = True

    def end_round(self) -> None:
        """Same as `Endpoint.end_round`."""
        self._gathers = False
        if self._gathered:
            self._commit_gathered()

    def _gather(self, run: SendRun, connection: Connection) -> bool:
        """Keep a run for the end of the round; False for a long run, after all earlier runs were answered."""
        size = run.count * (run.largest + _AROUND)
        is_short = run.count <= SHORT and size <= GATHERED_BYTES
        if self._gathered and (not is_short or self._gathered_bytes + size > GATHERED_BYTES):
            self._commit_gathered()
        if is_short:
            self._gathered.append((run, connection))
            self._gathered_bytes += size
        return is_short

    def _commit_gathered(self) -> None:
        """Put the gathered runs, commit and answer. Runs that cannot be taken are handled as single commands,
        in order."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        try:
            while gathered:
                count = self._put_all(gathered) if self._takes_runs() else 0
                if count:
                    self._commit_runs(gathered[:count])
                late, gathered = gathered[count : count + 1], gathered[count + 1 :]
                for run, connection in late:
                    self._handle_late(run, connection)
        except Exception as error:  # a bug: the written part is not known, so no send is acknowledged
            for _, connection in gathered:
                _end(connection, error)
            self.group_commit.commit_pending()

    def _put_all(self, gathered: list[tuple[SendRun, Connection]]) -> int:
        """The number of runs, from the first, that were put."""
        if self.flow.refusal(self.now_ms()) is not None:
            return 0
        self._began = self.work_clock()
        for count, (run, connection) in enumerate(gathered):
            if not self._put(run, connection):
                return count
        return len(gathered)

    def _handle_late(self, run: SendRun, connection: Connection) -> None:
        """Handle a run the long way, outside of its chunk."""
        requests = run.commands()
        try:
            while requests:
                requests = requests[super().handle(requests, connection) :]
        except Exception as error:
            _end(connection, error)

    def _takes_runs(self) -> bool:
        """True if a run may be taken as such now."""
        return self.lanes.is_open and self.acknowledgement.takes_runs and not self.store.has_pending

    def _take(self, run: SendRun, connection: Connection) -> bool:
        """Put, commit and answer a run; False when that is not done, and it goes the long way."""
        if self.flow.refusal(self.now_ms()) is not None:
            return False
        self._began = self.work_clock()
        if not self._put(run, connection):
            return False
        self._commit_runs([(run, connection)])
        return True

    def _put(self, run: SendRun, connection: Connection) -> bool:
        """Put a run; False when that is not done."""
        if run.largest > self.append.body_max:
            return False
        passed: list[Callable[[], None]] | None = None
        if self.hooks.requests:
            passed = self.hooks.admit_run(connection, run)
            if passed is None:
                return False
        host = connection.state.get("host") or host_of(connection)
        try:
            if not self.store.put_run(self.lanes, run, host):
                return False
        except StoreError:
            return False  # each send gets the refusal by itself
        for then in passed or ():
            then()
        return True

    def _commit_runs(self, put: list[tuple[SendRun, Connection]]) -> None:
        """Commit and answer the runs that are put."""
        clock, counts = self.work_clock, self.lanes.counts()
        written = clock()
        try:
            arrivals = self.store.commit()
        except StoreError as error:
            self._not_written_runs(put, counts, error)
            return
        seconds = clock() - written
        for run, connection in put:
            self.acknowledgement.run_committed(connection, run)
        self._note(arrivals, counts, seconds, self._began)

    def _note(
        self, arrivals: Sequence[Arrival], counts: list[tuple[str, int, int]], seconds: float, began: float
    ) -> None:
        """Do the books of a commit of runs that took `seconds`, and wake the readers. The runs were put from
        `began` on."""
        self.flow.wrote(seconds)
        total = self.stats.put_all(counts)
        self.stats.stored(seconds * 1000, total)
        self.histograms.write.observe(self.work_clock() - began, total)
        # Everything else that waits for arrivals waits for topics without lanes.
        if self.parked_pulls.count or len(self.deliveries.polls):
            self.chunk.begin(None, began)
            self.arrivals.arrived(arrivals)
        self.acknowledgement.replicas.grown()
        self.wake.reput()

    def _plain_sends(self, peer: Peer, check: Callable[[str, str], None]) -> PlainSends:
        """The short way of a door's client."""
        return DoorSends(
            self,
            self.lanes,
            peer,
            make_reader=self._make_reader,
            check=check,
            takes_runs=self._takes_runs,
            open_lanes=self._open_lanes,
            note=self._note,
        )

    def _not_written_runs(
        self, put: list[tuple[SendRun, Connection]], counts: list[tuple[str, int, int]], error: StoreError
    ) -> None:
        for topic, count, size in counts:
            self.append.count(topic, count, size)
        for run, connection in put:
            self.acknowledgement.pending.begin_run(run)
            self.group_commit.not_written(error, connection)

    def _open_lanes(self) -> None:
        """For the queues that sends look for, if such sends are plain."""
        for topic, queue_id in self.lanes.take_wanted():
            target = self.append.targets.get(topic)
            if target is None or target.is_special or not 0 <= queue_id < target.queues:
                continue
            queue = self.store.lane(topic, queue_id)
            if queue is not None:
                self.lanes.add(queue, target.sys_flag)
