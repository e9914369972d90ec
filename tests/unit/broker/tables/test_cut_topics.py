"""Topics that get fewer queues: nothing unread is hidden without a word, and all of it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.tables.versioned import run_to_end
from rmq.message import MessageQueue
from rmq.protocol.bodies import ConsumeStats, SubscriptionGroupConfig, TopicStatsTable
from rmq.protocol.codes import HIDE_UNREAD, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
)
from tests.unit.broker.rig import Rig

RETRY = "%RETRY%readers"


@pytest.fixture
def rig() -> Rig:
    """A topic with 9 messages in each of 8 queues, of which the group has read those of 2."""
    rig = Rig()
    rig.topic("T", 8)
    rig.groups.update(SubscriptionGroupConfig("readers"))
    for queue_id in range(8):
        for _ in range(9):
            rig.put("T", queue_id)
    for queue_id in (0, 1):
        rig.offsets.commit("readers", "T", queue_id, 9)
    return rig


def change(rig: Rig, read: int, write: int, topic: str = "T", **ext: str) -> Command:
    header = CreateTopicRequestHeader(topic, "TBW102", read, write, 6, "SINGLE_TAG")
    request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return rig.one(request.with_ext({**request.ext, **ext}))


def shape(rig: Rig, topic: str = "T") -> tuple[int, int]:
    config = rig.topics.get(topic)
    assert config is not None
    return config.read_queue_nums, config.write_queue_nums


def lags(rig: Rig, topic: str = "T") -> dict[int, int]:
    answer = rig.call(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader("readers", topic))
    table = ConsumeStats.from_json(answer.body).offset_table
    return {queue.queue_id: row.broker_offset - row.consumer_offset for queue, row in table.items()}


def metric(rig: Rig, name: str) -> dict[tuple[str, ...], Any]:
    (found,) = [one for one in run_to_end(metrics_of(rig.broker)) if one.name == name]
    return dict(found.rows)


# ---- refused, and why ----


def test_a_cut_that_hides_unread_messages_is_refused_and_names_them(rig: Rig) -> None:
    answer = change(rig, 2, 2)
    assert (answer.code, shape(rig)) == (ResponseCode.SYSTEM_ERROR, (8, 8))
    assert "54 unread messages of group readers in queues 2 to 7" in (answer.remark or "")


def test_fewer_queues_to_write_hide_nothing(rig: Rig) -> None:
    assert (change(rig, 8, 2).code, shape(rig)) == (0, (8, 2))


def test_a_cut_of_queues_that_are_read_is_taken(rig: Rig) -> None:
    for queue_id in range(2, 8):
        rig.offsets.commit("readers", "T", queue_id, 9)
    assert (change(rig, 2, 2).code, shape(rig)) == (0, (2, 2))


def test_a_cut_that_is_meant_is_taken(rig: Rig) -> None:
    assert (change(rig, 2, 2, **{HIDE_UNREAD: "true"}).code, shape(rig)) == (0, (2, 2))


def test_messages_that_no_group_reads_are_named_too() -> None:
    rig = Rig()
    rig.topic("T", 4)
    rig.put("T", 3)
    assert "1 message in queue 3 that no group has read" in (change(rig, 2, 2).remark or "")
    assert change(rig, 4, 2).code == 0


def test_the_runtime_rows_name_topics_that_hide_what_no_group_has_read() -> None:
    rig = Rig()
    rig.topic("T", 4)
    for queue_id in (1, 2, 2, 3):
        rig.put("T", queue_id)
    assert "hiddenMessages" not in rig.admin.runtime(rig.now_ms)
    assert change(rig, 2, 2, **{HIDE_UNREAD: "true"}).code == 0
    assert rig.admin.runtime(rig.now_ms)["hiddenMessages"] == "T: 3 messages in queues 2 to 3"
    rig.offsets.commit("readers", "T", 1, 1)  # from now on its lag says so
    assert "hiddenMessages" not in rig.admin.runtime(rig.now_ms)


def test_a_change_of_a_cut_topic_is_not_refused_again(rig: Rig) -> None:
    change(rig, 2, 2, **{HIDE_UNREAD: "true"})
    assert change(rig, 2, 1).code == 0
    assert change(rig, 4, 4).code == 0


def test_many_groups_make_no_long_answer(rig: Rig) -> None:
    for number in range(100):
        rig.offsets.commit(f"group{number}", "T", 0, 1)
    remark = change(rig, 2, 2).remark or ""
    assert "of more groups" in remark
    assert len(remark) < 2000


# ---- counted ----


def test_lag_and_metrics_count_the_queues_that_were_cut(rig: Rig) -> None:
    before = metric(rig, "consumer_lag_messages")["readers", "T"]
    change(rig, 2, 2, **{HIDE_UNREAD: "true"})
    assert lags(rig) == {0: 0, 1: 0} | dict.fromkeys(range(2, 8), 9)
    assert metric(rig, "consumer_lag_messages")["readers", "T"] == before == 54


def test_cut_queues_that_are_read_are_in_no_row(rig: Rig) -> None:
    change(rig, 2, 2, **{HIDE_UNREAD: "true"})
    for queue_id in range(2, 7):
        rig.offsets.commit("readers", "T", queue_id, 9)
    assert lags(rig) == {0: 0, 1: 0, 7: 9}


def test_the_stats_of_a_topic_show_queues_that_still_hold_messages(rig: Rig) -> None:
    change(rig, 2, 2, **{HIDE_UNREAD: "true"})
    answer = rig.call(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader("T"))
    table = TopicStatsTable.from_json(answer.body).offset_table
    assert sorted(queue.queue_id for queue in table) == list(range(8))
    assert table[MessageQueue("T", "wire-a", 7)].max_offset == 9


def test_a_queue_that_a_group_never_committed_counts_in_the_metrics(rig: Rig) -> None:
    assert metric(rig, "consumer_lag_messages") == {("readers", "T"): 54}


def test_a_topic_that_is_deleted_leaves_no_queue_to_be_counted(rig: Rig) -> None:
    assert rig.store.queue_end("T") == 8
    rig.store.remove_topic("T")
    assert rig.store.queue_end("T") == 0


# ---- retry topics ----


def set_group(rig: Rig, queues: int) -> Command:
    body = SubscriptionGroupConfig("readers", retry_queue_nums=queues).to_json()
    return rig.one(Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body))


def fail(rig: Rig, count: int) -> None:
    """Send messages back that were not consumed, and have them delivered again."""
    for _ in range(count):
        header = ConsumerSendMsgBackRequestHeader(rig.put("T"), "readers", 1)
        assert rig.call(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == 0
    rig.let_pass(1000)
    rig.broker.steps.schedule()


def test_a_retry_topic_gets_wider_with_its_group(rig: Rig) -> None:
    fail(rig, 1)
    assert shape(rig, RETRY) == (1, 1)
    assert set_group(rig, 2).code == 0
    assert shape(rig, RETRY) == (2, 2)
    fail(rig, 20)
    assert [len(rig.bodies(RETRY, queue_id)) > 0 for queue_id in (0, 1)] == [True, True]


def test_a_retry_topic_gets_narrower_and_is_read_until_it_is_empty(rig: Rig) -> None:
    fail(rig, 1)
    set_group(rig, 4)
    fail(rig, 40)
    unread = max(queue_id for queue_id in range(4) if rig.bodies(RETRY, queue_id))
    set_group(rig, 1)
    assert shape(rig, RETRY) == (unread + 1, 1)
    fail(rig, 10)
    for queue_id in range(4):
        rig.offsets.commit("readers", RETRY, queue_id, rig.store.max_offset(RETRY, queue_id))
    set_group(rig, 1)
    assert shape(rig, RETRY) == (1, 1)


def test_a_retry_topic_stays_when_its_group_cannot_be_saved(rig: Rig) -> None:
    fail(rig, 1)
    rig.disk.fail("write", "subscriptionGroup")
    answer = set_group(rig, 2)
    assert answer.code != 0
    assert shape(rig, RETRY) == (1, 1)


def test_groups_without_retries_leave_the_retry_topic(rig: Rig) -> None:
    fail(rig, 1)
    assert set_group(rig, 0).code == 0
    assert shape(rig, RETRY) == (1, 1)
