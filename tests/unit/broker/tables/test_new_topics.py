"""The first senders to a topic are answered when topics.json has it; senders to other topics at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from rmq.broker.tables import topics
from rmq.broker.tables.versioned import run_to_end
from rmq.broker.wakeups import Wakeups
from rmq.errors import DiskFull
from rmq.protocol.bodies import ConsumerData, HeartbeatData, TopicConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmq.store.config import FlushDiskType

from ..rig import START, Rig, Wire, batch, send


class SlowRig(Rig):
    """A broker whose topics are saved when the test says so; `wanted` counts how often it was asked for."""

    def __init__(self) -> None:
        self.wanted = 0
        super().__init__(given={"wake": Wakeups(new_topics=self._want)})
        self.broker.topics.create_retry("Known", 6, 4)
        self.broker.group_commit.save_topics()
        assert self.one(send("Known")).code == 0

    def _want(self) -> None:
        self.wanted += 1


@pytest.fixture
def rig() -> SlowRig:
    return SlowRig()


def sent_back(rig: Rig, level: int = 1) -> Command:
    header = ConsumerSendMsgBackRequestHeader(rig.messages("Known")[0].physical_offset, "g", level)
    return Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


KINDS: dict[str, Callable[[Rig], Command]] = {
    "plain": lambda rig: send("New"),
    "v1": lambda rig: send("New", code=RequestCode.SEND_MESSAGE),
    "without waiting for the disk": lambda rig: send("New", properties="WAIT\x01false"),
    "batch": lambda rig: batch("New"),
    "delayed": lambda rig: send("New", properties="DELAY\x011"),
    "timed": lambda rig: send("Known", properties=f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{START + 5000}"),
    "half": lambda rig: send("Known", properties="TRAN_MSG\x01true\x02PGROUP\x01p"),
    "sent back": sent_back,
    "dead letter": lambda rig: sent_back(rig, -1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_first_message_waits_until_its_topic_is_saved(rig: SlowRig, kind: str) -> None:
    request = KINDS[kind](rig)
    assert rig.ask(request) == []
    assert rig.wanted == 1
    rig.broker.group_commit.save_topics()
    (answer,) = rig.wire.take()
    assert (answer.opaque, answer.code) == (request.opaque, 0)
    again = Rig(disk=rig.disk.copy())
    assert set(again.broker.topics.table) == set(rig.broker.topics.table)
    assert rig.broker.acknowledgement.waiting_for_topics == 0


def test_senders_to_other_topics_are_answered_at_once_in_the_same_chunk_too(rig: SlowRig) -> None:
    new, known, later = send("New"), send("Known"), send("Known")
    assert [answer.opaque for answer in rig.ask(new, known)] == [known.opaque]
    assert [answer.opaque for answer in rig.ask(later, wire=Wire())] == [later.opaque]
    assert rig.broker.acknowledgement.waiting_for_topics == 1
    rig.broker.group_commit.save_topics()
    assert [answer.opaque for answer in rig.wire.take()] == [new.opaque]


def test_the_second_message_waits_too_and_a_topic_made_meanwhile_for_the_next_save(rig: SlowRig) -> None:
    first, second, third = send("New"), send("New"), send("Newer")
    rig.ask(first)
    made = rig.broker.topics.made
    write = run_to_end(rig.broker.files.saving("topics"))
    assert rig.ask(second) == []
    assert rig.ask(third) == []
    write()
    rig.broker.topics.saved(made)
    rig.broker.acknowledgement.topics_saved()
    assert [answer.opaque for answer in rig.wire.take()] == [first.opaque, second.opaque]
    rig.broker.group_commit.save_topics()
    assert [answer.opaque for answer in rig.wire.take()] == [third.opaque]


def test_when_the_topic_cannot_be_saved_nobody_is_told_success(
    rig: SlowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, data: bytes) -> None:
        raise DiskFull("no room")

    rig.ask(send("New"), sent_back(rig))
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "save_config", full)
        rig.broker.group_commit.save_topics()
    # Not SERVICE_NOT_AVAILABLE, by which clients know that nothing was stored.
    assert [answer.code for answer in rig.wire.take()] == 2 * [ResponseCode.SYSTEM_ERROR]
    assert rig.ask(send("New")) == []
    rig.broker.group_commit.save_topics()
    assert [answer.code for answer in rig.wire.take()] == [0]


def test_after_the_topic_it_waits_for_the_disk() -> None:
    kicked: list[None] = []
    wake = Wakeups(flush=lambda: kicked.append(None), new_topics=lambda: None)
    rig = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}, given={"wake": wake})
    assert rig.ask(send("New")) == []
    assert rig.broker.acknowledgement.disk.acks == 0
    assert rig.broker.acknowledgement.waiting_for_topics == 1
    rig.broker.group_commit.save_topics()
    assert rig.wire.take() == []
    assert kicked
    rig.broker.on_synced(rig.store.flush())
    assert [answer.code for answer in rig.wire.take()] == [0]


def test_sends_that_wait_for_a_topic_count_as_waiting(rig: SlowRig) -> None:
    config = evolve(rig.config, send_thread_pool_queue_capacity=2)
    rig.broker.settings.replace(config, rig.store_config)
    rig.ask(send("New"), send("New"))
    assert [answer.code for answer in rig.ask(send("Known"))] == [ResponseCode.SYSTEM_BUSY]


def test_a_flood_of_new_topics_leaves_room_for_sends_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "UNSAVED_MAX", 6)
    rig = SlowRig()
    refused = rig.ask(*(send(f"New{number}") for number in range(5)))
    assert [answer.code for answer in refused] == 2 * [ResponseCode.SYSTEM_BUSY]
    assert "wait to be saved 3 of 6 are taken by" in str(refused[0].remark)
    assert [answer.code for answer in rig.ask(send("Known"))] == [0]
    rig.broker.group_commit.save_topics()
    assert [answer.code for answer in rig.wire.take()] == 3 * [0]
    assert rig.ask(send("New4")) == []


def joins(wire: Wire, groups: int) -> Command:
    name = wire.peer_address.replace(".", "-").replace(":", "-")
    consumers = [ConsumerData(group_name=f"g{name}-{number}") for number in range(groups)]
    return Command.request(RequestCode.HEART_BEAT, None, HeartbeatData(name, [], consumers).to_json())


def test_retry_topics_of_one_addresss_groups_keep_no_topic_of_anothers_send_from_being_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "UNSAVED_MAX", 20)
    rig = SlowRig()
    for number in range(30):
        wire = Wire(f"10.0.0.{number}:1")
        assert [answer.code for answer in rig.ask(joins(wire, 40), wire=wire) if answer.is_response] == [0]
    assert len(rig.broker.topics.unsaved) == 10
    assert rig.ask(send("New"), wire=Wire("10.0.1.1:1")) == []
    rig.broker.group_commit.save_topics()
    rig.ask(joins(wire, 40), wire=wire)
    assert len(rig.broker.topics.unsaved) == 10


def test_unsaved_topics_of_all_makers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "UNSAVED_MAX", 20)
    rig = SlowRig()
    for number in range(200):
        rig.ask(send(f"New{number}"), wire=Wire(f"10.0.{number}.1:1"))
    assert len(rig.broker.topics.unsaved) == 40
    answers = rig.ask(send("New200"), wire=Wire("10.0.200.1:1"))
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_BUSY]


def test_a_connection_that_ended_meanwhile_does_not_matter(rig: SlowRig) -> None:
    gone = Wire()
    rig.ask(send("New"), wire=gone)
    rig.broker.on_close(gone)  # type: ignore[arg-type]
    rig.broker.group_commit.save_topics()
    assert rig.one(send("New")).code == 0


def test_an_older_text_never_follows_what_an_administrator_set(rig: SlowRig) -> None:
    rig.ask(send("New"))
    write = run_to_end(rig.broker.files.saving("topics"))
    rig.broker.topics.update(TopicConfig("Set"))
    write()
    assert "Set" in Rig(disk=rig.disk.copy()).broker.topics.table


def test_the_text_is_made_in_slices(rig: SlowRig) -> None:
    for number in range(200):
        rig.broker.topics.create_retry(f"T{number}", 6, 1)
    work = rig.broker.topics.text()
    next(work)
    rig.broker.topics.create_retry("Later", 6, 1)
    assert len(list(work)) >= 3
    assert run_to_end(rig.broker.topics.text()) == rig.broker.topics.to_json()


def test_a_failed_write_of_the_log_is_not_confused_with_it(rig: SlowRig) -> None:
    rig.disk.fail("write", "commitlog")
    assert [answer.code for answer in rig.ask(send("New"))] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert rig.broker.acknowledgement.waiting_for_topics == 0
