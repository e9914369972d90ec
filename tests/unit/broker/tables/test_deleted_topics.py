"""The trace of a deleted topic: no crash, no power cut and no copy of the log brings its messages back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmq.broker.replication.table_replication import TableSender
from rmq.broker.tables import deletions as of_topics
from rmq.broker.tables.deletions import Deletions
from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import TopicDeletion
from rmq.protocol.codes import RequestCode
from rmq.store.audit.audit import check
from rmq.store.config import BrokerRole
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.table_links import Link, queues_of, slave

from ..rig import Rig, send

SMALL = {"mapped_file_size_commit_log": 8_192}
"""A log of several files, so that a crash leaves a checkpoint that vouches for units of the first ones."""


def a_topic(count: int = 5, queues: int = 2, **given: Any) -> Rig:
    rig = Rig(**given)
    rig.topic("Kept", 1)
    rig.topic("T", queues)
    send_all(rig, "T", queues, count)
    return rig


def send_all(rig: Rig, topic: str, queues: int, count: int) -> None:
    for number in range(count):
        for queue_id in range(queues):
            assert rig.one(send(topic, body=b"%d" % number, queue_id=queue_id)).code == 0
    assert rig.one(send("Kept", body=b"kept")).code == 0


def delete(rig: Rig, topic: str = "T") -> None:
    assert rig.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0


def deleted_folder(rig: Rig) -> str:
    """Delete the topic, whose units are all in files and synced; returns where its folder is then."""
    rig.store.flush()
    rig.let_pass(10_000)
    while rig.store.dispatch():
        pass
    rig.store.flush_queues()
    rig.store.flush_checkpoint()
    taken: list[str] = []
    move = rig.disk.move

    def note(source: str, target: str, *, sync: bool = True) -> None:
        move(source, target, sync=sync)
        taken.append(target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.disk, "move", note)
        patch.setattr(rig.disk, "remove", lambda path: None)
        delete(rig)
    (left,) = taken
    return left


def killed(rig: Rig) -> MemoryDisk:
    """The disk after a kill: all that was written is there, units that only memory had are not."""
    rig.broker.topics.saved(rig.broker.topics.made)
    return rig.disk.copy()


def saved(rig: Rig) -> dict[str, Any]:
    text = rig.disk.load("/store/config/topics.json")
    return dict(json.loads(text or b"{}"))


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize("rebuild", [False, True])
def test_a_crash_does_not_bring_a_deleted_topic_back(is_synced: bool, rebuild: bool) -> None:
    rig = a_topic()
    if is_synced:
        rig.store.flush()
        rig.store.flush_queues()
        rig.store.flush_checkpoint()
    delete(rig)
    assert rig.one(send("Kept", body=b"kept")).code == 0

    disk = killed(rig)
    if rebuild:
        disk.remove("/store/consumequeue")
    again = Rig(disk=disk)
    assert queues_of(again) == {"Kept"}
    assert again.topics.get("T") is None
    again.topic("T", 2)
    assert again.bodies("T") == []
    assert again.one(send("T", body=b"anew")).code == 0
    assert again.bodies("T") == [b"anew"]
    assert again.store.min_offset("T", 0) == 0
    assert again.bodies("Kept") == [b"kept", b"kept"]


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_crash_between_the_deletion_and_the_removal_of_its_queues(is_saved: bool) -> None:
    """The row and the trace are one write, which comes before the queues are moved away."""
    rig = a_topic()
    undo = rig.topics.change("T", None)
    if is_saved:
        rig.store.save_config("topics", rig.topics.to_json())
    again = Rig(disk=rig.disk.copy())
    assert queues_of(again) == ({"Kept"} if is_saved else {"Kept", "T"})
    undo()
    rig.store.save_config("topics", rig.topics.to_json())
    assert Rig(disk=killed(rig)).bodies("T") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("anew", [None, 0, 2])
def test_queue_files_that_a_power_cut_brings_back_are_cut(anew: int | None, is_clean: bool) -> None:
    """The move of the folder was not synced. Units of the topic made again lie before old ones then."""
    rig = a_topic(100, store=SMALL)
    for _ in range(100):  # so that the scan begins behind all messages of the topic
        assert rig.one(send("Kept", body=b"kept")).code == 0
    left = deleted_folder(rig)
    if anew is not None:
        rig.topic("T", 2)
        send_all(rig, "T", 1, anew)
    disk = killed(rig)
    if is_clean:
        rig.store.close()
        disk = rig.disk
    disk.remove("/store/consumequeue/T")
    disk.move(left, "/store/consumequeue/T", sync=False)

    again = Rig(disk=disk, store=SMALL)
    assert again.store.recovery is not None
    assert is_clean or again.store.recovery.scanned_from > 0
    assert again.bodies("T") == [b"%d" % number for number in range(anew or 0)]
    assert again.store.max_offset("T", 1) == 0
    if anew is None:
        assert queues_of(again) == {"Kept"}
    again.topic("T", 2)
    before = again.bodies("T")
    for queue_id in (0, 1):
        assert again.one(send("T", body=b"next", queue_id=queue_id)).code == 0
    assert again.bodies("T") == [*before, b"next"]
    assert again.store.unit("T", 1, 1) is None
    again.store.close()
    assert Rig(disk=again.disk, store=SMALL).store.max_offset("T", 1) == 1


def test_a_trace_stays_when_the_topic_is_made_again_and_deleted_before_it_has_a_message() -> None:
    rig = a_topic()
    delete(rig)
    rig.topic("T", 2)
    rig = Rig(disk=killed(rig))
    delete(rig)
    assert queues_of(Rig(disk=killed(rig))) == {"Kept"}


def test_a_topic_without_messages_leaves_no_trace() -> None:
    rig = a_topic(0)
    delete(rig)
    assert "deletedTopics" not in saved(rig)


def test_the_trace_is_in_topics_json_until_the_log_has_none_of_its_records() -> None:
    rig = a_topic()
    creation = rig.topics.table["T"].creation
    assert creation is not None
    end = rig.store.max_physical_offset
    delete(rig)
    assert saved(rig)["deletedTopics"] == {"T": {"logOffset": end, "timeMs": creation.time_ms}}

    start = [0]
    table = Deletions(lambda: start[0])
    assert table.take({"T": TopicDeletion(end, 7)})
    assert not table.take({"T": TopicDeletion(end, 7)})
    assert list(table.all()) == ["T"]
    start[0] = end
    assert table.all() == {}


def test_no_more_deletions_are_kept_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_topics, "DELETIONS_KEPT", 2)
    table = Deletions(lambda: 0)
    for number, topic in enumerate(("A", "B", "A", "C"), 1):
        table.note(topic, TopicDeletion(number))
    assert table.all() == {"A": TopicDeletion(3), "C": TopicDeletion(4)}


def test_a_topic_has_another_creation_than_one_deleted_before_a_restart() -> None:
    """Also when the clock was set back meanwhile."""
    rig = a_topic()
    rig.let_pass(5_000)
    delete(rig)
    rig.topic("T", 2)
    send_all(rig, "T", 1, 1)
    creation = rig.topics.table["T"].creation
    delete(rig)
    again = Rig(disk=killed(rig))
    again.topic("T", 2)
    made = again.topics.table["T"].creation
    assert creation is not None
    assert made is not None
    assert made.time_ms > creation.time_ms


def test_a_master_whose_log_ends_earlier_keeps_the_messages_that_come_next() -> None:
    """One that was a slave may lack the end of the log at which the topic was deleted."""
    rig = a_topic()
    end = rig.store.max_physical_offset
    delete(rig)
    rig.topics.deletions.note("T", TopicDeletion(end + 10_000))
    rig.store.save_config("topics", rig.topics.to_json().replace(b" ", b""))
    again = Rig(disk=killed(rig))
    assert again.topics.deletions.all()["T"].log_offset == again.store.max_physical_offset
    assert "T" in again.topics.unsaved


# ---- slaves ----


def test_a_new_slave_has_no_queues_of_topics_that_were_deleted_before_it_came() -> None:
    master = a_topic()
    delete(master)
    send_all(master, "Kept", 1, 3)
    to = slave()
    Link(master, to).run()
    assert queues_of(to) == queues_of(master) == {"Kept"}
    assert to.bodies("Kept") == master.bodies("Kept")


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_slave_that_is_killed_while_it_copies_an_earlier_topic(is_made_again: bool) -> None:
    master = a_topic(20)
    delete(master)
    if is_made_again:
        master.topic("T", 2)
        send_all(master, "T", 1, 2)
    to = slave()
    broker, store = master.broker, master.store
    tables, deletions = broker.followed.tables, master.topics.deletions
    feed = TableSender(tables, lambda: store.max_physical_offset, deletions=deletions.all)
    while note := feed.note(0.0):
        to.broker.followed.take(note)
    to.broker.copied_log.append(0, store.read_raw(0, 2_000))
    assert "T" in queues_of(to)
    for name, text in to.broker.saves().items():
        to.store.save_config(name, text)
    again = Rig(disk=to.disk.copy(), store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    assert {key for key in again.store.queues() if key[0] == "T" and again.store.max_offset(*key)} == set()
    Link(master, again).run()
    assert again.bodies("T") == master.bodies("T") == ([b"0", b"1"] if is_made_again else [])
    kept = {("T", 0)} if is_made_again else set()
    assert {key for key in again.store.queues() if key[0] == "T" and again.store.max_offset(*key)} == kept


def test_a_slave_keeps_the_trace_of_a_deletion_that_it_was_told() -> None:
    master, to = a_topic(), slave()
    link = Link(master, to)
    link.run()
    assert queues_of(to) == {"Kept", "T"}
    delete(master)
    link.run()
    assert queues_of(to) == {"Kept"}
    assert to.topics.deletions.all() == master.topics.deletions.all() != {}
    to.store.save_config("topics", to.topics.to_json())
    for role in (BrokerRole.SLAVE, BrokerRole.ASYNC_MASTER):
        again = Rig(disk=to.disk.copy(), store={"broker_role": role}, broker_id=1)
        assert queues_of(again) == {"Kept"}


def test_a_slave_that_asks_for_the_table_keeps_the_traces() -> None:
    master, to = a_topic(), slave()
    delete(master)
    to.broker.followed.copy("topics", master.topics.to_json())
    assert to.topics.deletions.all() == master.topics.deletions.all() != {}


@pytest.mark.parametrize("deleted", ["x", {"T": 1}, {"T": {"logOffset": "x"}}])
def test_a_note_of_deletions_that_cannot_be_read_is_refused(deleted: Any) -> None:
    to = slave()
    note = {"table": "topics", "rows": Rig().topics.to_json().decode(), "gone": ["T"], "deleted": deleted}
    with pytest.raises(RemoteProtocolError):
        to.broker.followed.take(note)


# ---- the audit ----


@pytest.mark.parametrize("anew", [None, 0, 7])
def test_the_audit_misses_no_unit_of_an_earlier_topic(anew: int | None) -> None:
    """Neither where the topic is not there, nor where fewer queues, or none, were used again."""
    rig = a_topic()
    delete(rig)
    if anew is not None:
        rig.topic("T", 2)
        send_all(rig, "T", 1, anew)
    rig.store.close()
    assert dict(check(rig.disk, "/store").counts) == {}


def test_the_audit_finds_units_of_an_earlier_topic() -> None:
    """But where the next start cuts them."""
    rig = a_topic()
    left = deleted_folder(rig)
    rig.topic("T", 2)
    rig.store.close()
    rig.disk.move(left, "/store/consumequeue/T", sync=False)
    assert dict(check(rig.disk, "/store").counts) == {"queue unit extra": 10}
    rig.disk.replace("/store/abort", b"")
    assert dict(check(rig.disk, "/store").counts) == {}
