"""Retries to their end: how long each waits, and what a dead letter tells."""

from __future__ import annotations

import pytest

from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import CreateTopicRequestHeader
from rmq.protocol.properties import dead_letter_properties

from ..rig import Rig, pull, send

LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LETTERS = "%DLQ%billing"


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.one(send(properties="UNIQ_KEY\x01AC11\x02TAGS\x01T"))
    return rig


def send_back(offset: int, delay_level: int = 0, *, version: int | None = None, **fields: str) -> Command:
    header = {"offset": str(offset), "group": "billing", "delayLevel": str(delay_level)} | fields
    request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    if version is not None:
        request.version = version
    return request


def test_a_broker_that_may_not_be_written_takes_nothing_back(rig: Rig) -> None:
    (message,) = rig.messages("Orders")
    closed = Rig(disk=rig.disk.copy(), broker_permission=4)
    answer = closed.one(send_back(message.physical_offset))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert closed.store.max_physical_offset == rig.store.max_physical_offset


def test_sixteen_retries_each_later_than_the_one_before_then_a_dead_letter(rig: Rig) -> None:
    (message,) = rig.messages("Orders")
    for times in range(16):
        assert rig.one(send_back(message.physical_offset)).code == 0
        wait_ms = LEVELS_S[3 + times - 1] * 1000
        rig.now_ms += wait_ms - 1
        rig.broker.steps.schedule()
        assert len(rig.messages("%RETRY%billing")) == times, "it came too early"
        rig.now_ms += 1
        rig.broker.steps.schedule()
        message = rig.messages("%RETRY%billing")[times]
        assert message.reconsume_times == times + 1
    assert rig.messages(LETTERS) == []
    assert rig.one(send_back(message.physical_offset)).code == 0
    (letter,) = rig.messages(LETTERS)
    assert (letter.body, letter.tags, letter.message_id, letter.reconsume_times) == (
        b"hello",
        "T",
        "AC11",
        17,
    )
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "Orders"
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == "AC11"
    assert letter.properties["DLQ_RECONSUME_TIMES"] == "17"
    assert letter.properties["ORIGIN_MESSAGE_ID"] == "0A00000900002A9F0000000000000000"
    assert "DLQ_REASON" not in letter.properties


def test_a_negative_level_gives_up_at_once_and_the_reason_is_kept(rig: Rig) -> None:
    rig.one(send_back(0, -1, reason="no such customer\n\x01\x02" + "x" * 600))
    (letter,) = rig.messages(LETTERS)
    assert letter.properties["DLQ_REASON"] == "no such customer   " + "x" * 481
    assert letter.properties["DLQ_RECONSUME_TIMES"] == "1"
    assert rig.messages(SCHEDULE_TOPIC) == []


def test_a_level_that_the_consumer_names_is_taken_at_most_the_highest(rig: Rig) -> None:
    rig.ask(send_back(0, 1), send_back(0, 99))
    assert len(rig.messages(SCHEDULE_TOPIC, 0)) == 1
    assert len(rig.messages(SCHEDULE_TOPIC, 17)) == 1


@pytest.mark.parametrize(("version", "letters"), [(None, 1), (120, 0)])
def test_the_consumers_own_limit_counts_from_3_4_9_on(rig: Rig, version: int | None, letters: int) -> None:
    rig.one(send_back(0, version=version, maxReconsumeTimes="0"))
    assert len(rig.messages(LETTERS)) == letters


def test_the_groups_limit_counts_without_one_of_the_consumer(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig("billing", retry_max_times=0))
    rig.one(send_back(0))
    assert len(rig.messages(LETTERS)) == 1


def test_a_group_without_retry_queues_drops_what_comes_back(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig("billing", retry_queue_nums=0))
    assert rig.one(send_back(0)).code == 0
    assert rig.messages(SCHEDULE_TOPIC, 2) == []
    assert rig.messages(LETTERS) == []


def test_retries_spread_over_the_groups_queues(rig: Rig) -> None:
    rig.broker.groups.update(SubscriptionGroupConfig("billing", retry_queue_nums=3))
    rig.ask(*(send_back(0, 1) for _ in range(50)))
    rig.now_ms += 1000
    rig.broker.steps.schedule()
    assert all(rig.messages("%RETRY%billing", queue_id) for queue_id in range(3))


def test_a_client_past_its_limit_makes_a_dead_letter_at_once_whatever_its_delay(rig: Rig) -> None:
    """RocketMQ would let its delay level pass first: the letter would come half a minute late or more."""
    text = "UNIQ_KEY\x01AC11\x02RETRY_TOPIC\x01Orders\x02ORIGIN_MESSAGE_ID\x01OLD\x02DELAY\x0119"
    rig.one(send("%RETRY%billing", properties=text, reconsume_times=16, max_reconsume_times=16))
    (letter,) = rig.messages(LETTERS)
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "Orders"
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == "AC11"
    assert letter.properties["DLQ_RECONSUME_TIMES"] == "16"
    assert "DELAY" not in letter.properties


def test_a_dead_letter_that_dies_again_keeps_its_first_origin(rig: Rig) -> None:
    rig.one(send_back(0, -1))
    (letter,) = rig.messages(LETTERS)
    rig.one(send_back(letter.physical_offset, -1, group="repair"))
    (again,) = rig.messages("%DLQ%repair")
    assert again.properties["DLQ_ORIGIN_TOPIC"] == "Orders"
    assert again.properties["DLQ_ORIGIN_MESSAGE_ID"] == "AC11"


def test_a_letter_that_was_sent_anew_still_knows_its_first_origin() -> None:
    properties = {
        "DLQ_ORIGIN_TOPIC": "Orders",
        "DLQ_ORIGIN_MESSAGE_ID": "A",
        "RETRY_TOPIC": "%DLQ%g",
        "UNIQ_KEY": "B",
    }
    life = dead_letter_properties(properties, 3)
    assert life == {"DLQ_ORIGIN_TOPIC": "Orders", "DLQ_ORIGIN_MESSAGE_ID": "A", "DLQ_RECONSUME_TIMES": "3"}


def test_dead_letters_can_be_read_and_their_topic_be_closed(rig: Rig) -> None:
    rig.one(send_back(0, -1))
    assert rig.one(pull(LETTERS)).code == ResponseCode.SUCCESS
    header = CreateTopicRequestHeader(LETTERS, "TBW102", 1, 1, 2, "SINGLE_TAG")
    assert rig.one(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    assert rig.one(pull(LETTERS)).code == ResponseCode.NO_PERMISSION
    assert rig.one(send_back(0, -1)).code == 0
    assert len(rig.messages(LETTERS)) == 2


def test_a_message_without_a_unique_key_is_named_by_its_place(rig: Rig) -> None:
    rig.one(send(properties=None))
    offset = rig.messages("Orders")[1].physical_offset
    rig.one(send_back(offset, -1))
    (letter,) = rig.messages(LETTERS)
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == f"0A00000900002A9F{offset:016X}"


def test_a_sender_makes_up_no_topics_in_the_statistics(rig: Rig) -> None:
    """A message of a retry topic names the topic that it came from first, and counts under that topic."""
    assert rig.one(send_back(rig.messages("Orders")[0].physical_offset)).code == 0
    for number in range(3):
        assert rig.one(send("%RETRY%billing", properties=f"RETRY_TOPIC\x01Made-{number}")).code == 0
    for message in rig.messages("%RETRY%billing"):
        assert rig.one(send_back(message.physical_offset)).code == 0
    counted = {pair: count for pair, count, _ in rig.broker.stats.totals_sent_back()}
    assert counted == {("Orders", "billing"): 1, ("%RETRY%billing", "billing"): 3}


def test_a_retry_in_any_time_that_its_consumer_names(rig: Rig) -> None:
    assert rig.one(send_back(0, 2, delayMs="2500")).code == 0
    assert len(rig.messages(TIMER_TOPIC)) == 1
    assert rig.messages(SCHEDULE_TOPIC, 1) == [], "the level is for brokers that take no other"
    rig.now_ms += 2499
    rig.broker.steps.schedule()
    assert rig.messages("%RETRY%billing") == []
    rig.now_ms += 1
    rig.broker.steps.schedule()
    (message,) = rig.messages("%RETRY%billing")
    assert (message.body, message.reconsume_times, message.tags) == (b"hello", 1, "T")
    assert message.properties["RETRY_TOPIC"] == "Orders"
    # again, in another time: what the first one said of its time does not count any more
    assert rig.one(send_back(message.physical_offset, 4, delayMs="30001")).code == 0
    rig.now_ms += 30_000
    rig.broker.steps.schedule()
    assert len(rig.messages("%RETRY%billing")) == 1
    rig.now_ms += 1
    rig.broker.steps.schedule()
    assert [message.reconsume_times for message in rig.messages("%RETRY%billing")] == [1, 2]


def test_a_retry_at_once(rig: Rig) -> None:
    assert rig.one(send_back(0, 1, delayMs="0")).code == 0
    (message,) = rig.messages("%RETRY%billing")
    assert message.reconsume_times == 1


def test_a_retry_goes_by_its_level_while_too_many_wait_for_times_of_their_own() -> None:
    rig = Rig()
    rig.broker.timers.limit = 1
    rig.one(send(properties="UNIQ_KEY\x01AC11"))
    assert rig.one(send_back(0, 2, delayMs="2500")).code == 0
    assert rig.one(send_back(0, 2, delayMs="2500")).code == 0
    assert len(rig.messages(TIMER_TOPIC)) == 1
    assert len(rig.messages(SCHEDULE_TOPIC, 1)) == 1


@pytest.mark.parametrize("delay", ["", "-1", "2.5", "soon", str(41 * 86_400_000)])
def test_a_retry_in_a_time_that_is_none_is_refused(rig: Rig, delay: str) -> None:
    before = rig.store.max_physical_offset
    assert rig.one(send_back(0, 1, delayMs=delay)).code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.store.max_physical_offset == before


def test_the_dead_letters_do_not_wait(rig: Rig) -> None:
    rig.one(send_back(0, -1, delayMs="2500"))
    assert len(rig.messages(LETTERS)) == 1
