"""The loops of replication: a master's links to its slaves, a slave's link to its master.

    ha (master)                       ha (slave)
    ├── accept                        ├── follow     the link: reader | reports; again after a pause
    └── slave, one nursery each       └── copy       topics, groups, offsets, delay progress
        └── reader | writer

The protocol is in `replication.sessions`, the moving of bytes in `replication_link`. The error of a link ends
that link. A slave that cannot write tries again. A slave whose log differs from its master's looks for the
last common record, by requests for single records, and does what `sessions` allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import anyio

from rmq.broker.broker import Broker
from rmq.broker.replication.failover.delivery_checkpoint import go_back, lost_by_cut
from rmq.broker.replication.failover.poll_handover import HandedOverPolls, PollReporter
from rmq.broker.replication.failover.role import FailoverReplica
from rmq.broker.replication.replica_state import LOG_ID_FIELD, SLAVE_FIELD
from rmq.broker.replication.sessions import (
    HELLO,
    Diverged,
    Expired,
    MasterLog,
    MasterSession,
    Search,
    SlaveSession,
    begin,
    check_cut,
    find_cut,
    fingerprint,
    last_records,
    named_hello,
    question,
)
from rmq.broker.replication.table_replication import CONTROLLED_OFFSETS_SECONDS, OFFSETS_SECONDS, TableSender
from rmq.broker.runtime.replication_handshake import (
    HANDSHAKE_SECONDS,
    REFUSED,
    Guard,
    link_errors,
    read_note,
    with_all_epochs,
    within,
)
from rmq.broker.runtime.replication_link import Link
from rmq.broker.state import unlisted_topics
from rmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    StoreError,
    for_code,
)
from rmq.protocol.bodies import KVTable
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ViewMessageRequestHeader
from rmq.remoting.address import port_before, with_scheme
from rmq.remoting.loop import Wakeup, run_cooperatively
from rmq.remoting.network import Network, open_stream
from rmq.remoting.poller import Poller
from rmq.remoting.pool import Pool
from rmq.remoting.serving.acceptor import Acceptor, Guest
from rmq.remoting.transports.stream import Listener, Stream, close_at_once
from rmq.server.health import Health
from rmq.store.config import DivergedLog, StoreConfig
from rmq.store.store import Store

if TYPE_CHECKING:
    from rmq.broker.replication.failover.replica_manager import ReplicaManager

RETRY_SECONDS = 5.0
"""Pause of a slave before it tries its master again, as RocketMQ's."""
SOON_SECONDS = 0.5
"""The same in a controlled set, where controllers say who is master."""
COPY_SECONDS = 10.0
"""Seconds between a slave's copies of its master's tables, as in RocketMQ, when the master does not send them
by the link."""
REQUEST_SECONDS = 5.0
PACE_SECONDS = 0.01
"""A slave that gets the log at a bounded rate gets it in pieces of so long."""
HELLO_SECONDS = 3.0
"""For so long a slave waits whether its master is one of ours."""
HEARTBEATS = 3
"""Fewest heartbeats in the silence after which a link ends."""
WARNING_SECONDS = 60.0
"""Seconds between two log lines of a slave that has stopped."""
END_RECORDS = 8
"""So many of its last records a slave of a controlled set compares with its master's before it copies on."""
DAMAGED_SECONDS = 60.0
"""Pause of a slave before it asks for damaged bytes again."""
NOT_FOUND = "can not find message by the offset"
"""Words of a RocketMQ master when no record begins at an offset."""
DIVERGED_ADVICE = (
    "Nothing is deleted here. If the master is the wrong broker or has lost its disk: restore it, or make"
    " this slave the master. To give this log up: set haDivergedLog=aside, which moves it to a folder of its"
    " own, or stop this slave and move its store away"
)
REMOTE = (ConnectFailed, ConnectionLost, RequestTimeout, RemoteProtocolError, ResponseError)

COPIED = {
    "topics": RequestCode.GET_ALL_TOPIC_CONFIG,
    "subscriptionGroup": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "consumerOffset": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset": RequestCode.GET_ALL_DELAY_OFFSET,
}
"""The tables that a slave copies, by the names of their files, and the requests that give them."""

log = logging.getLogger("rmq.ha")

T = TypeVar("T")


def link_times(config: StoreConfig) -> tuple[float, float]:
    """The time between heartbeats of a link, and the silence after which the link ends, in seconds. A silence
    has room for three heartbeats at least: with as long a pause as silence, each idle link would end."""
    silence = config.ha_housekeeping_interval / 1000
    return min(config.ha_send_heartbeat_interval / 1000, silence / HEARTBEATS), silence


# ---- master ----


async def serve_slaves(
    broker: Broker, listener: Listener, guard: Guard, acceptor: Acceptor, poller: Poller | None = None
) -> NoReturn:
    """Accept slaves until cancelled, which closes the listener. `poller` reads the links where it can."""
    try:
        async with anyio.create_task_group() as nursery:
            await acceptor.run(listener, partial(_welcome, broker, guard, poller), nursery)
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


async def _welcome(broker: Broker, guard: Guard, poller: Poller | None, raw: Stream, guest: Guest) -> None:
    """Serve a peer that is admitted; a refused peer learns nothing of the log. A peer proves itself by the
    secret, or without a secret by its first report."""
    try:
        admitted = partial(guard.admitted, guest.speaks)
        stream = await within(HANDSHAKE_SECONDS, admitted, raw) if guard.is_restricted else raw
    except link_errors(RemoteProtocolError) as error:
        log.warning("refused slave %s: %s", raw.peer, error)
        await close_at_once(raw)
    else:
        if guard.secret:
            guest.prove()
        await _serve_slave(broker, poller, stream, guest)


async def _serve_slave(broker: Broker, poller: Poller | None, stream: Stream, guest: Guest) -> None:
    """Serve the link of a slave until it breaks, falls silent or lies."""
    slave = _Slave(broker, poller, stream, guest)
    log.info("slave %s is connected", stream.peer)
    broker.acknowledgement.replicas.join(slave.session, stream.peer, slave.grown)
    try:
        async with stream:
            await slave.link.run()
    except link_errors(RemoteProtocolError, StoreError) as error:
        log.warning("slave %s is cut off: %s", stream.peer, error)
    finally:
        broker.acknowledgement.replicas.leave(slave.session)
        log.info("slave %s has disconnected, its log ended at %d", stream.peer, slave.session.acknowledged)


class _Slave:
    """The link to one slave, at its master."""

    def __init__(self, broker: Broker, poller: Poller | None, stream: Stream, guest: Guest) -> None:
        config = broker.store.config
        self._guest = guest
        heartbeat, silence = link_times(config)
        role = broker.role
        feed = TableSender(
            broker.followed.tables,
            lambda: broker.store.max_physical_offset,
            unlisted=partial(unlisted_topics, broker.store, broker.topics),
            deletions=broker.topics.deletions.all,
            offsets_s=CONTROLLED_OFFSETS_SECONDS if role.is_in_set else OFFSETS_SECONDS,
            is_awaited=broker.acknowledgement.rows.is_awaited,
        )
        self.session = MasterSession(
            broker.store,
            anyio.current_time(),
            heartbeat_s=heartbeat,
            greet=broker.replica.greeting,
            safe=broker.replica.ack_limit,
            progress=broker.delivery.now,
            tables=feed.note,
            has_all_rows=lambda: feed.is_complete,
            admit=role.manager.admit if isinstance(role, FailoverReplica) else None,
            confirmed=role.high_watermark,
            heard=feed.heard,
            rows_had=feed.had,
            waiting=HandedOverPolls(broker.pull, broker.clients, broker.store, broker.clock),
            deleted=broker.admin.deleted_elsewhere,
        )
        self.link = Link(
            stream,
            poller,
            received=self._received,
            due=self.session.frame,
            grown=Wakeup(),
            pause=min(heartbeat, feed.offsets_s),
            silence=silence,
            who="slave",
            sent=self._pace,
        )
        self._peer = stream.peer
        self._waits = broker.acknowledgement.rows
        self._replicas = broker.acknowledgement.replicas
        self._store = broker.store
        self._copies = False  # it has said from where
        self._due = 0.0  # when the next bytes may be sent to a slave that is far behind

    def grown(self) -> None:
        """The log has grown, or there is another reason to send."""
        self.link.send(self._store.max_physical_offset - self.session.position)

    async def _pace(self, size: int) -> None:
        """So many bytes were sent: if the slave is far behind, leave line and disk to others for a while."""
        config = self._store.config
        behind = self._store.max_physical_offset - self.session.position
        if config.ha_catch_up_rate and behind > config.ha_slave_fallbehind_max:
            now = anyio.current_time()
            self._due = max(self._due, now) + size / config.ha_catch_up_rate
            if self._due - now > PACE_SECONDS:
                await anyio.sleep_until(self._due)

    def _received(self, data: bytes, now: float) -> None:
        """Take the slave's reports."""
        self._guest.speaks()
        self.session.received(data)
        self._replicas.acknowledged(now)
        copied = self._copies
        if not copied and self.session.position >= 0:
            self._copies = True
            self._guest.prove()
            log.info("slave %s copies from %d", self._peer, self.session.position)
        if self._waits or not copied:  # notes, or the first frame
            self.grown()


# ---- slave ----


MASTER: Final = "master"
"""The part of a slave's health that its link to the master is."""


class Follower:
    """A slave's two loops: `follow` copies the log, `copy` the tables. Links go over `network`, requests over
    `pool`; `guard` has the same TLS settings and secret as the master's.

    `grown` rings when more of our log is synced. `health` lacks `MASTER` until this slave has followed its
    master for the first time since the start: a slave that never followed may copy nothing. `poller` reads
    the link where it can.
    """

    def __init__(
        self,
        broker: Broker,
        network: Network,
        pool: Pool,
        guard: Guard,
        *,
        grown: Wakeup,
        health: Health,
        poller: Poller | None = None,
    ) -> None:
        self._broker = broker
        self._poller = poller
        self._health, self._has_followed = health, False
        self._follows_not("no master is known yet")
        self._role = broker.role
        self._network = network
        self._pool = pool
        self._guard = guard
        self._grown = grown
        self._greeting: MasterLog | None = None  # of the present link, when the master is one of ours
        self._local = ""  # our end of it
        self._master = ""  # where it answers requests
        # Up to where our log was reported; before the process began that may have been all of it.
        self._reported = broker.store.max_physical_offset
        self._complained: tuple[str, float] = ("", -WARNING_SECONDS)
        self._let_go: Callable[[], None] = lambda: None  # ends the present link

    async def follow(self) -> NoReturn:
        """Keep a link to the master, whenever a master is known."""
        self._role.watch_master(lambda: self._let_go())
        while True:
            address, pause = self._ha_address(), SOON_SECONDS if self._role.is_in_set else RETRY_SECONDS
            if address:
                try:
                    with anyio.CancelScope() as scope:
                        self._let_go = scope.cancel
                        await self._link(address)
                except Diverged as error:
                    self._stop(address, str(error))
                except CorruptRecord as error:
                    self._stop(
                        address, f"it sent a damaged log; check its log with `rmq store check`: {error}"
                    )
                    pause = DAMAGED_SECONDS
                except link_errors(*REMOTE, StoreError, ConfigError) as error:
                    if self._is_new(str(error)):
                        log.warning("the link to master %s has ended: %s", address, error)
                    self._follows_not(f"the link to {address}: {error}")
                    if isinstance(error, StoreError):  # such as a full disk of this slave
                        pause = max(pause, RETRY_SECONDS)
                finally:
                    self._broker.replica.follows(is_following=False)
            await anyio.sleep(pause if address else min(pause, 1.0))

    def _follows_not(self, reason: str) -> None:
        if not self._has_followed:
            text = f"this slave has not followed its master since its start: {reason}"
            self._health.lacks(MASTER, text)

    def _follows(self) -> None:
        self._broker.replica.follows(is_following=True)
        self._has_followed = True
        self._health.has(MASTER)

    def _stop(self, address: str, reason: str) -> None:
        """Stop following until the reason is gone. Our files stay as they are."""
        self._follows_not(reason)
        self._broker.replica.stop(reason)
        if self._is_new(reason):
            log.error("this slave has STOPPED following master %s: %s", address, reason)

    def _is_new(self, reason: str) -> bool:
        """True if the log lacks this reason, or has not repeated it for WARNING_SECONDS."""
        before, at = self._complained
        now = anyio.current_time()
        if reason == before and now - at < WARNING_SECONDS:
            return False
        self._complained = reason, now
        return True

    def _ha_address(self) -> str:
        known = self._broker.registration
        configured = self._broker.store.config.ha_master_address or known.master_ha_address
        return self._role.master_addresses(known.master_address, configured)[1]

    async def _link(self, address: str) -> None:
        store = self._broker.store
        await self._wait_for_disk()
        store.cut_partial()
        self._reported = min(self._reported, store.max_physical_offset)
        self._greeting = None
        target = with_scheme(address, self._guard.tls.config.scheme)
        async with open_stream(self._network, target, tls=self._guard.tls) as stream:
            self._local = stream.local
            if self._guard.secret:
                await within(HANDSHAKE_SECONDS, self._guard.authenticate, stream)
            greeting = self._greeting = await self._greet(stream)
            told = self._master_address()
            self._master = told or (greeting.address if greeting else port_before(address))
            await self._wait_for_disk()
            start = await self._align(stream, greeting)
            # Kept before the first byte is copied: after a crash the log must not count as a master's own.
            state = self._broker.replica
            state.follow(greeting or MasterLog("", 0, 0))
            self._follows()
            self._broker.followed.begin(hears_saved=greeting is not None and greeting.hears_saved)
            await self._copy_log(address, stream, start)

    async def _wait_for_disk(self) -> None:
        """Wait until the disk answers, since the work before the first byte syncs in the loop. Raises
        StoreError."""
        if self._role.is_in_set:
            await self._broker.disk_work.do_now(self._broker.store.wait_for_disk)

    def _master_address(self) -> str:
        return self._role.master_addresses(self._broker.registration.master_address, "")[0]

    # ---- before the first byte: whose log it is, and whether ours goes on with it ----

    async def _greet(self, stream: Stream) -> MasterLog | None:
        """The greeting of a master of rmq; None for a RocketMQ broker, which ignores HELLO."""
        role = self._role
        await stream.send_all(named_hello(*role.hello()) if role.is_in_set else HELLO)
        note: dict[str, Any] | None = None
        with anyio.move_on_after(HELLO_SECONDS):
            note = await read_note(stream)
        if note is not None:
            return await with_all_epochs(stream, MasterLog.from_note(note), note)
        if self._guard.secret:
            raise RemoteProtocolError("it has the secret, but sends no id of its log")
        return None

    async def _align(self, stream: Stream, greeting: MasterLog | None) -> int:
        """Cut off the part of our log that the master lacks, if it was never acknowledged. Return where an
        empty log begins. Raises Diverged."""
        if isinstance(self._role, FailoverReplica):
            return await self._align_epochs(stream, greeting, self._role.manager)
        return await self._align_records(stream, greeting)

    async def _align_epochs(self, stream: Stream, greeting: MasterLog | None, manager: ReplicaManager) -> int:
        """Same as `_align`, in a controlled set: the epochs show up to where the logs are equal."""
        store, state = self._broker.store, self._broker.replica
        if greeting is None or greeting.epoch != manager.epoch or manager.is_elected:
            raise RemoteProtocolError(f"it does not lead epoch {manager.epoch}")
        start, is_same = greeting.start, not _is_empty(store) and bool(manager.epochs)
        if not _is_empty(store) and not is_same:
            # A log from before the set was controlled.
            start = await self._align_records(stream, greeting)
        elif is_same:
            try:
                cut = manager.cut(store, greeting, state.log_id)
                is_same = cut == store.max_physical_offset or not self._set_aside_confirmed(cut, greeting)
                if is_same and cut < store.max_physical_offset:
                    log.warning("our log ends at %d: cut it at %d", store.max_physical_offset, cut)
                    broker = self._broker
                    # Before the cut, so that a crash in between leaves nothing undelivered.
                    go_back(store, broker.delivery, broker.saving)
                    self._broker.store.truncate(cut)
                    state.lower_high_watermark(cut)
                await self._compare_end(stream, greeting)
            except Expired as error:
                self._set_log_aside(str(error))
                is_same = False
            except Diverged as error:
                if store.config.ha_diverged_log is not DivergedLog.aside:
                    raise Diverged(f"{error}. {DIVERGED_ADVICE}") from None
                self._set_log_aside(str(error))
                is_same = False
        store.flush()
        low = start if _is_empty(store) else store.min_physical_offset
        manager.follow(greeting.epoch, greeting.epochs, start=low, is_same=is_same)
        return start

    def _set_aside_confirmed(self, cut: int, master: MasterLog) -> bool:
        """Set our log aside if a cut would take records that all replicas in sync once had; return whether it
        does."""
        lost = lost_by_cut(self._broker.store, self._broker.replica.high_watermark, cut)
        if lost:
            log.error("MESSAGES WERE LOST by the master of epoch %d: %s", master.epoch, lost)
            self._set_log_aside(lost)
        return bool(lost)

    async def _compare_end(self, stream: Stream, greeting: MasterLog) -> None:
        """Compare the last records of our log with the master's. Epochs do not show bytes that a disk has
        lost or changed. Raises Diverged."""
        store = self._broker.store
        positions = [at for at in last_records(store, END_RECORDS) if at >= greeting.start]
        await stream.send_all(b"".join(map(question, positions)))
        for position in positions:
            if not await self._is_same(stream, position):
                raise Diverged(
                    f"the record at {position} is not the same in our log and in the master's, though both"
                    " are of one epoch: a disk here or there has lost or changed bytes (`rmq store compare`)"
                )

    async def _align_records(self, stream: Stream, greeting: MasterLog | None) -> int:
        """By questions, which record is where."""
        store, state = self._broker.store, self._broker.replica
        if _is_empty(store):
            return 0 if greeting is None else greeting.start
        theirs = greeting or await self._runtime_log()
        try:
            begin(store, theirs, state.log_id)
            cut = await self._search(stream, find_cut(store, theirs.end), asks=greeting is None)
            if cut is not None:
                check_cut(store, theirs, cut, state.kept(theirs, self._reported))
                log.warning(
                    "our log ends at %d, the master's at %d: cut ours at %d; no later message was"
                    " acknowledged",
                    store.max_physical_offset,
                    theirs.end,
                    cut,
                )
                self._broker.store.truncate(cut)
        except Expired as error:
            self._set_log_aside(str(error))
        except Diverged as error:
            if store.config.ha_diverged_log is not DivergedLog.aside:
                raise Diverged(f"{error}. {DIVERGED_ADVICE}") from None
            self._set_log_aside(str(error))
        return theirs.start

    def _set_log_aside(self, reason: str) -> None:
        try:
            folder = self._broker.store.set_aside()
        except StoreError as error:
            raise Diverged(f"{reason}; and our log cannot be set aside: {error}") from None
        self._reported = 0
        self._broker.replica.lower_high_watermark(0)
        log.warning("%s. Our log lies in %s now, and the master's is copied from its start", reason, folder)

    async def _search(self, stream: Stream, search: Search, *, asks: bool) -> int | None:
        """Answer a search's questions by asking the master: by requests, or over the link."""
        same = self._same_by_request if asks else partial(self._same, stream)
        try:
            offset = next(search)
            while True:
                offset = search.send(await same(offset))
        except StopIteration as found:
            cut: int | None = found.value
            return cut

    async def _same(self, stream: Stream, physical_offset: int) -> bool:
        """True if the master has the same record at an offset as we have."""
        await stream.send_all(question(physical_offset))
        return await self._is_same(stream, physical_offset)

    async def _is_same(self, stream: Stream, physical_offset: int) -> bool:
        """The answer to a question."""
        with anyio.move_on_after(REQUEST_SECONDS):
            theirs = await read_note(stream)
            return theirs == {"at": physical_offset, **fingerprint(self._broker.store.read(physical_offset))}
        raise RemoteProtocolError("the master sent no fingerprint of its record in time")

    async def _same_by_request(self, physical_offset: int) -> bool:
        """The same for a RocketMQ master. Raises ResponseError for any response except the record, or "no
        record"."""
        header = ViewMessageRequestHeader(physical_offset)
        answer = await self._call(Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header))
        if answer.code == ResponseCode.SYSTEM_ERROR and NOT_FOUND in (answer.remark or ""):
            return False
        ours = self._broker.store.read(physical_offset)
        return ours is not None and self._checked(answer).body == bytes(ours)

    async def _runtime_log(self) -> MasterLog:
        """The metrics of a RocketMQ master about its log."""
        answer = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.from_json(answer.body).table
        try:
            start, end = (int(table[key]) for key in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the master does not say where its log ends: {error!r}") from None
        return MasterLog("", max(start, 0), end)

    # ---- the copying ----

    async def _copy_log(self, address: str, stream: Stream, start: int) -> None:
        broker, store = self._broker, self._broker.store
        config = store.config
        heartbeat, silence = link_times(config)

        def reach() -> int:
            return start if _is_empty(store) else store.max_physical_offset

        def on_disk() -> int:
            return start if _is_empty(store) else broker.followed.reportable(store.flushed_offset)

        def noted(note: dict[str, Any]) -> None:
            broker.followed.take(note)
            broker.replica.take_note(note)

        told = PollReporter(broker.pull, broker.clients, self._grown.set)
        session = SlaveSession(
            broker.copied_log.append,
            reach,
            anyio.current_time(),
            safe=on_disk if broker.replica.flushes_copies else reach,
            noted=None if self._greeting is None else noted,
            rows=broker.followed.reports,
            waiting=lambda: broker.followed.contradiction() or told.take(),
            heartbeat_s=heartbeat,
        )

        is_heard = False

        def received(data: bytes, now: float) -> None:
            nonlocal is_heard
            is_heard = True
            if session.received(data) or broker.followed.has_reports:
                link.send(len(data))
            broker.followed.drop_deleted_queues()

        def due(now: float) -> bytes:
            report = session.report(now)
            self._reported = max(self._reported, session.reported)
            return report

        link = Link(
            stream,
            self._poller,
            received=received,
            due=due,
            grown=self._grown,
            pause=heartbeat,
            silence=silence,
            who="master",
        )
        # The first report says where the master goes on: it must be the end of our log.
        while broker.replica.flushes_copies and on_disk() < reach():
            if store.flushed_offset < store.max_physical_offset:  # else topics are to be saved
                broker.wake.flush()
            await self._grown.wait(anyio.current_time() + heartbeat)
        log.info("following master %s from %d", address, reach())
        if self._greeting is not None and self._greeting.hears_waiting:
            told.begin()
        try:
            await link.run()
        except link_errors():
            if is_heard:
                raise
        finally:
            told.end()
        if not is_heard:
            raise RemoteProtocolError(f"it hung up before its log; {REFUSED}")
        log.info("master %s has closed the link", address)

    # ---- tables ----

    async def copy(self) -> NoReturn:
        """Copy the master's tables at intervals, while our log follows its log. Tables that come on the link
        are not requested; each request names this slave."""
        state, followed = self._broker.replica, self._broker.followed
        while True:
            for name, code in COPIED.items():
                if not state.is_following or not self._master:
                    break
                if followed.is_fed and name in followed.tables:
                    continue
                try:
                    await self._copy_table(name, code)
                except (*REMOTE, StoreError) as error:
                    log.warning("%s of master %s is not copied: %s", name, self._master, error)
            slow = state.is_following and (followed.is_fed or not self._role.is_in_set)
            await anyio.sleep(COPY_SECONDS if slow else 1.0)

    async def _copy_table(self, name: str, code: int) -> None:
        asked = self._greeting
        answer = await self._ask(code)
        greeting = self._greeting or asked  # the link may have ended since
        if greeting is not None:
            if answer.ext.get(LOG_ID_FIELD) != greeting.log_id:
                raise RemoteProtocolError("it is of another log than the one that we copy")
            if name == "delayOffset":
                return  # it comes with the log, or it would be ahead of what we have of the log
        await run_cooperatively(self._broker.followed.copying(name, answer.body))

    async def _ask(self, code: int) -> Command:
        ids = {SLAVE_FIELD: f"{self._broker.config.broker_id} {self._local}"}
        return self._checked(await self._call(Command.request(code).with_ext(ids)))

    def _checked(self, answer: Command) -> Command:
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark, self._master)
        return answer

    async def _call(self, request: Command) -> Command:
        return await self._pool.call(self._master, self._broker.registration.sign(request), REQUEST_SECONDS)


def _is_empty(store: Store) -> bool:
    return store.max_physical_offset == store.min_physical_offset
