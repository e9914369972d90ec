"""A name is no identity: topics that are deleted and made again, and positions beyond the ends of queues."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from rmq.broker.consume.read import Reader
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import ResponseError
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ResetOffsetBody,
    SubscriptionData,
    TopicConfig,
)
from rmq.protocol.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.store.audit import audit
from rmq.store.config import BrokerRole
from rmq.store.store import Store
from rmq.testing.front import Wire

from ..rig import Rig, pull, send

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER


def filled(count: int = 10, **given: Any) -> Rig:
    rig = Rig(**given)
    rig.topic("T", 2)
    for _ in range(count):
        rig.put("T")
    return rig


def make_again(rig: Rig, count: int) -> None:
    """Delete the topic and make it again, with so many messages."""
    assert rig.call(DELETE, {"topic": "T"}).code == 0
    rig.topic("T", 2)
    for _ in range(count):
        rig.put("T")


def pulled(rig: Rig, offset: int, **more: Any) -> tuple[int, int]:
    """The code of the answer to a pull, and where to go on."""
    answer = rig.one(pull("T", offset=offset, **more))
    return answer.code, int(answer.ext["nextBeginOffset"])


def commit(rig: Rig, offset: int, group: str = "g") -> Command:
    header = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    return rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def started_again(rig: Rig, *, clean: bool = True, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> Rig:
    """The broker of the same disk after a stop in order, or after it was killed."""
    rig.broker.topics.saved(rig.broker.topics.made)
    for name, table in (("topics", rig.topics), ("consumerOffset", rig.offsets)):
        rig.store.save_config(name, table.to_json())
    rig.store.save_config("replication", rig.broker.replica.to_json())
    disk = rig.disk
    if clean:
        rig.store.close()
    else:
        disk = disk.copy()
    return Rig(disk=disk, store={"broker_role": role})


def test_a_position_of_a_deleted_topic_is_sent_to_the_start_of_the_one_made_again() -> None:
    rig = filled(100)
    make_again(rig, 10)
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert pulled(rig, 0) == (0, 10)
    assert pulled(rig, 10) == (ResponseCode.PULL_NOT_FOUND, 10)


def test_a_commit_of_a_deleted_topic_is_refused_by_the_one_made_again() -> None:
    rig = filled(100)
    assert commit(rig, 100).code == 0
    make_again(rig, 10)
    assert rig.offsets.get("g", "T", 0) == -1
    refused = commit(rig, 100)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "never reached it" in (refused.remark or "")
    flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
    rig.one(pull("T", offset=10, sys_flag=flags, commit_offset=100))
    assert rig.offsets.pairs() == []
    assert commit(rig, 10).code == 0
    assert commit(rig, 100).code == ResponseCode.SYSTEM_ERROR
    assert rig.offsets.get("g", "T", 0) == 10


def test_commits_between_deletion_and_making_again_leave_nothing() -> None:
    rig = filled(100)
    assert commit(rig, 60).code == 0
    assert rig.call(DELETE, {"topic": "T"}).code == 0
    assert commit(rig, 100).code != 0
    rig.topic("T", 2)
    assert rig.offsets.pairs() == []


def test_members_of_a_deleted_topic_are_sent_to_its_start_and_waiting_pulls_are_answered() -> None:
    """The members must miss no message even if the new topic soon has more messages than the earlier topic
    had."""
    rig, wire = filled(3), Wire()
    members = ConsumerData(
        "g",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
        [SubscriptionData("T", "*", sub_version=1)],
    )
    body = HeartbeatData("client", consumer_data_set=[members]).to_json()
    rig.answer(Command.request(RequestCode.HEART_BEAT, body=body), wire)
    rig.ask(pull("T", consumer_group="g", offset=3, sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION), wire=wire)
    assert rig.broker.parked_pulls.count == 1
    assert rig.call(DELETE, {"topic": "T"}).code == 0
    assert rig.broker.parked_pulls.count == 0
    answer, notice = wire.take()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (notice.code, notice.ext["group"]) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, "g")
    table = ResetOffsetBody.from_json(notice.body).offset_table
    assert {(queue.topic, queue.broker_name, queue.queue_id): at for queue, at in table.items()} == {
        ("T", "wire-a", 0): 0
    }


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart_too(clean: bool) -> None:
    rig = filled(100)
    make_again(rig, 10)
    rig = started_again(rig, clean=clean)
    rig.put("T")
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert commit(rig, 100).code == ResponseCode.SYSTEM_ERROR


def test_an_empty_store_under_the_name_of_another_has_none_of_its_positions() -> None:
    rig = filled(10)
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert commit(rig, 100).code == ResponseCode.SYSTEM_ERROR


def test_behind_messages_that_a_crash_took_readers_go_on_where_they_were() -> None:
    """The readers do not go to the start, which would deliver all messages again, and not to the end, since
    the later messages are new to them."""
    rig = started_again(filled(90), clean=False)
    rig.put("T")
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 90)
    assert commit(rig, 100).code == 0
    assert rig.offsets.get("g", "T", 0) == 90


def test_behind_messages_that_a_cut_took_readers_go_on_where_they_were() -> None:
    rig = filled(90)
    end = rig.store.max_physical_offset
    for _ in range(10):
        rig.put("T")
    rig.store.truncate(end)
    for _ in range(3):
        rig.put("T")
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 90)


def test_readers_of_a_master_before_this_one_go_on_where_this_one_began() -> None:
    """A slave that becomes master may lack the end of the log: its queues were longer at the other."""
    rig = filled(90)
    rig.store.close()
    rig = Rig(disk=rig.disk, store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    rig.topics.load(None)
    rig.topics.update(filled(0).topics.table["T"])
    rig.offsets.commit("g", "T", 0, 100)  # as its master says
    rig = started_again(rig)
    assert rig.offsets.get("g", "T", 0) == 90
    rig.put("T")
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 90)
    rig = started_again(rig)
    assert pulled(rig, 100) == (ResponseCode.PULL_OFFSET_MOVED, 0)  # it has been master since


def test_a_slave_sends_nobody_to_the_start() -> None:
    """The slave may be behind its master."""
    rig = filled(10)
    rig.become_slave()
    assert pulled(rig, 100) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 100)
    assert commit(rig, 100).code == 0


def test_a_topic_is_not_made_again_before_its_queues_are_removed() -> None:
    rig = filled(10)
    before = rig.topics.table["T"].creation
    rig.topics.change("T", None)
    with pytest.raises(ResponseError, match="is being deleted"):
        rig.topics.create_for_send("T", "TBW102", 4, "1.2.3.4:5")
    with pytest.raises(ResponseError, match="is being deleted"):
        rig.topics.create_retry("T", 6, 1)
    assert rig.topics.foresee_retry("T", 1) is None
    rig.topics.adopt(TopicConfig("T"))
    assert rig.topics.get("T") is None
    rig.topics.ended("T", 10)
    rig.topics.create_for_send("T", "TBW102", 4, "1.2.3.4:5")
    assert rig.topics.table["T"].creation != before


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("count", [0, 10])
def test_recovery_gives_a_topic_no_record_of_an_earlier_one(count: int, rebuild: bool) -> None:
    """The records of a deleted topic are in the log until their file goes, under the name of the new one."""
    rig = filled(30)
    make_again(rig, count)
    rig.store.save_config("topics", rig.topics.to_json())
    disk = rig.disk.copy()
    assert audit.check(disk, "/store").findings == []
    store = Store(disk, rig.store_config, store_host=rig.store.store_host, now_ms=lambda: rig.now_ms)
    store.load(rebuild=rebuild)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, count)
    assert [unit is None for unit in (store.unit("T", 0, 0), store.unit("T", 0, 20))] == [not count, True]


def saved_at_different_times(rig: Rig, count: int) -> Rig:
    """The broker after it was killed, whose offsets were saved before the topic was made again."""
    rig.store.save_config("consumerOffset", run_to_end(rig.offsets.text()))
    make_again(rig, count)
    rig.store.save_config("topics", rig.topics.to_json())
    return Rig(disk=rig.disk.copy())


def test_offsets_that_were_saved_before_a_topic_was_made_again_are_not_of_the_new_one() -> None:
    rig = filled(10)
    rig.topic("U", 1)
    rig.put("U")
    assert commit(rig, 7).code == 0
    rig.offsets.put("g", "U", {0: 1})
    again = saved_at_different_times(rig, 20)
    assert again.offsets.get("g", "T", 0) == -1
    assert again.offsets.get("g", "U", 0) == 1


def test_offsets_that_were_saved_since_the_topic_was_made_again_are_its_own() -> None:
    rig = filled(10)
    make_again(rig, 9)
    assert commit(rig, 7).code == 0
    again = saved_at_different_times(started_again(rig), 20)
    assert again.offsets.get("g", "T", 0) == -1
    rig = started_again(again, clean=False)
    assert commit(rig, 8).code == 0
    assert started_again(rig, clean=False).offsets.get("g", "T", 0) == 8


# --- positions that name their topic ---


def created_ms(rig: Rig) -> int:
    return rig.topics.table["T"].created_ms


def test_a_pull_with_a_position_of_an_earlier_topic_is_sent_to_the_present_one() -> None:
    """Also where the position lies inside the present topic's queue; what it commits is dropped."""
    rig = filled(10)
    earlier = created_ms(rig)
    assert pulled(rig, 5, topic_created_ms=earlier) == (0, 10)
    make_again(rig, 20)
    flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
    asked = pull("T", offset=10, sys_flag=flags, commit_offset=10, topic_created_ms=earlier)
    answer = rig.one(asked)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert answer.ext["rmqTopicCreatedMs"] == str(created_ms(rig))
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "20")
    assert rig.offsets.pairs() == []
    assert pulled(rig, 5, topic_created_ms=created_ms(rig)) == (0, 20)


def test_the_test_above_shows_a_broker_that_does_not_compare_creations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted fault "a position of an earlier topic counts as a position of the present topic"."""
    monkeypatch.setattr(Reader, "is_of_another_topic", lambda *given: False)
    with pytest.raises(AssertionError):
        test_a_pull_with_a_position_of_an_earlier_topic_is_sent_to_the_present_one()


def test_a_group_goes_on_in_the_present_topic_where_its_offset_is() -> None:
    rig = filled(10)
    earlier = created_ms(rig)
    make_again(rig, 20)
    assert commit(rig, 15).code == 0
    asked = {"offset": 10, "consumer_group": "g", "topic_created_ms": earlier}
    assert rig.one(pull("T", **asked)).ext["nextBeginOffset"] == "15"


def test_a_position_of_a_later_topic_is_sent_back_where_a_deletion_was_undone() -> None:
    rig = filled(10)
    answer = rig.one(pull("T", offset=5, topic_created_ms=created_ms(rig) + 7))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert answer.ext["rmqTopicCreatedMs"] == str(created_ms(rig))


def test_a_commit_of_an_earlier_topic_is_refused_inside_the_present_queue() -> None:
    rig = filled(10)
    header = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}
    header["rmqTopicCreatedMs"] = str(created_ms(rig))
    assert rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
    make_again(rig, 20)
    refused = rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "belongs to another topic of that name" in (refused.remark or "")
    assert rig.offsets.pairs() == []


def test_who_asks_for_an_offset_gets_the_creation_of_its_topic() -> None:
    """With the offset, in one answer; and also where there is none, or no topic."""
    rig = filled(10)
    ask = {"consumerGroup": "g", "topic": "T", "queueId": "0", "rmqTopicCreatedMs": "-1"}
    assert commit(rig, 7).code == 0
    answer = rig.call(RequestCode.QUERY_CONSUMER_OFFSET, ask)
    assert answer.ext == {"offset": "7", "rmqTopicCreatedMs": str(created_ms(rig))}
    del ask["rmqTopicCreatedMs"]
    assert rig.call(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "7"}  # as RocketMQ answers
    ask |= {"topic": "none", "rmqTopicCreatedMs": "-1"}
    answer = rig.call(RequestCode.QUERY_CONSUMER_OFFSET, ask)
    assert answer.ext["rmqTopicCreatedMs"] == "0"


def test_a_slave_sends_positions_of_another_topic_to_its_master() -> None:
    """The slave may be behind, and cannot know which of the two topics is older."""
    rig = filled(10)
    rig.become_slave()
    answer = rig.one(pull("T", offset=5, topic_created_ms=created_ms(rig) + 7))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (answer.ext["nextBeginOffset"], answer.ext["suggestWhichBrokerId"]) == ("5", "0")
    assert "rmqTopicCreatedMs" not in answer.ext


def test_a_waiting_pull_gets_nothing_of_a_topic_that_took_the_place_of_its_own() -> None:
    """The table of a slave changes in this way after the topic was deleted and created again at its
    master."""
    rig, wire = filled(10), Wire()
    flags = PULL_SUSPEND | PULL_SUBSCRIPTION
    rig.ask(pull("T", offset=10, sys_flag=flags, topic_created_ms=created_ms(rig)), wire=wire)
    assert rig.broker.parked_pulls.count == 1
    row = rig.topics.table["T"]
    assert row.creation is not None
    later = attrs.evolve(row.creation, time_ms=row.created_ms + 7)
    rig.topics.table["T"] = attrs.evolve(row, creation=later)
    assert rig.one(send("T")).code == 0
    [answer] = wire.take()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
