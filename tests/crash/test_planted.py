"""Do the checks see anything? Faults are planted into the code one by one, and each must be caught.

Each check passes on the code as it is, and must fail with the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from rmq.broker.delay.timers import Timers
from rmq.broker.produce.acks import Acknowledgement
from rmq.broker.replication import sessions
from rmq.broker.replication.replica_state import DeliveryProgress
from rmq.broker.replication.sessions import REPORT, Expired, MasterSession, SlaveSession
from rmq.broker.runtime import replication_loops
from rmq.broker.tables import offsets
from rmq.broker.transactions import Transactions
from rmq.errors import CorruptRecord, RemoteProtocolError, RmqError, StoreError
from rmq.protocol.record import Record
from rmq.store import recovery
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.files import scan
from rmq.store.files.commitlog import CommitLog
from rmq.store.files.config_files import ConfigFiles
from rmq.store.files.queues import Queues, Written
from rmq.store.files.segments import Segments
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.rig import Rig, send

from . import windows
from .images import ROOT, SETTINGS, START_MS, campaign, open_store, read_all
from .operators import campaign as operators_campaign

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]

Plant = Callable[[pytest.MonkeyPatch], None]
SEED, IMAGES = 1, 3000


# ---- the checks ----


def images() -> None:
    """Power cuts at every boundary lose nothing that was acknowledged."""
    campaign(SEED, IMAGES)


def power_windows() -> None:
    """Power cuts between any two syncs of a whole broker lose nothing, with everything under way."""
    windows.campaign(SEED, 1500)


def operators() -> None:
    """Accidents of a master and its slave, and what operators do, take nothing from either."""
    operators_campaign(SEED, 6)


def damage() -> None:
    """A flipped bit in the synced part of the log stops the start, after a clean stop and after a crash."""
    disk = MemoryDisk()
    store = open_store(disk, START_MS)
    for _ in range(3):
        store.put(Record("Orders", 0, b"x" * 500))
    store.commit()
    store.flush()
    store.close()
    disk.flip(f"{ROOT}/commitlog/{0:020d}", 300)
    with pytest.raises(CorruptRecord):
        open_store(disk, START_MS)


def disk_level() -> None:
    """At `disk` nobody is answered before the log is synced."""
    rig = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    assert rig.ask(send()) == []
    rig.broker.on_synced(rig.store.flush())
    assert [answer.code for answer in rig.wire.take()] == [0]


def replicated_level() -> None:
    """At `replicated` nobody is answered before a slave has the message."""
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER})
    session = MasterSession(rig.store, 0.0)
    session.received(REPORT.pack(0))
    rig.broker.acknowledgement.replicas.join(session, "10.0.0.7:1", lambda: None)
    assert rig.ask(send()) == []
    while session.frame(0.0):
        pass
    session.received(REPORT.pack(rig.store.max_physical_offset))
    rig.broker.acknowledgement.replicas.acknowledged()
    assert [answer.code for answer in rig.wire.take()] == [0]


def forged_acknowledgement() -> None:
    """A slave that acknowledges more than it was sent is cut off."""
    store = open_store(MemoryDisk(), START_MS)
    session = MasterSession(store, 0.0)
    session.received(REPORT.pack(0))
    with pytest.raises(RemoteProtocolError):
        session.received(REPORT.pack(1 << 40))


def rejoin() -> None:
    """A slave whose log differs from its master's ends with the same bytes."""
    master, slave = open_store(MemoryDisk(), START_MS), open_store(MemoryDisk(), START_MS)
    for store, tail in ((master, b"m" * 300), (slave, b"s" * 100)):
        for body in (b"common", tail, b"end"):
            store.put(Record("Orders", 0, body))
        store.commit()
    for _ in range(5):
        master.put(Record("Orders", 0, b"later"))
    master.commit()

    def same(physical_offset: int) -> bool:
        ours, theirs = slave.read(physical_offset), master.read(physical_offset)
        return ours is not None and theirs is not None and bytes(ours) == bytes(theirs)

    search, cut = sessions.find_cut(slave, master.max_physical_offset), None
    try:
        offset = next(search)
        while True:
            offset = search.send(same(offset))
    except StopIteration as found:
        cut = found.value
    if cut is not None:
        slave.truncate(cut)
    session = MasterSession(master, 0.0)
    follower = SlaveSession(slave.append_raw, lambda: slave.max_physical_offset, 0.0)
    session.received(follower.report(0.0))
    while frame := session.frame(0.0):
        follower.received(frame)
    end = master.max_physical_offset
    assert slave.max_physical_offset == end
    assert bytes(slave.read_raw(0, end)) == bytes(master.read_raw(0, end))


def rejoin_with_a_part() -> None:
    """A slave has part of a record that a power cut took from its master, which goes on with another one."""
    master, lost, slave = (open_store(MemoryDisk(), START_MS) for _ in range(3))
    for store, tail in ((master, b"m" * 300), (lost, b"l" * 300)):
        for body in (b"common", tail):
            store.put(Record("Orders", 0, body))
        store.commit()
    slave.append_raw(0, lost.read_raw(0, lost.max_physical_offset - 150))
    slave.cut_partial()
    slave.append_raw(slave.max_physical_offset, master.read_raw(slave.max_physical_offset, 1 << 20))
    end = master.max_physical_offset
    assert bytes(slave.read_raw(0, end)) == bytes(master.read_raw(0, end))


def queue_sync() -> None:
    """After a failed sync of queue files, a clean stop and a power cut, the queues are whole."""
    for seed in range(20):
        disk, clock = MemoryDisk(seed), [START_MS]
        config = StoreConfig(store_path_root_dir=ROOT, **SETTINGS)
        store = Store(disk, config, store_host=bytes(8), now_ms=lambda: clock[0])  # noqa: B023
        store.load()
        for fails in (True, False):
            for _ in range(30):
                store.put(Record("Orders", 0, b"body"))
                store.commit()
            clock[0] += 100_000
            store.dispatch()
            store.flush()
            if fails:
                disk.fail("sync", "consumequeue")
            with suppress(StoreError):
                store.flush_queues()
            store.flush_checkpoint()
        store.close()
        disk.crash()
        assert len(read_all(open_store(disk, clock[0]), ("Orders", 0))) == 60


CHECKS = [
    images,
    power_windows,
    operators,
    queue_sync,
    damage,
    disk_level,
    replicated_level,
    forged_acknowledgement,
    rejoin,
    rejoin_with_a_part,
]


# ---- the faults ----


def no_sync_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """The log is never synced, yet `flush` says so."""

    def flush(log: CommitLog) -> int:
        log.flushed, log.flushed_timestamp = log.end, log.timestamp
        return log.flushed

    patch.setattr(CommitLog, "flush", flush)


def sync_of_the_last_file_only(patch: pytest.MonkeyPatch) -> None:
    """A flush over two log files syncs the second one."""
    real = Segments.sync

    def sync(segments: Segments, start: int, stop: int, **given: Any) -> None:
        real(segments, max(start, (stop - 1) - (stop - 1) % segments.file_size), stop, **given)

    patch.setattr(Segments, "sync", sync)


def a_failed_sync_passes(patch: pytest.MonkeyPatch) -> None:
    """EIO of a sync is swallowed."""
    real = Segments.sync

    def sync(segments: Segments, start: int, stop: int, **given: Any) -> None:
        with suppress(StoreError):
            real(segments, start, stop, **given)

    patch.setattr(Segments, "sync", sync)


def acknowledged_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """The broker answers a SYNC_FLUSH send at its commit."""

    def park(self: Any, connection: Any, acks: Any) -> None:
        connection.write(self._answers.stored(acks))

    patch.setattr(Acknowledgement, "_park", park)


def acknowledged_before_the_slave(patch: pytest.MonkeyPatch) -> None:
    """A slave that is there counts as one that has the message."""

    def await_slave(self: Any, connection: Any, position: int, acks: Any) -> None:
        connection.write(self._answers.stored(acks))

    patch.setattr(Acknowledgement, "_await_slave", await_slave)


def forged_acknowledgement_taken(patch: pytest.MonkeyPatch) -> None:
    """The master believes any offset."""

    def reported(self: Any, offset: int) -> None:
        if self._next < 0:
            self._open(offset)
        self.acknowledged = max(self.acknowledged, offset)

    patch.setattr(MasterSession, "_reported", reported)


def no_truncation_at_rejoin(patch: pytest.MonkeyPatch) -> None:
    """A slave that comes back keeps what its master does not have."""

    def find_cut(*args: Any) -> Iterator[int]:
        yield from ()

    patch.setattr(sessions, "find_cut", find_cut)


def part_of_a_record_kept_at_rejoin(patch: pytest.MonkeyPatch) -> None:
    """A slave that comes back keeps the part of a record that it got."""
    patch.setattr(Store, "cut_partial", lambda store: None)


def crc_ignored(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not look at CRCs."""
    real = scan.parse

    def parse(data: Any, at: int, position: int, *, check_crc: bool) -> Any:
        return real(data, at, position, check_crc=False)

    patch.setattr(scan, "parse", parse)


def damage_taken_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """The first bad record ends the log, whatever follows."""
    patch.setattr(recovery, "check_end", lambda *args: None)
    patch.setattr(recovery.Recoverer, "_check_reach", lambda *args: False)


def tail_not_cut(patch: pytest.MonkeyPatch) -> None:
    """Bytes behind the end that recovery found stay in the log."""

    def truncate(log: CommitLog, end: int) -> None:
        log.end, log.flushed = end, min(log.flushed, end)
        log._restart()

    patch.setattr(CommitLog, "truncate", truncate)


def failed_write_left_behind(patch: pytest.MonkeyPatch) -> None:
    """The bytes of a failed write stay behind the log's end."""
    patch.setattr(CommitLog, "_clean_tail", lambda log: setattr(log, "_dirty", False))


def new_log_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A new log file is used before its folder entry is on the medium, and never synced when full."""
    real = Segments.__init__

    def init(self: Segments, *args: Any, ordered: bool, **others: Any) -> None:
        real(self, *args, ordered=False, **others)

    patch.setattr(Segments, "__init__", init)


def unsynced_queues_vouched_for(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint vouches for queue files that were not synced."""
    beyond = Written(1 << 60, 1 << 60)
    patch.setattr(Queues, "sync", lambda queues: beyond)
    always = property(lambda log: 1 << 60, lambda log, value: None)
    patch.setattr(CommitLog, "flushed_timestamp", always, raising=False)


def config_written_in_place(patch: pytest.MonkeyPatch) -> None:
    """A config file is overwritten where it is, without .bak and without a sync."""

    def save(files: Any, name: str, data: bytes) -> None:
        disk, path = files._disk, files.path(name)
        disk.remove(path)
        disk.open(path, len(data)).write(0, data)

    patch.setattr(ConfigFiles, "save", save)


def page_loss_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """A page that a power cut lost stops the start."""
    patch.setattr(scan, "_page_lost", lambda *args: False)


def recovered_log_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The records that recovery found count as synced, but are not."""
    real = Store._load

    def load(store: Store, *args: Any, **given: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Segments, "sync", lambda *args, **given: None)
            return real(store, *args, **given)

    patch.setattr(Store, "_load", load)


def mended_without_writing_again(patch: pytest.MonkeyPatch) -> None:
    """After a failed sync the next one is believed, though the kernel dropped the pages."""

    def mend(store: Store) -> int:
        store._log.failure = ""
        return store.flush()

    patch.setattr(Store, "mend", mend)


def recovered_without_writing_again(patch: pytest.MonkeyPatch) -> None:
    """A broker killed after a failed sync finds its messages, and believes the next sync of them."""
    real = Store._load

    def load(store: Store, *args: Any, **given: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CommitLog, "write_again", lambda *args, **given: None)
            return real(store, *args, **given)

    patch.setattr(Store, "_load", load)


def a_failed_sync_of_queues_vouched_for(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint moves on over queue files whose sync failed once."""
    real = Store.flush_queues

    def flush_queues(store: Store) -> None:
        store._unvouched = False
        real(store)

    patch.setattr(Store, "flush_queues", flush_queues)


def tables_saved_before_the_log_is_synced(patch: pytest.MonkeyPatch) -> None:
    """A table says that messages are delivered, consumed or ended which a power cut takes."""

    def save_configs(store: Store, texts: Mapping[str, bytes]) -> None:
        for name, data in texts.items():
            store.save_config(name, data)

    patch.setattr(Store, "save_configs", save_configs)


def unknown_commits_dropped(patch: pytest.MonkeyPatch) -> None:
    """After a start, what is not known to be open counts as ended: its commit is answered and dropped."""
    real = Transactions._decide

    def decide(self: Transactions, header: Any, connection: Any, now_ms: int) -> None:
        if header.tran_state_table_offset >= self._next:
            real(self, header, connection, now_ms)

    patch.setattr(Transactions, "_decide", decide)


def a_slave_cuts_whatever_its_master_has_not(patch: pytest.MonkeyPatch) -> None:
    """An empty, foreign or old master makes its slave give up acknowledged messages."""
    patch.setattr(replication_loops, "begin", lambda *args: None)
    patch.setattr(replication_loops, "check_cut", lambda *args: None)


def a_slave_away_for_too_long_is_stuck(patch: pytest.MonkeyPatch) -> None:
    """A slave whose master has removed what comes next compares logs that have nothing in common."""
    real = replication_loops.begin

    def begin(*args: Any) -> None:
        with suppress(Expired):
            real(*args)

    patch.setattr(replication_loops, "begin", begin)


def progress_of_deliveries_not_copied(patch: pytest.MonkeyPatch) -> None:
    """A slave made master delivers again what its master has delivered."""
    patch.setattr(DeliveryProgress, "take", lambda self, told: None)


def transactions_have_no_room_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """Other groups' offsets leave no room for how far transactions are settled."""
    patch.setattr(offsets, "_OF_TRANSACTIONS", frozenset())


def timers_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Messages that wait for their time are not read from the log at a start."""
    patch.setattr(Timers, "load", lambda self, data: None)


FAULTS: list[tuple[Plant, Callable[[], None]]] = [
    (no_sync_of_the_log, images),
    (sync_of_the_last_file_only, images),
    (a_failed_sync_passes, images),
    (acknowledged_before_the_flush, disk_level),
    (acknowledged_before_the_slave, replicated_level),
    (forged_acknowledgement_taken, forged_acknowledgement),
    (no_truncation_at_rejoin, rejoin),
    (part_of_a_record_kept_at_rejoin, rejoin_with_a_part),
    (crc_ignored, images),
    (damage_taken_for_the_end, damage),
    (tail_not_cut, images),
    (failed_write_left_behind, images),
    (new_log_file_not_synced, images),
    (unsynced_queues_vouched_for, images),
    (config_written_in_place, images),
    (page_loss_taken_for_damage, images),
    (recovered_log_not_synced, images),
    (mended_without_writing_again, images),
    (recovered_without_writing_again, images),
    (a_failed_sync_of_queues_vouched_for, queue_sync),
    (tables_saved_before_the_log_is_synced, power_windows),
    (unknown_commits_dropped, power_windows),
    (timers_forgotten_at_a_start, power_windows),
    (transactions_have_no_room_of_their_own, power_windows),
    (a_slave_cuts_whatever_its_master_has_not, operators),
    (a_slave_away_for_too_long_is_stuck, operators),
    (progress_of_deliveries_not_copied, operators),
]


@pytest.mark.parametrize("check", CHECKS)
def test_each_check_passes_without_a_fault(check: Callable[[], None]) -> None:
    if check not in (images, power_windows, operators):  # which have tests of their own, longer
        check()


@pytest.mark.parametrize(("plant", "check"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_each_planted_fault_is_caught(
    plant: Plant, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, RmqError)) as caught:
        check()
    print(f"\n{plant.__name__}: {str(caught.value).splitlines()[0][:150]}")
