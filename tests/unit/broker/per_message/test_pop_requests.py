"""Requests of RocketMQ 5.3.3 for messages one by one; bodies as its Java classes write them."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.tables.versioned import run_to_end
from rmq.message import dlq_topic
from rmq.protocol import codes, json
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.protocol.pop import (
    OLDEST_MS,
    TAKEN,
    WAITING,
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    GetTopicConfigRequestHeader,
    NotificationRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    bits_of,
    parse_start_offsets,
    run_text,
)
from rmq.protocol.record import decode_records
from rmq.testing.front import Wire
from tests.unit.broker.rig import Rig, batch, send
from tests.unit.broker.taking import GROUP, TOPIC, step


def pop(**fields: Any) -> Command:
    values: dict[str, Any] = {
        "consumer_group": GROUP,
        "topic": TOPIC,
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 30_000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
    } | fields
    return Command.request(codes.POP_MESSAGE, PopMessageRequestHeader(**values))


class JavaConsumer:
    """Makes handles as RocketMQ's MQClientAPIImpl.processPopResponse does."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.wire = Wire()

    def pop(self, **fields: Any) -> dict[bytes, str]:
        """The bodies that come, with their handles."""
        return self.read(self.rig.answer(pop(**fields), self.wire))

    def read(self, answer: Command) -> dict[bytes, str]:
        if answer.code == codes.POLLING_TIMEOUT:
            return {}
        assert answer.code == 0
        header = answer.read(PopMessageResponseHeader)
        starts = parse_start_offsets(header.start_offset_info)
        offsets = {}
        for one in (header.msg_offset_info or "").split(";"):
            _, queue_id, texts = one.split(" ")
            offsets[int(queue_id)] = [int(text) for text in texts.split(",")]
        found = {}
        messages = decode_records(answer.body)
        for message in messages:
            queue_id = message.queue_id
            line = sorted(one.queue_offset for one in messages if one.queue_id == queue_id)
            offset = offsets[queue_id][line.index(message.queue_offset)]
            assert offset == message.queue_offset
            times = f"{header.pop_time} {header.invisible_time} {header.revive_qid}"
            found[message.body] = f"{starts[queue_id]} {times} 0 wire-a {queue_id} {offset}"
        return found

    def ack(self, handle: str) -> Command:
        words = handle.split(" ")
        header = AckMessageRequestHeader(GROUP, TOPIC, int(words[6]), handle, int(words[7]))
        return self.rig.answer(Command.request(codes.ACK_MESSAGE, header), self.wire)

    def change(self, handle: str, ms: int) -> Command:
        words = handle.split(" ")
        header = ChangeInvisibleTimeRequestHeader(GROUP, TOPIC, int(words[6]), handle, int(words[7]), ms)
        return self.rig.answer(Command.request(codes.CHANGE_MESSAGE_INVISIBLETIME, header), self.wire)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.topic(TOPIC, 2)
    for number in range(6):
        rig.put(TOPIC, number % 2, b"%d" % number)
    return rig


def test_pop_and_ack(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop()
    assert sorted(found) == [b"%d" % number for number in range(6)]
    for handle in found.values():
        assert consumer.ack(handle).code == 0
    step(rig, 60)
    assert consumer.pop() == {}
    assert rig.offsets.of(GROUP, TOPIC) == {0: 3, 1: 3}


def test_pops_that_differ_in_one_field_are_not_taken_for_each_other(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    assert len(consumer.pop(max_msg_nums=1, born_time=1)) == 1
    assert len(consumer.pop(max_msg_nums=1, born_time=2)) == 1
    assert len(consumer.pop(max_msg_nums=2)) == 2
    assert len(consumer.pop(max_msg_nums=1, consumer_group="others")) == 1
    step(rig, 10)
    assert consumer.pop(exp="none") == {}
    assert rig.offsets.of(GROUP, TOPIC) == {0: 0, 1: 0}
    step(rig, 21)
    assert len(consumer.pop()) == 4


@pytest.mark.parametrize("born", [None, "", "soon", "1.5", "9" * 19])
def test_a_pop_without_a_readable_born_time_is_refused_whatever_came_before(
    rig: Rig, born: str | None
) -> None:
    def without() -> Command:
        request = pop(max_msg_nums=1)
        request.ext.pop("bornTime")
        if born is not None:
            request.ext["bornTime"] = born
        return request

    first = rig.answer(without(), Wire())
    assert (first.code, "bornTime" in (first.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert rig.answer(pop(max_msg_nums=1), Wire()).code == 0
    again = rig.answer(without(), Wire())
    assert (again.code, again.remark) == (first.code, first.remark)
    assert rig.answer(pop(max_msg_nums=1, born_time=-1), Wire()).code == 0


def test_messages_that_come_again_beside_new_ones_have_good_handles(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(max_msg_nums=3)
    for body in list(found)[:2]:
        assert consumer.change(found[body], 0).code == 0
    again = consumer.pop()
    for handle in again.values():
        assert consumer.ack(handle).code == 0
    step(rig, 31)
    rest = consumer.pop()
    assert set(rest) | set(again) == {b"%d" % number for number in range(6)}
    assert len(rest) == 1


def test_a_pop_waits_for_a_message(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    consumer.pop()
    assert rig.ask(pop(poll_time=20_000), wire=consumer.wire) == []
    rig.ask(send(TOPIC, b"new"))
    (answer,) = consumer.wire.take()
    assert list(consumer.read(answer)) == [b"new"]


def test_a_poll_that_finds_nothing_says_so(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    consumer.pop()
    assert rig.ask(pop(poll_time=5_000), wire=consumer.wire) == []
    info = Command.request(codes.POLLING_INFO, PollingInfoRequestHeader(GROUP, TOPIC, -1))
    assert rig.one(info).ext["pollingNum"] == "1"
    step(rig, 5)
    (answer,) = consumer.wire.take()
    assert answer.code == codes.POLLING_TIMEOUT


def test_a_changed_invisible_time_gives_a_new_handle(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(invisible_time=10_000)
    old = found[b"0"]
    header = consumer.change(old, 60_000).read(ChangeInvisibleTimeResponseHeader)
    words = old.split(" ")
    new = " ".join([words[0], str(header.pop_time), str(header.invisible_time), *words[3:]])
    step(rig, 20)
    assert sorted(consumer.pop()) == [b"1", b"2", b"3", b"4", b"5"]
    assert consumer.ack(new).code == 0
    step(rig, 100)
    assert b"0" not in consumer.pop()


def test_a_batch_of_acknowledgements_as_java_writes_it(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(queue_id=0)
    start, taken, invisible = found[b"0"].split(" ")[:3]
    acks = f'{{"acks":[{{"b":"{bits_of(0, [0, 2])}","c":"{GROUP}","it":{invisible},"pt":{taken},"q":0,'
    body = f'{acks}"r":"0","rq":0,"so":{start},"t":"{TOPIC}"}}],"brokerName":"wire-a"}}'
    assert rig.call(codes.BATCH_ACK_MESSAGE, None, body.encode(), consumer.wire).code == 0
    step(rig, 31)
    assert list(consumer.pop(queue_id=0)) == [b"2"]


@pytest.mark.parametrize("start", [0, 7, 990, 999, 1_000, 1_968, 1_969, 123_456, 999_990, 10**15])
def test_the_text_of_a_run_of_offsets(start: int) -> None:
    for count in (1, 2, 32, 64, 1_024, 2_500):
        assert run_text(start, start + count) == ",".join(map(str, range(start, start + count)))


def test_the_bits_of_java() -> None:
    """Of a BitSet with 0, 3 and 17, as RocketMQ 5.3.3 printed it."""
    assert bits_of(100, [100, 103, 117]) == "CQAC"
    assert BatchAck(so=100, b="CQAC").offsets() == [100, 103, 117]


def test_a_nonsense_handle_and_an_ended_one(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(invisible_time=1_000)
    assert consumer.ack("a b c d e f 0 0").code == ResponseCode.MESSAGE_ILLEGAL
    step(rig, 2)
    assert consumer.ack(found[b"0"]).code == ResponseCode.NO_MESSAGE


def test_an_ordered_pop_takes_one_of_each_message_group(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(order=True)
    assert sorted(found) == [b"0", b"1"]
    assert consumer.pop(order=True) == {}
    consumer.ack(found[b"0"])
    assert list(consumer.pop(order=True)) == [b"2"]


def test_a_group_that_consumes_in_order_does_so_by_its_settings(rig: Rig) -> None:
    rig.groups.update(SubscriptionGroupConfig(GROUP, consume_message_orderly=True))
    assert sorted(JavaConsumer(rig).pop()) == [b"0", b"1"]


def test_notification(rig: Rig) -> None:
    def ask(wire: Wire, poll: int = 0) -> list[Command]:
        header = NotificationRequestHeader(GROUP, TOPIC, -1, poll, 0)
        return rig.ask(Command.request(codes.NOTIFICATION, header), wire=wire)

    consumer, other = JavaConsumer(rig), Wire()
    assert ask(other)[0].ext["hasMsg"] == "true"
    consumer.pop()
    assert ask(other)[0].ext["hasMsg"] == "false"
    assert ask(other, 10_000) == []
    rig.ask(send(TOPIC, b"new"))
    assert other.take()[0].ext["hasMsg"] == "true"
    assert list(consumer.pop()) == [b"new"]


def test_the_policy_of_a_group_is_kept_and_given_back(rig: Rig) -> None:
    text = (
        f'{{"attributes":{{}},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        f'"consumeFromMinEnable":true,"consumeMessageOrderly":true,"consumeTimeoutMinute":15,'
        f'"groupName":"{GROUP}","groupRetryPolicy":{{"customizedRetryPolicy":{{"next":[1000,2000]}},'
        '"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":2,'
        '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )
    rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, text.encode())
    answer = rig.call(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP})
    assert json.loads(answer.body) == json.loads(text)
    most, policy = rig.broker.deliveries.policy(GROUP)
    assert (most, [policy.delay_ms(attempt) for attempt in (1, 2, 3)]) == (3, [1000, 2000, 2000])


def test_an_exponential_policy(rig: Rig) -> None:
    text = (
        f'{{"groupName":"{GROUP}","groupRetryPolicy":{{"exponentialRetryPolicy":'
        '{"initial":1000,"max":60000,"multiplier":3},"type":"EXPONENTIAL"}}'
    )
    rig.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, text.encode())
    _, policy = rig.broker.deliveries.policy(GROUP)
    assert [policy.delay_ms(attempt) for attempt in (1, 2, 3, 4, 5, 5000)] == [
        *(1000, 3000, 9000, 27000, 60000, 60000)
    ]


def make_topic(rig: Rig, name: str, attributes: str) -> Command:
    header = CreateTopicRequestHeader(name, "TBW102", 1, 1, 6, "SINGLE_TAG")
    request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    request.ext["attributes"] = attributes
    return rig.one(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, request.ext))


def test_the_type_of_a_topic_is_kept_and_given_back(rig: Rig) -> None:
    assert make_topic(rig, "Typed", "+message.type=FIFO").code == 0
    answer = rig.call(codes.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader("Typed"))
    value = json.loads(answer.body)
    assert value["attributes"] == {"message.type": "FIFO"}
    assert (value["topicName"], value["readQueueNums"], value["perm"]) == ("Typed", 1, 6)
    assert make_topic(rig, "Typed", "").code == 0
    assert rig.topics.table["Typed"].attributes == {"message.type": "FIFO"}
    assert make_topic(rig, "Typed", "-message.type").code == 0
    assert rig.topics.table["Typed"].attributes is None
    again = Rig(disk=rig.disk.copy())
    assert again.topics.table["Typed"].attributes is None


@pytest.mark.parametrize("text", ["message.type=FIFO", "+message.type=ODD", "+", "*a=b", "+a"])
def test_a_text_that_is_no_attribute_is_refused(rig: Rig, text: str) -> None:
    assert make_topic(rig, "Typed", text).code == ResponseCode.SYSTEM_ERROR


PLAIN, KEYED = "UNIQ_KEY\x01AC\x02", "UNIQ_KEY\x01AC\x02__SHARDINGKEY\x01k\x02"
DELAYED, HALF = "UNIQ_KEY\x01AC\x02DELAY\x011\x02", "UNIQ_KEY\x01AC\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("NORMAL", [True, False, False, False]),
        ("FIFO", [False, True, False, False]),
        ("DELAY", [False, False, True, False]),
        ("TRANSACTION", [False, False, False, True]),
        ("MIXED", [True, True, True, True]),
    ],
)
def test_a_topic_takes_messages_of_its_type_only(rig: Rig, kind: str, accepted: list[bool]) -> None:
    make_topic(rig, "Typed", f"+message.type={kind}")
    rig.broker.group_commit.commit_pending()
    found = []
    for text in (PLAIN, KEYED, DELAYED, HALF):
        for _ in range(3):  # the third would be a run of the compiled engine
            answer = rig.one(send("Typed", b"x", properties=text))
        found.append(answer.code == 0)
    assert found == accepted
    assert (rig.one(batch("Typed")).code == 0) is accepted[0]


def test_dead_letters_after_the_last_attempt(rig: Rig) -> None:
    rig.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=1))
    consumer = JavaConsumer(rig)
    for _ in range(2):
        consumer.pop(invisible_time=1_000)
        step(rig, 1)
    assert consumer.pop() == {}
    assert len(rig.bodies(dlq_topic(GROUP))) == 6


def test_a_reset_by_time_holds_for_a_group_with_members(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    for handle in consumer.pop().values():
        consumer.ack(handle)
    assert consumer.pop() == {}
    header = ResetOffsetRequestHeader(TOPIC, GROUP, 0, True)
    assert rig.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code == 0
    assert len(consumer.pop()) == 6


def test_one_way_commits_of_other_members_change_nothing(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    for handle in consumer.pop().values():
        consumer.ack(handle)
    header = UpdateConsumerOffsetRequestHeader(GROUP, TOPIC, 0, 1)
    rig.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True))
    assert rig.offsets.of(GROUP, TOPIC) == {0: 3, 1: 3}


def test_the_figures_of_a_group(rig: Rig) -> None:
    consumer = JavaConsumer(rig)
    found = consumer.pop(max_msg_nums=3)
    consumer.change(next(iter(found.values())), 0)
    step(rig, 4)
    info = Command.request(codes.POLLING_INFO, PollingInfoRequestHeader(GROUP, "", -1))
    answer = rig.one(info)
    assert (answer.ext[TAKEN], answer.ext[WAITING], answer.ext[OLDEST_MS]) == ("2", "1", "4000")
    metrics = {one.name: one.rows for one in run_to_end(metrics_of(rig.broker))}
    key = GROUP, TOPIC
    assert metrics["taken_messages"] == [(key, 2.0)]
    assert metrics["retry_waiting_messages"] == [(key, 1.0)]
    assert metrics["oldest_taken_seconds"] == [(key, 4.0)]
