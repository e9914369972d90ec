"""The master-slave copy: against a captured session, byte by byte, and against peers that lie."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from rmq.broker.replication.replica_state import LOG_ID_FIELD
from rmq.broker.replication.sessions import (
    FRAME,
    HELLO,
    NOTE,
    REPORT,
    SLAVE_FRAME_MAX,
    MasterLog,
    MasterSession,
    SlaveSession,
    decode_note,
    fingerprint,
    question,
)
from rmq.broker.role import Slave
from rmq.broker.runtime.replication_loops import Follower
from rmq.errors import ConnectFailed, RemoteProtocolError
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import Record
from rmq.remoting.loop import Wakeup
from rmq.server.health import Health
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing.network import MemoryNetwork

from ..rig import Rig, send

FILE = 65536


def open_store(folder: Path, **settings: Any) -> Store:
    sizes = {"mapped_file_size_commit_log": FILE, "mapped_file_size_consume_queue": 2000}
    config = StoreConfig(store_path_root_dir=str(folder), **sizes | settings)
    store = Store(RealDisk(), config, store_host=bytes(8), now_ms=lambda: 1_800_000_000_000)
    store.load()
    return store


def fill(store: Store, count: int, size: int = 500) -> None:
    for number in range(count):
        store.put(Record("T", 0, b"%06d" % number + b"x" * size))
    store.commit()


def log_bytes(store: Store) -> bytes:
    at, parts = store.min_physical_offset, []
    while at < store.max_physical_offset:
        parts.append(bytes(store.read_raw(at, 1 << 20)))
        at += len(parts[-1])
    return b"".join(parts)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    master, slave = open_store(tmp_path / "master"), open_store(tmp_path / "slave")
    yield master, slave
    master.close()
    slave.close()


def slave_of(store: Store, now: float = 0.0) -> SlaveSession:
    return SlaveSession(store.append_raw, lambda: store.max_physical_offset, now)


def exchange(master: MasterSession, slave: SlaveSession, now: float, cut: int = 1 << 30) -> None:
    """Pass bytes both ways, in pieces of `cut`, until nobody has anything to say."""
    while True:
        up = slave.report(now)
        for at in range(0, len(up), cut):
            master.received(up[at : at + cut])
        down = master.frame(now)
        for at in range(0, len(down), cut):
            slave.received(down[at : at + cut])
        if not up and not down:
            return


@pytest.mark.parametrize("cut", [1, 7, 1 << 30])
def test_a_slave_follows_from_the_start_and_over_file_ends(stores: tuple[Store, Store], cut: int) -> None:
    master_store, slave_store = stores
    fill(master_store, 5)
    master, slave = MasterSession(master_store, 0.0), slave_of(slave_store)
    exchange(master, slave, 0.0, cut)
    fill(master_store, 300)
    assert master_store.max_physical_offset > 2 * FILE
    exchange(master, slave, 1.0, cut)
    assert log_bytes(slave_store) == log_bytes(master_store)
    assert slave_store.max_offset("T", 0) == master_store.max_offset("T", 0) == 305
    assert master.acknowledged == master_store.max_physical_offset


@pytest.mark.parametrize("most", [32 * 1024, 1000, 1 << 30])
def test_frames_are_cut_at_the_batch_size_and_at_file_ends(tmp_path: Path, most: int) -> None:
    master_store = open_store(tmp_path, ha_transfer_batch_size=most)
    fill(master_store, 1)
    master = MasterSession(master_store, 0.0)
    master.received(REPORT.pack(0))
    fill(master_store, 200)
    frames = []
    while frame := master.frame(0.0):
        assert len(frame) <= SLAVE_FRAME_MAX
        frames.append(FRAME.unpack_from(frame))
    master_store.close()
    assert frames[0] == (0, min(most, FILE))
    assert all(offset // FILE == (offset + size - 1) // FILE for offset, size in frames)


def test_no_frame_is_larger_than_a_slave_s_buffer(tmp_path: Path) -> None:
    """The rule holds for any haTransferBatchSize: RocketMQ's slave cannot hold a larger frame."""
    settings = {"mapped_file_size_commit_log": 1 << 23, "ha_transfer_batch_size": 1 << 30}
    store = open_store(tmp_path, **settings)
    fill(store, 10, 600_000)
    master = MasterSession(store, 0.0)
    master.received(REPORT.pack(0))
    sizes = []
    while frame := master.frame(0.0):
        sizes.append(len(frame))
    assert sizes[0] == SLAVE_FRAME_MAX
    assert sum(sizes) - FRAME.size * len(sizes) == store.max_physical_offset
    store.close()


def test_an_empty_slave_begins_with_the_newest_file(stores: tuple[Store, Store]) -> None:
    master_store, slave_store = stores
    fill(master_store, 200)
    newest = master_store.max_physical_offset // FILE * FILE
    assert newest > 0
    exchange(MasterSession(master_store, 0.0), slave_of(slave_store), 0.0)
    assert slave_store.min_physical_offset == newest
    assert log_bytes(slave_store) == log_bytes(master_store)[newest:]


def test_a_slave_that_comes_back_goes_on_where_it_was(stores: tuple[Store, Store]) -> None:
    master_store, slave_store = stores
    fill(master_store, 3)
    exchange(MasterSession(master_store, 0.0), slave_of(slave_store), 0.0)
    fill(master_store, 3)
    again = MasterSession(master_store, 0.0)
    exchange(again, slave_of(slave_store), 9.0)
    assert log_bytes(slave_store) == log_bytes(master_store)


def test_nothing_is_sent_before_the_first_report_and_heartbeats_every_five_seconds(
    stores: tuple[Store, Store],
) -> None:
    master_store, slave_store = stores
    fill(master_store, 1)
    master, slave = MasterSession(master_store, 0.0), slave_of(slave_store)
    assert master.frame(100.0) == b""
    exchange(master, slave, 100.0)
    reach = master_store.max_physical_offset
    assert master.frame(104.9) == b""
    assert master.frame(105.0) == FRAME.pack(reach, 0)
    assert slave.report(104.9) == b""
    assert slave.report(105.0) == REPORT.pack(reach)
    assert slave.received(FRAME.pack(reach, 0)) == 0


@pytest.mark.parametrize("forged", [-1, 1 << 40])
def test_an_acknowledgement_above_what_was_sent_ends_the_link(
    stores: tuple[Store, Store], forged: int
) -> None:
    master_store, _ = stores
    fill(master_store, 3)
    master = MasterSession(master_store, 0.0)
    master.received(REPORT.pack(0))
    sent = FRAME.unpack_from(master.frame(0.0))[1]
    master.received(REPORT.pack(sent))
    with pytest.raises(RemoteProtocolError, match="acknowledges"):
        master.received(REPORT.pack(forged))
    assert master.acknowledged == sent


def test_a_slave_that_has_more_than_its_master_is_refused(stores: tuple[Store, Store]) -> None:
    with pytest.raises(RemoteProtocolError, match="must be cut"):
        MasterSession(stores[0], 0.0).received(REPORT.pack(100))


def test_a_frame_before_any_log_is_refused(stores: tuple[Store, Store]) -> None:
    with pytest.raises(RemoteProtocolError):
        slave_of(stores[1]).received(FRAME.pack(-(1 << 63), 4) + b"abcd")
    assert stores[1].max_physical_offset == 0


@pytest.mark.parametrize("frame", [FRAME.pack(99, 4) + b"abcd", FRAME.pack(0, -1), FRAME.pack(0, 1 << 30)])
def test_a_frame_that_cannot_follow_is_refused(stores: tuple[Store, Store], frame: bytes) -> None:
    _, slave_store = stores
    fill(slave_store, 1)
    reach = slave_store.max_physical_offset
    with pytest.raises(RemoteProtocolError):
        slave_of(slave_store).received(frame)
    assert slave_store.max_physical_offset == reach


@pytest.mark.parametrize("number", [0, 1])
def test_our_slave_reads_what_a_java_master_sent(golden: Path, tmp_path: Path, number: int) -> None:
    capture: dict[str, Any] = json.loads((golden / "ha.json").read_text())["capture"][number]
    log = bytearray()
    first = next(row for row in capture["decoded"] if row["from"] == "slave")
    log += bytes(first["max_offset"])

    def append(offset: int, data: memoryview) -> None:
        assert offset == len(log)
        log.extend(data)

    slave = SlaveSession(append, lambda: len(log), 0.0)
    for chunk in capture["chunks"]:
        if chunk["dir"] == "s2c":
            slave.received(base64.b64decode(chunk["b64"]))
    assert len(log) == max(row["max_offset"] for row in capture["decoded"] if row["from"] == "slave")


@pytest.mark.parametrize("number", [0, 1])
def test_our_master_reads_what_a_java_slave_reported(golden: Path, tmp_path: Path, number: int) -> None:
    capture: dict[str, Any] = json.loads((golden / "ha.json").read_text())["capture"][number]
    store = open_store(tmp_path)
    reports = [row["max_offset"] for row in capture["decoded"] if row["from"] == "slave"]
    fill(store, 200, 900)
    master = MasterSession(store, 0.0)
    master._next = max(reports)
    for chunk in capture["chunks"]:
        if chunk["dir"] == "c2s":
            master.received(base64.b64decode(chunk["b64"]))
    assert master.acknowledged == max(reports)
    store.close()


class FakeSession:
    def __init__(self, acknowledged: int) -> None:
        self.acknowledged = acknowledged


def sync_master(**store: Any) -> tuple[Rig, list[Command]]:
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER, **store})
    return rig, rig.ask(send())


def test_a_sync_master_without_a_slave_says_so() -> None:
    _, (answer,) = sync_master()
    assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SLAVE_NOT_AVAILABLE, "0")


def test_a_sync_master_answers_when_a_slave_has_the_message() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER})
    slave = FakeSession(0)
    rig.broker.acknowledgement.replicas.join(slave, "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
    assert rig.ask(send()) == []
    slave.acknowledged = rig.store.max_physical_offset - 1
    rig.broker.acknowledgement.replicas.acknowledged()
    assert rig.wire.take() == []
    slave.acknowledged += 1
    rig.broker.acknowledgement.replicas.acknowledged()
    (answer,) = rig.wire.take()
    assert answer.code == 0


def test_a_slave_that_does_not_answer_in_time_is_told_of() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER})
    rig.broker.acknowledgement.replicas.join(FakeSession(0), "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
    rig.ask(send())
    assert rig.broker.steps.deadlines(rig.seconds + 2.9) == pytest.approx(rig.seconds + 3)
    assert rig.wire.take() == []
    rig.broker.steps.deadlines(rig.seconds + 3)
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_a_slave_far_behind_is_not_waited_for() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER, "ha_slave_fallbehind_max": 100})
    rig.broker.acknowledgement.replicas.join(FakeSession(0), "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
    (answer,) = rig.ask(send())
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_slave_as_far_behind_as_it_may_not_be_is_not_waited_for() -> None:
    """haSlaveFallbehindMax is the first distance that is too far, as in RocketMQ."""
    (first,) = Rig().ask(send())
    assert first.code == 0
    for more, wanted in ((0, [ResponseCode.SLAVE_NOT_AVAILABLE]), (1, [])):
        rig = Rig()
        rig.ask(send())
        size = rig.store.max_physical_offset
        role = BrokerRole.SYNC_MASTER
        rig = Rig(store={"broker_role": role, "ha_slave_fallbehind_max": size + more})
        rig.broker.acknowledgement.replicas.join(FakeSession(0), "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
        assert [answer.code for answer in rig.ask(send())] == wanted


def test_disk_and_slave_are_both_waited_for() -> None:
    roles = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
    rig = Rig(store=roles)
    slave = FakeSession(0)
    rig.broker.acknowledgement.replicas.join(slave, "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
    rig.ask(send())
    slave.acknowledged = rig.store.max_physical_offset
    rig.broker.acknowledgement.replicas.acknowledged()
    assert rig.wire.take() == []
    rig.broker.on_synced(rig.store.max_physical_offset)
    (answer,) = rig.wire.take()
    assert answer.code == 0


def test_after_the_disk_the_slave_is_still_waited_for() -> None:
    """In either order the response comes after the second of both, or says that the slave lacks the
    message."""
    roles = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
    for has_it in (True, False):
        rig = Rig(store=roles)
        slave = FakeSession(0)
        rig.broker.acknowledgement.replicas.join(slave, "10.0.0.7:1", lambda: None)  # type: ignore[arg-type]
        rig.ask(send())
        rig.broker.on_synced(rig.store.flush())
        assert rig.wire.take() == []  # on disk, and on no slave
        if has_it:
            slave.acknowledged = rig.store.max_physical_offset
            rig.broker.acknowledgement.replicas.acknowledged()
        else:
            rig.broker.steps.deadlines(rig.seconds + 3)
        wanted = ResponseCode.SUCCESS if has_it else ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert [answer.code for answer in rig.wire.take()] == [wanted]


def test_a_slave_gives_up_part_of_a_record_before_it_follows_again(stores: tuple[Store, Store]) -> None:
    master, slave = stores
    fill(master, 3)
    slave.append_raw(0, master.read_raw(0, master.max_physical_offset - 1))
    registration = SimpleNamespace(master_address="")
    broker: Any = SimpleNamespace(store=slave, registration=registration, role=Slave())
    guard: Any = SimpleNamespace(tls=SimpleNamespace(config=SimpleNamespace(scheme="tcp")))
    pool: Any = None
    follower = Follower(broker, MemoryNetwork(seed=1), pool, guard, grown=Wakeup(), health=Health())
    with pytest.raises((ConnectFailed, OSError)):
        trio.run(follower._link, "10.0.0.9:1")
    unit = slave.unit("T", 0, 1)
    assert unit is not None
    assert slave.max_physical_offset == unit[0] + unit[1]
    assert follower._reported == slave.max_physical_offset, "nobody can have been told of the rest"


class Progress:
    """A master's reports of its log: in these tests the number of its records."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def now(self) -> dict[str, int]:
        return {"records": self.store.max_offset("T", 0)}


def ours(store: Store, safe: int | None = None) -> MasterSession:
    log = MasterLog("id", store.min_physical_offset, store.max_physical_offset, FILE)
    return MasterSession(store, 0.0, greet=lambda: log, safe=lambda: safe, progress=Progress(store).now)


@pytest.mark.parametrize("most", [100, 32 * 1024])
def test_progress_comes_behind_the_log_that_it_is_about(tmp_path: Path, most: int) -> None:
    master_store = open_store(tmp_path / "master", ha_transfer_batch_size=most)
    slave_store = open_store(tmp_path / "slave")
    fill(master_store, 3)
    master, told = ours(master_store), []

    def noted(note: dict[str, Any]) -> None:
        if "progress" in note:
            told.append(note["progress"]["records"])
            assert slave_store.max_offset("T", 0) >= told[-1]

    slave = SlaveSession(slave_store.append_raw, lambda: slave_store.max_physical_offset, 0.0, noted=noted)
    master.received(HELLO)
    exchange(master, slave, 0.0)
    for second in range(1, 20):
        fill(master_store, 10)
        for _ in range(5):  # the slave lags
            slave.received(master.frame(float(second)))
    exchange(master, slave, 30.0)
    assert told[0] == 3
    assert told == sorted(set(told))
    assert told[-1] == master_store.max_offset("T", 0) == slave_store.max_offset("T", 0)
    assert len(told) > 3, "a slave that lags is told, too"
    master_store.close()
    slave_store.close()


def test_one_of_ours_is_told_whose_log_it_is_and_asks_for_records(stores: tuple[Store, Store]) -> None:
    store, _ = stores
    fill(store, 3)
    master = ours(store)
    assert master.frame(0.0) == b""
    master.received(HELLO + question(0) + question(5) + question(1 << 40))
    notes = []
    while frame := master.frame(0.0):
        offset, size = FRAME.unpack_from(frame)
        assert (offset, size) == (NOTE, len(frame) - FRAME.size)
        notes.append(decode_note(frame[FRAME.size :]))
    assert MasterLog.from_note(notes[0]) == MasterLog("id", 0, store.max_physical_offset, FILE)
    assert notes[1] == {"at": 0, **fingerprint(store.read(0))}
    assert [note["size"] for note in notes[2:]] == [0, 0]
    master.received(REPORT.pack(0))
    assert FRAME.unpack_from(master.frame(0.0))[0] == 0


@pytest.mark.parametrize("said", [question(0), HELLO + HELLO, HELLO + question(0) * 1001])
def test_odd_words_of_a_slave_end_its_link(stores: tuple[Store, Store], said: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="reports -"):
        ours(stores[0]).received(said)


def test_who_says_no_hello_gets_frames_only(stores: tuple[Store, Store]) -> None:
    """Such a peer gets frames like RocketMQ's slaves, and no notes of the master."""
    store, _ = stores
    fill(store, 3)
    master = ours(store, safe=5)
    master.received(REPORT.pack(0))
    for second in range(20):
        frame = master.frame(float(second))
        assert not frame or FRAME.unpack_from(frame)[0] >= 0


@pytest.mark.parametrize("note", [b"[1]", b"{", b'{"logId":"a"}', b'{"logId":"a","start":"x"}'])
def test_a_note_that_cannot_be_read_ends_the_link(note: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MasterLog.from_note(decode_note(note))


async def test_progress_that_is_answered_when_the_link_has_ended_is_not_taken(
    stores: tuple[Store, Store],
) -> None:
    """The progress is ahead of the log: a replica elected with it would count messages as delivered that it
    lacks."""
    broker: Any = SimpleNamespace(store=stores[1], role=Slave(), followed=SimpleNamespace(copying=None))
    guard: Any = SimpleNamespace(tls=SimpleNamespace(config=SimpleNamespace(scheme="tcp")))
    pool: Any = None
    follower: Any = Follower(broker, MemoryNetwork(seed=1), pool, guard, grown=Wakeup(), health=Health())
    follower._greeting = SimpleNamespace(log_id="a")

    async def ask(code: int) -> Command:
        follower._greeting = None
        return Command.request(code).reply().with_ext({LOG_ID_FIELD: "a"})

    follower._ask = ask
    await follower._copy_table("delayOffset", RequestCode.GET_ALL_DELAY_OFFSET)
